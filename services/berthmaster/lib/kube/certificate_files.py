"""Certificates and keys as what OpenSSL and kubernetes_asyncio load: files, but never on a disk.

The library takes nothing but names of files. What a kubeconfig holds itself it would write to
temporary files that stay until the process ends, and keep once more in a global; and OpenSSL would
ask for the password of a locked key at the terminal, and wait.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_memory(content: bytes) -> Iterator[str]:
    """The name of a file that holds this, within the block."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("certificates"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(mode="wb") as named:  # readable by us, gone at once
            named.write(content)
            named.flush()
            yield named.name


def check_authority(pem: bytes) -> None:
    """Raises ValueError when this is no PEM of certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ValueError("no certificates in PEM form") from None
    if not context.cert_store_stats()["x509"]:
        raise ValueError("no certificates in PEM form")


def check_pair(certificate: bytes, key: bytes) -> None:
    """Raises ValueError when certificate and key are no pair, or the key is locked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        with in_memory(certificate + b"\n" + key) as name:
            context.load_cert_chain(name, password=_no_password)
    except (ssl.SSLError, ValueError, OSError):
        raise ValueError("certificate and key are no pair in PEM form without password") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")
