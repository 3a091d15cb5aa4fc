"""Jobs that wait for trials, and the results of equal jobs before them. Pure.

Example: 40 equal jobs are submitted with trials of 4 and 8 GPUs. The first one runs its trials, and
the others wait for the results. All 40 then run on 8 GPUs, for the price of two trials.

Rules:

- Jobs are equal if tenant, pod sets, image, command, arguments, runtime and clusters are. The
  environment may differ, since programs get names of runs in it.
- Of equal jobs the first submitted one that is not held runs its trials.
- Results count for ``KEPT_S`` after the trial. They are known from the log, so a restarted gateway
  knows those of the jobs that the log still has.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from msgspec.structs import replace

from berthmaster.lib.lifecycle.choices import trial_in
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.trials import seconds_a_step
from berthmaster.lib.lifecycle.workload import Key, Workload, content_digest, key
from berthmaster.lib.messages.workload import JobRequest, TrialResult

CHECKED_EVERY_S: Final = 15.0  # whether a job waited long enough
KEPT_S: Final = 7 * 86_400.0
MOST_KEPT: Final = 10_000


def likeness_of(tenant: str, request: JobRequest) -> str:
    """Return a key that equal jobs share."""
    run = replace(request.run, env={}, secret_env={})
    alike = JobRequest(
        id=tenant,
        pod_sets=request.pod_sets,
        run=run,
        runtime=request.runtime,
        clusters=request.clusters,
        cluster_labels=request.cluster_labels,
    )
    return content_digest(alike)


class _Waiting(NamedTuple):
    likeness: str
    sequence: int  # of the submission


class Trials:
    """State of all jobs with trials."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._checked: dict[Key, float] = {}
        self._results: OrderedDict[str, tuple[TrialResult, ...]] = OrderedDict()

    def follow(self, work: Workload) -> list[Key]:
        """Follow a changed workload, and return the jobs whose trials may have changed."""
        request = work.request
        if request is None:
            return []
        if request.trial_of:
            return [key(work.tenant, request.trial_of)]
        if trial_in(request) is None:
            return []
        if work.trials:
            self._remember(likeness_of(work.tenant, request), work)
        if work.state is State.QUEUED and work.depends and work.hold is None:
            waiting = _Waiting(likeness_of(work.tenant, request), work.submitted_sequence)
            self._waiting[work.key] = waiting
            return [work.key]
        gone = self._waiting.pop(work.key, None)
        self._checked.pop(work.key, None)
        return [] if gone is None else [n for n, o in self._waiting.items() if o[0] == gone[0]]

    def due(self, now_s: float) -> list[Key]:
        """Return the jobs to check now, because they may have waited long enough."""
        checked = self._checked
        found = [n for n in self._waiting if now_s - checked.get(n, 0.0) >= CHECKED_EVERY_S]
        checked.update(dict.fromkeys(found, now_s))
        return found

    def is_first(self, work: Workload) -> bool:
        """Return whether the job runs its trials before all equal jobs that wait."""
        mine = self._waiting.get(work.key)
        if mine is None:
            return True
        same = (one.sequence for one in self._waiting.values() if one.likeness == mine.likeness)
        return mine.sequence == min(same)

    def known(self, work: Workload, now_s: float) -> tuple[TrialResult, ...]:
        """Return the results of an equal job that are not too old; () without any."""
        if work.request is None:
            return ()
        results = self._results.get(likeness_of(work.tenant, work.request), ())
        return results if all(one.at_s > now_s - KEPT_S for one in results) else ()

    def _remember(self, likeness: str, work: Workload) -> None:
        """Keep the results of a job, unless none was had, or a trial did not run."""
        unknown = all(value is None for value in seconds_a_step(work.trials))
        if unknown or any(one.ended == "not_run" for one in work.trials):
            return
        self._results[likeness] = tuple(replace(one, job=one.job or work.id) for one in work.trials)
        self._results.move_to_end(likeness)
        if len(self._results) > MOST_KEPT:
            self._results.popitem(last=False)
