"""A folded workload, its key, and the ids of parts of divided jobs. Pure."""

import re
from typing import Final, NewType

from berthmaster.lib.lifecycle.states import ENDED, LIVE, State
from berthmaster.lib.messages.workload import CarriedWorkload

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
        """Return the id of the divided job; "" if this is no part. A tombstone's id tells."""
        if self.request is not None:
            return self.request.part.job if self.request.part is not None else ""
        division = division_of(self.id)
        return division[0] if division is not None else ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def depends(self) -> bool:
        """Return whether the workload waits for dependencies. A workload that was placed once has
        none left.
        """
        request = self.request
        return (
            request is not None and bool(request.depends_on) and not (self.released or self.attempt)
        )

    @property
    def waited_for(self) -> str:
        """Return the dependencies in words."""
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
