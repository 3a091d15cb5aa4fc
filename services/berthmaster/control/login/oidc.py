"""Check ID tokens of an OpenID Connect provider against the provider's published keys.

Keys are fetched on demand, and kept for five minutes, or for an hour while the provider is
unreachable. A token with an unknown key starts another fetch, at most one in ten seconds, so that
forged key ids cannot cause endless requests. Only published keys count: keys inside a token (jwk,
jku, x5c) are ignored.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

import aiohttp
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from berthmaster.control.login.core.errors import Refused, Unavailable
from berthmaster.control.login.core.mapping import Identity, OidcIssuer, askable

FRESH_S: Final = 300.0
STALE_S: Final = 3600.0
AGAIN_S: Final = 10.0
LEEWAY_S: Final = 30  # two clocks always differ
FETCH_LIMIT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 64
LEAST_RSA_BITS: Final = 2048
KEY_TYPES: Final = {"RS256": ("RSA", None), "ES256": ("EC", "P-256")}
REQUIRED: Final = ("iss", "sub", "aud", "exp", "iat")

Key = dict[str, Any]
T = TypeVar("T")


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _KeySet(msgspec.Struct):
    keys: list[Key]


def issuer_of(token: str) -> str:
    """Return the issuer in a token, unchecked. Raises Refused."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Refused("it is no JSON Web Token") from None
    issuer = claims.get("iss")
    if not isinstance(issuer, str):
        raise Refused("it does not say who made it (iss)")
    return issuer


class Provider:
    """One provider, with its fetched keys."""

    def __init__(
        self, issuer: OidcIssuer, session: aiohttp.ClientSession, now: Callable[[], float]
    ) -> None:
        """``now`` returns seconds of any monotonic clock."""
        self._issuer = issuer
        self._session = session
        self._now = now
        self._tls = ssl.create_default_context(cafile=issuer.ca_file or None)
        self._keys: list[Key] = []
        self._fetched_s = float("-inf")
        self._tried_s = float("-inf")
        self._trouble = ""
        self._fetching = asyncio.Lock()

    async def identity(self, token: str) -> Identity:
        """Return the identity of a token. Raises Refused, Unavailable."""
        algorithm, key_id = self._read_header(token)
        key = await self._key(algorithm, key_id)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._issuer.audience,
                issuer=self._issuer.issuer,
                leeway=LEEWAY_S,
                options={"require": list(REQUIRED)},
            )
        except jwt.PyJWTError as error:
            raise Refused(_words(error)) from None
        except (ValueError, TypeError, RecursionError):
            raise Refused("it cannot be read") from None
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject:
            raise Refused("it does not say whose it is (sub)")
        return Identity(subject, claims)

    def _read_header(self, token: str) -> tuple[str, str | None]:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Refused("it is no JSON Web Token") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._issuer.algorithms:
            right = ", ".join(self._issuer.algorithms)
            raise Refused(f"its signature is of another kind than {right}")
        return str(algorithm), key_id if isinstance(key_id, str) else None

    async def _key(self, algorithm: str, key_id: str | None) -> jwt.PyJWK:
        await self._fetch(FRESH_S)
        if not (found := _usable(self._keys, algorithm, key_id)):
            await self._fetch(AGAIN_S)
            found = _usable(self._keys, algorithm, key_id)
        if len(found) != 1:
            raise Refused("its provider has no such key" if key_id else "it names no key")
        return found[0]

    async def _fetch(self, older_than_s: float) -> None:
        """Fetch the keys if older than ``older_than_s``. Raises Unavailable without usable keys."""
        async with self._fetching:  # waiting calls find the keys of the first one
            now_s = self._now()
            due = now_s - self._fetched_s > older_than_s
            if due and now_s - self._tried_s > AGAIN_S:
                self._tried_s = now_s
                try:
                    self._keys = await self._fetched()
                    self._fetched_s = self._now()
                except Unavailable as error:
                    self._trouble = str(error)
            if self._now() - self._fetched_s > STALE_S:
                raise Unavailable(f"{self._issuer.name}: {self._trouble}")

    async def _fetched(self) -> list[Key]:
        url = self._issuer.jwks_url
        if not url:
            place = f"{self._issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
            found = await self._get(place, _Discovery)
            if found.issuer != self._issuer.issuer:
                raise Unavailable("its discovery document is of another issuer")
            url = found.jwks_uri
            if not askable(url):
                raise Unavailable("its discovery document names keys that are not behind https")
        published = await self._get(url, _KeySet)
        return published.keys[:MAX_KEYS]

    async def _get(self, url: str, kind: type[T]) -> T:
        try:
            async with (
                asyncio.timeout(FETCH_LIMIT_S),
                self._session.get(url, ssl=self._tls, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise Unavailable(f"it answers {response.status}")
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise Unavailable("its answer is too large")
                return msgspec.json.decode(body, type=kind)
        except TimeoutError:
            raise Unavailable(f"no answer within {FETCH_LIMIT_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"it cannot be reached ({type(error).__name__})") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Unavailable("its answer is not what it should be") from None


def _usable(keys: list[Key], algorithm: str, key_id: str | None) -> list[jwt.PyJWK]:
    """Return the keys that may have made the signature. A token without a key id fits a single
    key.
    """
    found = []
    for key in keys:
        kind = (key.get("kty"), key.get("crv"))
        if kind != KEY_TYPES[algorithm] or key.get("alg", algorithm) != algorithm:
            continue
        if key.get("use", "sig") != "sig" or (key_id is not None and key.get("kid") != key_id):
            continue
        try:
            made = jwt.PyJWK(key, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        if isinstance(made.key, RSAPublicKey) and made.key.key_size < LEAST_RSA_BITS:
            continue
        found.append(made)
    return found


def _words(error: jwt.PyJWTError) -> str:
    """Return the fault, without a value of the token."""
    if isinstance(error, jwt.ExpiredSignatureError):
        return "it has expired"
    if isinstance(error, jwt.ImmatureSignatureError):
        return "it is not valid yet"
    if isinstance(error, jwt.InvalidAudienceError):
        return "it was made for another audience"
    if isinstance(error, jwt.InvalidIssuerError):
        return "it is of another issuer"
    if isinstance(error, jwt.InvalidSignatureError):
        return "its signature is wrong"
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"it lacks one of {', '.join(REQUIRED)}"
    return "it cannot be read"
