"""What open jobs are expected to take, and the order that follows: kept in step.

How long a job will take is settled when it is submitted, by what it states or by what had ended
until then. What a job states stays with it; what is only expected is settled anew while it waits,
as more of its likes end: a few at a time, in turn, by whoever decides. Such expectations, and the
outlook that an order is made of, are told by the decisions that went by them: so a resolver that
begins when much of the log was purged goes on as the one before it, and each decision can be
repeated. Sums are whole GPU-milliseconds, so that they come out the same in whatever order a
restored state adds them up.

Of what runs, half of its service counts as still to come: on average that is so, and it needs no
clock.
"""

import bisect
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from berthmaster.engine.queueing import predict
from berthmaster.engine.queueing.order import (
    LATE,
    NO_OUTLOOK,
    Outlook,
    Place,
    gpu_share,
    left_places,
    outlook,
    place,
)
from berthmaster.engine.queueing.predict import CAUTION, Durations, Sizes, left_s
from berthmaster.lifecycle.fold import Key, Workload, key
from berthmaster.messages.placement import Decision, Expected, ToldOutlook
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.settings import OrderBy

AS_THEY_CAME: Final = Place(due_at_s=0.0)  # of all where only arrival counts
_LONGEST_S: Final = 1e12
TOLD_AT_ONCE: Final = 5000  # expectations in one decision; the others are told by the next
ANEW_AT_ONCE: Final = 500  # expectations, at one look: some 10 ms
_ALL: Final = 1 << 62  # more than ever wait


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What ``Expectations`` keeps in a snapshot."""

    durations: predict.Learned = predict.Learned()
    sizes: list[float] = []
    expected_s: dict[Key, float] = {}  # of open jobs that do not say themselves
    untold: list[Key] = []
    submitted: int = 0
    late: int = 0


class Expectations:
    """Of all open jobs."""

    def __init__(self, learned: Learned | None = None) -> None:
        learned = learned or Learned()
        self.durations = Durations(learned.durations)
        self.sizes = Sizes(learned.sizes)
        self._expected_s = dict(learned.expected_s)
        self._share: dict[Key, float] = {}
        self._service_ms: dict[Key, int] = {}  # GPU-milliseconds
        self._live: dict[Key, bool] = {}  # of those that are counted: it runs, or it waits
        self._sums = {False: 0, True: 0}
        self.seen: Outlook | None = None  # None: jobs go as they came
        self.submissions = learned.submitted  # jobs that ever came, as far as is known
        self.late = learned.late  # of those left behind, who waited for long
        self._given: ToldOutlook | None = None  # when a decision is repeated: what it was made with
        self._given_expected: tuple[Expected, ...] = ()
        self._untold: dict[Key, None] = dict.fromkeys(learned.untold)
        self._guessed: OrderedDict[Key, Workload] = OrderedDict()  # that wait; newest guesses last
        self._old = _ALL  # of them, how many were guessed before something ended
        self.moved: dict[Key, None] = {}  # expected to last otherwise than the order has it
        self._by_size: list[int] | None = None  # of those that wait and say how long; None: not yet

    def submitted(self, workload: Workload) -> None:
        """A job is new: what will it take?"""
        request = workload.request
        if request is None:
            return
        self.submissions += 1
        at_s = workload.submitted_at_s
        expected_s = self.durations.expected_s(workload.tenant, request, at_s)
        if request.expected_duration_s is None:
            self._expected_s[workload.key] = expected_s
            self._untold[workload.key] = None
        else:
            self.sizes.learn(gpu_share(request) * expected_s)

    def succeeded(self, workload: Workload, at_s: float) -> None:
        """A job has run to its end."""
        if workload.request is not None and workload.running_at_s > 0:
            ran_s = max(0.0, at_s - workload.running_at_s)
            self.durations.learn(workload.tenant, workload.request, workload.submitted_at_s, ran_s)
            self._old = _ALL

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
                self._guessed.pop(name, None)
            elif request.expected_duration_s is None:
                self._guessed.setdefault(name, workload)
            self._live[name] = not waits
            self._count(name, not waits, +1)

    def _count(self, name: Key, live: bool, sign: int) -> None:
        service = self._service_ms[name]
        self._sums[live] += sign * service
        if self._by_size is not None and not live and self._stated(name):
            if sign > 0:
                bisect.insort(self._by_size, service)
            else:
                del self._by_size[bisect.bisect_left(self._by_size, service)]

    def _stated(self, name: Key) -> bool:
        """Whether an open job says itself how long it takes."""
        return name not in self._expected_s

    def _settle(self, name: Key, request: JobRequest) -> None:
        if name not in self._service_ms:
            share = self._share[name] = gpu_share(request)
            service_s = share * min(self.expected_s(name, request), _LONGEST_S)
            self._service_ms[name] = round(1000 * service_s)

    def _forget(self, name: Key) -> None:
        self._expected_s.pop(name, None)
        self._untold.pop(name, None)
        self._guessed.pop(name, None)
        self.moved.pop(name, None)
        self._share.pop(name, None)
        self._service_ms.pop(name, None)

    def expected_s(self, name: Key, request: JobRequest) -> float:
        """How long an open job will take, as it was settled."""
        if request.expected_duration_s is not None:
            return request.expected_duration_s
        return self._expected_s.get(name, 0.0)

    def lasts_s(self, name: Key, request: JobRequest) -> float:
        """How long an open job may take, where others must not be kept waiting for it."""
        caution = CAUTION if request.expected_duration_s is None else 1.0
        return caution * self.expected_s(name, request)

    def class_s(self, workload: Workload) -> float | None:
        """What puts a waiting job beside others of its shape: those that last about as long."""
        request = workload.request
        if request is None:
            return None
        if self.seen is None:
            return request.expected_duration_s
        return self.expected_s(workload.key, request)

    def place(self, workload: Workload) -> Place:
        """Where a waiting job stands among those of its queue and priority."""
        if self.seen is None or workload.request is None:
            return AS_THEY_CAME
        name = workload.key
        self._settle(name, workload.request)
        service_s = self._service_ms[name] / 1000
        share, stated = self._share[name], self._stated(name)
        return place(service_s, workload.submitted_at_s, share, self.seen, stated=stated)

    def look(self, gpus: float, by: OrderBy) -> bool:
        """Take the fleet as it is now. Whether anybody may have another place than before."""
        before = self.seen
        if by == "arrival":
            self.seen = None
        elif self._given is not None:
            self.seen = _from_told(self._given)
        elif gpus > 0:
            self._settle_anew()
            open_s = (self._sums[False] + self._sums[True] / 2) / 1000
            self.seen = outlook(open_s, gpus, self._left_gpu_s())
        else:
            self.seen = NO_OUTLOOK
        return before != self.seen

    def _settle_anew(self) -> None:
        """Those who wait and were settled longest ago, if something has ended since; no more than
        the next decision can tell."""
        self._old = min(self._old, len(self._guessed))
        count = min(self._old, ANEW_AT_ONCE, TOLD_AT_ONCE - len(self._untold))
        for name in list(itertools.islice(self._guessed, max(count, 0))):
            workload = self._guessed[name]
            self._guessed.move_to_end(name)
            self._old -= 1
            request = workload.request
            assert request is not None  # it was submitted
            at_s = workload.submitted_at_s
            expected_s = self.durations.expected_s(workload.tenant, request, at_s)
            if expected_s != self._expected_s.get(name):
                self._replace(name, request, expected_s)
                self._untold[name] = None

    def _replace(self, name: Key, request: JobRequest, expected_s: float) -> None:
        live = self._live.get(name)
        if live is not None:
            self._count(name, live, -1)
        self._expected_s[name] = expected_s
        self._service_ms.pop(name, None)
        if live is not None:
            self._settle(name, request)
            self._count(name, live, +1)
        self.moved[name] = None

    def _left_gpu_s(self) -> float:
        """Jobs of more service than this are left behind: the largest of those that wait, so many
        as may be."""
        if self._by_size is None:
            waiting = (n for n, live in self._live.items() if not live and self._stated(n))
            self._by_size = sorted(self._service_ms[name] for name in waiting)
        may = left_places(self.submissions, self.late)
        large = self.sizes.large_gpu_s()
        if not may:
            return math.inf
        if may < len(self._by_size):
            large = max(large, self._by_size[-may - 1] / 1000)
        return large

    def ends_s(self, workload: Workload, now_s: float) -> float | None:
        """When a live job is expected to end; None if it is not live."""
        if workload.request is None or not workload.live:
            return None
        began_s = workload.running_at_s or workload.claimed_at_s or workload.placed_at_s
        ran_s = max(0.0, now_s - began_s)
        return now_s + left_s(self.expected_s(workload.key, workload.request), ran_s)

    # What decisions tell

    def tells(self) -> tuple[ToldOutlook | None, tuple[Expected, ...]]:
        """Of a decision that is made now: the outlook, and what was settled and not told yet."""
        if self.seen is None:
            return None, ()
        if self._given is not None:
            return self._given, self._given_expected
        first = itertools.islice(self._untold, TOLD_AT_ONCE)
        expected = tuple(
            Expected(tenant=tenant, id=workload_id, expected_s=self._expected_s[name])
            for name in first
            for tenant, _, workload_id in [name.partition("/")]
        )
        return _as_told(self.seen, self.submissions, self.late), expected

    def give(self, decision: Decision, open_: Mapping[Key, Workload]) -> None:
        """A decision is to be repeated with what it told."""
        self._given = decision.outlook
        self._given_expected = decision.expected
        self._take(decision.expected, open_)

    def _take(self, expected: Iterable[Expected], workload_of: Mapping[Key, Workload]) -> None:
        """A decision told what jobs were expected to take."""
        for each in expected:
            name = key(each.tenant, each.id)
            self._untold.pop(name, None)
            workload = workload_of.get(name)
            if workload is None or self._expected_s.get(name) == each.expected_s:
                continue
            if workload.request is not None:
                self._replace(name, workload.request, each.expected_s)

    def take_told(self, decision: Decision, open_: Mapping[Key, Workload]) -> None:
        """What a decision told, and which of those left behind had waited for long when it placed
        them."""
        told = decision.outlook
        if told is None:
            return
        self._take(decision.expected, open_)
        self.submissions = max(self.submissions, told.submitted)
        self.late = told.late
        seen = _from_told(told)
        for choice in decision.placements:
            workload = open_.get(key(choice.tenant, choice.id))
            if workload is None or workload.request is None or choice.attempt > 1:
                continue
            self._settle(workload.key, workload.request)
            stated = self._stated(workload.key)
            if stated and self._service_ms[workload.key] / 1000 > seen.left_gpu_s:
                self.late += decision.now_s - workload.submitted_at_s > LATE * seen.patience_s

    def learned(self, waiting: Iterable[Key]) -> Learned:
        """For a snapshot, with what was settled of these jobs."""
        settled: Mapping[Key, float] = self._expected_s
        return Learned(
            durations=self.durations.kept(),
            sizes=self.sizes.kept(),
            expected_s={name: settled[name] for name in waiting if name in settled},
            untold=list(self._untold),
            submitted=self.submissions,
            late=self.late,
        )


def _as_told(seen: Outlook, submitted: int, late: int) -> ToldOutlook:
    def finite(value: float) -> float | None:
        return value if value < math.inf else None

    return ToldOutlook(
        patience_s=finite(seen.patience_s),
        gpus=finite(seen.gpus),
        left_gpu_s=finite(seen.left_gpu_s),
        submitted=submitted,
        late=late,
    )


def _from_told(told: ToldOutlook) -> Outlook:
    values = (told.patience_s, told.gpus, told.left_gpu_s)
    return Outlook(*(math.inf if value is None else value for value in values))
