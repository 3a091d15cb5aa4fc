"""What an earlier life had claimed and may never have made.

A hint is acknowledged as soon as its pods are ordered, and making an object takes a while: whoever
is killed in between leaves a claim that nobody comes back to. The log knows it, so it is read once
at the start: the last event of each kind of every workload in our cluster.

That only says which workloads to look at: the core reads the aggregate of each before it does
anything. An ending therefore counts as one only if it was decided in the knowledge of the claim;
one that was not is void, and the aggregate will say so.
"""

import asyncio

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.follow import Follower, Recorded
from berthmaster.bus.streams import WORKLOADS
from berthmaster.executor.cluster_protocol import Attempt
from berthmaster.lifecycle.fold import Key, key
from berthmaster.messages.families import EVENTS, UNREADABLE
from berthmaster.messages.workload import (
    Admitted,
    Cancelled,
    Claimed,
    Evicted,
    Failed,
    Placed,
    Running,
    Succeeded,
    Withdrawn,
)


class Leftovers:
    """Workloads of one cluster that some executor holds, as the log's last events say."""

    def __init__(self) -> None:
        self._placed: dict[Key, tuple[int, Placed]] = {}
        self._held: dict[Key, int] = {}  # sequence of the last sign of being held
        self._over: dict[Key, int] = {}  # what the last ending was decided on

    def take(self, recorded: Recorded) -> None:
        """One stored event. What cannot be read is somebody else's to bury."""
        try:
            event = EVENTS.decode(recorded.data)
        except UNREADABLE:
            return
        name = key(event.tenant, event.id)
        match event:
            case Placed():
                self._placed[name] = (recorded.sequence, event)
            case Claimed() | Admitted() | Running():
                self._held[name] = max(recorded.sequence, self._held.get(name, 0))
            case Evicted() | Succeeded() | Failed() | Cancelled() | Withdrawn():
                self._over[name] = max(event.after, self._over.get(name, 0))
            case _:
                pass

    def held(self) -> dict[Attempt, tuple[Placed, int]]:
        """Attempts that were claimed and not ended here, with their placement and its sequence."""
        found = {}
        for name, at in self._held.items():
            sequence, placed = self._placed.get(name, (0, None))
            if placed is not None and self._over.get(name, 0) < at and sequence < at:
                found[Attempt(placed.tenant, placed.id, placed.attempt)] = (placed, sequence)
        return found


async def read_leftovers(conn: Connection, cluster: str) -> Leftovers:
    """Read them; waits for the bus for as long as it takes."""
    found = Leftovers()
    filters = [subjects.workload_events_in(cluster, "*")]
    follower = Follower(conn, WORKLOADS, filters, start="last-per-subject")
    listed = asyncio.Event()
    reading = asyncio.create_task(
        follower.run(found.take, caught_up=listed.set), name="claims of earlier lives"
    )
    waiting = asyncio.create_task(listed.wait())
    try:
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        waiting.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)
    return found
