"""Jobs that wait for trials, and the results of equal jobs before them. Pure.

Example: 40 equal jobs are submitted with trials of 4 and 8 GPUs. The first one runs its trials, and
the others wait for the results. All 40 then run on 8 GPUs, for the price of two trials.

Rules:

- Equal are jobs with the same tenant, queue, pod sets, image, command, arguments, environment,
  runtime, data and clusters. Variables with the name of a run (``UNIQUE``) may differ. A job with
  ``then: report`` has no equals.
- Of equal jobs the longest waiting one runs trials. A hold ends the wait.
- At most ``MOST_TRYING`` jobs of a tenant run trials at once.
- Results count for ``KEPT_S`` after the trial. A restarted gateway reads them from the log, as far
  as the archivist has left the jobs there.
"""

from collections import OrderedDict
from typing import Final

from msgspec.structs import replace

from berthmaster.lib.lifecycle.choices import trial_in
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.trials import seconds_a_step
from berthmaster.lib.lifecycle.workload import Key, Workload, content_digest, key
from berthmaster.lib.messages.workload import JobRequest, TrialResult

CHECKED_EVERY_S: Final = 15.0  # whether a job waited long enough
CHECKED_SELDOM_S: Final = 300.0  # the same for jobs that may not begin yet
KEPT_S: Final = 7 * 86_400.0
MOST_KEPT: Final = 10_000
MOST_TRYING: Final = 64
UNIQUE: Final = ("RUN_ID", "RUN_NAME", "JOB_ID", "JOB_NAME")  # ends of variables that name a run


def likeness_of(tenant: str, request: JobRequest) -> str:
    """Return a key that equal jobs share; a key of its own for a job that reports alone."""
    trial = trial_in(request)
    env = {name: text for name, text in request.run.env.items() if not name.endswith(UNIQUE)}
    alike = JobRequest(
        id=request.id if trial is not None and trial.then == "report" else "equal",
        queue=request.queue,
        pod_sets=request.pod_sets,
        run=replace(request.run, env=env),
        runtime=request.runtime,
        clusters=request.clusters,
        cluster_labels=request.cluster_labels,
        data=request.data,
        set=tenant,
    )
    return content_digest(alike)


class Trials:
    """State of all jobs with trials."""

    def __init__(self) -> None:
        self._likeness: dict[Key, str] = {}  # of jobs that wait
        self._equal: dict[str, dict[Key, None]] = {}  # by likeness, the longest wait first
        self._checked: dict[Key, float] = {}  # of the first ones
        self._trying: dict[str, set[Key]] = {}  # by tenant, those that may submit trials
        self._later: dict[str, dict[Key, None]] = {}  # by tenant, those that may not yet
        self._results: OrderedDict[str, tuple[TrialResult, ...]] = OrderedDict()

    def follow(self, work: Workload) -> list[Key]:
        """Follow a changed workload, and return the jobs whose trials may have changed."""
        request = work.wished or work.request
        if request is None:
            return []
        if request.trial_of:
            return [key(work.tenant, request.trial_of)]
        if trial_in(request) is None:
            return []
        if work.trials:
            self._remember(likeness_of(work.tenant, request), work)
        if work.state is State.QUEUED and work.depends and work.hold is None:
            return self._wait(work.key, likeness_of(work.tenant, request))
        return self._leave(work)

    def _wait(self, name: Key, likeness: str) -> list[Key]:
        """Add a job, and return it if it is the first one, or if results are there."""
        self._likeness[name] = likeness
        equal = self._equal.setdefault(likeness, {})
        equal[name] = None
        return [name] if likeness in self._results or next(iter(equal)) == name else []

    def _leave(self, work: Workload) -> list[Key]:
        """Remove a job, and return those that go on: equal ones with results, or else the next
        equal one, and the next of the tenant that had to wait.
        """
        likeness = self._likeness.pop(work.key, None)
        if likeness is None:
            return []
        self._checked.pop(work.key, None)
        trying, later = self._trying.get(work.tenant, set()), self._later.get(work.tenant, {})
        trying.discard(work.key)
        later.pop(work.key, None)
        found = list(later)[:1] if len(trying) < MOST_TRYING else []
        equal = self._equal[likeness]
        del equal[work.key]
        if not equal:
            del self._equal[likeness]
            return found
        return found + (list(equal) if likeness in self._results else list(equal)[:1])

    def due(self, now_s: float) -> list[Key]:
        """Return the jobs to check now: of equal ones the first."""
        checked, found = self._checked, list[Key]()
        later = {name for names in self._later.values() for name in names}
        for equal in self._equal.values():
            name = next(iter(equal))
            every_s = CHECKED_SELDOM_S if name in later else CHECKED_EVERY_S
            if now_s - checked.get(name, 0.0) >= every_s:
                found.append(name)
        checked.update(dict.fromkeys(found, now_s))
        return found

    def is_first(self, work: Workload) -> bool:
        """Return whether the job runs its trials before all equal jobs that wait."""
        likeness = self._likeness.get(work.key)
        return likeness is None or next(iter(self._equal[likeness])) == work.key

    def may_begin(self, work: Workload) -> bool:
        """Return whether trials of the job may be submitted, beside those of its tenant."""
        trying, later = (
            self._trying.setdefault(work.tenant, set()),
            self._later.setdefault(work.tenant, {}),
        )
        if work.key not in trying and len(trying) >= MOST_TRYING:
            later[work.key] = None
            return False
        trying.add(work.key)
        later.pop(work.key, None)
        return True

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
