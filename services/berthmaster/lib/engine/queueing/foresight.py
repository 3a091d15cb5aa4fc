"""Estimated durations that decisions under ``expect: similar`` use: recorded, and kept in step.

``Durations.estimate`` changes with each ending, and a decision must be repeatable. So an estimate
counts for an open job once it is drafted, and the next decision records it (``Expected``). From
then on the recorded value counts. It is drafted again when it has changed by more than
``CHANGED``. A resolver that starts on a purged log therefore continues with recorded values.

Example: forty jobs took 27 s. A new job gets the draft (27 s, 90 %: 30 s), and the decision that
places it records both. Later ones take 40 s: the next decision records 40 s for each open job.

Rules of this file:

- A job that states its duration has no estimate here.
- An estimate counts if its interval is narrow (``WIDEST``). A wide one says little, and plans by it
  are worse than none: on Muri's trace 1 all estimates made the mean completion 6 % longer, and
  narrow ones 1 % shorter (scripts/benchmarks/muri_similar.py).
- Reservations use the median for when capacity is released, and the end of the interval for how
  long a job may use reserved nodes. So a wrong estimate delays a reservation seldom, and
  reservations.py bounds how long.
- Each decision drafts at most ``AT_ONCE`` estimates: new jobs first, then those estimated longest
  ago. At most ``MOST_DRAFTED`` drafts wait for a decision, because one message holds them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from berthmaster.lib.engine.queueing.similar import Estimate, left
from berthmaster.lib.lifecycle.workload import Key, Workload, key, saved_s, spent_s
from berthmaster.lib.messages.placement import Expected
from berthmaster.lib.messages.workload import JobRequest

AT_ONCE: Final = 200
MOST_DRAFTED: Final = 1000
CHANGED: Final = 1.125  # factor
WIDEST: Final = 4.0  # most times as long at the end of the interval as at its beginning
# Estimate of a job's duration, and a number that changes whenever any estimate may have changed.
Estimates = tuple[Callable[[str, JobRequest], Estimate | None], Callable[[], int]]


class Foresight:
    def __init__(self, estimates: Estimates, recorded: dict[Key, Expected]) -> None:
        """``recorded``: by decisions, of open jobs; changed here."""
        self.estimate, self._version = estimates
        self._recorded = recorded
        self._drafts: dict[Key, Expected] = {}
        self._open: OrderedDict[Key, Workload] = OrderedDict()  # unstated; newest estimate last
        self._stale = 0  # the first so many of these were estimated before the newest ending
        self._seen = -1  # version of the estimates that the drafts are made from
        self.moved: dict[Key, None] = {}  # jobs whose duration is another than their line has

    def follow(self, workload: Workload) -> None:
        """Take over a change of a workload."""
        name, request = workload.key, workload.request
        if workload.ended or request is None:
            self.forget(name)
        elif request.expected_duration_s is None and name not in self._open:
            self._open[name] = workload
            self._open.move_to_end(name, last=False)
            self._stale += 1

    def forget(self, name: Key) -> None:
        self._open.pop(name, None)
        self._recorded.pop(name, None)
        self._drafts.pop(name, None)
        self.moved.pop(name, None)

    def renew(self) -> None:
        """Draft estimates that are new or have changed."""
        if self._version() != self._seen:
            self._seen = self._version()
            self._stale = len(self._open)
        self._stale = min(self._stale, len(self._open))
        for _ in range(min(self._stale, AT_ONCE)):
            if len(self._drafts) >= MOST_DRAFTED:
                return
            name, workload = next(iter(self._open.items()))
            self._open.move_to_end(name)
            self._stale -= 1
            assert workload.request is not None  # only such are in _open
            estimate = self.estimate(workload.tenant, workload.request)
            if estimate is None or estimate.high_s > WIDEST * estimate.low_s:
                continue
            if _differs(self._of(name), estimate):
                self._drafts[name] = Expected(
                    tenant=workload.tenant,
                    id=workload.id,
                    expected_s=estimate.middle_s,
                    high_s=estimate.high_s,
                    jobs=estimate.jobs,
                )
                self.moved[name] = None

    def take(self, expected: Iterable[Expected], open_: Callable[[Key], bool]) -> None:
        """Take over what a decision recorded. ``open_``: whether a workload is open."""
        for each in expected:
            name = key(each.tenant, each.id)
            before = self._of(name)
            self._drafts.pop(name, None)
            if open_(name):
                self._recorded[name] = each
                if before != each:
                    self.moved[name] = None

    def drafts(self) -> tuple[Expected, ...]:
        """Return what the next decision records."""
        return tuple(self._drafts.values())

    # Durations

    def _of(self, name: Key) -> Expected | None:
        return self._drafts.get(name) or self._recorded.get(name)

    def jobs(self, name: Key) -> int:
        """Return the number of similar jobs behind a job's estimate; 0 without one."""
        known = self._of(name)
        return known.jobs if known is not None else 0

    def _left(self, name: Key, ran_s: float) -> Estimate | None:
        known = self._of(name)
        if known is None:
            return None
        return left(Estimate(known.expected_s, known.expected_s, known.high_s, known.jobs), ran_s)

    def ends_s(self, workload: Workload, now_s: float) -> float | None:
        """Return the estimated end of a live attempt; None without an estimate."""
        rest = self._left(workload.key, spent_s(workload, now_s))
        return now_s + rest.middle_s if rest is not None else None

    def lasts_s(self, workload: Workload) -> float | None:
        """Return a duration of the next attempt that nine in ten stay below; None without one."""
        rest = self._left(workload.key, saved_s(workload))
        return rest.high_s if rest is not None else None


def _differs(known: Expected | None, estimate: Estimate) -> bool:
    if known is None:
        return True
    pairs = ((known.expected_s, estimate.middle_s), (known.high_s, estimate.high_s))
    return any(max(a, b) > CHANGED * min(a, b) + 1.0 for a, b in pairs)
