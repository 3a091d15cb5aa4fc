"""A folded workload, its key, its request's digest, its run times, and ids of its parts. Pure.

Digests of requests: two requests with one id and one digest are the same request.

Durations are in seconds. Points in time are in seconds since 1970, by the server's clock.
"""

import functools
import hashlib
import re
from collections.abc import Iterator
from typing import Final, NewType

import msgspec

from berthmaster.lib.lifecycle.choices import trial_in
from berthmaster.lib.lifecycle.states import ENDED, LIVE, State
from berthmaster.lib.messages.workload import CarriedWorkload, JobRequest

_OF_PART: Final = re.compile(r"(?P<job>.+)--(?P<number>[0-9]+)-[0-9]+\Z")


def part_id(job: str, number: int, part: int) -> str:
    """Return ``<job>--<number>-<part>``. The number of the division makes the id unique."""
    return f"{job}--{number}-{part}"


def division_of(workload_id: str) -> tuple[str, int] | None:
    """Return job and division number of a part's id; None for another id."""
    if "--" not in workload_id:
        return None
    found = _OF_PART.match(workload_id)
    return (found["job"], int(found["number"])) if found is not None else None


Key = NewType("Key", str)


def key(tenant: str, workload_id: str) -> Key:
    """Return the key of a workload in maps, ``<tenant>/<id>``. Neither part contains a slash."""
    # Key() is a call, for each event
    return f"{tenant}/{workload_id}"  # type: ignore[return-value]


class Workload(CarriedWorkload, gc=False, kw_only=True, omit_defaults=True):
    """One folded workload. Mutable, because folds of a million events share one object
    a workload.
    """

    tenant: str
    id: str
    sequence: int = 0  # last stored event, void ones included; the ``after`` of the next event
    changed_at_s: float = 0.0  # server's time of the last applied event

    @property
    def key(self) -> Key:
        """Return the key in maps, as ``key``."""
        return f"{self.tenant}/{self.id}"  # type: ignore[return-value]

    @property
    def shown(self) -> State:
        """Return the state for display. A divided job shows as placed, and as running once its
        parts may start.
        """
        if self.state is not State.DIVIDED:
            return self.state
        how = self.request.divide if self.request is not None else None
        starts = self.committed or (how is not None and not how.gang)
        return State.RUNNING if starts else State.PLACED

    @property
    def part_of(self) -> str:
        """Return the id of the job that this is a part or a trial of; "" if neither. The id of a
        part's tombstone tells.
        """
        if self.request is not None:
            part = self.request.part
            return part.job if part is not None else self.request.trial_of
        division = division_of(self.id)
        return division[0] if division is not None else ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def depends(self) -> bool:
        """Return whether the workload waits for dependencies or trials. A workload that was placed
        once waits for neither. A job that only reports its trials is never placed.
        """
        request = self.request
        if request is None or self.attempt:
            return False
        trial = trial_in(request)
        if self.released:
            return trial is not None and trial.then == "report"
        return trial is not None or bool(request.depends_on)

    @property
    def waited_for(self) -> str:
        """Return the dependencies in words."""
        if self.request is not None and (trial := trial_in(self.request)) is not None:
            return f"its {len(trial.configurations)} trials to have ended"
        others = self.request.depends_on if self.request is not None else ()
        return ", ".join(f"{other.id} to have {other.until}" for other in others)

    @property
    def held_back(self) -> bool:
        """Return whether pods must not start, because another part of the gang is unclaimed."""
        part = self.request.part if self.request is not None else None
        return part is not None and part.gang and not self.committed

    @property
    def live(self) -> bool:
        """Return whether the placement holds capacity."""
        return self.state in LIVE


_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def request_digest(request: JobRequest) -> str:
    """Return a hash of the request's content, equal for equal requests in any spelling.

    Fields with their default are left out, so a new field changes no digest. For a request with a
    resolved runtime, return the digest of the original, because clients repeat the original.
    """
    if request.runtime_used is not None:
        return request.runtime_used.digest
    return content_digest(request)


def content_digest(message: msgspec.Struct) -> str:
    """Return a hash of a message's content."""
    content = _ENCODER.encode(_without_defaults(message))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _without_defaults(value: object) -> object:
    """Return plain values without defaults. The encoder omits only a default that is the same
    object.
    """
    if isinstance(value, tuple):
        return [_without_defaults(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_defaults(item) for name, item in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    plain: dict[str, object] = {}
    fields = _fields(type(value))
    for (name, default), held in zip(fields, msgspec.structs.astuple(value), strict=True):
        if held != default:
            plain[name] = held if type(held) in _PLAIN else _without_defaults(held)
    return plain


# Types of most fields, which contain nothing to convert
_PLAIN: Final = frozenset({str, int, float, bool})


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    """Return (name on the wire, default) of each field. Cached, since msgspec takes 100 us a
    struct.
    """
    return tuple((field.encode_name, _default(field)) for field in msgspec.structs.fields(kind))


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


PROGRESS_EVERY_S: Final = 10.0
PROGRESS_SHARE: Final = 0.01  # of what it has run


def progress_every_s(ran_s: float) -> float:
    """Return the minimum interval between progress reports of a job, in seconds.

    The interval grows with the run to keep histories short: some 90 reports in the first 15
    minutes, and 230 more in each tenfold of the time.
    """
    return max(PROGRESS_EVERY_S, PROGRESS_SHARE * ran_s)


def ends_as_told_s(workload: Workload) -> float | None:
    """Return the end of the attempt as the running job reported; None without a report."""
    progress = workload.progress
    if progress is None or progress.eta_s is None or workload.state is not State.RUNNING:
        return None
    return workload.progress_at_s + progress.eta_s


def unsaved_s(workload: Workload, now_s: float) -> float:
    """Return the run time lost if the attempt ends now.

    Lost is the time since the last reported checkpoint. Without a report, count from the last
    checkpoint that was due. Without checkpoints, the whole run is lost. Example at 2,000 s: an
    attempt began at 1,000 s and writes a checkpoint every 600 s. With a checkpoint reported at
    1,900 s, 100 s are lost. Without reports, 400 s are lost.
    """
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, now_s - workload.running_at_s)
    if workload.checkpoint_at_s > workload.running_at_s:
        return min(ran_s, max(0.0, now_s - workload.checkpoint_at_s))
    every_s = workload.request.checkpoint_every_s if workload.request is not None else None
    return ran_s if every_s is None else ran_s % every_s


def counted_s(workload: Workload, over_at_s: float, *, blameless: bool) -> float:
    """Return the part of a finished attempt that counts towards max_run_s: the whole run, or only
    the saved part if the job is not to blame for the end.
    """
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, over_at_s - workload.running_at_s)
    return ran_s - unsaved_s(workload, over_at_s) if blameless else ran_s


def saved_s(workload: Workload) -> float:
    """Return the saved run time of finished attempts: the part toward max_run_s for jobs with
    checkpoints, else 0.
    """
    request = workload.request
    writes = request is not None and request.checkpoint_every_s is not None
    return workload.ran_s if writes or workload.checkpoint is not None else 0.0


def age_s(workload: Workload, now_s: float) -> float:
    """Return the run time of a job: the saved time of finished attempts and the running attempt."""
    running = workload.live and workload.running_at_s > 0
    return saved_s(workload) + (max(0.0, now_s - workload.running_at_s) if running else 0.0)


def began_at_s(workload: Workload) -> float:
    """Return the start of a live attempt. Before the start, the claim or the placement counts."""
    return workload.running_at_s or workload.claimed_at_s or workload.placed_at_s


def spent_s(workload: Workload, now_s: float) -> float:
    """Return the saved time of finished attempts and the time since ``began_at_s``."""
    return saved_s(workload) + max(0.0, now_s - began_at_s(workload))


def stated_end_s(workload: Workload, now_s: float) -> float | None:
    """Return the next stated end of a live attempt, from its progress or its request; None without
    a future end.
    """
    return min((at_s for at_s in _stated_ends_s(workload, now_s) if at_s > now_s), default=None)


def first_stated_end_s(workload: Workload) -> float | None:
    """Return the first stated end of a live attempt, past ends included; None without one. Constant
    until the next event.
    """
    return min(_stated_ends_s(workload, float("-inf")), default=None)


def _stated_ends_s(workload: Workload, now_s: float) -> Iterator[float]:
    """Yield the reported end if in the future, else the expected end, and the deadline."""
    request = workload.request
    if request is None or not workload.live:
        return
    reported_s = ends_as_told_s(workload)
    if reported_s is not None and reported_s > now_s:
        yield reported_s
    elif request.expected_duration_s is not None:
        yield began_at_s(workload) + request.expected_duration_s - saved_s(workload)
    if request.deadline_s is not None:
        yield (workload.claimed_at_s or workload.placed_at_s) + request.deadline_s
