"""Takes secrets out of text that is about to be shown or kept, as the last line of defence.

Secrets should never get as far as a log line or a dead letter. When one does, by way of an
exception's text or a person who gave a seed where its file was asked for, it must not be kept for
everyone to read. What a secret looks like is said here and nowhere else.
"""

import re
from typing import Final

HIDDEN: Final = "<hidden>"

# What is a secret wherever it stands, by the name that people know it by.
_KINDS: Final = {
    # Its end may be missing, its line ends may be escaped; a quote is never a part of it.
    "a private key": r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:\\+[nr]|[\w\s+/=,:.-])*",
    # S, the kind of key, 56 characters of base32.
    "an nkey seed": r"\bS[ACNOUX][A-Z2-7]{56}\b",
    "a JSON Web Token": r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "an access token": r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-)[\w-]{20,}",
}
_KNOWN: Final = re.compile("|".join(f"({pattern})" for pattern in _KINDS.values()))
# One of these is in each of them, and hardly ever elsewhere: looking for them first takes a
# fifth of the time.
_HINTS: Final = (
    *("PRIVATE KEY", "eyJ", "AKIA", "ASIA", "SA", "SC", "SN", "SO", "SU", "SX"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "sk-", "xox"),
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}")
# Only what stands between :// and @ in a URL; the host stays, as it is what people look for.
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s\"',]+@")
# A name that says so, with its value: a field in JSON, be it text within JSON, or name=value.
_NAMED: Final = re.compile(
    r"(?i)((?:token|secret|pass(?:word|wd|phrase)|api[_-]?key)"
    r"(?:(\\*\")\s*:\s*\\*\"|=))(?(2)[^\"\\]+|[^\s\"'&,;\\]+)"
)
_SECRET_KEYS: Final = frozenset(
    {"seed", "password", "passwd", "token", "secret", "credentials", "nkey"}
)


def redact(text: str) -> str:
    """The text without keys, seeds and tokens, and without user names and passwords in URLs."""
    if _may_hold_known(text):
        text = _KNOWN.sub(HIDDEN, text)
    if "://" in text:
        text = _USERINFO.sub(f"{HIDDEN}@", text)
    return _NAMED.sub(rf"\g<1>{HIDDEN}", _BEARER.sub(rf"\g<1>{HIDDEN}", text))


def _may_hold_known(text: str) -> bool:
    for hint in _HINTS:  # noqa: SIM110 # any() takes twice as long
        if hint in text:
            return True
    return False


def redact_bytes(data: bytes, limit_bytes: int) -> bytes:
    """The same for bytes of any kind, then cut: a secret that is cut first is no longer known."""
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")[
        :limit_bytes
    ]


def excerpt(text: str, limit: int) -> str:
    """Redacted, then cut, with how much is missing."""
    text = redact(text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def secret_in(text: str) -> str:
    """What kind of secret stands in it, "" if none that is known by its looks."""
    found = _KNOWN.search(text) if _may_hold_known(text) else None
    return list(_KINDS)[found.lastindex - 1] if found and found.lastindex else ""


def names_secret(key: str) -> bool:
    """Whether a field of this name holds a secret itself; `nats_creds_file` only says where."""
    return key.lower().rpartition("_")[2] in _SECRET_KEYS
