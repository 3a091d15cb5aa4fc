"""A thread for one connection to the store. The event loop never waits for a disk or a distant
server.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from berthmaster.control.usage.store.database import Database, StoreError

T = TypeVar("T")
MOST_WAITING: Final = 64  # number of waiting calls


class DatabaseThread:
    """Runs one call at a time on its own connection, which is opened on demand and dropped after an
    error.
    """

    def __init__(self, open_: Callable[[], Database], name: str) -> None:
        self._open = open_
        self._name = name
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._database: Database | None = None
        # Not from a pool: the process must be able to end while a database does not answer.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[Database], T], *, limit_s: float) -> T:
        """Run ``work`` and return its result. Raises StoreError, also after ``limit_s`` and with
        too many waiting calls. Other errors of ``work`` pass through.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return  # the caller no longer waits
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
                pass  # the loop has ended, and the caller with it

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
        """Finish the current call and close the connection, without waiting."""
        try:
            self._work.put_nowait(None)
        except queue.Full:
            pass  # the process ends anyway
        self._interrupt()

    def _interrupt(self) -> None:
        """Interrupt the current statement, in a thread, because a hanging server takes a while."""
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
