"""Expected durations of open jobs, and the data they are learned from: a fold of the log.

The duration is set at the submission, from the job's statement or earlier endings. A stated
duration stays. A guess is renewed while the job is pending (due_order.py) and counts as known once
a decision has reported it. A resolver that starts on a purged log therefore continues in the same
way, and each decision can be repeated.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from berthmaster.lib.engine.queueing.life_tables import LivesSeen
from berthmaster.lib.engine.queueing.order import LATE, Outlook, gpu_share
from berthmaster.lib.engine.queueing.predict import Durations, Learned, Sizes
from berthmaster.lib.lifecycle.run_times import saved_s
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.placement import Decision, Expected, ToldOutlook
from berthmaster.lib.messages.workload import JobRequest

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
        """Learn from a successful end. Return whether anything was learned."""
        if workload.request is None or not workload.running_at_s > 0:
            return False
        ran_s = saved_s(workload) + max(0.0, at_s - workload.running_at_s)
        foreseen = self._foreseen.pop(workload.key, None)
        if foreseen is not None:
            self.durations.judge(foreseen, ran_s)
        self.durations.learn(workload.tenant, workload.request, workload.submitted_at_s, ran_s)
        self.lives.learn(gpu_share(workload.request), ran_s)
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
