"""The thread that opens, reads and closes a source.

A driver call can take seconds or never return. So each source has a daemon thread: a thread hung in
a driver cannot be ended or joined, and the process must still end. The core requests one operation
at a time.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from berthmaster.lib.runtime.log import Log
from berthmaster.worker.telemetry.core.agent import Event, ReadEnded, ReadFailed
from berthmaster.worker.telemetry.core.source import Source, SourceFault

CLOSE_LIMIT_S = 1.0


class SourceThread:
    """Owns the thread. `open` first, then any number of `start_read`, then `close`."""

    def __init__(self, log: Log, wall_clock: Callable[[], float]) -> None:
        self._log = log
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._source: Source | None = None
        self._opened: asyncio.Future[Source] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._on_event: Callable[[Event, float], None] = lambda event, took_s: None
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)

    async def open(self, opener: Callable[[], Source], limit_s: float) -> Source:
        """Open the source in the thread. Raises what the opener raises, or TimeoutError."""
        self._thread.start()
        self._asked.put(lambda: self._open(opener))
        async with asyncio.timeout(limit_s):
            return await self._opened

    def listen(self, on_event: Callable[[Event, float], None]) -> None:
        """How each read ended, and how many seconds it took; called in the loop."""
        self._on_event = on_event

    def start_read(self) -> None:
        """Read once. The listener gets the result."""
        self._asked.put(self._read)

    async def close(self) -> None:
        """Close the source, unless its thread hangs."""
        self._asked.put(None)
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._ended.wait()
        except TimeoutError:
            self._log.warning("source_left_behind", why="a read has not come back")

    # In the thread

    def _run(self) -> None:
        while (ask := self._asked.get()) is not None:
            ask()
        if self._source is not None:
            self._source.close()
        self._tell(self._ended.set)

    def _open(self, opener: Callable[[], Source]) -> None:
        try:
            source = opener()
        except Exception as error:  # noqa: BLE001 # whoever awaits `open` is told
            self._tell(partial(self._settle, error))
            return
        self._source = source
        self._tell(partial(self._settle, source))

    def _settle(self, outcome: Source | Exception) -> None:
        """Resolve ``open``, in the event loop."""
        if self._opened.done():
            return
        if isinstance(outcome, Exception):
            self._opened.set_exception(outcome)
        else:
            self._opened.set_result(outcome)

    def _read(self) -> None:
        source = self._source
        if source is None:
            return
        event: Event
        started_s = time.monotonic()
        try:
            nodes = source.read(started_s)
            event = ReadEnded(nodes, self._wall_clock())
        except SourceFault as fault:
            event = ReadFailed(str(fault))
        except Exception as error:  # noqa: BLE001 # a source with a bug is one that cannot be read
            self._log.error("source_bug", error=error)
            event = ReadFailed(f"a bug in the source: {type(error).__name__}: {error}")
        took_s = time.monotonic() - started_s
        self._tell(partial(self._on_event, event, took_s))

    def _tell(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # the loop has ended
