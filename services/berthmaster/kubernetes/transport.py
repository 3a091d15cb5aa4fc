"""HTTP and TLS to one API server: bytes in, bytes out, and every failure by its right name.

Requests are bounded by a semaphore and have one time limit for everything, waiting for their turn
included; watches are few and live long. Keep-alive probes find a silent partition in half a minute,
since no answer to a watch proves nothing. No redirects, cookies, .netrc or proxies of the
environment. No time limit here spans a ``yield``: it would cancel what its task does later.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple, Protocol
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from berthmaster.kubernetes.access import Access, Credential
from berthmaster.kubernetes.errors import (
    ApiError,
    BadAnswer,
    BadConfig,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    refusal,
)
from berthmaster.kubernetes.tls import show, trusting

MAX_ANSWER_BYTES: Final = 256 * 2**20  # a server that ignores `limit` sends everything at once
MAX_REFUSAL_BYTES: Final = 64 * 1024
CONNECT_S: Final = 5.0
KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_EVERY_S: Final = 5
KEEP_ALIVE_PROBES: Final = 3
IDLE_CONNECTION_S: Final = 60.0
CLOSE_TURN_S: Final = 0.005
CLOSE_TURNS: Final = 100

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class LogLike(Protocol):
    """The part of runtime.log that we use."""

    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(
        self, event: str, /, *, error: BaseException | None = None, **fields: object
    ) -> None: ...


class Transport:
    """Sends requests as the access says."""

    def __init__(
        self, access: Access, *, user_agent: str, timeout_s: float, max_in_flight: int
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(max_in_flight)
        self._tls: ssl.SSLContext | None = None
        self._certificate: tuple[bytes, bytes] = (b"", b"")
        self._session: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def open(self) -> None:
        """Make the session. Raises BadConfig when the TLS settings are no good."""
        if self._access.server.startswith("https://"):
            try:
                self._tls = trusting(self._access.ca, verify=self._access.verify)
            except ValueError as error:
                raise self._bad("certificate-authority", error) from None
        connector = aiohttp.TCPConnector(
            limit=0,  # the semaphore bounds requests; watches must not wait behind them
            keepalive_timeout=IDLE_CONNECTION_S,
            socket_factory=self._make_socket,
            ttl_dns_cache=10,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is None:
            return
        session, self._session = self._session, None
        await session.close()
        # TLS says goodbye and waits for an answer, which a server that is away will not give.
        for left in self._sockets:
            if left.fileno() >= 0:
                with suppress(OSError):
                    left.shutdown(socket.SHUT_RDWR)
        for _ in range(CLOSE_TURNS):
            if all(left.fileno() < 0 for left in self._sockets):
                return
            await asyncio.sleep(CLOSE_TURN_S)

    async def send(
        self,
        method: Method,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> bytes:
        """The body of a successful answer. Raises ApiError, Unreachable, TimedOut, BadAnswer.

        A 429 that names a time is repeated after it, as long as that is within the limit: it says
        that nothing was done.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        call = _Call(method, path, params, body, content_type)
        try:
            async with asyncio.timeout_at(deadline_s):
                while True:
                    try:
                        return await self._once(call)
                    except TooManyRequests as error:
                        wait_s = error.retry_after_s
                        left_s = deadline_s - asyncio.get_running_loop().time()
                        if not 0 < wait_s < left_s:
                            raise
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            raise TimedOut(f"no answer within {limit_s:g} s ({path})") from None

    async def _once(self, call: "_Call") -> bytes:
        async with self._turns, await self._open(call) as response:
            try:
                return await _read(response, MAX_ANSWER_BYTES, call.path)
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(error, call.path) from error

    async def stream(self, path: str, *, params: Mapping[str, str], timeout_s: float) -> "Stream":
        """An answer that has no end of its own; the caller closes it.

        Raises ApiError, Unreachable, TimedOut: its beginning must come as soon as any answer.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout(min(self._timeout_s, timeout_s)):
                response = await self._open(_Call("GET", path, params, None, ""))
        except TimeoutError:
            raise TimedOut(f"no answer within {self._timeout_s:g} s ({path})") from None
        return Stream(response, path, deadline_s)

    async def _open(self, call: "_Call") -> aiohttp.ClientResponse:
        """The head of a successful answer; asked once more if the credentials were refused and
        their source has others now."""
        credential = await self._access.source.credential()
        while True:
            try:
                response = await self._request(call, credential)
                if response.status < 300:
                    return response
                async with response:
                    refused = await _refused(response, call.path)
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(error, call.path) from error
            if not isinstance(refused, Unauthorized):
                raise refused
            other = await self._access.source.credential(renew=True)
            if other == credential:
                raise refused
            credential = other

    def _unreachable(self, error: BaseException, path: str) -> Unreachable:
        return Unreachable(f"{self._access.server}: {_words(error)} ({path})")

    async def _request(self, call: "_Call", credential: Credential) -> aiohttp.ClientResponse:
        if self._session is None:
            raise Unreachable(f"{self._access.server}: the client is closed ({call.path})")
        self._use_certificate(credential)
        headers: CIMultiDict[str] = CIMultiDict()
        for name, values in self._access.headers.items():
            for value in values:
                headers.add(name, value)
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return await self._session.request(
            call.method,
            URL(self._access.server + call.path, encoded=True),
            params=call.params,
            data=call.body,
            headers=headers,
            allow_redirects=False,
            ssl=self._tls if self._tls is not None else True,
            server_hostname=self._access.server_name or None,
            proxy=self._access.proxy or None,
        )

    def _use_certificate(self, credential: Credential) -> None:
        """New connections show the certificate of now; those that are open keep theirs."""
        pair = (credential.certificate, credential.key)
        if self._tls is None or pair == self._certificate or not credential.certificate:
            return
        try:
            show(self._tls, *pair)
        except ValueError as error:
            raise self._bad("client-certificate", error) from None
        self._certificate = pair

    def _make_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """A socket that notices a silent partition: the default waits two hours to ask."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family=family, type=kind, proto=protocol)
        self._sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_EVERY_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
        unanswered_ms = (KEEP_ALIVE_IDLE_S + KEEP_ALIVE_EVERY_S * KEEP_ALIVE_PROBES) * 1000
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered_ms)
        return made

    def _bad(self, field: str, problem: ValueError) -> BadConfig:
        access = self._access
        return BadConfig(access.server, access.context, field, str(problem))


class Stream:
    """The body of an answer, piece by piece."""

    def __init__(self, response: aiohttp.ClientResponse, path: str, deadline_s: float) -> None:
        self._response = response
        self._path = path
        self._deadline_s = deadline_s

    async def read(self) -> bytes:
        """The next piece; empty at the end. Raises Unreachable, TimedOut."""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._response.content.readany()
        except TimeoutError:
            raise TimedOut(f"the server did not end it in time ({self._path})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{_words(error)} ({self._path})") from error

    def close(self) -> None:
        """End it, and the connection with it."""
        self._response.close()


class _Call(NamedTuple):
    method: Method
    path: str
    params: Mapping[str, str] | None
    body: bytes | None
    content_type: str


async def _refused(response: aiohttp.ClientResponse, path: str) -> ApiError:
    body = await _read(response, MAX_REFUSAL_BYTES, path, cut=True)
    told = response.headers.get("Retry-After", "")
    retry_after_s = float(told) if told.isdecimal() and len(told) < 7 else 0.0
    return refusal(response.status, body, path, retry_after_s)


async def _read(
    response: aiohttp.ClientResponse, most_bytes: int, path: str, *, cut: bool = False
) -> bytes:
    """The whole body, as long as it is no longer than it may be."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            if cut:
                break
            raise BadAnswer(f"an answer longer than {most_bytes} bytes ({path})")
    return b"".join(parts)


def _words(error: BaseException) -> str:
    """What went wrong, without URLs."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        return f"no connection: {cause.strerror or cause}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "cut off before the answer"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return type(error).__name__
