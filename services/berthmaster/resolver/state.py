"""What the resolver knows: the fold of the log, the facts and the operators' settings.

All of it follows from the messages alone, up to one sequence per stream. What is derived for speed
(the engine's arrays, lines of waiting jobs) follows from the rest and never decides anything by
itself: a state that is restored or folded anew decides the same.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from berthmaster.engine.fitting.fit import assumed_gpus, holding
from berthmaster.engine.fleet.fleet import Fleet, Holding
from berthmaster.engine.queueing.order import CPU_MILLI_A_GPU
from berthmaster.engine.queueing.queues import CPU, GPU, MODEL, QueueShare, share_of
from berthmaster.engine.scoring.mix import Sampled, sampled_from
from berthmaster.fleetview.snapshot import ClusterSnapshot
from berthmaster.fleetview.view import FleetView
from berthmaster.lifecycle.fold import Key, Verdict, Workload, key, offer
from berthmaster.lifecycle.states import HELD, State
from berthmaster.messages.control import ControlFact, QueueSetting
from berthmaster.messages.fleet import FleetFact
from berthmaster.messages.placement import Decision, PodBinding, Reservation
from berthmaster.messages.workload import (
    Cancelled,
    Failed,
    JobRequest,
    PodSet,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.resolver.expecting import Expectations
from berthmaster.resolver.settings import OrderBy, Policy
from berthmaster.resolver.waiting import Waiting

UNCLAIMED = "not claimed in time"


class Chain:
    """The newest decision of the cell."""

    def __init__(self) -> None:
        self.number = 0
        self.sequence = 0


class Knowledge:
    """Everything that decisions depend on."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.chain = Chain()
        self.workloads_sequence = 0
        self.view = FleetView.empty()
        self.open: dict[Key, Workload] = {}
        self.elsewhere: set[Key] = set()  # open, and placed by another cell's decider
        self.frozen: dict[Key, str] = {}
        self.fleet = self.view.fleet
        self.clusters = self.view.clusters
        self.queues = self.view.queues
        self.derived = self.view.derived
        self.ledger = self.derived.ledger
        self.given_steadiness: dict[str, float] | None = None  # as given_mix, where it counted
        self._shares: dict[str, QueueShare] = {}
        self.reservations: dict[Key, Reservation] = {}  # told by the newest decision that told any
        self.planned: dict[Key, Reservation] = {}  # in force when it ended: what people are told
        self.waiting = Waiting()
        self.expecting = Expectations()
        self.placed: dict[Key, float] = {}  # not yet claimed -> when placed, oldest first
        self.held: dict[str, set[Key]] = {}  # cluster -> claimed and not ended
        self.unadmitted: dict[str, dict[Key, None]] = {}  # cluster -> not let in by its own queue
        self.wished: set[Key] = set()  # waits again, and a person had wished it cancelled
        self.deadlines: dict[
            Key, float
        ] = {}  # claimed, with a deadline of its own -> when it is over
        self.told_mix = Sampled()  # by the newest decision that told any
        self.given_mix: Sampled | None = None  # when a decision is repeated: what it was made with
        self.opened: frozenset[str] = frozenset()  # clusters that took placements at the last look
        self.verdicts: Counter[Verdict] = Counter()

    # The log

    def take_event(self, event: WorkloadEvent, sequence: int, stored_at_s: float) -> Verdict | None:
        """Fold one event; None if it is of a workload that ended or is frozen."""
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        self.view.heard_s = max(self.view.heard_s, stored_at_s)
        name = key(event.tenant, event.id)
        workload = self.open.get(name)
        if workload is None:
            if not self._begins_here(name, event):
                return None
            workload = Workload(tenant=event.tenant, id=event.id)
        before = workload.state
        was_live = workload.live
        attempt_cluster = workload.cluster
        verdict = offer(workload, event, sequence, stored_at_s)
        self.verdicts[verdict] += 1
        if verdict is Verdict.MISSED:  # nothing but a purge leaves gaps, and never such ones
            self.freeze(event.tenant, event.id, sequence, "events of it are missing")
        if verdict is not Verdict.COUNTED:
            return verdict
        self.view.learn(event, attempt_cluster, stored_at_s)
        if isinstance(event, Submitted):
            self.expecting.submitted(workload)
        elif isinstance(event, Succeeded):
            self.expecting.succeeded(workload, stored_at_s)
        if workload.ended:
            self.open.pop(name, None)
        else:
            self.open[name] = workload
        self.follow(workload, before, attempt_cluster, was_live=was_live)
        return verdict

    def sampled(self) -> Sampled:
        """The sample that scores are made for: told by decisions, so that whoever began when much
        of the log was purged decides by what others had learned, until it has seen more."""
        if self.given_mix is not None:
            return self.given_mix
        own, told = self.view.mix.newest, self.told_mix
        return own if own.pods > told.pods else told

    def steadiness(self, now_s: float) -> dict[str, float]:
        """How steady clusters are, of those of which that is known: told by the decisions that it
        counted in, as it follows from more than the log keeps."""
        if self.given_steadiness is not None:
            return self.given_steadiness
        return self.view.track_record.steadiness(now_s)

    def snapshot(self, policy: Policy, now_s: float) -> ClusterSnapshot:
        """All clusters as of now."""
        return self.view.snapshot(policy, now_s, self.sampled(), lambda: self.steadiness(now_s))

    def _begins_here(self, name: Key, event: WorkloadEvent) -> bool:
        """Whether an event of an unknown workload makes it known: its first, if it is for us."""
        if isinstance(event, Submitted) and name not in self.frozen:
            if event.cell == self.cell:
                return True
            self.elsewhere.add(name)
        elif isinstance(event, Succeeded | Failed | Cancelled):
            self.elsewhere.discard(name)
        return False

    def freeze(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """An event of it cannot be understood: nothing more is decided about it by this reader. A
        live placement keeps its room; waiting ends."""
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        name = key(tenant, workload_id)
        self.frozen[name] = why
        self.waiting.remove(name)
        self.wished.discard(name)
        self.placed.pop(name, None)
        self.deadlines.pop(name, None)
        workload = self.open.get(name)
        if workload is not None:
            self.held.get(workload.cluster, set()).discard(name)

    def take_decision(self, decision: Decision, sequence: int) -> None:
        """A link of the chain; the events of its batch come by themselves."""
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        if decision.cell == self.cell and sequence > self.chain.sequence:
            self.chain.number = decision.number
            self.chain.sequence = sequence
            if decision.reservations is not None:
                told = {key(r.tenant, r.id): r for r in decision.reservations}
                self.derived.growth += any(
                    told.get(name) != r for name, r in self.reservations.items()
                )
                self.reservations = told
            if decision.mix is not None:
                self.told_mix = sampled_from(decision.mix)
            if decision.outlook is not None:
                self.expecting.take_told(decision, self.open)
            for retraction in decision.withdrawals:
                if retraction.reason == UNCLAIMED:
                    cluster = self.clusters.get(retraction.cluster)
                    cluster.unclaimed_at_s = decision.now_s

    def follow(
        self,
        workload: Workload,
        before: State,
        attempt_cluster: str,
        *,
        was_live: bool,
    ) -> None:
        """Keep what is derived in step with a workload that changed."""
        name, state = workload.key, workload.state
        frozen = name in self.frozen
        self.derived.changes += was_live or workload.live
        if was_live and not workload.live:
            self.fleet.release(name)
            self.ledger.release(name)
            self.derived.growth += 1
        elif workload.live and (not was_live or state is State.RUNNING):
            self._hold(workload, counted=was_live)
        self._follow_admission(workload, attempt_cluster)
        self.wished.discard(name)
        if state is State.QUEUED and workload.cancel_requested:
            self.wished.add(name)
        elif state is State.QUEUED and not frozen:
            self._wait(workload)
        elif before in (State.QUEUED, State.NEW):
            self.waiting.remove(name)
        self.expecting.follow(workload, waits=name in self.waiting)
        if state is State.PLACED and not frozen:
            self.placed.setdefault(name, workload.placed_at_s)
        else:
            self.placed.pop(name, None)
        deadline_s = workload.request.deadline_s if workload.request is not None else None
        if state in HELD and deadline_s is not None and not frozen:
            self.deadlines[name] = workload.claimed_at_s + deadline_s
        else:
            self.deadlines.pop(name, None)
        if before in HELD and state not in HELD:
            self.held.get(attempt_cluster, set()).discard(name)
        elif state in HELD and before not in HELD:
            if self.clusters.peek(workload.cluster).unclaimed_at_s is not None:
                self.clusters.get(workload.cluster).unclaimed_at_s = None  # it claims again
                self.derived.growth += 1
            if not frozen:
                self.held.setdefault(workload.cluster, set()).add(name)

    def _follow_admission(self, workload: Workload, attempt_cluster: str) -> None:
        if workload.state in (State.PLACED, State.CLAIMED) and workload.target.via == "worker":
            self.unadmitted.setdefault(workload.cluster, {})[workload.key] = None
        elif attempt_cluster in self.unadmitted:
            self.unadmitted[attempt_cluster].pop(workload.key, None)

    def _queue(self, workload: Workload) -> str:
        return workload.request.queue if workload.request is not None else ""

    def _hold(self, workload: Workload, *, counted: bool) -> None:
        if workload.request is None:
            return
        held_before = {(h.node, h.gpus) for h in self.fleet.holdings(workload.key)}
        self.fleet.release(workload.key)
        holdings = holdings_of(self.fleet, workload.request, workload.cluster, workload.pods)
        self.fleet.hold(workload.key, holdings)
        self.ledger.hold(workload.key, workload.request, workload.cluster, workload.pods)
        if counted and held_before != {(h.node, h.gpus) for h in holdings}:
            self.derived.growth += (
                1  # pods run elsewhere than they were placed: their places are free
            )

    # Facts

    def take_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        """Take over the newest value of something in the fleet."""
        self.view.take_fact(fact, sequence, stored_at_s)

    def take_control(self, fact: ControlFact, sequence: int) -> None:
        """Take over what an operator set."""
        earlier = self.queue_priority(fact.queue) if isinstance(fact, QueueSetting) else 0
        self.view.take_control(fact, sequence)
        if isinstance(fact, QueueSetting):
            self._shares[fact.queue] = share_of(fact.queue, fact)
            if earlier != fact.priority:
                self._reorder(fact.queue)

    @property
    def used_milli(self) -> Counter[str]:
        """Queue -> GPU milli of its live placements."""
        ledger = self.ledger
        return Counter({queue: ledger.used(queue)[GPU] for queue in ledger.queues()})

    def share(self, queue: str) -> QueueShare:
        """What operators set of a queue, as far as order and limits go."""
        return self._shares.get(queue) or QueueShare(queue)

    def queue_priority(self, queue: str) -> int:
        """Of a queue that nobody set: 0."""
        setting = self.queues.get(queue)
        return setting.priority if setting is not None else 0

    def _reorder(self, queue: str) -> None:
        for line in self.waiting.lines():
            if line.queue == queue:
                for name in list(line.members):
                    self._wait(self.open[name])

    def _wait(self, workload: Workload) -> None:
        priority = self.queue_priority(self._queue(workload))
        expecting = self.expecting
        place, class_s = expecting.place(workload), expecting.class_s(workload)
        self.waiting.add(workload, priority, place, class_s)

    def look_ahead(self, by: OrderBy) -> None:
        """Put those who wait into the order that follows from the fleet and all that is open."""
        if self.expecting.look(gpus_of(self.ledger.totals(self.opened)), by):
            moved = [name for line in self.waiting.lines() for name in line.members]
        else:
            moved = [name for name in self.expecting.moved if name in self.waiting]
        self.expecting.moved.clear()
        for name in moved:
            self._wait(self.open[name])


def gpus_of(totals: Mapping[str, int]) -> float:
    """Whole GPUs of a fleet; where there are none, what its CPU is worth."""
    milli = sum(amount for name, amount in totals.items() if name.startswith(MODEL))
    return milli / 1000 if milli else totals.get(CPU, 0) / CPU_MILLI_A_GPU


def holdings_of(
    fleet: Fleet, request: JobRequest, cluster: str, bindings: tuple[PodBinding, ...]
) -> list[Holding]:
    """What the pods of a placement take. A binding of no known pod set takes nothing."""
    by_pod: dict[str, PodSet] = {p.name: p for p in request.pod_sets}
    out = []
    for binding in bindings:
        pods = by_pod.get(binding.pod.rpartition("-")[0])
        if pods is None:
            continue
        if pods.gpus and not binding.gpus:
            gpus = assumed_gpus(fleet, cluster, binding.node, pods)
            binding = msgspec.structs.replace(binding, gpus=gpus)
        out.append(holding(cluster, binding, pods))
    return out
