"""A thread in which one connection to the store is used, so that the event loop never waits for a
disk or a distant server.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from berthmaster.control.usage.store.database import Database, StoreError

T = TypeVar("T")
MOST_WAITING: Final = 64  # pieces of work


class DatabaseThread:
    """Does one piece of work after the other on a connection of its own, which it opens when there
    is work and drops when something went wrong."""

    def __init__(self, open_: Callable[[], Database], name: str) -> None:
        self._open = open_
        self._name = name
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._database: Database | None = None
        # Of no pool: the process must be able to end while a database does not answer.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[Database], T], *, limit_s: float) -> T:
        """What ``work`` returns. Raises StoreError, also when it takes too long or too much waits;
        what else it raises comes through."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return  # nobody waits any more
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type] # None is what work returned

        def run() -> None:
            result, error = None, None
            if done.done():
                return
            try:
                result = work(self._opened())
            except BaseException as raised:  # noqa: BLE001 # it is raised where it was asked for
                error = raised
                self._drop()
            try:
                loop.call_soon_threadsafe(tell, result, error)
            except RuntimeError:
                pass  # the loop has ended, and with it whoever asked

        try:
            self._work.put_nowait(run)
        except queue.Full:
            raise StoreError(f"more than {MOST_WAITING} pieces of work wait for it") from None
        try:
            async with asyncio.timeout(limit_s):
                return await done
        except TimeoutError:
            self._interrupt()
            raise StoreError(f"it did not answer within {limit_s:g} s") from None

    def stop(self) -> None:
        """Finish what is in hand and close; nothing waits for that."""
        try:
            self._work.put_nowait(None)
        except queue.Full:
            pass  # the process ends all the same
        self._interrupt()

    def _interrupt(self) -> None:
        """Without waiting: to tell a server that does not answer takes a while."""
        if self._database is not None:
            threading.Thread(target=self._database.interrupt, daemon=True).start()

    def _opened(self) -> Database:
        if self._database is None:
            self._database = self._open()
        return self._database

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.rollback()
            database.close()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        self._drop()
