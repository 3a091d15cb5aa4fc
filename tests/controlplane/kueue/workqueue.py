"""Keys that want a look, each once, never two looks at one key at the same time.

As controllers do it: an event only names the key, the look reads what is true now. A look that
fails is repeated after a growing pause; one that asks for a later look gets it. The bound of the
queue is the number of objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from berthmaster.kubernetes.errors import Conflict, NotFound
from tests.controlplane.kueue.objects import Key

log = logging.getLogger("kueue")

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 2.0
WORKERS = 10

# A look returns after how many seconds it wants the next one, or None.
Look = Callable[[Key], Awaitable[float | None]]


class WorkQueue:
    """One controller: its queue, its timers and its workers."""

    def __init__(self, name: str, look: Look, *, pause_s: float = 0.0) -> None:
        self._name = name
        self._look = look
        self._pause_s = pause_s  # after each look, so that a burst of events is one look
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._due_s: dict[Key, float] = {}

    def add(self, key: Key) -> None:
        """Look at this key soon."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at this key in a while; the earliest wish counts."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + seconds
        if key in self._timers:
            if self._due_s[key] <= due_s:
                return
            self._timers[key].cancel()
        self._due_s[key] = due_s
        self._timers[key] = loop.call_at(due_s, self._due, key)

    def _due(self, key: Key) -> None:
        del self._timers[key], self._due_s[key]
        self.add(key)

    async def run(self) -> None:
        """Look, for ever, with a few workers."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._running.add(key)
            try:
                wait_s = await self._look(key)
            except Exception as error:  # noqa: BLE001 # told, and tried again
                self._failed(key, error)
            else:
                self._failures.pop(key, None)
                if wait_s is not None:
                    self.add_after(key, wait_s)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def _failed(self, key: Key, error: Exception) -> None:
        if isinstance(error, NotFound):
            return  # its deletion comes as an event
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = min(FIRST_PAUSE_S * 2.0**failures, LONGEST_PAUSE_S)
        if not isinstance(error, Conflict):
            log.warning("%s %s: %s: %s", self._name, key, type(error).__name__, error)
        self.add_after(key, pause_s)
