"""Reasons why there is no connection to NATS, each reported once.

The client tries for ever, up to ten times a second. Retries cure neither a refused user nor a
refused certificate, so both end a first connect at once. Example: a server with an expired
certificate gives "its certificate is refused, as it has expired: …".
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from berthmaster.lib.nats.connect_options import ConnectionSettings, read_creds
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.jwts import decoded
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.redact import redact

# The most frequent errors of X.509 verification, by OpenSSL's number.
_X509_ERRORS: Final = {
    9: "it is not valid yet: one of the two clocks is wrong",
    10: "it has expired: a hub of ours renews its own when it starts",
    18: "it is self-signed",
    19: "its authority is not the one that is trusted here",
    20: "its authority is not the one that is trusted here",
    62: "it is not for this host name",
    64: "it is not for this address",
}


class ConnectFaults:
    """The faults of one connection. ``reason``: why the connection is down; "" = unknown."""

    def __init__(self, settings: ConnectionSettings, log: LogLike) -> None:
        self.url = redact(settings.nats_url)  # for logs: the setting may hold a password
        self.reason = ""
        self.refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ca_file = settings.nats_ca_file
        self._creds_file = settings.nats_creds_file
        self._log = log
        self._logged_event = ""

    def on_refused_user(self, text: str) -> None:
        """Record that the server refuses the user."""
        if why := credentials_fault(self._creds_file, time.time()):
            text = f"{text}; {why}"
        self._refuse(f"refuses this user: {text}")
        self._report(self._log.error, "NATS refuses this user", text)

    def on_error(self, error: Exception, text: str) -> None:
        """Record that a connection attempt failed with this error and text."""
        if why := certificate_fault(error, self._ca_file):
            self._refuse(why)
            self._report(self._log.error, "NATS is not trusted", why)
        else:
            self._report(self._log.warning, "waiting for NATS", text)

    def clear(self) -> None:
        """Forget the faults, since the connection is up."""
        self.reason = self._logged_event = ""

    def _refuse(self, why: str) -> None:
        if not self.refusal.done():  # only the first refusal ends the first connect
            self.refusal.set_result(why)

    def _report(self, log: Callable[..., None], event: str, why: str) -> None:
        self.reason = why
        if event != self._logged_event:
            self._logged_event = event
            log(event, url=self.url, why=why)


def credentials_fault(path: Path | None, now_s: float) -> str:
    """Return why a server refuses this user, judged by the credentials; "" = valid as far as known
    here.
    """
    if path is None:
        return "no credentials were given (BERTH_NATS_CREDS_FILE)"
    try:
        expires_s = decoded(read_creds(path).jwt).get("exp")
    except BusError as error:
        return str(error)
    if expires_s is None or expires_s > now_s:
        return ""
    ended = datetime.fromtimestamp(expires_s, UTC).isoformat(timespec="seconds")
    return f"the JWT in {path} ended at {ended}; a renewed file in its place is taken by itself"


def certificate_fault(error: BaseException, ca_file: Path | None) -> str:
    """Return why the server's certificate is refused; "" for any other error, which may be
    temporary.
    """
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    why = _X509_ERRORS.get(error.verify_code, error.verify_message)
    trusted = f"trusted is {ca_file}" if ca_file else "trusted are the system's authorities"
    return f"its certificate is refused, as {why} ({trusted}; see --nats-ca-file)"
