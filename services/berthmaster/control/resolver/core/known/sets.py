"""Sets of jobs with a limit on placed jobs. Pure.

Example: a set has ``set_at_most: 2`` and five jobs. One is placed, so the best pending job by
priority and submission is in its class, and three wait outside.

The state of open jobs alone determines the members in line, so a restarted resolver, or a repeated
decision, has the same ones. Jobs outside cost nothing in decisions.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload

SetKey = tuple[str, str]  # tenant, set
_Order = tuple[int, int, Key]  # -priority, submission, key


class Moved(NamedTuple):
    """Jobs that enter or leave their classes."""

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
        """Return the number of placed jobs of the set, if the job waits for fewer; 0 if it does not
        wait.
        """
        request = workload.request
        if request is None or request.set_at_most is None:
            return 0
        known = self._sets.get((workload.tenant, request.set))
        if known is None or workload.key not in known.orders or workload.key in known.in_line:
            return 0
        return max(1, len(known.live))
