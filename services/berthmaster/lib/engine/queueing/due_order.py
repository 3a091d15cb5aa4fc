"""The order of pending jobs by due times, kept up to date with expectations.

Example: on 4 GPUs, a job of 2 GPUs for 600 s runs, and jobs of 100 and 400 GPU-seconds are pending.
The open work is 1200 / 2 + 100 + 400 = 1100 GPU-seconds, a backlog of 275 s. lines.py turns the
backlog into due times, and docs/reference/job-order.md computes this example.

Rules of this file:

- The expected duration is set at the submission (expectations.py). While the job is pending,
  guesses are renewed as similar jobs end: a few at a time, in turn, at each decision on new data.
- Renewed guesses stay here until a decision reports them. A restarted resolver computes them again.
  A repeated decision uses the reported outlook and guesses.
- Half of a running job's service counts as remaining, which is right on average and needs no clock.
- Sums are whole GPU-milliseconds, equal in any order of addition.
"""

import bisect
import itertools
import math
from collections import OrderedDict
from typing import Final

from berthmaster.lib.engine.queueing.expectations import (
    CAUTION,
    Expectations,
    as_told,
    from_told,
    left_s,
    service_ms,
)
from berthmaster.lib.engine.queueing.life_tables import Rests
from berthmaster.lib.engine.queueing.lines import (
    NO_OUTLOOK,
    OrderBy,
    Outlook,
    Rank,
    gpu_share,
    left_places,
    outlook,
    place,
)
from berthmaster.lib.engine.queueing.preemption import Remaining
from berthmaster.lib.lifecycle.workload import (
    Key,
    Workload,
    age_s,
    ends_as_told_s,
    saved_s,
    spent_s,
)
from berthmaster.lib.messages.placement import Expected, Lives, ToldOutlook
from berthmaster.lib.messages.workload import JobRequest

AS_THEY_CAME: Final = Rank(due_at_s=0.0)  # of all where only arrival counts
TOLD_AT_ONCE: Final = 5000  # expectations in one decision; the next decision reports the rest
ANEW_AT_ONCE: Final = 500  # guesses, for one decision: some 10 ms
_ALL: Final = 1 << 62  # more than ever wait
Saw = tuple[int, int, int]  # sequences of the streams


class DueOrder:
    def __init__(self, expectations: Expectations) -> None:
        self._expectations = expectations
        self._guessed_s: dict[Key, float] = {}  # renewed guesses, not yet in a decision
        self._telling: dict[Key, None] = dict.fromkeys(expectations.untold)  # by the next decision
        self._share: dict[Key, float] = {}
        self._service_ms: dict[Key, int] = {}  # GPU-milliseconds, less saved work
        self._saved_s: dict[Key, float] = {}  # saved work of jobs that were stopped
        self._live: dict[Key, bool] = {}  # counted jobs: True = running, False = pending
        self._sums = {False: 0, True: 0}
        self.seen: Outlook | None = None  # None: first come, first served
        self._unstated: OrderedDict[Key, Workload] = OrderedDict()  # wait; newest guesses last
        self._old = _ALL  # number guessed before the last ending
        self._renewed_at: Saw | None = None
        self.moved: dict[Key, None] = {}  # jobs with a changed expectation
        self._rests = Rests()  # remaining times without a statement, among jobs of equal priority
        # Pending jobs with a stated duration; None = not computed
        self._by_size: list[int] | None = None

    # In step with the log

    def submitted(self, name: Key) -> None:
        if name in self._expectations.untold:
            self._telling[name] = None

    def something_ended(self) -> None:
        """All guesses are of before."""
        self._old = _ALL

    def told(self, name: Key, request: JobRequest, expected_s: float, before_s: float) -> None:
        """Apply an expected duration from a decision. ``before_s``: the earlier expectation."""
        self._telling.pop(name, None)
        if self._guessed_s.pop(name, before_s) != expected_s:
            self._recount(name, request)

    def changed(self, workload: Workload) -> None:
        """Update the remaining work after a change of saved work or size. Call before the job's
        rank is computed.
        """
        name, request = workload.key, workload.request
        if request is None:
            return
        saved, share = saved_s(workload), gpu_share(request)
        if saved != self._saved_s.get(name, 0.0) or share != self._share.get(name, share):
            self._settle_anew(name, request, saved)

    def follow(self, workload: Workload, *, waits: bool) -> None:
        """Follow a job that is pending, live, or neither."""
        name = workload.key
        was = self._live.pop(name, None)
        if was is not None:
            self._count(name, was, -1)
        request = workload.request
        if workload.ended or request is None:
            self._forget(name)
            return
        if waits or workload.live:
            self._settle(name, request)
            if not waits:
                self._unstated.pop(name, None)
            elif request.expected_duration_s is None:
                self._unstated.setdefault(name, workload)
            self._live[name] = not waits
            self._count(name, not waits, +1)

    def _count(self, name: Key, live: bool, sign: int) -> None:
        service = self._service_ms[name]
        self._sums[live] += sign * service
        if self._by_size is not None and not live and self._expectations.is_stated(name):
            if sign > 0:
                bisect.insort(self._by_size, service)
            else:
                del self._by_size[bisect.bisect_left(self._by_size, service)]

    def _settle(self, name: Key, request: JobRequest) -> None:
        if name not in self._service_ms:
            share = self._share[name] = gpu_share(request)
            self._service_ms[name] = service_ms(share, self.rest_s(name, request))

    def _settle_anew(self, name: Key, request: JobRequest, saved: float) -> None:
        """Count the job with its present remaining work."""
        live = self._live.get(name)
        if live is not None:
            self._count(name, live, -1)
        self._service_ms.pop(name, None)
        if saved:
            self._saved_s[name] = saved
        if live is not None:
            self._settle(name, request)
            self._count(name, live, +1)

    def _recount(self, name: Key, request: JobRequest) -> None:
        """Count the job with a changed expectation."""
        self._settle_anew(name, request, self._saved_s.get(name, 0.0))
        self.moved[name] = None

    def _forget(self, name: Key) -> None:
        self._guessed_s.pop(name, None)
        self._telling.pop(name, None)
        self._unstated.pop(name, None)
        self.moved.pop(name, None)
        self._share.pop(name, None)
        self._service_ms.pop(name, None)
        self._saved_s.pop(name, None)

    # Expectations

    def expected_s(self, name: Key, request: JobRequest) -> float:
        """How long an open job will take, as it was guessed last."""
        guessed_s = self._guessed_s.get(name)
        return self._expectations.expected_s(name, request) if guessed_s is None else guessed_s

    def rest_s(self, name: Key, request: JobRequest) -> float:
        """Return the duration of an attempt that starts now, less saved work."""
        return left_s(self.expected_s(name, request), self._saved_s.get(name, 0.0))

    def known_left_s(self, workload: Workload, now_s: float) -> float | None:
        """Return the remaining work of an open job, or for a job without a stated duration the
        learned need for an ending. None if decisions do not report this.
        """
        request = workload.request
        if request is None:
            return None
        told_s = ends_as_told_s(workload)
        ends = request.expected_duration_s is not None or (told_s is not None and told_s > now_s)
        if not ends:
            if self.seen is None:
                return None
            return self._rests.rest_s(gpu_share(request), age_s(workload, now_s))
        if (ends_s := self.ends_s(workload, now_s)) is not None:
            return ends_s - now_s
        return self.rest_s(workload.key, request)

    def lasts_s(self, name: Key, request: JobRequest) -> float:
        """Return a cautious duration of an open job, for jobs that must not be delayed."""
        caution = CAUTION if request.expected_duration_s is None else 1.0
        return caution * self.rest_s(name, request)

    def class_s(self, workload: Workload) -> float | None:
        """Return the duration that groups a pending job with others of its shape."""
        request = workload.request
        if request is None:
            return None
        if self.seen is None:
            return request.expected_duration_s
        return self.rest_s(workload.key, request)

    def ends_s(self, workload: Workload, now_s: float) -> float | None:
        """Return the expected end of a live job; None if not live."""
        if workload.request is None or not workload.live:
            return None
        told_s = ends_as_told_s(workload)
        if told_s is not None and told_s > now_s:
            return told_s
        expected_s = self.expected_s(workload.key, workload.request)
        return now_s + left_s(expected_s, spent_s(workload, now_s))

    def place(self, workload: Workload, *, least_first: bool = False) -> Rank:
        """Return the rank of a pending job in its queue and priority.

        ``least_first``: where jobs of equal priority may stop each other, remaining work orders
        them.
        """
        request = workload.request
        if self.seen is None or request is None:
            return AS_THEY_CAME
        name = workload.key
        self._settle(name, request)
        service_s = self._service_ms[name] / 1000
        stated = self._expectations.is_stated(name)
        share = self._share[name]
        at_s = workload.submitted_at_s
        if not least_first:
            return place(service_s, at_s, share, self.seen, stated=stated)
        left_s = self.known_left_s(workload, at_s)
        assert left_s is not None  # as there is an outlook
        seen = self.seen._replace(short_first=1.0)
        rank = place(service_s, at_s, share, seen, stated=stated)
        return rank._replace(due_at_s=Remaining(left_s, share, stated).weight)

    # The outlook

    def look(
        self,
        gpus: float,
        by: OrderBy,
        given: ToldOutlook | None,
        saw: Saw,
        *,
        renew: bool,
        short_first: float = 0.0,
        lives: Lives | None = None,
    ) -> bool:
        """Take the present fleet. Return whether ranks may have changed.

        ``given``: the reported outlook of a repeated decision. ``renew``: renew guesses too, once
        for all new data. ``lives``: None = unchanged.
        """
        before = self.seen
        others = lives is not None and lives != self._rests.lives
        if lives is not None and others:
            self._rests = Rests(lives)
        if by == "arrival":
            self.seen = None
        elif given is not None:
            self.seen = from_told(given)
        elif gpus > 0:
            if renew and self._renewed_at != saw:
                self._renewed_at = saw
                self._renew()
            open_s = (self._sums[False] + self._sums[True] / 2) / 1000
            self.seen = outlook(open_s, gpus, self._left_gpu_s())
        else:
            self.seen = NO_OUTLOOK
        if self.seen is not None and short_first:
            self.seen = self.seen._replace(short_first=short_first)
        return others or before != self.seen

    def _renew(self) -> None:
        """The guesses of those who wait and were guessed longest ago, if something has ended since;
        no more than the next decision can tell."""
        self._old = min(self._old, len(self._unstated))
        count = min(self._old, ANEW_AT_ONCE, TOLD_AT_ONCE - len(self._telling))
        for name in list(itertools.islice(self._unstated, max(count, 0))):
            workload = self._unstated[name]
            self._unstated.move_to_end(name)
            self._old -= 1
            request = workload.request
            assert request is not None  # every submitted job has a request
            guess_s = self._expectations.guess_s(workload)
            if guess_s != self.expected_s(name, request):
                self._guessed_s[name] = guess_s
                self._recount(name, request)
                self._telling[name] = None

    def _left_gpu_s(self) -> float:
        """Return the service above which jobs are left behind, from the largest pending jobs and
        the allowed number.
        """
        expectations = self._expectations
        if self._by_size is None:
            waiting = (n for n, live in self._live.items() if not live)
            stated = (n for n in waiting if expectations.is_stated(n))
            self._by_size = sorted(self._service_ms[name] for name in stated)
        may = left_places(expectations.submissions, expectations.late)
        large = expectations.sizes.large_gpu_s()
        if not may:
            return math.inf
        if may < len(self._by_size):
            large = max(large, self._by_size[-may - 1] / 1000)
        return large

    def tells(self) -> tuple[ToldOutlook | None, tuple[Expected, ...]]:
        """Return the outlook and unreported guesses for a new decision."""
        if self.seen is None:
            return None, ()
        expectations = self._expectations
        expected = tuple(
            Expected(
                tenant=tenant,
                id=workload_id,
                expected_s=self._guessed_s.get(name, expectations.of_unstated(name)),
            )
            for name in itertools.islice(self._telling, TOLD_AT_ONCE)
            for tenant, _, workload_id in [name.partition("/")]
        )
        return as_told(self.seen, expectations.submissions, expectations.late), expected
