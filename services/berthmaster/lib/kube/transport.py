"""Requests to one API server: plain values in, bytes out, and a precise error for each failure.

kubernetes_asyncio handles TLS and requests. Answers are read raw. A semaphore limits the requests.
One time limit covers a whole request, including the wait for the semaphore and for credentials.
Watches are few and long, so the semaphore does not count them. No time limit spans a ``yield``, or
it would cancel the later work of the caller's task.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict

from berthmaster.lib.kube.certificate_files import check_authority, check_pair
from berthmaster.lib.kube.config import Access
from berthmaster.lib.kube.errors import (
    ApiError,
    BadAnswer,
    BadConfig,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    refusal,
)
from berthmaster.lib.kube.library import Configuration, RESTClientObject
from berthmaster.lib.kube.loader import Loader

MAX_ANSWER_BYTES: Final = 256 * 2**20  # a server that ignores `limit` sends a whole list at once
MAX_REFUSAL_BYTES: Final = 64 * 1024
HEAD_LIMITS: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0)  # others: per request
KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_EVERY_S: Final = 5
KEEP_ALIVE_PROBES: Final = 3
IDLE_CONNECTION_S: Final = 60.0
CLOSE_TURN_S: Final = 0.005
CLOSE_TURNS: Final = 100
CONNECTIONS: Final = 3  # certificates in use; a watch ends long before its certificate expires

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class _Session:
    """The session of ``Rest``. The library's session follows redirects with the credentials."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.aiohttp = session

    async def request(self, **arguments: Any) -> aiohttp.ClientResponse:
        return await self.aiohttp.request(**arguments, allow_redirects=False)

    async def close(self) -> None:
        await self.aiohttp.close()


class Rest(RESTClientObject):
    """The library's REST client, with a session of its own.

    The library's session keeps cookies, and takes passwords from .netrc and proxies from the
    environment. A watch would wait behind a hundred requests. A silent network partition would stay
    unnoticed for hours, because a watch may be silent anyway. Keep-alive probes detect a partition
    within half a minute.
    """

    def __init__(self, configuration: Configuration, user_agent: str) -> None:
        super().__init__(configuration)
        made: Any = self.pool_manager
        self.tls: ssl.SSLContext = made.connector._ssl  # exposed nowhere else
        made.detach()  # no connection is open yet
        self.sockets: WeakSet[socket.socket] = WeakSet()
        connector = aiohttp.TCPConnector(
            ssl=self.tls,
            limit=0,  # the semaphore limits requests, and watches must not wait
            keepalive_timeout=IDLE_CONNECTION_S,
            socket_factory=self._make_socket,
            ttl_dns_cache=10,
        )
        session: Any = _Session(
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": user_agent, "Accept": "application/json"},
                raise_for_status=False,
            )
        )
        self.pool_manager = session

    def _make_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Return a socket that detects a silent partition. By default only after hours."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family=family, type=kind, proto=protocol)
        self.sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_EVERY_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
        unanswered_ms = (KEEP_ALIVE_IDLE_S + KEEP_ALIVE_EVERY_S * KEEP_ALIVE_PROBES) * 1000
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered_ms)
        return made

    async def close(self) -> None:
        await super().close()
        # A TLS shutdown waits for the peer's answer, which an unreachable server never sends.
        for left in self.sockets:
            if left.fileno() >= 0:
                with suppress(OSError):
                    left.shutdown(socket.SHUT_RDWR)
        for _ in range(CLOSE_TURNS):
            if all(left.fileno() < 0 for left in self.sockets):
                return
            await asyncio.sleep(CLOSE_TURN_S)


class Transport:
    """Sends requests with the access's address and credentials."""

    def __init__(
        self, access: Access, *, user_agent: str, timeout_s: float, max_in_flight: int
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(max_in_flight)
        self._loader = Loader(access)
        self._connections: list[Rest] = []  # the last one is current
        self._certificate = access.pair
        self._closed = False

    async def open(self) -> None:
        """Prepare to connect. Raise BadConfig when the TLS settings are invalid."""
        if self._access.ca:
            self._check("certificate-authority", check_authority, self._access.ca)
        if self._access.pair[0]:
            self._check("client-certificate", check_pair, *self._access.pair)
        self._connect()

    def _connect(self) -> None:
        with self._loader.configuration() as configuration:
            self._connections.append(Rest(configuration, self._user_agent))
        self._certificate = self._loader.certificate

    def _check(self, field: str, check: Callable[..., None], *papers: bytes) -> None:
        try:
            check(*papers)
        except ValueError as error:
            source = self._access.source or self._access.server
            raise BadConfig(source, self._access.context, field, str(error)) from None

    async def close(self) -> None:
        self._closed = True
        while self._connections:
            await self._connections.pop().close()

    async def send(
        self,
        method: Method,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the body of a successful answer.

        Raise ApiError, Unreachable, TimedOut, BadAnswer. A 429 with a Retry-After within the time
        limit is retried, because the server did nothing.
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
        """Return an answer without an end, such as a watch. The caller closes the stream.

        Raise ApiError, Unreachable, TimedOut. The first bytes must arrive within the usual time
        limit.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout(min(self._timeout_s, timeout_s)):
                response = await self._open(_Call("GET", path, params, None, ""))
        except TimeoutError:
            raise TimedOut(f"no answer within {self._timeout_s:g} s ({path})") from None
        return Stream(response, path, deadline_s)

    async def _open(self, call: "_Call") -> aiohttp.ClientResponse:
        """Return the head of a successful answer.

        After a 401, retry once if the source of the credentials has new ones.
        """
        shown = await self._shown(call.path)
        try:
            return await self._head(call, shown)
        except Unauthorized:
            other = await self._shown(call.path, refused=True)
            if other == shown:
                raise
        return await self._head(call, other)

    async def _head(self, call: "_Call", shown: "_Shown") -> aiohttp.ClientResponse:
        try:
            response = await self._request(call, shown)
            if response.status < 300:
                return response
            async with response:
                raise await _refused(response, call.path)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error, call.path) from error

    async def _shown(self, path: str, *, refused: bool = False) -> "_Shown":
        """Return connection and credentials. Plugins and token issuers run on first use only."""
        await self._loader.refresh(refused=refused)
        if self._closed:
            raise Unreachable(f"{self._access.server}: the client is closed ({path})")
        if self._certificate != self._loader.certificate:
            # The library reads a certificate once, and an open connection keeps its certificate. A
            # new certificate therefore needs a new connection. Requests on old connections may
            # finish.
            self._connect()
            while len(self._connections) > CONNECTIONS:
                await self._connections.pop(0).close()
        return _Shown(self._connections[-1], self._loader.token)

    def _unreachable(self, error: BaseException, path: str) -> Unreachable:
        return Unreachable(f"{self._access.server}: {_words(error)} ({path})")

    async def _request(self, call: "_Call", shown: "_Shown") -> aiohttp.ClientResponse:
        # The library drops impersonation headers, and allows one value per header.
        headers: Any = CIMultiDict()
        for name, values in self._access.headers.items():
            for value in values:
                headers.add(name, value)
        if shown.authorization:
            headers["Authorization"] = shown.authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        response: aiohttp.ClientResponse = await shown.by.request(
            call.method,
            self._access.server + call.path,
            query_params=dict(call.params) if call.params else None,
            headers=headers,
            body=call.body,
            _preload_content=False,
            _request_timeout=HEAD_LIMITS,
        )
        return response


class Stream:
    """The body of an answer, chunk by chunk."""

    def __init__(self, response: aiohttp.ClientResponse, path: str, deadline_s: float) -> None:
        self._response = response
        self._path = path
        self._deadline_s = deadline_s

    async def read(self) -> bytes:
        """Return the next chunk, empty at the end. Raise Unreachable, TimedOut."""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._response.content.readany()
        except TimeoutError:
            raise TimedOut(f"the server did not end it in time ({self._path})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{_words(error)} ({self._path})") from error

    def close(self) -> None:
        """Close the stream and its connection."""
        self._response.close()


class _Call(NamedTuple):
    method: Method
    path: str
    params: Mapping[str, str] | None
    body: object  # plain values, encoded as JSON by the library
    content_type: str


class _Shown(NamedTuple):
    by: Rest
    authorization: str


async def _refused(response: aiohttp.ClientResponse, path: str) -> ApiError:
    body = await _read(response, MAX_REFUSAL_BYTES, path, cut=True)
    retry_after = response.headers.get("Retry-After", "")
    retry_after_s = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 7 else 0.0
    return refusal(response.status, body, path, retry_after_s)


async def _read(
    response: aiohttp.ClientResponse, most_bytes: int, path: str, *, cut: bool = False
) -> bytes:
    """Return the whole body up to ``most_bytes``. Raise BadAnswer above, or cut if ``cut``."""
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
    """Return the error's message, without URLs."""
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
