"""The order of those who wait by when they are due: derived from what is expected, kept in step.

How long a job takes is settled when it is submitted (expectations.py). While it waits, its guess is
renewed as more of its likes end: a few at a time, in turn, whenever a decision is made on something
new. Renewed guesses stand here, beside what is known, until a decision tells them; whoever starts
anew makes them anew. So a decision is repeated with the outlook and the guesses that it told.

Of what runs, half of its service counts as still to come: on average that is so, and it needs no
clock. Sums are whole GPU-milliseconds, so that they come out the same in whatever order a restored
state adds them up.

Example: on 4 GPUs, a job of 2 GPUs for 600 s runs and jobs of 100 and 400 GPU-seconds wait. Open
are 1200 / 2 + 100 + 400 = 1100 GPU-seconds: the outlook is a backlog of 275 s. What that makes of
each job's place is lib/engine/queueing/order.py's; docs/order.md works it out.
"""

import bisect
import itertools
import math
from collections import OrderedDict
from typing import Final

from berthmaster.lib.engine.queueing.expectations import (
    Expectations,
    as_told,
    from_told,
    service_ms,
)
from berthmaster.lib.engine.queueing.life_tables import Rests
from berthmaster.lib.engine.queueing.order import (
    NO_OUTLOOK,
    OrderBy,
    Outlook,
    Rank,
    gpu_share,
    left_places,
    outlook,
    place,
)
from berthmaster.lib.engine.queueing.predict import CAUTION, left_s
from berthmaster.lib.engine.queueing.preemption import Remaining
from berthmaster.lib.lifecycle.run_times import age_s, ends_as_told_s, saved_s
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import Expected, Lives, ToldOutlook
from berthmaster.lib.messages.workload import JobRequest

AS_THEY_CAME: Final = Rank(due_at_s=0.0)  # of all where only arrival counts
TOLD_AT_ONCE: Final = 5000  # expectations in one decision; the others are told by the next
ANEW_AT_ONCE: Final = 500  # guesses, for one decision: some 10 ms
_ALL: Final = 1 << 62  # more than ever wait
Saw = tuple[int, int, int]  # sequences of the streams


class DueOrder:
    def __init__(self, expectations: Expectations) -> None:
        self._expectations = expectations
        self._guessed_s: dict[Key, float] = {}  # renewed, and no decision has told it yet
        self._telling: dict[Key, None] = dict.fromkeys(expectations.untold)  # by the next decision
        self._share: dict[Key, float] = {}
        self._service_ms: dict[Key, int] = {}  # GPU-milliseconds, less what is saved
        self._saved_s: dict[Key, float] = {}  # of those that were stopped and go on from there
        self._live: dict[Key, bool] = {}  # of those that are counted: it runs, or it waits
        self._sums = {False: 0, True: 0}
        self.seen: Outlook | None = None  # None: jobs go as they came
        self._unstated: OrderedDict[Key, Workload] = OrderedDict()  # wait; newest guesses last
        self._old = _ALL  # of them, how many were guessed before something ended
        self._renewed_at: Saw | None = None
        self.moved: dict[Key, None] = {}  # expected to last otherwise than the order has it
        self._rests = Rests()  # of those of which nobody says how long they take, among equals
        self._by_size: list[int] | None = None  # of those that wait and say how long; None: not yet

    # In step with the log

    def submitted(self, name: Key) -> None:
        if name in self._expectations.untold:
            self._telling[name] = None

    def something_ended(self) -> None:
        """All guesses are of before."""
        self._old = _ALL

    def told(self, name: Key, request: JobRequest, expected_s: float, before_s: float) -> None:
        """A decision told what a job is expected to take; ``before_s``: what was known."""
        self._telling.pop(name, None)
        if self._guessed_s.pop(name, before_s) != expected_s:
            self._recount(name, request)

    def changed(self, workload: Workload) -> None:
        """What it will take may be less or more than before: what is saved, the number of its
        pods. To be told of each change first, before it stands in line, as its place follows from
        that."""
        name, request = workload.key, workload.request
        if request is None:
            return
        saved, share = saved_s(workload), gpu_share(request)
        if saved != self._saved_s.get(name, 0.0) or share != self._share.get(name, share):
            self._settle_anew(name, request, saved)

    def follow(self, workload: Workload, *, waits: bool) -> None:
        """It waits, or it is live, or neither."""
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
        """It counts for what it will take now."""
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
        """What it is expected to take is another than before."""
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

    # What is expected

    def expected_s(self, name: Key, request: JobRequest) -> float:
        """How long an open job will take, as it was guessed last."""
        guessed_s = self._guessed_s.get(name)
        return self._expectations.expected_s(name, request) if guessed_s is None else guessed_s

    def rest_s(self, name: Key, request: JobRequest) -> float:
        """How long an attempt of it will take that begins now: less than all if some is saved."""
        return left_s(self.expected_s(name, request), self._saved_s.get(name, 0.0))

    def known_left_s(self, workload: Workload, now_s: float) -> float | None:
        """What an open job has still to do or, if it does not say how long it takes, what it needs
        for an ending by what was learned; None where that is no part of what decisions tell."""
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
        """How long an open job may take, where others must not be kept waiting for it."""
        caution = CAUTION if request.expected_duration_s is None else 1.0
        return caution * self.rest_s(name, request)

    def class_s(self, workload: Workload) -> float | None:
        """What puts a waiting job beside others of its shape: those that last about as long."""
        request = workload.request
        if request is None:
            return None
        if self.seen is None:
            return request.expected_duration_s
        return self.rest_s(workload.key, request)

    def ends_s(self, workload: Workload, now_s: float) -> float | None:
        """When a live job is expected to end; None if it is not live."""
        if workload.request is None or not workload.live:
            return None
        told_s = ends_as_told_s(workload)
        if told_s is not None and told_s > now_s:
            return told_s
        began_s = workload.running_at_s or workload.claimed_at_s or workload.placed_at_s
        ran_s = saved_s(workload) + max(0.0, now_s - began_s)
        return now_s + left_s(self.expected_s(workload.key, workload.request), ran_s)

    def place(self, workload: Workload, *, least_first: bool = False) -> Rank:
        """Where a waiting job stands among those of its queue and priority. ``least_first``: where
        jobs of equal priority stop each other, they wait in the order in which they do."""
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
        """Take the fleet as it is now. Whether anybody may have another place than before.
        ``given``: when a decision is repeated, what it told; ``renew``: guesses too, once for all
        that was seen; ``lives``: None = as before."""
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
            assert request is not None  # it was submitted
            guess_s = self._expectations.guess_s(workload)
            if guess_s != self.expected_s(name, request):
                self._guessed_s[name] = guess_s
                self._recount(name, request)
                self._telling[name] = None

    def _left_gpu_s(self) -> float:
        """Jobs of more service than this are left behind: the largest of those that wait, so many
        as may be."""
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
        """Of a decision that is made now: the outlook, and guesses that were not told yet."""
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
