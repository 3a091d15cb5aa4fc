"""Options of a connection to NATS, from a service's settings and credentials.

The limits suit a service that must never hang. The client leaves a silent server, retries an absent
one for ever, and meanwhile buffers a bounded number of bytes.
"""

import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from berthmaster.lib.nats import nats_py
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.jwts import ClaimsError, Creds, answered, decoded, parse_creds
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.runtime.redact import redact

CONNECT_TIMEOUT_S: Final = 2
RECONNECT_WAIT_S: Final = 0.1
# The client leaves a hanging server after three pings, well before the event log's time limit. So a
# write is settled through another server.
PING_INTERVAL_S: Final = 2
PING_AMONG_SEVERAL_S: Final = 0.5  # with another server to go to
PENDING_BYTES: Final = 8 * 1024 * 1024  # buffered bytes while the server is away
FLUSH_TIMEOUT_S: Final = 2


class ConnectionSettings(Protocol):
    """Settings of a connection, a subset of runtime's CommonSettings."""

    @property
    def nats_url(self) -> str: ...  # one URL, or several separated by commas
    @property
    def nats_creds_file(self) -> Path | None: ...  # None = no user
    @property
    def inbox_prefix(self) -> str: ...
    @property
    def nats_ca_file(self) -> Path | None: ...  # None = the system's authorities, for tls://
    @property
    def nats_plaintext(self) -> bool: ...  # whether a server on another machine may lack TLS


def exposed(url: str) -> bool:
    """Return whether others can read the traffic: the server is remote and the connection lacks
    TLS.
    """
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    host = parts.hostname or ""
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return parts.scheme not in ("tls", "wss") and not is_local


def connect_options(settings: ConnectionSettings, name: str) -> dict[str, Any]:
    """Return the options of the library's ``connect``, without callbacks. Raises BusError."""
    servers = [url.strip() for url in settings.nats_url.split(",") if url.strip()]
    for url in servers:
        if not settings.nats_plaintext and exposed(url):
            raise BusError(
                f"{redact(url)} is on another machine, and without TLS: right is tls://HOST:PORT "
                "(or wss), or BERTH_NATS_PLAINTEXT=true where nobody can listen in between"
            )
    options: dict[str, Any] = {
        "servers": servers,
        "name": name,
        "inbox_prefix": settings.inbox_prefix or f"_INBOX.{name}",
        "allow_reconnect": True,
        "max_reconnect_attempts": -1,
        # the library documents whole seconds; fractions work
        "reconnect_time_wait": RECONNECT_WAIT_S,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "ping_interval": PING_AMONG_SEVERAL_S if len(servers) > 1 else PING_INTERVAL_S,
        "max_outstanding_pings": 2,
        "pending_size": PENDING_BYTES,
        "flush_timeout": FLUSH_TIMEOUT_S,
        "skip_subject_validation": True,  # subjects.py builds valid ones
    }
    if "ws://" in settings.nats_url or "wss://" in settings.nats_url:
        nats_py.allow_websockets()
    if settings.nats_creds_file:
        options |= _signing(settings.nats_creds_file)
    if settings.nats_ca_file or "tls://" in settings.nats_url:
        options["tls"] = client_context(settings.nats_ca_file)
    return options


def _signing(path: Path) -> dict[str, Any]:
    """Return callbacks that read the file at each connection attempt, and so use a renewed file.

    Raises BusError for an invalid file. A file that becomes invalid later fails the next attempt.
    """
    read_creds(path)

    def now() -> Creds:
        try:
            return read_creds(path)
        except BusError as error:
            raise nats_errors.Error(str(error)) from error

    return {
        "user_jwt_cb": lambda: bytearray(now().jwt.encode()),
        "signature_cb": lambda nonce: answered(now().seed, nonce),
    }


def read_creds(path: Path) -> Creds:
    """Read a user's JWT and seed. Raises BusError."""
    try:
        return parse_creds(path.read_text())
    except ClaimsError as error:
        raise BusError(f"{path} holds {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BusError(f"cannot read the credentials {path}: {why}") from error


def user_of(path: Path | None) -> str:
    """Return the name of the user in a credentials file; "" without a file. Raises BusError."""
    return str(decoded(read_creds(path).jwt).get("name", "")) if path is not None else ""


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that trusts an authority; None = the system's authorities. Raises
    BusError.
    """
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except ssl.SSLError as error:
        raise BusError(f"{ca_file} holds no certificates in PEM form") from error
    except OSError as error:
        raise BusError(f"cannot read the certificates {ca_file}: {error.strerror}") from error
