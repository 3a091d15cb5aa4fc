"""Learned durations of jobs, from similar ended jobs: a fold of endings in the log's order.

Similarity has three degrees: same tenant, queue, shape and labels; the same without labels; the
same size. Jobs submitted together are most alike (a sweep, a retry, a day's work). So the estimate
is the mean of the NEAREST endings by time of submission, weighted by nearness. A new job has the
newest endings nearest. A pending job also learns from jobs of its own sweep.

Example: of a sweep of ten jobs five have ended after about 600 s. The other five are expected to
take 600 s, whatever older sweeps took.

The best degree differs between sites: labels may name the experiment or nothing useful. The mean
error of each degree is tracked, and the best degree is used. A job without similar endings gets the
mean of all.

Wider and narrower groups beside these (tenant, program, single labels) keep their endings here too:
similar.py estimates intervals from them.

Rules of this file:

Pure: durations in, estimates out. A snapshot carries both as ``Learned``.
"""

import bisect
import hashlib
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.queueing.life_tables import NO_LIVES
from berthmaster.lib.engine.queueing.similar import (
    NEWEST,
    Calibration,
    CalibrationState,
    Estimate,
    Foreseen,
    Group,
)
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import Lives
from berthmaster.lib.messages.workload import JobRequest

DEGREES: Final = 3  # of likeness, beside having nothing in common

Kind = tuple[str, ...]
Ending = tuple[float, float]  # time of submission, run time


class KindHistory(msgspec.Struct, frozen=True, array_like=True):
    """Endings of one kind in a snapshot, oldest first."""

    kind: Kind
    endings: list[Ending]
    seen: int = 0  # ever, those that are forgotten too


class LearnedDurations(msgspec.Struct, frozen=True, kw_only=True):
    """Data of ``Durations``."""

    kinds: list[KindHistory] = []  # in the order of forgetting
    judged: tuple[float, ...] = (0.0,) * DEGREES  # expectations of each degree, faded
    off: tuple[float, ...] = (0.0,) * DEGREES  # mean logarithm of the error factor of each degree
    calibration: CalibrationState = CalibrationState()


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Data of ``Expectations`` in a snapshot."""

    durations: LearnedDurations = LearnedDurations()
    sizes: list[float] = []
    lives: Lives = NO_LIVES
    expected_s: dict[Key, float] = {}  # expectations of open jobs without a stated duration
    untold: list[Key] = []
    submitted: int = 0
    late: int = 0
    foreseen: dict[Key, Foreseen] = {}  # of open jobs, some of them


ENOUGH: Final = 3  # endings of a kind before its estimate is used
KEPT: Final = 128  # endings of a kind; the oldest are forgotten
NEAREST: Final = 5  # endings in an estimate
TOGETHER_S: Final = 300.0  # distance in the time of submission that hardly matters
KINDS: Final = 16_384  # limit; the kind without an ending for longest is dropped
LABELS: Final = 8  # of a job, each of which is a group of its own
ESTIMATES: Final = 1024  # cached until a job ends
JUDGED: Final = 100.0  # expectations; how far off older ones were fades
FIRST_GUESS_S: Final = 3600.0  # before anything has ended
OVERRUN: Final = 0.5
CAUTION: Final = 1.9  # safety factor for jobs on capacity reserved for others
SIZES_KEPT: Final = 2000  # jobs of late
SIZES_ENOUGH: Final = 50  # before any job is called large
LARGE_QUANTILE: Final = 0.97  # three jobs in a hundred are larger

Kinds = tuple[Kind | None, ...]  # None: no labels
ALL: Final[Kind] = ("all",)
_NO_PROGRAM: Final = ("", (), ())


def kinds_of(tenant: str, request: JobRequest) -> Kinds:
    """Return the kinds of a job: one for each degree, closest first, then all."""
    size = str(sum(p.count * p.gpus * p.gpu_milli for p in request.pod_sets))
    own = ("shape", tenant, request.queue, shape_of(request).key.hex())
    labelled = None
    if request.labels:
        labels = sorted(request.labels.items())
        labelled = (*own, *(f"{name}={value}" for name, value in labels))
    return labelled, own, ("size", size), ALL


def groups_of(tenant: str, request: JobRequest) -> tuple[Kind, ...]:
    """The groups of similar.py beside the kinds: its tenant, its program, each of its labels."""
    groups: list[Kind] = [("tenant", tenant)]
    run = request.run
    if (run.image, run.command, run.args) != _NO_PROGRAM:
        words = "\0".join((run.image, *run.command, "", *run.args))
        program = hashlib.blake2b(words.encode(errors="replace"), digest_size=12).hexdigest()
        groups.append(("program", tenant, program))
    labels = sorted(request.labels.items())[:LABELS]
    groups += [("label", tenant, f"{name}={value}") for name, value in labels]
    return tuple(groups)


def neighbours(endings: Sequence[Ending], at_s: float) -> Sequence[Ending]:
    """The NEAREST in the time of submission; ``endings`` are sorted. Of two that are equally near
    the later."""
    low = high = bisect.bisect_left(endings, (at_s, -math.inf))
    while high - low < NEAREST and (low > 0 or high < len(endings)):
        before_s = at_s - endings[low - 1][0] if low > 0 else math.inf
        after_s = endings[high][0] - at_s if high < len(endings) else math.inf
        if before_s < after_s:
            low -= 1
        else:
            high += 1
    return endings[low:high]


def expected_from(near: Sequence[Ending], at_s: float) -> float:
    """Return the mean run time, weighted by nearness of the submission."""
    weights = [1.0 / (abs(at_s - submitted_s) + TOGETHER_S) for submitted_s, _ in near]
    base_s = near[0][1]  # makes the mean of equal values exact
    more_s = sum((w * (ran_s - base_s) for w, (_, ran_s) in zip(weights, near, strict=True)), 0.0)
    return max(0.0, base_s + more_s / sum(weights, 0.0))


class _Endings:
    __slots__ = ("by_submission", "newest", "seen")

    def __init__(self, endings: Iterable[Ending] = (), seen: int = 0) -> None:
        self.newest = deque(endings)
        self.seen = seen  # ever
        self.by_submission = sorted(self.newest)

    def add(self, ending: Ending) -> None:
        self.seen += 1
        self.newest.append(ending)
        bisect.insort(self.by_submission, ending)
        if len(self.newest) > KEPT:
            oldest = self.newest.popleft()
            del self.by_submission[bisect.bisect_left(self.by_submission, oldest)]

    def last(self, count: int) -> list[Ending]:
        """The newest, oldest first."""
        return list(itertools.islice(self.newest, max(0, len(self.newest) - count), None))


class Durations:
    def __init__(self, learned: LearnedDurations | None = None) -> None:
        learned = learned or LearnedDurations()
        self._ended = OrderedDict(
            (each.kind, _Endings(each.endings, each.seen)) for each in learned.kinds
        )
        self._judged = list(learned.judged)
        self._off = list(learned.off)
        self._calibration = Calibration(learned.calibration)
        self._estimates: dict[tuple[Kind, ...], Estimate | None] = {}

    def learn(self, tenant: str, request: JobRequest, submitted_at_s: float, ran_s: float) -> None:
        """A job ended well after so long."""
        if not (0 <= ran_s < math.inf and math.isfinite(submitted_at_s)):
            return
        kinds = kinds_of(tenant, request)
        if request.expected_duration_s is None:
            self._judge(kinds, submitted_at_s, ran_s)
        self._estimates.clear()
        for kind in (*kinds, *groups_of(tenant, request)):
            if kind is None:
                continue
            endings = self._ended.get(kind)
            if endings is None:
                endings = self._ended[kind] = _Endings()
            endings.add((submitted_at_s, ran_s))
            self._ended.move_to_end(kind)
        while len(self._ended) > KINDS:
            self._ended.popitem(last=False)

    def _judge(self, kinds: Kinds, submitted_at_s: float, ran_s: float) -> None:
        for degree, kind in enumerate(kinds[:DEGREES]):
            expected_s = self._from_kind(kind, submitted_at_s)
            if expected_s is not None:
                judged = self._judged[degree] = min(JUDGED, self._judged[degree] + 1.0)
                off = abs(math.log((1.0 + expected_s) / (1.0 + ran_s)))
                self._off[degree] += (off - self._off[degree]) / judged

    def _from_kind(self, kind: Kind | None, submitted_at_s: float) -> float | None:
        """Return the estimate of one kind; None with too few endings."""
        endings = self._ended.get(kind) if kind is not None else None
        if endings is None or (len(endings.newest) < ENOUGH and kind != ALL):
            return None
        return expected_from(neighbours(endings.by_submission, submitted_at_s), submitted_at_s)

    def expected_s(self, tenant: str, request: JobRequest, submitted_at_s: float) -> float:
        """Return the stated or estimated duration."""
        if request.expected_duration_s is not None:
            return request.expected_duration_s
        kinds = kinds_of(tenant, request)
        for degree in (*sorted(range(DEGREES), key=self._off.__getitem__), DEGREES):
            expected_s = self._from_kind(kinds[degree], submitted_at_s)
            if expected_s is not None:
                return expected_s
        return FIRST_GUESS_S

    # Intervals

    def estimate(self, tenant: str, request: JobRequest) -> Estimate | None:
        """How long it will take by similar jobs, whatever it states; None: too few have ended."""
        kinds = self._known(tenant, request)
        if kinds not in self._estimates:
            if len(self._estimates) >= ESTIMATES:
                self._estimates.clear()
            self._estimates[kinds] = self._calibration.estimate(self._groups(kinds))
        return self._estimates[kinds]

    def foresee(self, tenant: str, request: JobRequest) -> Foreseen | None:
        """An estimate to be judged when the job has ended."""
        return self._calibration.foresee(self._groups(self._known(tenant, request)))

    def judge(self, foreseen: Foreseen, ran_s: float) -> None:
        """A job of which this was foreseen ran for so long."""
        if 0 <= ran_s < math.inf:
            self._calibration.judge(foreseen, ran_s)
            self._estimates.clear()

    def _known(self, tenant: str, request: JobRequest) -> tuple[Kind, ...]:
        """The groups of a job in which any has ended, the widest first."""
        labelled, own, size, all_ = kinds_of(tenant, request)
        wide = (all_, size, *groups_of(tenant, request), own, labelled)
        known = [kind for kind in wide if kind is not None and kind in self._ended]
        known.sort(key=lambda kind: -self._ended[kind].seen)  # stable
        return tuple(known)

    def _groups(self, kinds: tuple[Kind, ...]) -> list[Group]:
        ended = (self._ended[kind] for kind in kinds)
        return [Group(each.seen, [ran_s for _, ran_s in each.last(NEWEST)]) for each in ended]

    def kept(self) -> LearnedDurations:
        """Return the data for a snapshot."""
        return LearnedDurations(
            kinds=[
                KindHistory(kind, list(ends.newest), ends.seen)
                for kind, ends in self._ended.items()
            ],
            judged=tuple(self._judged),
            off=tuple(self._off),
            calibration=self._calibration.state(),
        )


def left_s(expected_s: float, ran_s: float) -> float:
    """How long a running job will still take."""
    return expected_s - ran_s if ran_s < expected_s else OVERRUN * ran_s


class Sizes:
    """Service of recent jobs with a stated duration, in GPU-seconds."""

    def __init__(self, kept: Iterable[float] = ()) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        for service in kept:
            self.learn(service)

    def learn(self, service_gpu_s: float) -> None:
        if not 0 <= service_gpu_s < math.inf:
            return
        self._newest.append(service_gpu_s)
        bisect.insort(self._sorted, service_gpu_s)
        if len(self._newest) > SIZES_KEPT:
            oldest = self._newest.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]

    def large_gpu_s(self) -> float:
        """A job of more service than this is large; infinite while too few are known."""
        known = len(self._sorted)
        if known < SIZES_ENOUGH:
            return math.inf
        return self._sorted[min(known - 1, math.ceil(LARGE_QUANTILE * known) - 1)]

    def kept(self) -> list[float]:
        """Return the data for a snapshot, oldest first."""
        return list(self._newest)
