"""What is secret of tenants' webhooks, so that the bus holds nothing of it.

All follows from one key, which operators give to the service in a file: the key that notices to a
webhook are signed with, and the one that its URL is sealed with, since a URL may hold a secret of
whoever listens there. Whoever reads the settings of the bus can neither sign nor send.
"""

import base64
import hashlib
import hmac
from typing import Final

from nacl.exceptions import CryptoError
from nacl.secret import Aead

_SEALS: Final = b"berth webhook url"
_SIGNS: Final = b"berth webhook key"
SALT_BYTES: Final = 16


class CannotOpen(Exception):
    """It was sealed with another key, or for another webhook."""


def signing_key(key: bytes, tenant: str, name: str, salt: str) -> bytes:
    """What notices to this webhook are signed with, as text: its tenant keeps it as such."""
    return base64.urlsafe_b64encode(_derived(key, _SIGNS, tenant, name, salt)).rstrip(b"=")


def seal(key: bytes, tenant: str, name: str, url: str) -> str:
    """The URL, for whoever has the key."""
    sealed: bytes = _box(key).encrypt(url.encode(), _whose(tenant, name))
    return base64.b64encode(sealed).decode()


def open_url(key: bytes, tenant: str, name: str, sealed: str) -> str:
    """What was sealed. Raises CannotOpen."""
    try:
        plain: bytes = _box(key).decrypt(base64.b64decode(sealed), _whose(tenant, name))
        return plain.decode()
    except (CryptoError, ValueError) as error:
        raise CannotOpen from error


def _box(key: bytes) -> Aead:
    return Aead(_derived(key, _SEALS))


def _whose(tenant: str, name: str) -> bytes:
    return f"{tenant}\0{name}".encode()


def _derived(key: bytes, *parts: bytes | str) -> bytes:
    named = (part if isinstance(part, bytes) else part.encode() for part in parts)
    return hmac.new(key, b"\0".join(named), hashlib.sha256).digest()
