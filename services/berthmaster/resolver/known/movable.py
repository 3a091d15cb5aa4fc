"""Attempts that may be ended to make room, by cluster, queue and priority: kept for speed.

It follows from what is known of each workload alone. Whoever looks for room asks here first whether
there is anybody at all, which on most days there is not.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from berthmaster.engine.fleet.needs import gpu_milli
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.lifecycle.states import HELD


class _Entry(NamedTuple):
    cluster: str
    queue: str
    priority: int
    gpu_milli: int


def is_movable(workload: Workload) -> bool:
    """Whether a decision may end its attempt: one that was claimed, that Kueue does not govern, and
    whose people allow it."""
    request = workload.request
    return (
        workload.state in HELD
        and request is not None
        and request.preemptible
        and workload.target.via == "direct"
        and workload.origin is None
        and not workload.cancel_requested
        and not workload.leaving
    )


class Movable:
    """All of them."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._priorities: dict[str, Counter[int]] = {}  # by queue
        self._here: dict[str, dict[str, dict[Key, None]]] = {}  # cluster -> queue
        self._milli: dict[str, Counter[str]] = {}  # cluster -> queue -> GPU milli

    def follow(self, workload: Workload, *, frozen: bool) -> None:
        """A workload changed."""
        name = workload.key
        self.drop(name)
        request = workload.request
        if frozen or request is None or not is_movable(workload):
            return
        milli = gpu_milli(request)
        entry = _Entry(workload.cluster, request.queue, workload.priority, milli)
        self._entries[name] = entry
        self._priorities.setdefault(entry.queue, Counter())[entry.priority] += 1
        self._here.setdefault(entry.cluster, {}).setdefault(entry.queue, {})[name] = None
        self._milli.setdefault(entry.cluster, Counter())[entry.queue] += milli

    def drop(self, name: Key) -> None:
        """It may not be ended (any more)."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        priorities = self._priorities[entry.queue]
        priorities[entry.priority] -= 1
        if not priorities[entry.priority]:
            del priorities[entry.priority]
        if not priorities:
            del self._priorities[entry.queue]
        here = self._here[entry.cluster]
        del here[entry.queue][name]
        self._milli[entry.cluster][entry.queue] -= entry.gpu_milli
        if not here[entry.queue]:
            del here[entry.queue], self._milli[entry.cluster][entry.queue]
        if not here:
            del self._here[entry.cluster], self._milli[entry.cluster]

    def queues(self) -> dict[str, int]:
        """Queues with any, and the least priority among them."""
        return {queue: min(priorities) for queue, priorities in self._priorities.items()}

    def milli(self, cluster: str, queues: frozenset[str]) -> int:
        """GPU milli that these queues' hold in a cluster."""
        return sum(n for queue, n in self._milli.get(cluster, {}).items() if queue in queues)

    def among(self, cluster: str, queues: frozenset[str]) -> Iterator[Key]:
        """Those of these queues in a cluster."""
        for queue, names in self._here.get(cluster, {}).items():
            if queue in queues:
                yield from names
