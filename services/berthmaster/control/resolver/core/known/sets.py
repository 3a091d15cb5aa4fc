"""Sets of jobs of which only so many may have a place at once. Pure.

Who of a set is in a line follows from who is open and how he stands, and from nothing that happened
before: those that have a place count, and of those that wait the best, by priority and submission,
fill what is left. So a decider that starts anew, or repeats decisions, has the same ones in line.
Others wait outside every line, and cost those who decide nothing.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload

SetKey = tuple[str, str]  # tenant, set
_Order = tuple[int, int, Key]  # -priority, submission, who


class Moved(NamedTuple):
    """Who may wait in a line now, and who no more."""

    enter: list[Key]
    leave: list[Key]


class _Set:
    __slots__ = ("in_line", "limits", "live", "orders", "waiting")

    def __init__(self) -> None:
        self.live: set[Key] = set()
        self.waiting: list[_Order] = []
        self.orders: dict[Key, _Order] = {}
        self.limits: dict[Key, int] = {}
        self.in_line: set[Key] = set()


class JobSets:
    def __init__(self) -> None:
        self._sets: dict[SetKey, _Set] = {}

    def follow(self, workload: Workload, *, waits: bool) -> Moved:
        """A job of a set changed. ``waits``: it would wait for a place."""
        request = workload.request
        if request is None or request.set_at_most is None:
            return Moved([workload.key] if waits else [], [])
        name = (workload.tenant, request.set)
        known = self._sets.setdefault(name, _Set())
        key = workload.key
        if (before := known.orders.pop(key, None)) is not None:
            del known.waiting[bisect_left(known.waiting, before)]
        known.limits.pop(key, None)
        known.live.discard(key)
        if workload.live or workload.state is State.DIVIDED:
            known.live.add(key)
        elif waits:
            order = (-workload.priority, workload.submitted_sequence, key)
            insort(known.waiting, order)
            known.orders[key] = order
            known.limits[key] = request.set_at_most
        wanted = self._wanted(known)
        enter = [each for each in wanted if each not in known.in_line or each == key]
        leave = sorted(known.in_line - set(wanted))
        known.in_line = set(wanted)
        if not (known.live or known.waiting):
            del self._sets[name]
        return Moved(enter, leave)

    @staticmethod
    def _wanted(known: _Set) -> list[Key]:
        wanted: list[Key] = []
        for _, _, key in known.waiting:
            if len(known.live) + len(wanted) >= known.limits[key]:
                break
            wanted.append(key)
        return wanted

    def outside(self, workload: Workload) -> int:
        """How many of its set have a place, if it waits until fewer do; 0: it does not."""
        request = workload.request
        if request is None or request.set_at_most is None:
            return 0
        known = self._sets.get((workload.tenant, request.set))
        if known is None or workload.key not in known.orders or workload.key in known.in_line:
            return 0
        return max(1, len(known.live))
