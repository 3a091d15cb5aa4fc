"""The POST of a webhook: headers, signature, and the answers after which to retry.

The receiver computes the HMAC of the body with the shared key. An equal HMAC proves the sender and
an unchanged body.
"""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SIGNATURE: Final = "Berth-Signature"  # sha256=HEX of the HMAC of the body
RETRIED: Final = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a retry may help
MAX_KEY_BYTES: Final = 4096


class KeyWrong(Exception):
    """The key is missing or invalid. The text gives the reason and contains nothing of the key."""


def headers_of(body: bytes, key: bytes) -> Mapping[str, str]:
    """Return the headers of a request with this body, unsigned without a key."""
    headers = {"Content-Type": "application/json", "User-Agent": "berth"}
    if key:
        headers[SIGNATURE] = f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"
    return headers


def read_key(path: Path) -> bytes:
    """Return the key in a file, without the line end that editors append. Raises KeyWrong."""
    try:
        with path.open("rb") as file:
            key = file.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise KeyWrong(f"cannot read {path}: {error.strerror}") from error
    if not key or len(key) > MAX_KEY_BYTES:
        right = f"1 to {MAX_KEY_BYTES} bytes, the key that notices are signed with"
        raise KeyWrong(f"{path} has {len(key)} bytes; right is {right}")
    return key
