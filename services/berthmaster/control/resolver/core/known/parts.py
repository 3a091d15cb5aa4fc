"""Parts of divided jobs, and the ends that their jobs wait for.

A part is a workload of its own: of one that has ended nothing is known any more. So ``PartEnd``
keeps what its job must know of it until the job's attempt is over.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from berthmaster.lib.lifecycle.states import Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, division_of, key
from berthmaster.lib.messages.workload import (
    Cancelled,
    Carried,
    Checkpoint,
    Failed,
    Fault,
    Succeeded,
    WorkloadEvent,
)


class PartEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    state: State
    reason: str = ""
    exit_code: int | None = None
    fault: Fault = ""
    node: str = ""
    blamed: bool = False  # evicted, and counted
    checkpoint: Checkpoint | None = None  # last reported checkpoint


LOST = "the log has lost it"


class Parts:
    def __init__(self, open_: Mapping[Key, Workload]) -> None:
        self._open = open_
        self._jobs: dict[Key, Key] = {}  # part -> its job
        self._ends: dict[Key, dict[str, PartEnd]] = {}
        self.numbers: dict[Key, int] = {}  # of jobs: of the newest division with parts

    def heard(self, event: WorkloadEvent) -> None:
        """Note an event of any workload, to count divisions.

        Parts tell the number of divisions, even if a recovered log lost the job's events: the ids
        of parts stay used when the job is submitted again.
        """
        if (found := division_of(event.id)) is None:
            return
        name = key(event.tenant, found[0])
        # The ending of a part that is not open is a tombstone.
        begins_or_is_left = isinstance(event, Carried) or (
            isinstance(event, Ending) and key(event.tenant, event.id) not in self._open
        )
        if name in self._open or begins_or_is_left:
            self.numbers[name] = max(found[1], self.numbers.get(name, 0))

    def next_number(self, job: Workload) -> int:
        """Return the number of a new division."""
        return max(job.attempt, self.numbers.get(job.key, 0)) + 1

    def __contains__(self, name: Key) -> bool:
        return name in self._jobs

    @property
    def jobs(self) -> Iterable[Key]:
        return self._ends.keys()

    def follow(self, workload: Workload, before: State) -> None:
        """Update after a change of a workload."""
        is_divided = workload.state is State.DIVIDED
        if is_divided and workload.key not in self._ends:
            self._ends[workload.key] = {}
            for part in workload.parts:
                self._jobs[key(workload.tenant, part.id)] = workload.key
        elif before is State.DIVIDED and not is_divided:
            del self._ends[workload.key]
            for name in [name for name, job in self._jobs.items() if job == workload.key]:
                del self._jobs[name]

    def ended(self, name: Key, event: WorkloadEvent, part: Workload | None) -> None:
        """A part or a job has, if the event says so. ``part``: as it stood before; None: it is not
        open, so an ending is a tombstone, and anything else says nothing."""
        if isinstance(event, Ending):
            self.numbers.pop(name, None)  # ids of ended jobs never return
        job = self._jobs.get(name)
        if job is None or event.id in self._ends[job]:
            return
        fields: dict[str, object] = {}
        if part is not None:
            fields = {"blamed": part.evictions > 0, "fault": part.last_fault}
            fields["checkpoint"] = part.checkpoint
        match event:
            case Succeeded():
                state = State.SUCCEEDED
            case Failed():
                state = State.FAILED
                fields |= {"exit_code": event.exit_code, "node": event.node}
                fields["fault"] = event.fault or fields.get("fault", "")
            case Cancelled():
                state = State.CANCELLED
            case _:
                return
        end = {"id": event.id, "state": state, "reason": event.reason, **fields}
        self._ends[job][event.id] = PartEnd(**end)  # type: ignore[arg-type]

    def job_of(self, part: Workload) -> Workload | None:
        """Return the divided job of a part; None if the part was left behind."""
        job = self._jobs.get(part.key)
        return self._open[job] if job is not None else None

    def of(self, job: Workload) -> list[Workload | PartEnd]:
        """Return all parts in order. A missing part was lost with a log."""
        ends = self._ends.get(job.key, {})
        lost = State.CANCELLED
        return [
            self._open.get(key(job.tenant, part.id))
            or ends.get(part.id)
            or PartEnd(id=part.id, state=lost, reason=LOST)
            for part in job.parts
        ]

    # For a snapshot

    def state(self) -> dict[Key, list[PartEnd]]:
        """Return the data for ``restore``."""
        return {job: list(ends.values()) for job, ends in self._ends.items() if ends}

    def restore(self, state: Mapping[Key, Iterable[PartEnd]]) -> None:
        """Once the jobs are known."""
        for job, ends in state.items():
            self._ends[job] = {end.id: end for end in ends}


def open_parts(parts: Iterable[Workload | PartEnd]) -> Iterator[Workload]:
    return (each for each in parts if isinstance(each, Workload))
