"""One running emulated cluster: a timer, a journal, and a receiver of events.

The caller passes the clock. The cluster reports an event only after writing it to the journal.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.journal import Journal
from berthmaster.worker.executor.core.cluster_protocol import ClusterInstruction, PodEvent

TIMER_GRAIN_S: Final = 0.005  # ends within this time are handled together


class Host:
    """The Runtime of an executor, over an emulated cluster."""

    def __init__(
        self, cluster: EmulatedCluster, journal: Journal | None, clock: Callable[[], float]
    ):
        """Build a host. ``journal`` is open already; None: the state is lost with the process."""
        self.cluster = cluster
        self.on_dirty: Callable[[], None] | None = None  # called when nodes have changed
        self._journal = journal
        self._clock = clock
        self._tell: Callable[[PodEvent], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._loop = asyncio.get_running_loop()

    # Runtime

    def start(self, tell: Callable[[PodEvent], None]) -> None:
        """Start the time. ``found`` returns earlier events."""
        self.cluster.advance(self._clock())
        self._tell = tell
        self.flush()

    async def found(self, executor: str) -> list[PodEvent]:
        return self.cluster.found(executor)

    def perform(self, order: ClusterInstruction) -> None:
        events = self.cluster.perform(order, self._clock())
        if self._tell is not None:
            for event in events:
                self._tell(event)

    def flush(self) -> None:
        """Write changes to the journal, wake the inventory, and set the timer."""
        records = self.cluster.take_journal()
        if records and self._journal is not None:
            self._journal.write(records, self.cluster.world.snapshot)
        if self.cluster.world.dirty and self.on_dirty is not None:
            self.on_dirty()
        self._arm()

    def stop(self) -> None:
        """Stop the time."""
        self._tell = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Time

    def _arm(self) -> None:
        due_s = self.cluster.next_due_s
        if due_s is None or self._tell is None:
            return
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        wait_s = max(TIMER_GRAIN_S, due_s - self._clock())
        self._timer = self._loop.call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        tell = self._tell
        if tell is None:
            return
        events = self.cluster.advance(self._clock())
        self.flush()
        for event in events:
            tell(event)
