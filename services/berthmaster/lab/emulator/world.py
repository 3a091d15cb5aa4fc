"""The state of an emulated cluster, and the effect of each record.

Only records change the state. A record is applied without checks: its author (cluster.py) has
decided whether it may happen, and a journal must apply again.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, assert_never

import msgspec

from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.emulator.kubelet import EmulatedNode
from berthmaster.lab.emulator.records import (
    Deleted,
    Drawn,
    ForeignCame,
    ForeignLeft,
    GpuTurned,
    Made,
    NodeTurned,
    Over,
    Record,
    Resized,
    Seat,
    Stopped,
)
from berthmaster.worker.executor.core.cluster_protocol import Attempt


class Phase(StrEnum):
    """The state of a job object."""

    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    EXPIRED = "expired"
    STOPPED = "stopped"  # on request, before any of these ends


ALIVE: Final = frozenset({Phase.STARTING, Phase.RUNNING})


class Group(msgspec.Struct):
    """One job object and its pods."""

    attempt: Attempt
    made: Made
    phase: Phase
    held: dict[str, Seat]  # pods with an allocation
    over: Over | None = None
    stopped: str | None = None  # the given reason
    missing: str = ""  # reason for missing pods


class World:
    """Nodes and job objects of one cluster."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.nodes = {node.name: EmulatedNode(node) for node in spec.nodes}
        self.groups: dict[Attempt, Group] = {}
        self.drawn: dict[str, Drawn] = {}
        self.dirty: dict[str, bool] = {}  # node -> whether more than managed pods has changed
        self.foreign_nodes: dict[int, str] = {}
        self.foreign_gpu_milli = 0

    def apply(self, record: Record) -> None:
        """Apply a record."""
        match record:
            case Made():
                self._make(record)
            case Resized():
                if group := self.groups.get(_attempt(record)):
                    self._resize(group, record)
            case Over():
                if group := self.groups.get(_attempt(record)):
                    group.phase = Phase(record.how)
                    group.over = record
                    self._free(group, record.frees)
            case Stopped():
                if group := self.groups.get(_attempt(record)):
                    group.stopped = record.reason
                    group.phase = Phase.STOPPED if group.phase in ALIVE else group.phase
                    self._free(group, tuple(group.held))
            case Deleted():
                if group := self.groups.pop(_attempt(record), None):
                    self._free(group, tuple(group.held))
            case Drawn():
                self.drawn[record.kind] = record
            case _:
                self._disturb(record)

    def _make(self, made: Made) -> None:
        attempt = _attempt(made)
        group = Group(attempt, made, Phase.REFUSED if made.refused else Phase.STARTING, {})
        self.groups[attempt] = group
        for seat in made.seats:
            node = self.nodes.get(seat.node)
            if node is None:  # the fleet has changed since the journal was written
                group.over = Over(*attempt, Phase.REFUSED.value, (), f"NodeGone: {seat.node}")
                group.phase = Phase.REFUSED
                continue
            self._take(group, seat)

    def _take(self, group: Group, seat: Seat) -> None:
        node = self.nodes[seat.node]
        node.take(seat.use)
        node.pods[group.attempt, seat.pod] = seat
        group.held[seat.pod] = seat
        self.dirty.setdefault(seat.node, False)

    def _resize(self, group: Group, resized: Resized) -> None:
        kept = {seat.pod for seat in resized.seats}
        self._free(group, tuple(pod for pod in group.held if pod not in kept))
        for seat in resized.seats:
            if seat.pod not in group.held and seat.node in self.nodes:
                self._take(group, seat)
        group.made = msgspec.structs.replace(group.made, seats=resized.seats)
        group.missing = resized.missing

    def _free(self, group: Group, pods: tuple[str, ...]) -> None:
        for pod in pods:
            seat = group.held.pop(pod, None)
            if seat is None:
                continue
            node = self.nodes[seat.node]
            node.give_back(seat.use)
            del node.pods[group.attempt, pod]
            self.dirty.setdefault(seat.node, False)

    def _disturb(self, record: ForeignCame | ForeignLeft | NodeTurned | GpuTurned) -> None:
        if isinstance(record, ForeignLeft):
            name = self.foreign_nodes.pop(record.number, "")
        else:
            name = record.node
        node = self.nodes.get(name)
        if node is None:
            return
        self.dirty[name] = True
        match record:
            case ForeignCame():
                node.foreign[record.number] = record
                node.take(record.use)
                self.foreign_nodes[record.number] = name
                self.foreign_gpu_milli += record.use.gpu_milli * len(record.use.gpus)
            case ForeignLeft():
                use = node.foreign.pop(record.number).use
                node.give_back(use)
                self.foreign_gpu_milli -= use.gpu_milli * len(use.gpus)
            case NodeTurned():
                node.ready_s = record.until_s
            case GpuTurned():
                if record.index < len(node.gpu_back_s):
                    node.gpu_back_s[record.index] = record.until_s
            case _:
                assert_never(record)

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that build this state from an empty one."""
        yield from self.drawn.values()
        for node in self.nodes.values():
            if node.ready_s:
                yield NodeTurned(node.spec.name, node.ready_s)
            for index, back_s in enumerate(node.gpu_back_s):
                if back_s:
                    yield GpuTurned(node.spec.name, index, back_s)
            yield from node.foreign.values()
        for group in self.groups.values():
            yield group.made
            if group.missing:
                yield Resized(*group.attempt, group.made.seats, group.missing)
            if group.over is not None:
                yield group.over
            if group.stopped is not None:
                yield Stopped(*group.attempt, group.stopped)

    def state(self) -> dict[str, object]:
        """Return the whole state, for comparisons."""
        return {
            "nodes": {name: node.state() for name, node in self.nodes.items()},
            "groups": {
                attempt: (g.made, g.phase, tuple(sorted(g.held.items())), g.over, g.stopped)
                for attempt, g in self.groups.items()
            },
            "drawn": dict(self.drawn),
        }


def _attempt(record: Made | Resized | Over | Stopped | Deleted) -> Attempt:
    return Attempt(record.tenant, record.id, record.attempt)
