"""Expected durations of open jobs, and the data they are learned from: a fold of the log.

The duration is set at the submission, from the job's statement or earlier endings. A stated
duration stays. A guess is renewed while the job is pending (due_order.py) and counts as known once
a decision has reported it. A resolver that starts on a purged log therefore continues in the same
way, and each decision can be repeated.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.queueing.life_tables import NO_LIVES, LivesSeen
from berthmaster.lib.engine.queueing.lines import LATE, Outlook, gpu_share
from berthmaster.lib.engine.queueing.similar import (
    NEWEST,
    Calibration,
    CalibrationState,
    Estimate,
    Foreseen,
    Group,
)
from berthmaster.lib.lifecycle.workload import Key, Workload, key, saved_s
from berthmaster.lib.messages.placement import Decision, Expected, Lives, ToldOutlook
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
    recorded: dict[Key, Expected] = {}  # estimates in decisions, of open jobs


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
        self.version = 0  # another one whenever any estimate may have changed

    def learn(self, tenant: str, request: JobRequest, submitted_at_s: float, ran_s: float) -> None:
        """A job ended well after so long."""
        if not (0 <= ran_s < math.inf and math.isfinite(submitted_at_s)):
            return
        kinds = kinds_of(tenant, request)
        if request.expected_duration_s is None:
            self._judge(kinds, submitted_at_s, ran_s)
        self._change()
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

    def of_configuration(self, tenant: str, request: JobRequest) -> tuple[float, int] | None:
        """Return the median run time of jobs with the same queue, shape and labels, and their
        number; None if fewer than ENOUGH ended.
        """
        labelled, own, *_ = kinds_of(tenant, request)
        endings = self._ended.get(labelled or own or ALL)
        if endings is None or len(endings.newest) < ENOUGH:
            return None
        ran_s = sorted(each for _, each in endings.last(NEWEST))
        return ran_s[(len(ran_s) - 1) // 2], endings.seen

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
            self._change()

    def _change(self) -> None:
        self.version += 1
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


JUDGE_ALL: Final = 2000  # submissions: of the first ones each estimate is judged
JUDGE_EVERY: Final = 8  # later one of so many is
MOST_FORESEEN: Final = 10_000  # open jobs
_LONGEST_S: Final = 1e12
OnTold = Callable[[Key, JobRequest, float, float], None]  # arguments: new and earlier expectation


class Expectations:
    def __init__(self, learned: Learned | None = None) -> None:
        learned = learned or Learned()
        self.durations = Durations(learned.durations)
        self.sizes = Sizes(learned.sizes)
        self.lives = LivesSeen(learned.lives)
        self._expected_s = dict(learned.expected_s)
        self.untold: dict[Key, None] = dict.fromkeys(learned.untold)
        self._foreseen = dict(learned.foreseen)
        self.recorded = dict(learned.recorded)  # estimates in decisions, see foresight.py
        self.submissions = learned.submitted  # number of jobs ever submitted, as far as known
        self.late = learned.late  # number of jobs left behind that waited long

    def submitted(self, workload: Workload) -> None:
        """Set the expectation of a new job."""
        request = workload.request
        if request is None:
            return
        self.submissions += 1
        self._foresee(workload.key, workload.tenant, request)
        expected_s = self.guess_s(workload)
        if request.expected_duration_s is None:
            self._expected_s[workload.key] = expected_s
            self.untold[workload.key] = None
        else:
            self.sizes.learn(gpu_share(request) * expected_s)

    def _foresee(self, name: Key, tenant: str, request: JobRequest) -> None:
        """Keep an estimate until the job ends; of many jobs, of every JUDGE_EVERY-th."""
        if len(self._foreseen) >= MOST_FORESEEN:
            return
        if self.submissions > JUDGE_ALL and self.submissions % JUDGE_EVERY:
            return
        foreseen = self.durations.foresee(tenant, request)
        if foreseen is not None:
            self._foreseen[name] = foreseen

    def succeeded(self, workload: Workload, at_s: float) -> bool:
        """Learn from a successful end, but of a trial's. Return whether anything was learned."""
        request = workload.request
        if request is None or request.trial_of or not workload.running_at_s > 0:
            return False
        ran_s = saved_s(workload) + max(0.0, at_s - workload.running_at_s)
        foreseen = self._foreseen.pop(workload.key, None)
        if foreseen is not None:
            self.durations.judge(foreseen, ran_s)
        self.durations.learn(workload.tenant, request, workload.submitted_at_s, ran_s)
        self.lives.learn(gpu_share(request), ran_s)
        return True

    def ended(self, name: Key) -> None:
        self._expected_s.pop(name, None)
        self._foreseen.pop(name, None)
        self.untold.pop(name, None)

    def guess_s(self, workload: Workload) -> float:
        """How long a job will take, by all that is known now."""
        request = workload.request
        assert request is not None  # every submitted job has a request
        return self.durations.expected_s(workload.tenant, request, workload.submitted_at_s)

    @property
    def any_unstated(self) -> bool:
        """Return whether an open job has no stated duration."""
        return bool(self._expected_s)

    def is_stated(self, name: Key) -> bool:
        return name not in self._expected_s

    def of_unstated(self, name: Key) -> float:
        """Return the expectation of an open job without a stated duration."""
        return self._expected_s.get(name, 0.0)

    def expected_s(self, name: Key, request: JobRequest) -> float:
        """Return the expected duration of an open job."""
        if request.expected_duration_s is not None:
            return request.expected_duration_s
        return self.of_unstated(name)

    # Data in decisions

    def take(
        self, expected: Iterable[Expected], open_: Mapping[Key, Workload], on_told: OnTold
    ) -> None:
        for each in expected:
            name = key(each.tenant, each.id)
            self.untold.pop(name, None)
            workload = open_.get(name)
            if workload is None or workload.request is None:
                continue
            before_s = self.of_unstated(name)
            self._expected_s[name] = each.expected_s
            on_told(name, workload.request, each.expected_s, before_s)

    def take_told(self, decision: Decision, open_: Mapping[Key, Workload], on_told: OnTold) -> None:
        """Apply a decision's expectations, and count placed jobs that were left behind and waited
        long.
        """
        told = decision.outlook
        if told is None:
            return
        self.take(decision.expected, open_, on_told)
        self.submissions = max(self.submissions, told.submitted)
        self.late = told.late
        seen = from_told(told)
        for choice in decision.placements:
            workload = open_.get(key(choice.tenant, choice.id))
            if workload is None or workload.request is None or choice.attempt > 1:
                continue
            request = workload.request
            expected_s = self.expected_s(workload.key, request)
            service_s = service_ms(gpu_share(request), expected_s) / 1000
            if self.is_stated(workload.key) and service_s > seen.left_gpu_s:
                self.late += decision.now_s - workload.submitted_at_s > LATE * seen.patience_s

    def learned(self, open_: Iterable[Key]) -> Learned:
        """Return the learned data for a snapshot, with expectations of these jobs."""
        settled: Mapping[Key, float] = self._expected_s
        return Learned(
            durations=self.durations.kept(),
            sizes=self.sizes.kept(),
            lives=self.lives.tabulated(),
            expected_s={name: settled[name] for name in open_ if name in settled},
            untold=list(self.untold),
            submitted=self.submissions,
            late=self.late,
            foreseen=dict(self._foreseen),
            recorded=dict(self.recorded),
        )


def service_ms(share: float, expected_s: float) -> int:
    """Return the GPU-milliseconds of a job with this share and duration."""
    return round(1000 * (share * min(expected_s, _LONGEST_S)))


def as_told(seen: Outlook, submitted: int, late: int) -> ToldOutlook:
    def finite(value: float) -> float | None:
        return value if value < math.inf else None

    return ToldOutlook(
        patience_s=finite(seen.patience_s),
        gpus=finite(seen.gpus),
        left_gpu_s=finite(seen.left_gpu_s),
        submitted=submitted,
        late=late,
    )


def from_told(told: ToldOutlook) -> Outlook:
    values = (told.patience_s, told.gpus, told.left_gpu_s)
    return Outlook(*(math.inf if value is None else value for value in values))
