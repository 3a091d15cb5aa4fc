"""TLS to an API server: whom we trust, and the certificate that we show.

Keys never touch a disk: Python loads certificates from files only, so ours have no name.
"""

import os
import ssl
import tempfile


def trusting(ca: bytes = b"", *, verify: bool = True) -> ssl.SSLContext:
    """A context that trusts the PEM certificates given, or else the system's.

    Raises ValueError when they are none.
    """
    if not ca:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise ValueError("no certificates in PEM form") from None
        if not context.cert_store_stats()["x509"]:
            raise ValueError("no certificates in PEM form")
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Show this client certificate on connections made from now on.

    Raises ValueError when certificate and key are no pair.
    """
    pair = certificate + b"\n" + key
    try:
        if hasattr(os, "memfd_create"):
            with os.fdopen(os.memfd_create("client certificate"), "wb") as file:
                file.write(pair)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)
        else:
            with tempfile.NamedTemporaryFile(mode="wb") as named:  # readable by us, gone at once
                named.write(pair)
                named.flush()
                context.load_cert_chain(named.name, password=_no_password)
    except (ssl.SSLError, ValueError, OSError):
        raise ValueError("certificate and key are no pair in PEM form without password") from None


def _no_password() -> str:
    """Else OpenSSL would ask for one at the terminal, and wait."""
    raise ValueError("the key is encrypted")
