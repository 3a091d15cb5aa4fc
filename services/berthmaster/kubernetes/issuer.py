"""New tokens of an OpenID issuer: ``auth-provider: oidc`` of a person's kubeconfig.

The two requests (where the tokens are handed out, then a new one) are kubernetes_asyncio's. Ours is
whom they are made to: the library does not check the issuer's TLS at all unless the kubeconfig
holds its authority, and then fails with a TypeError, since it hands the name of a file to aiohttp
as if it were a TLS context. It also sets no limit on time and size, uses .netrc and the proxies of
the environment, follows redirects with the refresh token, would send it to an address without TLS
if the issuer named one, and cannot speak for a client that has no secret.
"""

import asyncio
import base64
import json
import ssl
from typing import Any, Final

import aiohttp

from berthmaster.kubernetes.kubeconfig import Issuer
from berthmaster.kubernetes.library import ConfigException, OpenIDRequestor

LIMIT_S: Final = 15.0
MAX_ANSWER_BYTES: Final = 256 * 1024
_REFUSED: Final = aiohttp.ClientResponseError


class IssuerFailed(Exception):
    """No token, with the reason; no part of what was sent or answered."""


class Requestor(OpenIDRequestor):
    def __init__(self, issuer: Issuer, tls: ssl.SSLContext, limit_s: float = LIMIT_S) -> None:
        super().__init__(issuer.client_id, issuer.client_secret, issuer.idp_issuer_url)
        self._tls = tls
        self._limit_s = limit_s

    async def fresh(self, refresh_token: str) -> tuple[str, str]:
        """(id token, the refresh token from now on). Raises IssuerFailed."""
        try:
            async with asyncio.timeout(self._limit_s):
                answer = await self.refresh_token(refresh_token)
        except TimeoutError:
            raise IssuerFailed(f"no answer within {self._limit_s:g} s") from None
        except ConfigException as error:
            cause = error.__cause__
            answered = f": status {cause.status}" if isinstance(cause, _REFUSED) else ""
            raise IssuerFailed(f"{str(error).removeprefix('oidc: ')}{answered}") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise IssuerFailed(f"not trusted: {error.certificate_error}") from None
        except aiohttp.ClientConnectorError as error:
            words = error.os_error.strerror or error.os_error
            raise IssuerFailed(f"no connection: {words}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise IssuerFailed(type(error).__name__) from None
        token = answer.get("id_token")
        if not isinstance(token, str) or not is_jwt(token):
            raise IssuerFailed("the answer has no id_token")
        # Issuers need not hand out another one (RFC 6749, section 6); the library thinks they must.
        another = answer.get("refresh_token")
        return token, another if isinstance(another, str) and another else refresh_token

    def _client_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers=self._default_headers,
            connector=aiohttp.TCPConnector(ssl=self._tls),
            raise_for_status=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def _get(self, client: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> Any:
        return await _answer(client.get(*args, **kwargs, allow_redirects=False))

    async def _post(self, client: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> Any:
        if self._client_secret:
            pair = f"{self._client_id}:{self._client_secret}".encode()
            kwargs["headers"] = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        else:  # a public client says its name in the form (section 3.2.1)
            kwargs["data"] = {**kwargs["data"], "client_id": self._client_id}
        return await _answer(client.post(*args, **kwargs, allow_redirects=False))

    async def _get_well_known(self, client: aiohttp.ClientSession) -> Any:
        found = await super()._get_well_known(client)
        endpoint = found.get("token_endpoint")
        if not isinstance(endpoint, str) or not endpoint.startswith("https://"):
            raise IssuerFailed("its token_endpoint is no https address")
        return found


def expires_at_s(token: str) -> float:
    """When this JWT ends, in seconds since 1970; 0 = it does not say.

    The library takes the payload for plain base64, and therefore fails at many real names.
    """
    ends = _payload(token).get("exp")
    return float(ends) if isinstance(ends, int | float) and not isinstance(ends, bool) else 0.0


def is_jwt(token: str) -> bool:
    """Whether it looks like one, and can be sent in a header."""
    try:
        _payload(token)
    except ValueError:
        return False
    return token.isascii() and token.isprintable()


def _payload(token: str) -> dict[str, Any]:
    """Raises ValueError."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("no JWT")
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        raise ValueError("no JWT") from None
    if not isinstance(found, dict):
        raise ValueError("no JWT")
    return found


async def _answer(asking: Any) -> dict[str, Any]:
    """The object that is answered. Raises IssuerFailed."""
    async with asking as response:
        if response.status != 200:  # a redirect: raise_for_status lets it pass
            raise IssuerFailed(f"answers with status {response.status}")
        body = b""
        async for part in response.content.iter_any():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise IssuerFailed(f"answers more than {MAX_ANSWER_BYTES} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise IssuerFailed("answers no JSON object")
    return found
