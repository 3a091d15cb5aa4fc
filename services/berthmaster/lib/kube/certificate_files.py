"""Certificates and keys as files for OpenSSL and kubernetes_asyncio, never written to a disk.

kubernetes_asyncio only accepts file names. The library would write embedded certificates of a
kubeconfig to temporary files that stay until the process ends, and keep a second copy in a global.
OpenSSL would ask at the terminal for the password of an encrypted key, and wait.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_memory(content: bytes) -> Iterator[str]:
    """Yield the name of a file with this content, valid within the block."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("certificates"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(mode="wb") as named:  # only for this user
            named.write(content)
            named.flush()
            yield named.name


def check_authority(pem: bytes) -> None:
    """Raise ValueError unless the text holds certificates in PEM form."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ValueError("no certificates in PEM form") from None
    if not context.cert_store_stats()["x509"]:
        raise ValueError("no certificates in PEM form")


def check_pair(certificate: bytes, key: bytes) -> None:
    """Raise ValueError when certificate and key do not match, or the key is encrypted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        with in_memory(certificate + b"\n" + key) as name:
            context.load_cert_chain(name, password=_no_password)
    except (ssl.SSLError, ValueError, OSError):
        raise ValueError("certificate and key are no pair in PEM form without password") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")
