"""The blocking client, with the same methods, for programs without asyncio.

::

    with SyncClient.connect("nats://127.0.0.1:4222", tenant="vision") as berth:
        berth.submit(JobRequest(id="train-7", pod_sets=(PodSet(gpus=8),)))
        for seen in berth.watch(workload="train-7", since=0):
            print(seen.event)

A thread runs the event loop of one ``Client`` while this client is open. Several threads may use
the client at once. Ctrl-C, or leaving the ``with``, ends a blocked call.
"""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

from berthmaster.client.client import CONNECT_TIMEOUT_S, TIMEOUT_S, Client
from berthmaster.client.errors import UnavailableError

P = ParamSpec("P")
T = TypeVar("T")
Pieces: TypeAlias = Generator[T, None, None]
CLOSE_LIMIT_S: Final = 5.0
SOCKETS_CLOSE_S: Final = 0.01  # a loop closes sockets in later passes


class _Once(Generic[P, T]):
    """A client method with one result."""

    def __init__(self, method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, owner: None, kind: type["SyncClient"]) -> Self: ...
    @overload
    def __get__(self, owner: "SyncClient", kind: type["SyncClient"]) -> Callable[P, T]: ...

    def __get__(
        self, owner: "SyncClient | None", kind: type["SyncClient"]
    ) -> "Callable[P, T] | Self":
        if owner is None:
            return self

        @functools.wraps(self.method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return owner.call(lambda client: self.method(client, *args, **kwargs))

        return call


class _Each(Generic[P, T]):
    """A client method that yields results."""

    def __init__(self, method: Callable[Concatenate[Client, P], AsyncGenerator[T, None]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, owner: None, kind: type["SyncClient"]) -> Self: ...
    @overload
    def __get__(self, owner: "SyncClient", kind: type["SyncClient"]) -> Callable[P, Pieces[T]]: ...

    def __get__(
        self, owner: "SyncClient | None", kind: type["SyncClient"]
    ) -> "Callable[P, Pieces[T]] | Self":
        if owner is None:
            return self

        @functools.wraps(self.method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Pieces[T]:
            return owner.each(lambda client: self.method(client, *args, **kwargs))

        return call


class SyncClient:
    """A connection of one tenant, created by ``connect``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._under_way: set[Future[Any]] = set()
        self._lock = threading.Lock()  # orders calls and closing

    @classmethod
    def connect(
        cls,
        url: str = "nats://127.0.0.1:4222",
        *,
        tenant: str = "default",
        creds_file: Path | str | None = None,
        inbox_prefix: str = "_INBOX",
        ca_file: Path | str | None = None,
        plaintext: bool = False,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Self:
        """Return a client that connects in ``with``, with the arguments of ``Client.connect``."""
        return cls(
            Client.connect(
                url,
                tenant=tenant,
                creds_file=creds_file,
                inbox_prefix=inbox_prefix,
                ca_file=ca_file,
                plaintext=plaintext,
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
            )
        )

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="berth client", daemon=True
        )
        self._thread.start()
        try:
            self.call(lambda client: client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        """Reject new calls, end blocked calls, and close the connection."""
        with self._lock:
            loop, self._loop = self._loop, None
        if self._thread is None:
            return
        if loop is not None:
            for waiting in list(self._under_way):
                waiting.cancel()
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_end(self._client), loop).result(CLOSE_LIMIT_S)
            loop.call_soon_threadsafe(loop.stop)
        self._thread.join(CLOSE_LIMIT_S)  # even if another thread also closes
        if loop is not None and not loop.is_running():
            loop.close()

    # Calls without a method in this class

    def call(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Return the client's result: ``berth.call(lambda client: client.cordons())``."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("this would wait for itself; within the loop use Client")
        with self._lock:
            if self._loop is None:
                raise RuntimeError("use the client as `with SyncClient.connect(…) as berth:`")
            future = asyncio.run_coroutine_threadsafe(ask(self._client), self._loop)
            self._under_way.add(future)
        try:
            return future.result()
        except CancelledError:
            raise UnavailableError("the client was closed") from None
        finally:
            self._under_way.discard(future)
            future.cancel()  # no effect, except after Ctrl-C

    def each(self, ask: Callable[[Client], AsyncGenerator[T, None]]) -> Pieces[T]:
        """Yield results: ``for seen in berth.each(lambda client: client.facts()): …``."""
        pieces = ask(self._client)
        done = object()
        try:
            while True:
                piece = self.call(lambda _: _next(pieces, done))
                if piece is done:
                    return
                yield piece  # type: ignore[misc]
        finally:
            if self._loop is not None:
                # another thread may have closed the client
                with suppress(UnavailableError, RuntimeError):
                    self.call(lambda _: pieces.aclose())

    def now(self) -> float:
        """Return the server's time in seconds since 1970, for measuring ages."""
        return self._client.now()

    hello = _Once(Client.hello)
    submit = _Once(Client.submit)
    submit_raw = _Once(Client.submit_raw)
    submit_many = _Each(Client.submit_many)
    dry_run = _Once(Client.dry_run)
    dry_run_raw = _Once(Client.dry_run_raw)
    get = _Once(Client.get)
    list = _Once(Client.list)
    wait = _Once(Client.wait)
    watch = _Each(Client.watch)
    logs = _Each(Client.logs)
    events = _Once(Client.events)
    position = _Once(Client.position)
    gpus = _Once(Client.gpus)
    why = _Once(Client.why)
    whatif = _Once(Client.whatif)
    cancel = _Once(Client.cancel)
    reprioritize = _Once(Client.reprioritize)
    hold = _Once(Client.hold)
    release = _Once(Client.release)
    evict = _Once(Client.evict)
    move = _Once(Client.move)
    checkpointed = _Once(Client.checkpointed)


async def _end(client: Client) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_LIMIT_S / 4)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await client.__aexit__(None, None, None)
    await asyncio.sleep(SOCKETS_CLOSE_S)


async def _next(pieces: AsyncGenerator[T, None], done: object) -> T | object:
    return await anext(pieces, done)
