"""A workload as the fold has it."""

from typing import NewType

import msgspec

from berthmaster.lifecycle.parts import division_of
from berthmaster.lifecycle.states import ENDED, LIVE, State
from berthmaster.messages.placement import MAIN_CELL, PodBinding, Target
from berthmaster.messages.workload import (
    Checkpoint,
    Fault,
    HubObject,
    JobRequest,
    PartPlace,
    Progress,
)

Key = NewType("Key", str)


def key(tenant: str, workload_id: str) -> Key:
    """Names a workload in a map: ``<tenant>/<id>`` (neither holds a slash)."""
    return f"{tenant}/{workload_id}"  # type: ignore[return-value]  # Key() is a call, for each event


class Hold(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Who holds a workload, since when and why."""

    who: str
    since_s: float
    operator: bool = False
    reason: str = ""


class Wish(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Who wants an attempt to leave its place, since when, and for where."""

    how: str  # move, evict
    who: str
    since_s: float
    to: str = ""
    reason: str = ""


class Rest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Of a life whose beginning is not there: to whom what is left says that its last attempt was
    given. The first event of what is left may have lost its race: so that is certain where others
    stand before it, or once he has taken it."""

    attempt: int
    cluster: str
    certain: bool = False


class Workload(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True):
    """One aggregate, folded. Mutable: the folds of a million events share one object a workload."""

    tenant: str
    id: str
    state: State = State.NEW
    sequence: int = 0  # of the last event stored, void ones too: what the next ``after`` must be
    changed_at_s: float = 0.0  # server's time of the last event that counted
    request: JobRequest | None = None  # None: only the tombstone was seen
    wished: JobRequest | None = None
    # As it was asked for, while an attempt is open of which ``request`` says how many pods it has;
    # None: that is the same.
    digest: str = ""
    cell: str = MAIN_CELL  # whose decider places it
    origin: HubObject | None = None
    priority: int = 0
    released: bool = False  # the jobs that it depends on have come about
    submitted_sequence: int = 0
    submitted_at_s: float = 0.0  # server's time
    attempt: int = 0  # number of placements so far; the last one is open while the state is LIVE
    evictions: int = 0
    failures: int = 0  # of its own, after which it was to be tried again
    retry_at_s: float = 0.0  # server's time before which it is placed nowhere
    last_fault: Fault = ""  # what ended the last attempt that was given back
    repeats: int = 0  # so many in a row were ended by that, of what may be the job's own doing
    cluster: str = ""  # of the open or last attempt
    pods: tuple[PodBinding, ...] = ()  # as placed; as observed once it runs; all that hold room
    resizing: tuple[PodBinding, ...] = ()  # those that it shall have; () = what it has
    resized_at_s: float = 0.0  # server's time of the last change of their number
    resizable: bool = False  # the open attempt's queue there lets their number change
    coming: int = 0  # of ``resizing``, those that it did not have
    kept_size: str = ""  # why it has not the pods that it was to have last; "" = it has
    kept_sizes: int = 0  # so many times in a row
    target: Target = Target()  # of the open or last attempt
    decision: int = 0
    placed_at_s: float = 0.0  # server's time
    claimed_at_s: float = 0.0
    running_at_s: float = 0.0
    executor: str = ""
    cancel_requested: bool = False  # a wish about the workload: it outlives the attempt
    leaving: str = ""  # why the open attempt is to make room for another; "" = it is not
    leads_to: str = ""  # the cluster in which room is kept for it meanwhile; until it is placed
    moves: int = 0  # attempts that were ended to make room
    parts: tuple[PartPlace, ...] = ()  # of the open attempt, if it is divided over clusters
    committed: bool = False  # of the open attempt of a divided gang or of its parts: pods may start
    hold: Hold | None = None
    wish: Wish | None = None  # about the open attempt
    checkpoint: Checkpoint | None = None  # the last that was told
    checkpoint_at_s: float = 0.0  # server's time
    progress: Progress | None = None  # of the last attempt, as it said last
    progress_at_s: float = 0.0  # server's time
    ran_s: float = 0.0  # of attempts that are over, what max_run_s counts
    reason: str = ""  # of the last withdrawal, eviction or ending
    rest: Rest | None = None  # while it is NEW

    @property
    def key(self) -> Key:
        """Its name in maps: as ``key`` has it."""
        return f"{self.tenant}/{self.id}"  # type: ignore[return-value]

    @property
    def shown(self) -> State:
        """Its state as people are told it. A divided job stands as its parts do: it is placed, and
        runs once they may start."""
        if self.state is not State.DIVIDED:
            return self.state
        how = self.request.divide if self.request is not None else None
        starts = self.committed or (how is not None and not how.gang)
        return State.RUNNING if starts else State.PLACED

    @property
    def part_of(self) -> str:
        """The divided job that it is a part of, "" = it is none. Of a tombstone its id says so."""
        if self.request is not None:
            return self.request.part.job if self.request.part is not None else ""
        division = division_of(self.id)
        return division[0] if division is not None else ""

    @property
    def ended(self) -> bool:
        """No event can follow."""
        return self.state in ENDED

    @property
    def depends(self) -> bool:
        """It waits for other jobs, and not yet for a place. What had a place has waited."""
        request = self.request
        return (
            request is not None and bool(request.depends_on) and not (self.released or self.attempt)
        )

    @property
    def waited_for(self) -> str:
        """The jobs that it depends on, in words."""
        others = self.request.depends_on if self.request is not None else ()
        return ", ".join(f"{other.id} to have {other.until}" for other in others)

    @property
    def held_back(self) -> bool:
        """It is a part of a gang of which others are not claimed yet: its pods must not start."""
        part = self.request.part if self.request is not None else None
        return part is not None and part.gang and not self.committed

    @property
    def live(self) -> bool:
        """Its placement takes room."""
        return self.state in LIVE
