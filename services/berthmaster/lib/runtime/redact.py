"""Removes secrets from text before it is shown or stored, as the last line of defence.

Secrets should never reach a log line or a dead letter. A secret may still get there, in an
exception's text or as a seed in place of a file name, and must not be stored readably. All patterns
of secrets are in this module.
"""

import base64
import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "<hidden>"

# Secrets in any context, by their common name.
_KINDS: Final = {
    # The end may be missing, and line ends may be escaped. A quote is never part of a key. In a URL
    # a blank is %20 or +.
    "a private key": (
        r"-----BEGIN(?:[A-Z0-9 +_]|%20){0,40}PRIVATE(?: |%20|[+_])KEY(?:(?: |%20|[+_])BLOCK)?-----"
        r"(?:\\+[nr]|[\w\s+/=,:.-])*"
    ),
    "a private key of PuTTY": r"\bPrivate-Lines:(?:\\+[nr]|[\s\w+/=])*",
    # S, the kind of key, 56 characters of base32.
    "an nkey seed": r"\bS[ACNOUX][A-Z2-7]{56}\b",
    "a JSON Web Token": r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "an access token": (
        r"(?<![\w-])(?:(?:gh[pousr]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-|hf_|sk-"
        r"|[sr]k_(?:live|test)_|xox[abeprs]-|xapp-|npm_|pypi-|dckr_pat_|glsa_|nvapi-|ya29\."
        r"|hv[sbr]\.|AIza|SG\.|AGE-SECRET-KEY-)[\w.-]{20,}|dapi[0-9a-f]{32})"
        r"|hooks\.slack\.com/services/[\w/]{20,}|/api/webhooks/\d+/[\w-]{20,}"
    ),
}
_KNOWN: Final = re.compile("|".join(f"({pattern})" for pattern in _KINDS.values()))
# Each secret contains a hint, and other text hardly ever does. Testing them first takes a fifth of
# the time.
_HINTS: Final = (
    *("PRIVATE", "Private-Lines", "eyJ", "AKIA", "ASIA", "SA", "SC", "SN", "SO", "SU", "SX"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "sk-", "k_live_"),
    *("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "glagent-", "glsa_"),
    *("k_test_", "xox", "xapp-", "npm_", "pypi-", "dckr_pat_", "nvapi-", "ya29.", "hvs.", "hvb."),
    *("hvr.", "AIza", "SG.", "AGE-", "dapi", "hooks.slack", "/api/webhooks/"),
)
_RUN: Final = re.compile(r"[A-Za-z0-9_.+/-]{20}")  # all others contain a run
# HTTP headers. A reference to a value, such as $TOKEN, is no secret.
_BEARER: Final = re.compile(
    r"(?i)(\bbearer(?:\s|%20|\+)++|\bauthorization[\"'\\]*\s*+[:=][\"'\\\s]*+(?:(?:basic|token|digest"
    r"|apikey|negotiate|aws4-hmac-sha256)\s++)?)(?!bearer\b)[\w.~+/=-]{8,}"
)
# A user with a password in a URL, or a token as the user of an http URL. A reference to a password,
# such as $(DB_PASS), is no secret.
_LOGIN: Final = re.compile(
    r"://[^\s/@:\"'<>]{0,256}(?::|%3[Aa])(?!\$\(\w+\)@|\$\{?\w+\}?@|<hidden>@|\*+@|@)[^\s/@\"'<>]{1,256}@"
    r"|(?i:https?)://(?=[^\s/@]{0,256}\d)(?=[^\s/@]{0,256}[A-Za-z])[\w.~%+-]{16,256}@"
    r"|(?<![^\s\"'=])[\w.-]{1,64}:(?!\$)[^\s@:\"']{1,256}@(?:tcp|unix)\("
)
# Bytes as text: base64 of both alphabets, also in lines. Groups are not possessive: Python before
# 3.11.5 then goes on behind what a failed try of the group has read (gh-106052).
_ENCODED: Final = re.compile(
    r"(?<![A-Za-z0-9_+/-])[A-Za-z0-9_+/-]{40,}+(?:=*(?:\\+[nr]|\s)*[A-Za-z0-9_+/-]{40,}+)*"
)
_GZIP: Final = zlib.MAX_WBITS | 16
_XZ_MEMORY: Final = 64 * 1024 * 1024
# First bytes of gzip, bzip2 and xz, each with a function that expands up to a length.
_COMPRESSED: Final[Mapping[bytes, Callable[[bytes, int], bytes]]] = MappingProxyType(
    {
        b"\x1f\x8b\x08": lambda raw, most: zlib.decompressobj(_GZIP).decompress(raw, most),
        b"BZh": lambda raw, most: bz2.BZ2Decompressor().decompress(raw, most),
        b"\xfd7zXZ\x00": lambda raw, most: lzma.LZMADecompressor(memlimit=_XZ_MEMORY).decompress(
            raw, most
        ),
    }
)
_EXPANSION: Final = 10  # maximum expansion to search, as a multiple of the compressed length
_MAX_EXPANDED: Final = 65_536  # bytes, maximum for one text
_LINE_END: Final = re.compile(r"\\+[nr]|[=\s]")
_ENCODINGS: Final = 3  # levels of nested base64 to search
# The beginning of a private key in DER: a sequence that begins with a version.
_DER_KEY: Final = re.compile(
    rb"\x30(?:[\x20-\x7f]|\x81.|\x82..)\x02\x01[\x00\x01\x03](?:\x30|\x04|\x02)", re.DOTALL
)
# Only the part between :// and @ in a URL. The host stays, since operators look for the host.
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s\"',]+@")
# A name of a secret with its value: a field in JSON, also of JSON within text, or name=value.
_NAMED: Final = re.compile(
    r"(?i)((?:token|secret|pass(?:word|wd|phrase|code)?|pwd|api[_-]?key|account[_-]?key|signature)"
    r"(?:(\\*\")\s*:\s*\\*\"|=))(?(2)[^\"\\]+|[^\s\"'&,;\\]+)"
)
_SECRET_KEYS: Final = frozenset(
    {
        *("seed", "password", "passwd", "pass", "pwd", "passphrase", "token", "secret"),
        *("credentials", "nkey", "authorization", "cookie"),
    }
)


def redact(text: str) -> str:
    """Return the text without keys, seeds and tokens, and without user names and passwords in
    URLs.
    """
    if _ENCODED.search(text):
        text = _ENCODED.sub(_hide_encoded, text)
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
    """Redact bytes of any kind, then cut them. A secret that is cut first is not recognised."""
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")[
        :limit_bytes
    ]


def excerpt(text: str, limit: int) -> str:
    """Return the text redacted, then cut, with the number of missing characters."""
    text = redact(text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def secret_in(text: str) -> str:
    """Return the kind of the first recognised secret, "" if none."""
    if not may_hold_secret(text):
        return ""
    # Try again without percent escapes: a URL may be a parameter of another one.
    return _kind_in(text) or ("%" in text and _kind_in(unquote(text))) or ""


def _kind_in(text: str) -> str:
    found = _KNOWN.search(text)
    if found and found.lastindex:
        return list(_KINDS)[found.lastindex - 1]
    if _BEARER.search(text):
        return "a token of a header"
    if "@" in text and _LOGIN.search(text):
        return "a password in a URL"
    if any(_encoded_key(run.group()) for run in _ENCODED.finditer(text)):
        return "a secret in base64"
    return ""


def may_hold_secret(text: str) -> bool:
    """Return whether ``secret_in`` must search: False for almost all text, in a tenth of the
    time.
    """
    for hint in ("@", "%40", "PRIVATE", "Private-Lines", "hooks.slack"):
        if hint in text:
            return True
    lower = text.lower()
    return "bearer" in lower or "authorization" in lower or _RUN.search(text) is not None


def _hide_encoded(run: re.Match[str]) -> str:
    return HIDDEN if _encoded_key(run.group()) else run.group()


def _encoded_key(run: str, left: int = _ENCODINGS) -> bool:
    """Return whether base64 or hex decodes to a key or token. The exact start is unknown: the
    preceding text may use the same alphabet, as in /path/LS0t…
    """
    text = _LINE_END.sub("", run).replace("-", "+").replace("_", "/")
    decoded = [_base64(text[at:]) for at in range(4)]
    if re.fullmatch(r"[0-9a-fA-F]+", text):
        decoded.append(bytes.fromhex(text[: len(text) // 2 * 2]))
    decoded += [_expanded(raw, magic) for raw in decoded for magic in _COMPRESSED if magic in raw]
    if any(b"PRIVATE KEY" in raw for raw in decoded) or _DER_KEY.match(decoded[0]):
        return True
    if any(raw.isascii() and _KNOWN.search(raw.decode()) for raw in decoded):
        return True
    inner = (raw.decode() for raw in decoded if left > 1 and raw.isascii())
    return any(
        _encoded_key(found.group(), left - 1) for each in inner for found in _ENCODED.finditer(each)
    )


def _expanded(raw: bytes, magic: bytes) -> bytes:
    """Return the beginning of the compressed text in ``raw``; b"" if damaged."""
    compressed = raw[raw.index(magic) :]
    most = min(_EXPANSION * len(compressed), _MAX_EXPANDED)
    try:
        text = _COMPRESSED[magic](compressed, most)
    except (zlib.error, lzma.LZMAError, OSError, EOFError):
        return b""
    return text.decode("ascii", "replace").encode("ascii", "replace")


def _base64(text: str) -> bytes:
    return base64.b64decode(text[: len(text) // 4 * 4]) if len(text) >= 4 else b""


def names_secret(key: str) -> bool:
    """Return whether a field of this name holds a secret. `nats_creds_file` only names a file."""
    return key.lower().rpartition("_")[2] in _SECRET_KEYS
