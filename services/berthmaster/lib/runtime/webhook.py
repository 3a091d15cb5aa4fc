"""What a POST to a webhook is like: its headers, its signature, which answers mean "later".

Whoever receives it works out the HMAC of the body with the key that both have, and so knows who
sent it and that nobody changed it.
"""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SIGNATURE: Final = "Berth-Signature"  # sha256=HEX of the HMAC of the body
RETRIED: Final = (408, 425, 429, 500, 502, 503, 504)  # answers after which another try may help
MAX_KEY_BYTES: Final = 4096


class KeyWrong(Exception):
    """There is no such key; the text says why, and holds nothing of it."""


def headers_of(body: bytes, key: bytes) -> Mapping[str, str]:
    """Of a request with this body; without a key it is not signed."""
    headers = {"Content-Type": "application/json", "User-Agent": "berth"}
    if key:
        headers[SIGNATURE] = f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"
    return headers


def read_key(path: Path) -> bytes:
    """The key of a file, without the line end that editors put there. Raises KeyWrong."""
    try:
        with path.open("rb") as file:
            key = file.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise KeyWrong(f"cannot read {path}: {error.strerror}") from error
    if not key or len(key) > MAX_KEY_BYTES:
        right = f"1 to {MAX_KEY_BYTES} bytes, the key that notices are signed with"
        raise KeyWrong(f"{path} has {len(key)} bytes; right is {right}")
    return key
