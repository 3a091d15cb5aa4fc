"""Indexes of workloads, kept for speed in step with what is known. Pure.

- ``Movable``: attempts that a decision may end, by cluster, queue and priority. The preemptor asks
  here first whether there is any. On most days there is none.
- ``Elastic``: attempts whose number of pods a decision may change, by cluster.
- ``JobSets``: jobs of sets of which only so many may have a place at once. The members of a set
  that wait in a job class follow from the states of its open jobs and from nothing else. Jobs with
  a place count, and the best of the others, by priority and submission, fill what is left. So a
  decider that starts again, or repeats decisions, has the same jobs waiting.
- ``Parts``: parts of divided jobs. A part is a workload of its own, and of one that has ended
  nothing is known any more. So ``PartEnd`` keeps what its job must know until the job's attempt is
  over.

Example: a set allows two jobs at once. One runs, three wait: only the first of the three waits in a
job class. The others cost a decision nothing.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.queueing.held_parts import HeldParts, Takes
from berthmaster.lib.engine.queueing.preemption import loss_of
from berthmaster.lib.lifecycle.attempts import is_ours_to_end
from berthmaster.lib.lifecycle.pods import gpu_milli_of, is_elastic, pod_gpu_milli, set_of
from berthmaster.lib.lifecycle.states import HELD, Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, division_of, key
from berthmaster.lib.messages.workload import (
    Cancelled,
    Carried,
    Checkpoint,
    Failed,
    Fault,
    JobRequest,
    Succeeded,
    WorkloadEvent,
)


class _Entry(NamedTuple):
    cluster: str
    queue: str
    priority: int
    gpu_milli: int


def is_movable(workload: Workload) -> bool:
    """Return whether a decision may end the attempt: claimed, not governed by Kueue, and
    preemptible.
    """
    request = workload.request
    return (
        workload.state in HELD
        and request is not None
        and request.preemptible
        and is_ours_to_end(workload)
        and not workload.cancel_requested
        and not workload.leaving
    )


class Movable:
    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._priorities: dict[str, Counter[int]] = {}  # by queue
        self._here: dict[str, HeldParts] = {}  # cluster -> their capacity there
        self._jobs: dict[str, Counter[str]] = {}  # cluster -> queue -> how many
        self._milli: dict[str, Counter[str]] = {}  # cluster -> queue -> GPU milli

    def follow(self, workload: Workload, *, frozen: bool) -> None:
        name = workload.key
        self.drop(name)
        request = workload.request
        if frozen or request is None or not is_movable(workload):
            return
        milli = gpu_milli_of(workload)
        entry = _Entry(workload.cluster, request.queue, workload.priority, milli)
        self._entries[name] = entry
        self._priorities.setdefault(entry.queue, Counter())[entry.priority] += 1
        here = self._here.get(entry.cluster)
        if here is None:
            here = self._here[entry.cluster] = HeldParts()
        here.add(
            name,
            entry.queue,
            entry.priority,
            -workload.submitted_sequence,
            loss_of(workload),
            _by_node(workload, request),
        )
        self._jobs.setdefault(entry.cluster, Counter())[entry.queue] += 1
        self._milli.setdefault(entry.cluster, Counter())[entry.queue] += milli

    def drop(self, name: Key) -> None:
        """Remove an attempt."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        priorities = self._priorities[entry.queue]
        priorities[entry.priority] -= 1
        if not priorities[entry.priority]:
            del priorities[entry.priority]
        if not priorities:
            del self._priorities[entry.queue]
        here, jobs = self._here[entry.cluster], self._jobs[entry.cluster]
        here.drop(name)
        self._milli[entry.cluster][entry.queue] -= entry.gpu_milli
        jobs[entry.queue] -= 1
        if not jobs[entry.queue]:
            del jobs[entry.queue], self._milli[entry.cluster][entry.queue]
        if not jobs:
            del self._here[entry.cluster], self._jobs[entry.cluster], self._milli[entry.cluster]

    def queues(self) -> dict[str, int]:
        """Return the queues with such attempts, and the lowest priority of each."""
        return {queue: min(priorities) for queue, priorities in self._priorities.items()}

    def milli(self, cluster: str, queues: frozenset[str]) -> int:
        """Return the GPU milli of these queues' attempts in a cluster."""
        return sum(n for queue, n in self._milli.get(cluster, {}).items() if queue in queues)

    def any_of(self, cluster: str, queues: frozenset[str]) -> bool:
        return not queues.isdisjoint(self._jobs.get(cluster, ()))

    def lay_out(self, fleet: Fleet) -> None:
        """Find the nodes of all attempts in advance, so that a search is fast."""
        for cluster, here in self._here.items():
            here.lay_out(fleet, cluster)

    def here(self, cluster: str) -> HeldParts:
        """Return the capacity of all attempts in a cluster."""
        return self._here.get(cluster) or HeldParts()


def _by_node(workload: Workload, request: JobRequest) -> dict[str, Takes]:
    sets = {pods.name: pods for pods in request.pod_sets}
    found: dict[str, Takes] = {}
    for binding in workload.pods:
        pods = sets.get(set_of(binding.pod))
        if pods is None:
            continue
        before = found.get(binding.node)
        milli = pod_gpu_milli(pods, binding)
        takes = Takes(milli, pods.cpu_milli, pods.memory_mib)
        if before is not None:
            takes = Takes(*(one + other for one, other in zip(before, takes, strict=True)))
        found[binding.node] = takes
    return found


def may_resize(workload: Workload) -> bool:
    """Return whether a decision may resize the attempt: running, allowed by its Kueue if any, not
    leaving, and without a pending resize.
    """
    request = workload.request
    return (
        workload.state is State.RUNNING
        and request is not None
        and is_elastic(request)
        and (workload.target.via == "direct" or _kueue_lets(workload, request))
        and workload.origin is None
        and not (workload.cancel_requested or workload.leaving or workload.resizing)
    )


def _kueue_lets(workload: Workload, request: JobRequest) -> bool:
    """Return whether the worker's Kueue allows a resize: of plain Jobs only, whatever the executor
    reports.
    """
    return workload.target.via == "worker" and workload.resizable and len(request.pod_sets) == 1


class Elastic:
    def __init__(self) -> None:
        self._here: dict[str, dict[Key, None]] = {}
        self._where: dict[Key, str] = {}

    def follow(self, workload: Workload, *, frozen: bool) -> None:
        name = workload.key
        if frozen or not may_resize(workload):
            if name in self._where:
                self.drop(name)
        elif name not in self._where:
            self._where[name] = workload.cluster
            self._here.setdefault(workload.cluster, {})[name] = None

    def drop(self, name: Key) -> None:
        """Remove an attempt."""
        cluster = self._where.pop(name, None)
        if cluster is not None:
            del self._here[cluster][name]
            if not self._here[cluster]:
                del self._here[cluster]

    def clusters(self) -> list[str]:
        return sorted(self._here)

    def among(self, cluster: str) -> Iterable[Key]:
        return sorted(self._here.get(cluster, ()))

    def names(self) -> Iterable[Key]:
        return self._where


SetKey = tuple[str, str]  # tenant, set
_Order = tuple[int, int, Key]  # -priority, submission, key


class Moved(NamedTuple):
    """Jobs that enter or leave their classes."""

    enter: list[Key]
    leave: list[Key]


class _Set:
    __slots__ = ("in_line", "limits", "live", "orders", "waiting")

    def __init__(self) -> None:
        self.live: set[Key] = set()
        self.waiting: list[_Order] = []
        self.orders: dict[Key, _Order] = {}
        self.limits: dict[Key, int] = {}
        self.in_line: set[Key] = set()


class JobSets:
    def __init__(self) -> None:
        self._sets: dict[SetKey, _Set] = {}

    def follow(self, workload: Workload, *, waits: bool) -> Moved:
        """A job of a set changed. ``waits``: it would wait for a place."""
        request = workload.request
        if request is None or request.set_at_most is None:
            return Moved([workload.key] if waits else [], [])
        name = (workload.tenant, request.set)
        known = self._sets.setdefault(name, _Set())
        key = workload.key
        if (before := known.orders.pop(key, None)) is not None:
            del known.waiting[bisect_left(known.waiting, before)]
        known.limits.pop(key, None)
        known.live.discard(key)
        if workload.live or workload.state is State.DIVIDED:
            known.live.add(key)
        elif waits:
            order = (-workload.priority, workload.submitted_sequence, key)
            insort(known.waiting, order)
            known.orders[key] = order
            known.limits[key] = request.set_at_most
        wanted = self._wanted(known)
        enter = [each for each in wanted if each not in known.in_line or each == key]
        leave = sorted(known.in_line - set(wanted))
        known.in_line = set(wanted)
        if not (known.live or known.waiting):
            del self._sets[name]
        return Moved(enter, leave)

    @staticmethod
    def _wanted(known: _Set) -> list[Key]:
        wanted: list[Key] = []
        for _, _, name in known.waiting:
            if len(known.live) + len(wanted) >= known.limits[name]:
                break
            wanted.append(name)
        return wanted

    def outside(self, workload: Workload) -> int:
        """Return the number of placed jobs of the set, if the job waits for fewer; 0 if it does not
        wait.
        """
        request = workload.request
        if request is None or request.set_at_most is None:
            return 0
        known = self._sets.get((workload.tenant, request.set))
        if known is None or workload.key not in known.orders or workload.key in known.in_line:
            return 0
        return max(1, len(known.live))


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
