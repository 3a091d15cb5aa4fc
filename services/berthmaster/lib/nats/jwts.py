"""Seeds, signed JWTs, and credentials files with both. Pure: the caller passes times and
randomness.

An error never contains a seed.
"""

import base64
import hashlib
import json
import re
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import nkeys

_PREFIXES: Final = MappingProxyType(
    {
        "operator": nkeys.PREFIX_BYTE_OPERATOR,
        "account": nkeys.PREFIX_BYTE_ACCOUNT,
        "user": nkeys.PREFIX_BYTE_USER,
    }
)
_CREDS: Final = re.compile(
    r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+"
    r".*-----BEGIN USER NKEY SEED-----\s+(S\S+)\s+-+END USER NKEY SEED-+",
    re.DOTALL,
)

Kind = Literal["operator", "account", "user"]
Body = dict[str, Any]


class ClaimsError(ValueError):
    """The text is no JWT, no seed or no credentials file. The message contains nothing of the
    text.
    """


class Creds(NamedTuple):
    jwt: str
    seed: str


def new_seed(kind: Kind, raw: bytes) -> str:
    """Return the seed made of 32 random bytes."""
    seed: bytes = nkeys.encode_seed(raw, _PREFIXES[kind])
    return seed.decode()


def public_key(seed: str) -> str:
    """Return the public key of a seed. Raises ClaimsError."""
    pair = _pair(seed)
    key: bytes = pair.public_key
    pair.wipe()
    return key.decode()


def answered(seed: str, nonce: str) -> bytes:
    """Return the signature of a server's nonce. Raises ClaimsError."""
    pair = _pair(seed)
    signature: bytes = base64.b64encode(pair.sign(nonce.encode()))
    pair.wipe()
    return signature


def _pair(seed: str) -> Any:
    try:
        pair = nkeys.from_seed(seed.encode())
        _ = pair.public_key
    except Exception:  # noqa: BLE001 # the library raises its own, binascii's and others
        raise ClaimsError("no nkey seed (those begin with S)") from None
    return pair


# ---- JWTs


def signed(body: Body, seed: str, *, now_s: float, ends_s: float | None = None) -> str:
    """Return the signed JWT of a body. Raises ClaimsError."""
    claims = body | {"iss": public_key(seed), "iat": int(now_s)}
    if ends_s is not None:
        claims["exp"] = int(ends_s)
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_base64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_base64(_json(claims))}"
    pair = _pair(seed)
    signature: bytes = pair.sign(text.encode())
    pair.wipe()
    return f"{text}.{_base64(signature)}"


def says(jwt: str, body: Body) -> bool:
    """Return whether the JWT contains the body, for any time of signature."""
    try:
        claims = decoded(jwt)
    except ClaimsError:
        return False
    return {name: claims.get(name) for name in body} == body


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decoded(jwt: str) -> Body:
    """Return the claims of a JWT without checking the signature. Raises ClaimsError."""
    try:
        _, body, _ = jwt.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except ValueError:
        raise ClaimsError("no JWT") from None
    if not isinstance(claims, dict) or not isinstance(claims.get("nats"), dict):
        raise ClaimsError("no JWT of NATS")
    return claims


def creds_text(creds: Creds) -> str:
    """Return the content of a credentials file, in the format of every NATS client."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{creds.jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{creds.seed}\n------END USER NKEY SEED------\n"
    )


def parse_creds(text: str) -> Creds:
    """Return JWT and seed of a credentials file's content. Raises ClaimsError."""
    found = _CREDS.search(text)
    if found is None:
        raise ClaimsError(
            "no credentials: right are a user's JWT and its nkey seed, each between lines that "
            "begin with -----BEGIN"
        )
    creds = Creds(found[1], found[2])
    if decoded(creds.jwt).get("sub") != public_key(creds.seed):
        raise ClaimsError("the seed is not that of the JWT")
    return creds
