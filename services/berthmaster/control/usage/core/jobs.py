"""Turn a job's event history into the stored job: times, attempts, GPUs. Pure.

A ``Life`` takes the applied events in order, and returns the ended job after the last event. Single
events from the log and whole histories from the archive give the same job.

All times are the server's, in milliseconds. Held GPUs are counted in GPU-microseconds: a thousandth
of a GPU for a millisecond is one, so that sums and their parts stay whole numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from berthmaster.control.usage.core.gpus import Catalogue, Held, asked_milli, held
from berthmaster.control.usage.core.similar import Likeness, likeness_of
from berthmaster.control.usage.core.suggest import Form, Own, form_of
from berthmaster.lib.lifecycle.choices import has_choice
from berthmaster.lib.lifecycle.fold import Verdict, fold_history
from berthmaster.lib.lifecycle.pods import together, with_bound
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.placement import HUB_CELL, PodBinding
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Carried,
    Claimed,
    Committed,
    Divided,
    Evicted,
    Failed,
    JobRequest,
    Placed,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)

EndName = Literal["withdrawn", "evicted", "succeeded", "failed", "cancelled"]
StateName = Literal["succeeded", "failed", "cancelled"]
MAX_PIECES: Final = 200  # of an attempt whose number of pods changes. Later ones count as the last
MAX_ATTEMPTS: Final = 2_000  # stored for one job. An executor's max_evictions is below
MAX_REASON_CHARS: Final = 500
_ENDS: Final[Mapping[type[WorkloadEvent], StateName]] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Cancelled: "cancelled",
}


class Use(NamedTuple):
    """Measured use of an attempt's GPUs."""

    measured_ms: int = 0  # measured time. With half of the GPUs measured, half the time
    used_gpu_us: int = 0  # use in that time. A GPU at 100 % counts fully


class MeasuredUse(msgspec.Struct, frozen=True):
    """Measured use so far of an attempt that has not ended."""

    tenant: str
    id: str
    attempt: int
    use: Use
    at_ms: int


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one model that one attempt held, with the period."""

    attempt: int
    cluster: str
    model: str
    asked_milli: int
    held_milli: int
    placed_ms: int
    running_ms: int | None
    from_ms: int  # start of the holding: placement, or Kueue's admission
    to_ms: int
    end: EndName
    reason: str
    used_gpu_us: int = 0
    measured_gpu_us: int = 0

    @property
    def asked_gpu_us(self) -> int:
        """Return the requested GPU time while the attempt held GPUs."""
        return self.asked_milli * (self.to_ms - self.from_ms)

    @property
    def held_gpu_us(self) -> int:
        return self.held_milli * (self.to_ms - self.from_ms)


class EndedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One ended job, as stored. Its key is (tenant, id, submitted_ms): an id may be used again long
    after the end of its job.
    """

    tenant: str
    id: str
    submitted_ms: int
    ended_ms: int
    placed_ms: int | None  # first placement
    running_ms: int | None  # first start
    state: StateName
    queue: str
    owner: str
    cluster: str
    hub: str
    asked_milli: int
    attempts: int
    evictions: int
    reason: str
    holdings: tuple[Holding, ...]
    is_part: bool = False
    # is_part: part of a divided job, or a trial. Its holdings count here, and the job counts once
    likeness: Likeness = Likeness("", "", "")
    form: Form = Form("", "")

    @property
    def last(self) -> tuple[Holding, ...]:
        """Return the holdings of the last attempt with a placement."""
        newest = max((one.attempt for one in self.holdings), default=0)
        return tuple(one for one in self.holdings if one.attempt == newest)

    @property
    def model(self) -> str:
        """Return the model with the most GPUs in the last attempt."""
        best = max(self.last, key=lambda one: (one.held_milli, one.model), default=None)
        return best.model if best is not None else ""


class _Attempt:
    def __init__(self, event: Placed, at_ms: int) -> None:
        self.number = event.attempt
        self.cluster = event.cluster
        self.request: JobRequest = event.request
        self.pods = event.pods
        self.placed_ms = at_ms
        self.admitted_ms: int | None = None
        self.running_ms: int | None = None
        self.since_ms = at_ms  # since when it has these pods
        self.before: list[tuple[tuple[PodBinding, ...], int, int]] = []  # earlier pods: start, end

    def has(self, pods: tuple[PodBinding, ...], at_ms: int) -> None:
        """Set the pods that hold GPUs from now on. Other pods of the same number count from the
        start.
        """
        changes = len(pods) != len(self.pods) and self.running_ms is not None
        if changes and at_ms > self.since_ms and len(self.before) < MAX_PIECES:
            self.before.append((self.pods, self.since_ms, at_ms))
            self.since_ms = at_ms
        self.pods = pods


class Life:
    """One job until its end. Call ``take`` with the applied events."""

    def __init__(self, event: Submitted, at_ms: int, sequence: int, owner_label: str) -> None:
        """``sequence`` is that of the first event."""
        request = event.request
        origin = event.origin
        self.sequence = sequence
        self.tenant, self.id = event.tenant, event.id
        self.submitted_ms = at_ms
        self.queue = request.queue
        self.owner = request.labels.get(owner_label, "") or (origin.owner if origin else "")
        self.hub = (origin.hub or origin.namespace) if origin else ""
        self.by_hub = event.cell == HUB_CELL
        self._take_features(request)
        self._chooses = has_choice(request)
        self.is_part = request.part is not None or bool(request.trial_of)
        self._starts_whole = request.divide is not None and request.divide.gang
        self.placed_ms: int | None = None
        self.running_ms: int | None = None
        self.evictions = 0
        self.cluster = ""
        self._open: _Attempt | None = None
        self._count = 0
        self._holdings: list[Holding] = []

    def _take_features(self, request: JobRequest) -> None:
        """Set the features by the request as submitted, or in its chosen configuration."""
        self.asked_milli = asked_milli(request)
        self.likeness = likeness_of(self.tenant, request)
        self.form = form_of(self.tenant, request)

    def take(self, event: WorkloadEvent, at_ms: int, catalogue: Catalogue) -> EndedJob | None:
        """Take one applied event, and return the job after its end."""
        match event:
            case Placed():
                self._open = _Attempt(event, at_ms)
                if self._chooses:
                    self._take_features(event.request)
                self._count, self.cluster = event.attempt, event.cluster
                self.placed_ms = self.placed_ms if self.placed_ms is not None else at_ms
            case Divided():  # the parts hold its GPUs
                self._count = event.attempt
                self.placed_ms = self.placed_ms if self.placed_ms is not None else at_ms
                if not self._starts_whole:
                    self._began(at_ms)
            case Committed() if not self.is_part:
                self._began(at_ms)
            case Carried() if self._open is not None:
                work = event.workload
                if not (work.claimed_at_s and work.attempt == self._open.number):
                    self._close("evicted", "its log was lost", at_ms, catalogue)
            case Admitted():
                if self._open is not None:
                    self._open.admitted_ms = at_ms
            case Running():
                if self._open is not None:
                    self._open.has(event.pods or self._open.pods, at_ms)
                    self._open.running_ms = self._open.running_ms or at_ms
                self._began(at_ms)
            case ResizeRequested():
                if self._open is not None:
                    self._open.has(together(self._open.pods, event.pods), at_ms)
            case Resized():
                if self._open is not None:
                    self._open.has(event.pods, at_ms)
            case Withdrawn():
                self._close("withdrawn", event.reason, at_ms, catalogue)
            case Evicted():
                self.evictions += not event.blameless
                self._close("evicted", event.reason, at_ms, catalogue)
            case Succeeded() | Failed() | Cancelled():
                return self._ended(_ENDS[type(event)], event.reason, at_ms, catalogue)
            case Submitted() | Released() | Reprioritized() | Claimed() | CancelRequested():
                pass
        return None

    def _began(self, at_ms: int) -> None:
        self.running_ms = self.running_ms if self.running_ms is not None else at_ms

    def _close(self, end: EndName, reason: str, at_ms: int, catalogue: Catalogue) -> None:
        one, self._open = self._open, None
        if one is None:
            return
        begun = one.placed_ms
        if self.by_hub:  # a nomination holds nothing. Kueue's quota and the pods hold
            begun = one.admitted_ms or one.running_ms or at_ms
        for pods, from_ms, to_ms in (*one.before, (one.pods, one.since_ms, at_ms)):
            at = max(begun, from_ms) if from_ms > one.placed_ms else begun
            if at < to_ms or to_ms == at_ms:
                self._keep(one, pods, min(at, to_ms), to_ms, end, reason, catalogue)

    def _keep(
        self,
        one: "_Attempt",
        pods: tuple[PodBinding, ...],
        from_ms: int,
        to_ms: int,
        end: EndName,
        reason: str,
        catalogue: Catalogue,
    ) -> None:
        """Add the holdings of the attempt with these pods."""
        request = with_bound(one.request, pods)
        kept = held(request, one.cluster, pods, catalogue) or (Held("", 0, 0),)
        if len(self._holdings) + len(kept) > MAX_ATTEMPTS:
            return
        for each in kept:
            self._holdings.append(
                Holding(
                    attempt=one.number,
                    cluster=one.cluster,
                    model=each.model,
                    asked_milli=each.asked_milli,
                    held_milli=each.held_milli,
                    placed_ms=one.placed_ms,
                    running_ms=one.running_ms,
                    from_ms=from_ms,
                    to_ms=to_ms,
                    end=end,
                    reason=reason[:MAX_REASON_CHARS],
                )
            )

    def _ended(self, state: StateName, reason: str, at_ms: int, catalogue: Catalogue) -> EndedJob:
        self._close(state, reason, at_ms, catalogue)
        return EndedJob(
            tenant=self.tenant,
            id=self.id,
            submitted_ms=self.submitted_ms,
            ended_ms=at_ms,
            placed_ms=self.placed_ms,
            running_ms=self.running_ms,
            state=state,
            queue=self.queue,
            owner=self.owner,
            cluster=self.cluster,
            hub=self.hub,
            asked_milli=self.asked_milli,
            attempts=self._count,
            evictions=self.evictions,
            reason=reason[:MAX_REASON_CHARS],
            holdings=tuple(self._holdings),
            is_part=self.is_part,
            likeness=self.likeness,
            form=self.form,
        )

    def own(self, catalogue: Catalogue) -> Own:
        """Return the job's configuration, with the model of the open attempt."""
        model, one = "", self._open
        if one is not None:
            found = held(with_bound(one.request, one.pods), one.cluster, one.pods, catalogue)
            model = max(found, key=lambda each: each.held_milli, default=Held("", 0, 0)).model
        return Own(self.form, self.asked_milli, model)


def ms(seconds: float) -> int:
    """Return the server's time in the store's unit."""
    return round(seconds * 1000)


def of_story(
    tenant: str,
    workload_id: str,
    story: Sequence[RecordedEvent],
    catalogue: Catalogue,
    owner_label: str,
) -> EndedJob | None:
    """Return the job of a whole history. None: not ended, or the first event is missing."""
    _, verdicts = fold_history(tenant, workload_id, story)
    life: Life | None = None
    for recorded, verdict in zip(story, verdicts, strict=True):
        if verdict is not Verdict.COUNTED:
            continue
        at_ms = ms(recorded.stored_at_s)
        if isinstance(recorded.event, Submitted):
            life = Life(recorded.event, at_ms, recorded.sequence, owner_label)
            continue
        if life is not None and (job := life.take(recorded.event, at_ms, catalogue)) is not None:
            return job
    return None


def with_use(job: EndedJob, use: Mapping[int, Use]) -> EndedJob:
    """Return the job with measured use, by attempt. In an attempt with several models each gets the
    share that it held. The last half minute of a measurement overlaps the end. So the measured time
    is at most the held time, and the use at most the held GPUs.
    """
    if not use:
        return job
    in_all: dict[int, tuple[int, int, int]] = {}  # held GPUs, with start and end
    for one in job.holdings:
        whole, first, last = in_all.get(one.attempt, (0, one.from_ms, one.to_ms))
        first, last = min(first, one.from_ms), max(last, one.to_ms)
        in_all[one.attempt] = whole + one.held_gpu_us, first, last
    return msgspec.structs.replace(
        job, holdings=tuple(_used(one, use.get(one.attempt), in_all) for one in job.holdings)
    )


def _used(one: Holding, use: Use | None, in_all: Mapping[int, tuple[int, int, int]]) -> Holding:
    whole, first_ms, last_ms = in_all[one.attempt]
    length_ms = last_ms - first_ms
    if use is None or use.measured_ms <= 0 or not whole:
        return one
    measured_ms = min(use.measured_ms, length_ms)
    measured = one.held_gpu_us * measured_ms // length_ms
    used = use.used_gpu_us * measured_ms // use.measured_ms * one.held_gpu_us // whole
    return msgspec.structs.replace(one, measured_gpu_us=measured, used_gpu_us=min(used, measured))
