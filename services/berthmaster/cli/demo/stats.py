"""Sums of a stream of events: workloads by state, latencies, last placements. Pure.

All times are the server's time stamps, so that no local clock affects a latency.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from berthmaster.cli.output.amounts import percentile
from berthmaster.client.following import SeenEvent
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.states import ENDED, LIVE, State
from berthmaster.lib.lifecycle.workload import Workload, key
from berthmaster.lib.messages.workload import Evicted, Placed

RECENT: Final = 12
OPEN_STATES: Final = (
    State.QUEUED,
    State.DIVIDED,
    State.PLACED,
    State.CLAIMED,
    State.ADMITTED,
    State.RUNNING,
)
SHOWN_STATES: Final = (*OPEN_STATES, State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of a step, over all workloads with that step."""

    count: int
    p50_s: float
    p99_s: float
    max_s: float


class RecentPlacement(msgspec.Struct, frozen=True, kw_only=True):
    stored_at_s: float
    waited_s: float  # seconds since submission
    event: Placed


class WorkloadSummary(msgspec.Struct, frozen=True, kw_only=True):
    submitted: int
    placed_at_least_once: int
    states: dict[str, int]
    waiting: int
    running: int
    ended: int
    evictions: int
    void_events: int
    impossible_events: int
    missed_events: int  # events without their predecessors: not folded
    gpus_held: float
    latencies: dict[str, Latency]

    @property
    def balanced(self) -> bool:
        """Return whether every workload is accounted for."""
        return self.submitted == sum(self.states.values())


class WorkloadStats:
    """Folds events; ``only`` limits them to some workloads."""

    def __init__(self, only: Iterable[str] | None = None) -> None:
        self._only = None if only is None else set(only)
        self._workloads: dict[str, Workload] = {}
        self._placed: dict[str, float] = {}  # workload -> time of the first placement
        self._running: dict[str, float] = {}
        self._void = 0
        self._impossible = 0
        self._missed = 0
        self._evictions = 0
        self.recent: deque[RecentPlacement] = deque(maxlen=RECENT)
        self.states: Counter[State] = Counter()
        self.sequence = 0

    def add(self, workload_id: str) -> None:
        if self._only is not None:
            self._only.add(workload_id)

    def take(self, seen: SeenEvent) -> None:
        """Apply one event, in stream order."""
        event = seen.event
        self.sequence = max(self.sequence, seen.sequence)
        if self._only is not None and event.id not in self._only:
            return
        name = key(event.tenant, event.id)
        workload = self._workloads.get(name)
        if workload is None:
            workload = self._workloads[name] = Workload(tenant=event.tenant, id=event.id)
            self.states[workload.state] += 1
        before = workload.state
        match offer(workload, event, seen.sequence, seen.stored_at_s):
            case Verdict.VOID:
                self._void += 1
            case Verdict.IMPOSSIBLE:
                self._impossible += 1
            case Verdict.AHEAD:
                self._missed += 1
            case Verdict.REPEATED:
                pass
            case Verdict.COUNTED:
                self.states[before] -= 1
                self.states[workload.state] += 1
                self._note(name, workload, seen)

    def _note(self, name: str, workload: Workload, seen: SeenEvent) -> None:
        event = seen.event
        if isinstance(event, Placed):
            self._placed.setdefault(name, seen.stored_at_s)
            waited_s = seen.stored_at_s - workload.submitted_at_s
            self.recent.append(
                RecentPlacement(stored_at_s=seen.stored_at_s, waited_s=waited_s, event=event)
            )
        elif workload.state is State.RUNNING:
            self._running.setdefault(name, seen.stored_at_s)
        elif isinstance(event, Evicted):
            self._evictions += 1

    @property
    def known(self) -> int:
        """Return the number of workloads seen so far."""
        return len(self._workloads)

    @property
    def open(self) -> int:
        return sum(self.states[state] for state in OPEN_STATES)

    def held_by_cluster(self) -> Mapping[str, float]:
        """Return the GPUs allocated to live placements, by cluster."""
        held: Counter[str] = Counter()
        for workload in self._workloads.values():
            if workload.state in LIVE and workload.request is not None:
                held[workload.cluster] += gpu_milli_of(workload)
        return {cluster: milli / 1000 for cluster, milli in held.items()}

    def ids(self, *states: State) -> list[str]:
        """Return the workloads in these states, in order of arrival."""
        return [each.id for each in self._workloads.values() if each.state in states]

    def summary(self) -> WorkloadSummary:
        states = {str(state): self.states[state] for state in SHOWN_STATES if self.states[state]}
        return WorkloadSummary(
            submitted=self.known,
            placed_at_least_once=len(self._placed),
            states=states,
            waiting=self.states[State.QUEUED],
            running=self.states[State.RUNNING],
            ended=sum(self.states[state] for state in ENDED),
            evictions=self._evictions,
            void_events=self._void,
            impossible_events=self._impossible,
            missed_events=self._missed,
            gpus_held=sum(self.held_by_cluster().values()),
            latencies=self._latencies(),
        )

    def _latencies(self) -> dict[str, Latency]:
        submitted = {name: each.submitted_at_s for name, each in self._workloads.items()}
        steps = {
            "submit_to_placed": (submitted, self._placed),
            "placed_to_running": (self._placed, self._running),
            "submit_to_running": (submitted, self._running),
        }
        found = {step: _latency(begin, end) for step, (begin, end) in steps.items()}
        return {step: latency for step, latency in found.items() if latency is not None}


def _latency(begin: Mapping[str, float], end: Mapping[str, float]) -> Latency | None:
    took = sorted(at_s - begin[name] for name, at_s in end.items() if begin.get(name))
    if not took:
        return None
    return Latency(
        count=len(took), p50_s=percentile(took, 0.5), p99_s=percentile(took, 0.99), max_s=took[-1]
    )
