"""Takes secrets out of text that is about to be shown, as the last line of defence.

Secrets should never get as far as a log line. When one does, by way of an exception's text or a
person who gave a seed where its file was asked for, it must not be kept for everyone to read.
"""

import re

HIDDEN = "<hidden>"

# An nkey seed: S, the kind of key, 56 characters of base32.
_SEED = re.compile(r"\bS[ACNOUX][A-Z2-7]{56}\b")
# Only what stands between :// and @ in a URL; the host stays, as it is what people look for.
_USERINFO = re.compile(r"(?<=://)[^/@\s\"',]+@")
_SECRET_KEYS = frozenset({"seed", "password", "passwd", "token", "secret", "credentials", "nkey"})


def redact(text: str) -> str:
    """The text without nkey seeds and without user names and passwords in URLs."""
    return _SEED.sub(HIDDEN, _USERINFO.sub(f"{HIDDEN}@", text))


def names_secret(key: str) -> bool:
    """Whether a field of this name holds a secret itself; `nats_seed_file` only says where."""
    return key.lower().rpartition("_")[2] in _SECRET_KEYS
