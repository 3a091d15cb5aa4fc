"""A worker cluster without hardware. Pure: the caller passes the time, and a seed drives chance.

The cluster acts for an executor like a real one, in the same terms: kubelets accept or refuse each
pod, pods run for their time (at a chosen speed) and succeed or fail, GPUs die, nodes flap, and
unmanaged pods come and go. The cluster knows nothing of Berthmaster's log.

Every change is a record that is applied (world.py) and kept for the journal. ``restored`` applies
the journal's records to a new cluster, and then catches up with the time passed meanwhile.
"""

import heapq
from collections.abc import Iterable
from typing import Final, assert_never

from berthmaster.lab.emulator import disturbance
from berthmaster.lab.emulator.chance import lognormal, uniform
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.emulator.kubelet import Refusal
from berthmaster.lab.emulator.records import (
    Deleted,
    ForeignCame,
    ForeignLeft,
    GpuTurned,
    GpuUse,
    Made,
    NodeTurned,
    Over,
    Record,
    Resized,
    Seat,
    Stopped,
)
from berthmaster.lab.emulator.workloads import MEDIAN_DURATION_S, SIGMA_DURATION
from berthmaster.lab.emulator.world import ALIVE, Group, Phase, World
from berthmaster.lib.engine.fleet.shares import charged_milli, part_of
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    ClusterInstruction,
    CreatePods,
    DeletePods,
    PodEvent,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsFound,
    PodsGone,
    PodsRefused,
    PodsRunning,
    PodsWaiting,
    ResizePods,
    StopPods,
)

EXIT_CODE: Final = 1  # exit code of failed pods

_Due = Attempt | ForeignLeft | NodeTurned | GpuTurned


class EmulatedCluster:
    def __init__(
        self,
        spec: ClusterSpec,
        nature: Nature,
        now_s: float,
        journal: Iterable[Record] = (),
    ) -> None:
        """Build a cluster from the ``journal`` of earlier process runs; empty = a new cluster.

        Call ``advance`` first, to catch up with the time passed meanwhile.
        """
        self.nature = nature
        self.world = World(spec)
        self.pods_started = 0
        self.attempts_refused = 0
        self._timers: list[tuple[float, int, _Due]] = []
        self._timer_number = 0
        self._journal: list[Record] = []
        known = False
        for record in journal:
            known = True
            self.world.apply(record)
        for record in self.world.snapshot():
            self._arm(record)
        begin = disturbance.resumed if known else disturbance.beginning
        for record in begin(self.world, nature, now_s):
            self._write(record)

    @property
    def spec(self) -> ClusterSpec:
        """Return the cluster's hardware."""
        return self.world.spec

    # Time

    @property
    def next_due_s(self) -> float | None:
        """Return the time of the next call of ``advance``."""
        due_s = self._timers[0][0] if self._timers else None
        for drawn in self.world.drawn.values():
            if due_s is None or drawn.next_s < due_s:
                due_s = drawn.next_s
        return due_s

    def advance(self, now_s: float) -> list[PodEvent]:
        """Let time pass, and return the events of managed pods in order."""
        events: list[PodEvent] = []
        while (due_s := self.next_due_s) is not None and due_s <= now_s:
            if self._timers and self._timers[0][0] <= due_s:
                self._on_timer(heapq.heappop(self._timers)[2], due_s, events)
                continue
            drawn = self.world.drawn
            kind = next(kind for kind in drawn if drawn[kind].next_s <= due_s)
            for record in list(disturbance.next_records(self.world, self.nature, kind)):
                self._write(record)
                if isinstance(record, GpuTurned):
                    self._kill_pods_on(record, events)
        return events

    def _arm(self, record: Record) -> None:
        """Set the timer of the record's follow-up."""
        match record:
            case Made():
                attempt = Attempt(record.tenant, record.id, record.attempt)
                group = self.world.groups[attempt]
                if group.phase in ALIVE:
                    self._set_timer(record.starts_s, attempt)
                else:
                    self._arm_deadline(group)
            case ForeignCame():
                self._set_timer(record.until_s, ForeignLeft(record.number))
            case NodeTurned(node, until_s) if until_s:
                self._set_timer(until_s, NodeTurned(node, 0.0))
            case GpuTurned(node, index, until_s) if until_s:
                self._set_timer(until_s, GpuTurned(node, index, 0.0))
            case _:
                pass  # over, or without a follow-up

    def _set_timer(self, due_s: float, what: _Due) -> None:
        self._timer_number += 1
        heapq.heappush(self._timers, (due_s, self._timer_number, what))

    def _on_timer(self, what: _Due, due_s: float, events: list[PodEvent]) -> None:
        if not isinstance(what, Attempt):
            self._write(what)
            return
        group = self.world.groups.get(what)
        if group is None:
            return
        made = group.made
        if group.phase not in ALIVE:
            self._expire_rest(group, due_s)
            return
        if group.phase is Phase.STARTING:
            if made.starts_s <= due_s:  # else the timer is of a deleted object
                self._run(group)
                events += self.status(group)
        elif due_s < _last_s(made):
            pass  # the timer is of a deleted object, too
        elif made.expires_s is not None and made.expires_s < made.ends_s:
            self._end(group, Phase.EXPIRED, tuple(group.held), events)
        elif not made.fails:
            self._end(group, Phase.COMPLETED, tuple(group.held), events)
        else:
            first = made.seats[0].pod
            reason = f"pod {what.pod_name(first)} exited with {EXIT_CODE}"
            self._end(group, Phase.FAILED, (first,), events, reason, EXIT_CODE)

    def _run(self, group: Group) -> None:
        group.phase = Phase.RUNNING
        self._set_timer(_last_s(group.made), group.attempt)

    def _end(
        self,
        group: Group,
        how: Phase,
        frees: tuple[str, ...],
        events: list[PodEvent],
        reason: str = "",
        exit_code: int | None = None,
    ) -> None:
        self._write(Over(*group.attempt, how.value, frees, reason, exit_code))
        events += self.status(group)
        self._arm_deadline(group)

    def _arm_deadline(self, group: Group) -> None:
        """Set the deadline, also for the remaining pods of a gang whose executor may never stop
        them."""
        if group.held and group.made.expires_s is not None:
            self._set_timer(group.made.expires_s, group.attempt)

    def _expire_rest(self, group: Group, due_s: float) -> None:
        expires_s = group.made.expires_s
        if group.held and expires_s is not None and expires_s <= due_s:
            over = group.over
            reason, exit_code = (over.reason, over.exit_code) if over is not None else ("", None)
            how, rest = group.phase.value, tuple(group.held)
            self._write(Over(*group.attempt, how, rest, reason, exit_code))

    def _kill_pods_on(self, gpu: GpuTurned, events: list[PodEvent]) -> None:
        """Kill the pods on a dead GPU, without notice to the rest of their gang."""
        for (attempt, pod), seat in list(self.world.nodes[gpu.node].pods.items()):
            group = self.world.groups[attempt]
            if gpu.index in seat.use.gpus and group.phase in ALIVE:
                reason = f"GpuLost: pod {pod} on {gpu.node}, GPU {gpu.index}"
                self._end(group, Phase.REFUSED, (pod,), events, reason)

    # Executor requests

    def perform(self, order: ClusterInstruction, now_s: float) -> list[PodEvent]:
        """Carry out an instruction, and return its immediate events."""
        group = self.world.groups.get(order.attempt)
        match order:
            case CreatePods():
                return self.status(group or self._create(order, now_s))
            case ResizePods():
                if group is not None and group.phase is Phase.RUNNING:
                    self._resize(group, order)
                return self.status(group) if group is not None else [PodsGone(order.attempt)]
            case StopPods():
                if group is None:
                    return [PodsGone(order.attempt)]
                if group.stopped is None:
                    self._write(Stopped(*order.attempt, order.reason))
                return [PodsGone(order.attempt, group.stopped or "")]
            case DeletePods():
                if group is not None:
                    self._write(Deleted(*order.attempt))
                return []
            case _:
                assert_never(order)

    def _create(self, order: CreatePods, now_s: float) -> Group:
        seats, refused = self._seat(order.pods, order.request)
        if refused:  # a gang is all or nothing: the rest would only use capacity until stopped
            seats = ()
        starts_s = now_s + self.nature.start_delay_s
        ends_s, fails = self._fate(order.attempt, order.request, starts_s)
        asked_at_s = now_s if order.asked_at_s is None else min(now_s, order.asked_at_s)
        expires_s = None if order.stop_after_s is None else asked_at_s + order.stop_after_s
        made = Made(
            *order.attempt,
            order.executor,
            seats,
            starts_s,
            ends_s,
            fails,
            expires_s,
            refused,
            order.receipt,
        )
        self.world.apply(made)
        self._journal.append(made)
        group = self.world.groups[order.attempt]
        self.pods_started += len(seats)
        if refused:
            self.attempts_refused += 1
        elif starts_s <= now_s:
            self._run(group)
        else:
            self._arm(made)
        return group

    def _resize(self, group: Group, order: ResizePods) -> None:
        """Resize a job. Remaining pods keep their nodes."""
        has = {seat.pod: seat for seat in group.made.seats}
        kept = tuple(has[each.pod] for each in order.pods if each.pod in has)
        more, refused = self._seat(
            tuple(each for each in order.pods if each.pod not in has), order.request
        )
        seats = (*kept, *more)
        if seats != group.made.seats or refused != group.missing:
            self._write(Resized(*group.attempt, seats, refused))
            self.pods_started += len(more)

    def _seat(
        self, pods: tuple[PodBinding, ...], request: JobRequest
    ) -> tuple[tuple[Seat, ...], str]:
        """Ask each pod's kubelet in turn, up to the first refusal."""
        sets = {pod_set.name: pod_set for pod_set in request.pod_sets}
        seats: list[Seat] = []
        refused = ""
        for binding in pods:
            node = self.world.nodes.get(binding.node)
            pod_set = sets.get(binding.pod.rpartition("-")[0])
            answer: GpuUse | Refusal
            if node is None:
                answer = Refusal.NODE_UNKNOWN
            elif pod_set is None:
                answer = Refusal.INVALID
            else:
                memory_mib = node.memory_per_gpu_mib
                milli = charged_milli(part_of(pod_set), (), memory_mib) if pod_set.gpus else 0
                use = GpuUse(pod_set.cpu_milli, pod_set.memory_mib, milli, binding.gpus)
                answer = node.admit(use, pod_set.gpus)
            if node is None or isinstance(answer, Refusal):
                refused = f"{answer}: pod {binding.pod} on {binding.node}"
                if node is not None:
                    # the binding's author knew less than the kubelet
                    self.world.dirty[binding.node] = True
                break
            node.take(answer)  # so that the next pod of the gang finds the capacity taken
            seats.append(Seat(binding.pod, binding.node, answer))
        for seat in seats:
            # applying the record takes the capacity
            self.world.nodes[seat.node].give_back(seat.use)
        return tuple(seats), refused

    def _fate(self, attempt: Attempt, request: JobRequest, starts_s: float) -> tuple[float, bool]:
        """Return when the pods end, and whether they fail."""
        nature = self.nature
        lasts_s = request.expected_duration_s or lognormal(
            MEDIAN_DURATION_S, SIGMA_DURATION, nature.seed, "lasts", attempt.tenant, attempt.id
        )
        fails = uniform(nature.seed, "fails", *attempt) < nature.failure_share
        if fails:
            lasts_s *= uniform(nature.seed, "when", *attempt)
        return starts_s + lasts_s / nature.speed, fails

    def found(self, executor: str) -> list[PodEvent]:
        """Return every job object with this executor's label, and its state."""
        events: list[PodEvent] = []
        for group in self.world.groups.values():
            if group.made.executor == executor:
                events.append(PodsFound(group.attempt, group.made.receipt))
                events += self.status(group)
        return events

    def status(self, group: Group) -> list[PodEvent]:
        """Return the state of a job object, as events for its executor."""
        attempt, over = group.attempt, group.over
        reason = over.reason if over is not None else group.made.refused
        events: list[PodEvent] = []
        match group.phase:
            case Phase.STARTING | Phase.STOPPED:
                pass
            case Phase.RUNNING:
                has = _bindings(group)
                missing = PodsWaiting(attempt, group.missing, running=has)
                events.append(missing if group.missing else PodsRunning(attempt, has))
            case Phase.COMPLETED:
                events.append(PodsCompleted(attempt))
            case Phase.FAILED:
                events.append(PodsFailed(attempt, reason, over.exit_code if over else None))
            case Phase.REFUSED:
                events.append(PodsRefused(attempt, reason))
            case Phase.EXPIRED:
                events.append(PodsExpired(attempt))
            case _:
                assert_never(group.phase)
        if group.stopped is not None:
            events.append(PodsGone(attempt, group.stopped))
        return events

    # The journal

    def _write(self, record: Record) -> None:
        self.world.apply(record)
        self._journal.append(record)
        self._arm(record)

    def take_journal(self) -> list[Record]:
        """Return the records since the last call, to be written before anything is reported."""
        taken, self._journal = self._journal, []
        return taken

    def take_dirty(self) -> dict[str, bool]:
        """Return the nodes changed since the last call; True: by more than managed pods."""
        taken, self.world.dirty = self.world.dirty, {}
        return taken


def _last_s(made: Made) -> float:
    """Return when the pods end, unless something ends them earlier."""
    return made.ends_s if made.expires_s is None else min(made.ends_s, made.expires_s)


def _bindings(group: Group) -> tuple[PodBinding, ...]:
    return tuple(PodBinding(pod=s.pod, node=s.node, gpus=s.use.gpus) for s in group.made.seats)
