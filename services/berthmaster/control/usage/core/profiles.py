"""Profiles of attempts: usage, its distribution, stages and results. Pure.

An attempt's profile grows with each usage message, every half minute, and with events of the log.
The profile stays in memory until `LINGER_S` after the attempt's end, because the last message comes
late. The store keeps the profile as long as its job. Messages before the job's start or after the
store of its end are ignored. Usage messages are observations, and the door has checked their
sender.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.usage.core.similar import Likeness
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.profile import (
    AttemptProfile,
    Ending,
    LikeProfile,
    Profile,
    ProfileFault,
    ProfileRequest,
    Results,
    Stage,
)
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.workload import (
    Cancelled,
    Checkpointed,
    Evicted,
    Failed,
    Progressed,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from berthmaster.lib.profiles.bound_by import bound_by
from berthmaster.lib.profiles.metrics import METRICS
from berthmaster.lib.profiles.out_of_memory import evidence_of
from berthmaster.lib.profiles.sketch import Sketch, total
from berthmaster.lib.profiles.spreads import add, medians, spreads
from berthmaster.lib.profiles.stages import WORKS, Seen, stage_of

LINGER_S: Final = 90.0  # usage is reported until ten seconds after the last pod
WRITE_EVERY_S: Final = 300.0  # for a running attempt: maximum loss of a killed service
MAX_PROFILES: Final = 20_000  # in memory
MAX_ATTEMPTS_SHOWN: Final = 50
PRESENT_S: Final = 90.0  # older values are not current
LOG_TRIES: Final = 4  # checks for the stored log end of a failed attempt, one every `LOG_EVERY_S`
LOG_EVERY_S: Final = 15.0
AT_ONCE: Final = 16  # such checks in a round. With thousands of failures the rest is next
_ENDS: Final[dict[type[WorkloadEvent], Ending]] = {
    Withdrawn: "withdrawn",
    Evicted: "evicted",
    Succeeded: "succeeded",
    Failed: "failed",
    Cancelled: "cancelled",
}


class ProfileRecord(msgspec.Struct, omit_defaults=True):
    """One attempt's profile, as stored."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    submitted_ms: int
    likeness: Likeness
    since_s: float
    until_s: float
    gpus: int = 0
    pods: int = 0
    measured_s: float = 0.0
    sketches: dict[str, Sketch] = {}
    has_worked: bool = False
    stage: Stage | None = None
    stages: dict[str, float] = {}
    first_step: int | None = None
    first_step_at_s: float = 0.0
    last_step: int = 0
    last_step_at_s: float = 0.0
    rises: int = 0  # reports with a higher step than all before
    loss: float | None = None
    checkpoint_at_s: float = 0.0
    end: Ending = ""
    ended_at_s: float = 0.0
    fault: ProfileFault = ""
    evidence: tuple[str, ...] = ()


class Now(NamedTuple):
    """Current usage of measured jobs, summed."""

    gpus: int = 0
    busy_gpus: float = 0.0  # a GPU that ran kernels half of the time counts half
    cpu_cores: float = 0.0

    def plus(self, other: "Now") -> "Now":
        return Now(
            self.gpus + other.gpus,
            self.busy_gpus + other.busy_gpus,
            self.cpu_cores + other.cpu_cores,
        )


class _Live:
    def __init__(self, record: ProfileRecord) -> None:
        self.record = record
        self.source = (0, 0)  # epoch and counter of the last message
        self.changes = 1
        self.taken = self.written = 0  # changes returned for writing, and stored
        self.written_at_s = 0.0
        self.values: dict[str, float] = {}  # of the last message
        self.log_looks = 0
        self.log_due_s = 0.0

    @property
    def is_fresh(self) -> bool:
        """Return whether the profile has changed since its last write."""
        return self.changes != self.written


_AttemptKey = tuple[str, str, int]


class Profiles:
    def __init__(self) -> None:
        self.left_out = 0  # messages dropped because memory was full
        self._live: dict[_AttemptKey, _Live] = {}
        self._attempts: dict[Key, set[int]] = {}

    def __len__(self) -> int:
        return len(self._live)

    # Inputs

    def restore(self, records: Iterable[ProfileRecord]) -> None:
        """Restore the stored profiles of open attempts. Profiles in memory are newer."""
        for one in records:
            if (one.tenant, one.id, one.attempt) not in self._live:
                live = self._put(one)
                if live is not None:
                    live.written = live.changes

    def on_figures(
        self, figures: JobFigures, submitted_ms: int, likeness: Likeness | None, now_s: float
    ) -> None:
        """Take a half minute of an attempt. ``likeness`` None: the job has ended, and only known
        attempts grow.
        """
        window_s = figures.window_s
        live = self._live.get((figures.tenant, figures.id, figures.attempt))
        if live is None and likeness is not None:
            live = self._begin(figures, submitted_ms, likeness, now_s - window_s)
        source = (figures.epoch, figures.counter)
        if live is None or source <= live.source:
            return
        record = live.record
        live.source = source
        live.changes += 1
        record.gpus = max(record.gpus, figures.use.gpus)
        host = figures.host
        record.pods = max(record.pods, figures.pods, host.pods if host is not None else 0)
        live.values = values = add(record.sketches, figures)
        if not values:
            return
        record.until_s = max(record.until_s, now_s)
        record.measured_s += window_s
        busy = values.get("gpu_utilization_percent")
        record.has_worked |= busy is not None and busy >= 100 * WORKS
        record.stage = stage_of(_seen(record, values, window_s, now_s))
        spent_s = record.stages.get(record.stage, 0.0)
        record.stages[record.stage] = round(spent_s + window_s, 1)

    def on_event(
        self,
        event: WorkloadEvent,
        submitted_ms: int,
        likeness: Likeness,
        at_s: float,
        *,
        is_new: bool,
    ) -> None:
        """Take an applied event of an open job. An event read before (not ``is_new``) creates no
        profile: if its attempt has ended, the store has the complete profile.
        """
        match event:
            case Progressed():
                live = self._live.get((event.tenant, event.id, event.attempt))
                if live is None and is_new:
                    live = self._begin(event, submitted_ms, likeness, at_s)
                if live is not None:
                    _progress(live.record, event, at_s)
                    live.changes += 1
            case Checkpointed():
                live = self._live.get((event.tenant, event.id, event.attempt))
                if live is not None:
                    live.record.checkpoint_at_s = max(live.record.checkpoint_at_s, at_s)
            case Withdrawn() | Evicted() | Succeeded() | Failed() | Cancelled():
                self._end(event, at_s)
            case _:
                pass

    def _end(
        self, event: Withdrawn | Evicted | Succeeded | Failed | Cancelled, at_s: float
    ) -> None:
        for attempt in self._attempts.get(key(event.tenant, event.id), ()):
            live = self._live[event.tenant, event.id, attempt]
            record = live.record
            if record.end or (event.attempt and attempt != event.attempt):
                continue
            record.end, record.ended_at_s = _ENDS[type(event)], at_s
            record.fault = event.fault if isinstance(event, Evicted | Failed) else ""
            live.changes += 1
            if record.fault == "exit":
                live.log_looks, live.log_due_s = LOG_TRIES, at_s

    def _begin(
        self,
        about: JobFigures | Progressed,
        submitted_ms: int,
        likeness: Likeness,
        since_s: float,
    ) -> _Live | None:
        return self._put(
            ProfileRecord(
                tenant=about.tenant,
                id=about.id,
                attempt=about.attempt,
                cluster=about.cluster,
                submitted_ms=submitted_ms,
                likeness=likeness,
                since_s=since_s,
                until_s=since_s,
            )
        )

    def _put(self, record: ProfileRecord) -> _Live | None:
        if len(self._live) >= MAX_PROFILES:
            self.left_out += 1
            return None
        live = self._live[record.tenant, record.id, record.attempt] = _Live(record)
        self._attempts.setdefault(key(record.tenant, record.id), set()).add(record.attempt)
        return live

    def by_queue(self, queue_of: Callable[[str, str], str | None], now_s: float) -> dict[str, Now]:
        """Return the current usage of each queue's jobs. ``queue_of`` returns None if the job is
        not open.
        """
        found: dict[str, Now] = {}
        for one in self._live.values():
            record = one.record
            queue = queue_of(record.tenant, record.id)
            if record.end or queue is None or now_s - record.until_s > PRESENT_S:
                continue
            busy = one.values.get("gpu_utilization_percent")
            own = Now(
                record.gpus,
                (busy or 0.0) / 100 * record.gpus,
                one.values.get("cpu_cores", 0.0),
            )
            found[queue] = found.get(queue, Now()).plus(own)
        return found

    # GPU memory

    def log_ends_due(self, now_s: float, most: int = AT_ONCE) -> list[ProfileRecord]:
        """Return failed attempts whose stored log ends are due for a check."""
        due = [one for one in self._live.values() if one.log_looks and one.log_due_s <= now_s]
        due = due[:most]
        for one in due:
            one.log_looks -= 1
            one.log_due_s = now_s + LOG_EVERY_S
        return [one.record for one in due]

    def on_log_ends(self, record: ProfileRecord, ends: Sequence[bytes]) -> None:
        """Take the stored log ends of a failed attempt's pods."""
        live = self._live.get((record.tenant, record.id, record.attempt))
        if live is None or not ends:
            return
        memory = record.sketches.get("gpu_memory_max_percent")
        evidence = evidence_of(ends, memory.peak if memory is not None else None)
        if evidence:
            record.fault, record.evidence = "gpu_out_of_memory", evidence
            live.log_looks = 0
            live.changes += 1

    # Output

    def knows(self, tenant: str, workload_id: str) -> bool:
        """Return whether usage messages about the job are still accepted after its end."""
        return key(tenant, workload_id) in self._attempts

    def of(self, tenant: str, workload_id: str) -> list[ProfileRecord]:
        """Return the attempts of one job in memory."""
        attempts = self._attempts.get(key(tenant, workload_id), ())
        return [self._live[tenant, workload_id, one].record for one in sorted(attempts)]

    def take(self, now_s: float, most: int) -> list[ProfileRecord]:
        """Return profiles to write. Call ``wrote`` after the write."""
        due = []
        for one in self._live.values():
            ended = bool(one.record.end)
            if one.is_fresh and (ended or now_s - one.written_at_s >= WRITE_EVERY_S):
                one.taken = one.changes
                due.append(one.record)
                if len(due) == most:
                    break
        return due

    def wrote(self, records: Iterable[ProfileRecord], now_s: float) -> None:
        """Note the written profiles."""
        for record in records:
            live = self._live.get((record.tenant, record.id, record.attempt))
            if live is not None:
                live.written, live.written_at_s = live.taken, now_s

    def forget(self, now_s: float) -> None:
        """Drop attempts that ended long enough ago and are stored."""
        for name, one in list(self._live.items()):
            over = one.record.end and now_s - one.record.ended_at_s > LINGER_S
            if over and not one.is_fresh and not one.log_looks:
                del self._live[name]
                attempts = self._attempts[key(*name[:2])]
                attempts.discard(name[2])
                if not attempts:
                    del self._attempts[key(*name[:2])]


def _progress(record: ProfileRecord, event: Progressed, at_s: float) -> None:
    step = event.progress.step
    record.until_s = max(record.until_s, at_s)
    if record.first_step is None:
        record.first_step, record.first_step_at_s = step, at_s
        record.last_step, record.last_step_at_s = step, at_s
    elif at_s > record.last_step_at_s and step > record.last_step:
        record.last_step, record.last_step_at_s = step, at_s
        record.rises += 1
    record.loss = record.loss if event.progress.loss is None else event.progress.loss


def _seen(record: ProfileRecord, values: dict[str, float], window_s: float, now_s: float) -> Seen:
    busy = values.get("gpu_utilization_percent")
    sketch = record.sketches.get("gpu_utilization_percent")
    median = sketch.quantile(0.5) if sketch is not None else None
    written = values.get("disk_write_bytes_per_s")
    has_stepped = record.first_step is not None
    took_s = record.last_step_at_s - record.first_step_at_s
    return Seen(
        busy=None if busy is None else busy / 100,
        busy_median=None if median is None else median / 100,
        has_worked=record.has_worked,
        write_bytes_per_s=None if written is None else written / max(1, record.pods),
        stepped_ago_s=now_s - record.last_step_at_s if has_stepped else None,
        step_every_s=took_s / record.rises if record.rises else None,
        checkpoint_ago_s=now_s - record.checkpoint_at_s if record.checkpoint_at_s else None,
        window_s=window_s,
    )


# Replies


def no_profile(tenant: str, workload_id: str) -> Refusal:
    return Refusal(
        code="not_found",
        field="id",
        value=workload_id,
        expected=f"a job of {tenant} that is open or was measured: nothing is known of this one",
    )


def profile_reply(
    tenant: str,
    request: ProfileRequest,
    stored: Sequence[ProfileRecord],
    present: Sequence[ProfileRecord],
    by: str,
    likes: Sequence[ProfileRecord],
) -> Profile:
    """Return the reply. ``stored`` and ``present`` are the job's own attempts in the store and in
    memory.
    """
    records = {one.attempt: one for one in stored} | {one.attempt: one for one in present}
    own = [records[attempt] for attempt in sorted(records)][-MAX_ATTEMPTS_SHOWN:]
    like = like_profile(by, likes) if request.like and likes else None
    notes = []
    if request.like and like is None:
        notes.append("no job like this one has ended and was measured")
    if not request.like and not own:
        notes.append("nothing was measured of this job yet")
    if len(records) > len(own):
        notes.append(f"{len(records) - len(own)} earlier attempts are left out")
    return Profile(
        tenant=tenant,
        id=request.id,
        attempts=() if request.like else tuple(map(attempt_profile, own)),
        like=like,
        notes=tuple(notes),
    )


def attempt_profile(record: ProfileRecord) -> AttemptProfile:
    verdict = bound_by(medians(record.sketches), record.pods)
    results = None
    if record.first_step is not None:
        results = Results(
            first_step=record.first_step,
            last_step=record.last_step,
            last_step_at_s=record.last_step_at_s,
            loss=record.loss,
            steps_per_s=_steps_per_s(record),
        )
    return AttemptProfile(
        attempt=record.attempt,
        cluster=record.cluster,
        end=record.end,
        fault=record.fault,
        evidence=record.evidence,
        since_s=record.since_s,
        until_s=record.until_s,
        measured_s=round(record.measured_s, 1),
        gpus=record.gpus,
        pods=record.pods,
        metrics=spreads(record.sketches),
        bound_by=verdict.bound_by,
        shares=dict(verdict.shares),
        stage=record.stage,
        stages=dict(record.stages),
        results=results,
    )


def like_profile(by: str, records: Sequence[ProfileRecord]) -> LikeProfile:
    """Return the common profile: each metric over all half minutes of all attempts."""
    sketches = {
        name: total(one.sketches[name] for one in records if name in one.sketches)
        for name in METRICS
        if any(name in one.sketches for one in records)
    }
    pods = max((one.pods for one in records), default=1)
    verdict = bound_by(medians(sketches), pods)
    ends: dict[str, int] = {}
    faults: dict[str, int] = {}
    stages: dict[str, float] = {}
    for one in records:
        ends[one.end] = ends.get(one.end, 0) + 1
        if one.fault:
            faults[one.fault] = faults.get(one.fault, 0) + 1
        for stage, seconds in one.stages.items():
            stages[stage] = round(stages.get(stage, 0.0) + seconds, 1)
    speeds = sorted(speed for one in records if (speed := _steps_per_s(one)) is not None)
    return LikeProfile(
        by="labels" if by == "labels" else "shape",
        jobs=len({(one.id, one.submitted_ms) for one in records}),
        attempts=len(records),
        ends=ends,
        faults=faults,
        metrics=spreads(sketches),
        bound_by=verdict.bound_by,
        shares=dict(verdict.shares),
        stages=stages,
        steps_per_s=speeds[len(speeds) // 2] if speeds else None,
        measured_s=round(sum(one.measured_s for one in records), 1),
    )


def _steps_per_s(record: ProfileRecord) -> float | None:
    took_s = record.last_step_at_s - record.first_step_at_s
    if record.first_step is None or took_s <= 0 or record.last_step <= record.first_step:
        return None
    return round((record.last_step - record.first_step) / took_s, 6)
