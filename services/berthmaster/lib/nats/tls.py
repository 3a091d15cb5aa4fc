"""TLS towards NATS: which certificates are trusted, and what is wrong with one that is not.

A refused certificate does not improve by asking again ten times a second, so it is told at once and
in words: whose, why, and which file was believed.
"""

import ssl
from pathlib import Path
from typing import Final

from berthmaster.lib.nats.errors import BusError

# What X.509 verification says most often, by OpenSSL's number.
_WORDS: Final = {
    9: "it is not valid yet: one of the two clocks is wrong",
    10: "it has expired: a hub of ours renews its own when it starts",
    18: "it is self-signed",
    19: "its authority is not the one that is trusted here",
    20: "its authority is not the one that is trusted here",
    62: "it is not for this host name",
    64: "it is not for this address",
}


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts this authority alone, or without one those of the system. Raises BusError."""
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except ssl.SSLError as error:
        raise BusError(f"{ca_file} holds no certificates in PEM form") from error
    except OSError as error:
        raise BusError(f"cannot read the certificates {ca_file}: {error.strerror}") from error


def distrust(error: BaseException, ca_file: Path | None) -> str:
    """Why the server's certificate was refused; "" for any other trouble, which may pass."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    why = _WORDS.get(error.verify_code, error.verify_message)
    believed = f"trusted is {ca_file}" if ca_file else "trusted are the system's authorities"
    return f"its certificate is refused, as {why} ({believed}; see --nats-ca-file)"
