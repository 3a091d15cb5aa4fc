"""A workload as the fold has it, its key, and the ids of parts of divided jobs. Pure."""

import re
from typing import Final, NewType

from berthmaster.lib.lifecycle.states import ENDED, LIVE, State
from berthmaster.lib.messages.workload import CarriedWorkload

_OF_PART: Final = re.compile(r"(?P<job>.+)--(?P<number>[0-9]+)-[0-9]+\Z")


def part_id(job: str, number: int, part: int) -> str:
    """Return ``<job>--<number>-<part>``. Each division has its number, so no id comes twice."""
    return f"{job}--{number}-{part}"


def division_of(workload_id: str) -> tuple[str, int] | None:
    """Return a part's job and the number of its division; None for another id."""
    if "--" not in workload_id:  # most have not
        return None
    found = _OF_PART.match(workload_id)
    return (found["job"], int(found["number"])) if found is not None else None


Key = NewType("Key", str)


def key(tenant: str, workload_id: str) -> Key:
    """Return a workload's key in maps: ``<tenant>/<id>`` (neither holds a slash)."""
    return f"{tenant}/{workload_id}"  # type: ignore[return-value]  # Key() is a call, for each event


class Workload(CarriedWorkload, gc=False, kw_only=True, omit_defaults=True):
    """One aggregate, folded. Mutable: the folds of a million events share one object a workload."""

    tenant: str
    id: str
    sequence: int = 0  # of the last event stored, void ones too: what the next ``after`` must be
    changed_at_s: float = 0.0  # server's time of the last event that counted

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
