"""Looks at everything after every step and holds it against the invariants of the design.

It trusts no service's own account: it folds the log by itself as it is stored, looks into the
clusters for pods, and remembers what people asked for and were told.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.cli.audit.core import Auditor
from berthmaster.cli.audit.core import Finding as AuditFinding
from berthmaster.control.resolver.core.deciding.preemptor import WORDS
from berthmaster.control.resolver.core.deciding.rebalance import REBALANCED
from berthmaster.control.resolver.policy import ESTIMATED_WAITS
from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.world import ALIVE, Group, Phase
from berthmaster.lib.lifecycle.attempts import OWN
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.pods import counts_of, least, most
from berthmaster.lib.lifecycle.states import HELD, Ending, State
from berthmaster.lib.lifecycle.trials import trial_requests
from berthmaster.lib.lifecycle.workload import Key, Workload, division_of, key
from berthmaster.lib.messages.control import ClusterLost
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    Claimed,
    Evicted,
    EvictionRequested,
    Failed,
    Resized,
    ResizeRequested,
    Running,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from berthmaster.worker.executor.core.cluster_protocol import Attempt, CreatePods
from berthmaster.worker.executor.core.events import Freeze
from tests.simulation.bus import Message
from tests.simulation.clockwork import START_S, Clockwork
from tests.simulation.deciders import POLICY
from tests.simulation.recovery import Recovery, Truth, faults, lost

STORY_STEPS: Final = 60
MOST_MESSAGES: Final = 5000  # of a world's log; most have some two hundred
MESSAGES_AN_HOUR: Final = 3600  # beside those, while executors are away that are tried in vain
PROMISED: Final = "no GPU is promised twice"
MOST_MOVES: Final = 12  # of one workload in a world: as many as there are jobs of better right
MAKES_ROOM: Final = (*WORDS.values(), REBALANCED)
# Why a cluster or its executor may end an attempt by itself.
_VANISHED: Final = "its pods vanished from the cluster"
_OF_THE_CLUSTER: Final = ("OutOf", "GpuUnhealthy", "GpuLost", "NodeNotReady", "InvalidPod")


class Broken(Exception):
    """An invariant does not hold."""


class Finding(NamedTuple):
    """What must not be."""

    rule: str
    what: str
    at_s: float


class Standing(NamedTuple):
    """How a workload stands, as far as an ending of its attempt is to be judged by it."""

    state: State
    attempt: int
    cluster: str
    over_at_s: float | None  # when its deadline has passed
    leaving: str  # why it is to make room


def _standing(work: Workload) -> Standing:
    deadline_s = work.request.deadline_s if work.request is not None else None
    over_at_s = None if deadline_s is None else work.claimed_at_s + deadline_s
    return Standing(work.state, work.attempt, work.cluster, over_at_s, work.leaving)


class Judge:
    """Everything that must hold at any time; ``settled`` in the world is what must hold at last."""

    def __init__(self, clock: Clockwork) -> None:
        self.clock = clock
        self.clusters: dict[str, EmulatedCluster] = {}
        self.workloads: dict[Key, Workload] = {}
        self.verdicts: dict[Verdict, int] = {}
        self.claims: dict[Attempt, str] = {}
        self.doubtful: set[Attempt] = set()
        self.cancels: set[Key] = set()  # a person asked for it
        self.accepted: dict[Key, int] = {}  # a person was told so, with this sequence
        self.lost: dict[str, list[float]] = {}  # cluster -> when a person declared it lost
        self.resolver_deadlines = 0
        self.auditor = Auditor()
        self.resizes: dict[str, int] = {}
        self.moves: dict[Key, int] = {}  # how often it was told to make room
        self.moved_for: dict[Key, int] = {}  # how often others were told to move for it
        self.lies: set[int] = set()  # sequences of events that are none
        self.tombstones: set[int] = set()  # sequences of endings that a log begins with
        self.carried_twice: list[AuditFinding] = []
        self.stored = 0  # messages of all logs
        self.highest = 0  # the last sequence that was ever used
        self.pending = False  # the log has lost something, and is not recovered yet
        self.is_recovered = False  # once it was
        self.ordered: dict[Key, set[str]] = {}  # why attempts were to end, also by what is lost
        self.unrecovered: set[Key] = set()  # workloads that no log has any more
        self.recent: deque[tuple[float, str, object]] = deque(maxlen=STORY_STEPS)

    def find(self, rule: str, what: str) -> None:
        """Something must not be."""
        raise Broken(Finding(rule, what, self.clock.now_s))

    def note(self, who: str, what: object) -> None:
        self.recent.append((self.clock.now_s, who, what))

    def watch(self, name: str, cluster: EmulatedCluster) -> None:
        self.clusters[name] = cluster

    # The log

    def on_stored(self, message: Message) -> None:
        """One more message of the log or of the operators' settings."""
        body = message.body
        self.note("bus", body)
        hours = (self.clock.now_s - START_S) / 3600.0
        self.stored += 1
        if self.stored > MOST_MESSAGES + MESSAGES_AN_HOUR * hours:
            self.find("nobody goes round in circles", f"the log has {self.stored} messages")
        if isinstance(body, Decision | WorkloadEvent):
            self.highest = max(self.highest, message.sequence)
            if self.pending:  # on its way when the log was damaged, or no service notices that
                if isinstance(body, Claimed):
                    self.claims[Attempt(body.tenant, body.id, body.attempt)] = body.executor
                return
        if isinstance(body, Decision):
            self.auditor.on_decision(body, message.sequence)
            self._check_rebalances(body)
            self._check_estimates(body)
        elif isinstance(body, ClusterLost):
            if body.lost:
                self.lost.setdefault(body.cluster, []).append(self.clock.now_s)
        elif isinstance(body, WorkloadEvent):
            self._on_event(message)
        findings = [f for f in self.auditor.report().findings if not self._is_excused(f)]
        if findings:
            self.find(findings[0].rule, f"{findings[0].where}: {findings[0].what}")

    def _is_excused(self, finding: AuditFinding) -> bool:
        """Whether a lie was found, a tombstone that a recovered log begins with, or a GPU that is
        promised to two whom it carries: the end of one is lost, and is told again."""
        is_of_log = finding.sequence in self.tombstones or finding in self.carried_twice
        return finding.sequence in self.lies or is_of_log

    def _on_event(self, message: Message) -> None:
        event: WorkloadEvent = message.body
        self.auditor.on_event(event, message.sequence, message.stored_at_s)
        name = key(event.tenant, event.id)
        work = self.workloads.setdefault(name, Workload(tenant=event.tenant, id=event.id))
        standing = _standing(work)
        verdict = offer(work, event, message.sequence, message.stored_at_s)
        if message.sequence in self.lies and verdict is Verdict.COUNTED:
            self.find("no lie counts", str(event))
        if verdict is Verdict.AHEAD:
            self.find("no event is missing", str(event))
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        is_lost = event.by.startswith("resolver") and self.lost.get(getattr(event, "cluster", ""))
        if is_lost and isinstance(event, Evicted | Withdrawn) and "lost" in event.reason:
            # A person says that its cluster is; also where the log has lost what this builds on.
            self.doubtful.add(Attempt(event.tenant, event.id, event.attempt))
        if verdict is not Verdict.COUNTED:
            return
        self._on_counted(name, event, standing)

    def _on_counted(self, name: Key, event: WorkloadEvent, standing: Standing) -> None:
        """An event that has an effect. ``standing``: how its workload stood before it."""
        work = self.workloads[name]
        match event:
            case Claimed():
                self.claims[Attempt(event.tenant, event.id, event.attempt)] = event.executor
            case Running():
                self._check_running(event)
            case Withdrawn():
                if standing.state is not State.PLACED:
                    self.find("a claimed workload never moves by itself", str(event))
            case CancelRequested():
                if name not in self.cancels and not _is_trial(work):
                    self.find("only people cancel", str(event))
            case EvictionRequested():
                self.ordered.setdefault(name, set()).add(event.reason)
                self._check_order(event, work)
            case ResizeRequested() | Resized():
                self._check_size(event, work)
            case Evicted() | Failed() | Cancelled() | Succeeded():
                self._check_ending(event, standing)

    # Damage

    def on_damage(self) -> None:
        """The log has lost something. What was known of it before is what is true."""
        self.pending = True

    def on_recovery(self, recovery: Recovery) -> None:
        """An operator is about to put another log in place."""
        self.is_recovered = True
        there = {name: cluster.world.groups for name, cluster in self.clusters.items()}
        alive = {(c, a) for c, groups in there.items() for a, g in groups.items() if self.alive(g)}
        truth = Truth(self.workloads, there, alive, self.doubtful, self.highest)
        for rule, what in faults(recovery, truth):
            self.find(rule, what)
        self.unrecovered |= lost(recovery, truth)

    def on_log(self, messages: Iterable[Message]) -> None:
        """All services begin with this log."""
        self.pending = False
        self.workloads, self.auditor = {}, Auditor()
        for message in messages:
            body = message.body
            if isinstance(body, Decision):
                self.auditor.on_decision(body, message.sequence)
                continue
            self.auditor.on_event(body, message.sequence, message.stored_at_s)
            name = key(body.tenant, body.id)
            work = self.workloads.setdefault(name, Workload(tenant=body.tenant, id=body.id))
            offer(work, body, message.sequence, message.stored_at_s)
            if isinstance(body, Ending):
                self.tombstones.add(message.sequence)
            if isinstance(body, Claimed | Carried) and work.state in HELD:
                executor = f"executor/{work.cluster}"
                self.claims[Attempt(work.tenant, work.id, work.attempt)] = executor
        self.carried_twice = [f for f in self.auditor.report().findings if f.rule == PROMISED]

    def on_frozen(self, step: Freeze) -> None:
        """An executor cannot go on with a workload."""
        self.find("nothing is unreadable here", str(step))

    def _check_rebalances(self, decision: Decision) -> None:
        """It pays, all who move have room, and nobody moves for one who has moved for another."""
        rooms = {key(r.tenant, r.id): r for r in decision.reservations or () if r.owed}
        for each in decision.rebalances:
            for_, pays = key(each.tenant, each.id), each.gain_gpu_s > 0.0
            self.moved_for[for_] = self.moved_for.get(for_, 0) + 1
            kept = for_ in rooms and rooms[for_].cluster == each.cluster
            if not (pays and kept and 0 < len(each.moves) <= POLICY.rebalance_moves):
                self.find("others move for one only if that pays", str(each))
            for move in each.moves:
                name = key(move.tenant, move.id)
                room = rooms.get(name)
                if room is None or not room.moving or room.cluster != move.to:
                    self.find("who is moved has room elsewhere", f"{move} of {each}")
            if self.workloads[for_].moves:
                self.find("nobody is moved for one whom it would move back", str(each))

    def _check_estimates(self, decision: Decision) -> None:
        """No reservation rests on an estimate for longer than the bound."""
        for each in decision.reservations or ():
            work = self.workloads.get(key(each.tenant, each.id))
            if not each.estimated or work is None:
                continue
            bound_s = ESTIMATED_WAITS * float(decision.settings["reserve_wait_s"])
            if decision.now_s > work.submitted_at_s + bound_s:
                self.find("a wrong estimate delays nobody beyond the bound", f"{each}; {work}")

    def _check_order(self, event: EvictionRequested, work: Workload) -> None:
        """Only what may be moved is, and nobody is moved back and forth."""
        request = work.request
        makes_room = event.reason in MAKES_ROOM  # else a person says so
        may_go = request is not None and (request.preemptible or not makes_room)
        if not may_go or work.target.via != "direct":
            self.find("only what may be ended makes room", f"{event}; {work}")
        if work.cancel_requested:
            self.find("who is cancelled makes no room", f"{event}; {work}")
        self.moves[work.key] = self.moves.get(work.key, 0) + makes_room
        if self.moves[work.key] > MOST_MOVES:
            self.find("nobody is moved back and forth", f"{self.moves[work.key]} times: {event}")

    def _check_size(self, event: ResizeRequested | Resized, work: Workload) -> None:
        """Between the least and the most; what is told is what is there."""
        asked = work.wished
        counts = counts_of(event.pods)
        if asked is None or any(
            not least(pods) <= counts.get(pods.name, 0) <= most(pods) for pods in asked.pod_sets
        ):
            self.find("never below the least nor above the most", f"{event}; {work}")
        group = self._group(event.cluster, Attempt(event.tenant, event.id, event.attempt))
        if isinstance(event, Resized) and group is not None and self.alive(group):
            there = {seat.pod for seat in group.made.seats}
            if there != {each.pod for each in event.pods}:
                self.find("resized says which pods there are", f"{event}; {sorted(there)}")
        self.resizes[type(event).__name__] = self.resizes.get(type(event).__name__, 0) + 1

    def _check_running(self, event: Running) -> None:
        group = self._group(event.cluster, Attempt(event.tenant, event.id, event.attempt))
        if group is None:
            self.find("running says where the pods are", f"no pods at all: {event}")

    def _group(self, cluster: str, attempt: Attempt) -> Group | None:
        return self.clusters[cluster].world.groups.get(attempt)

    def _check_ending(
        self, event: Evicted | Failed | Cancelled | Succeeded, standing: Standing
    ) -> None:
        name = key(event.tenant, event.id)
        is_part = division_of(event.id) is not None
        waits = standing.state is State.QUEUED
        by_decider = is_part and waits and event.by.startswith("resolver")
        by_gateway = _is_trial(self.workloads[name])
        said = name in self.cancels or by_decider or by_gateway
        if isinstance(event, Cancelled) and not said:
            self.find("only people cancel", str(event))
        if standing.state is State.DIVIDED:  # the auditor looks at its parts
            if not event.by.startswith("resolver"):
                self.find("only a decider ends a divided job", str(event))
            return
        attempt = Attempt(event.tenant, event.id, event.attempt)
        if standing.state not in HELD:
            if not isinstance(event, Cancelled) and not self._ends_by_trials(name):
                self.find("what is not claimed does not end by itself", str(event))
            return
        group = self._group(standing.cluster, attempt)
        if event.by.startswith("resolver"):
            self._check_resolver_ending(event, group, attempt, standing)
            return
        if event.by != self.claims[attempt]:
            self.find("only the claimant ends it", str(event))
        if group is not None and self.alive(group):
            self.find("an ending comes after the last pod", f"{event}; {group}")
        if isinstance(event, Succeeded):
            if group is None or group.phase is not Phase.COMPLETED:
                self.find("what succeeded was completed", f"{event}; {group}")
        elif not isinstance(event, Cancelled):
            self._check_reason(event, group, standing)

    def _ends_by_trials(self, name: Key) -> bool:
        """Whether the job's trials have ended, which may end the job."""
        work = self.workloads[name]
        if work.attempt or work.request is None or not (trials := trial_requests(work.request)):
            return False
        each = [self.workloads.get(key(work.tenant, one.id)) for one in trials]
        return bool(work.trials) or all(trial is not None and trial.ended for trial in each)

    def _check_reason(
        self, event: Evicted | Failed, group: Group | None, standing: Standing
    ) -> None:
        work = self.workloads[key(event.tenant, event.id)]
        if isinstance(event, Evicted) and event.blameless:
            if event.reason != standing.leaving and not self._was_ordered(work.key, event.reason):
                self.find("who makes room was told to", f"{event}; {work}")
            return
        reason = event.reason.rpartition("at last: ")[2]
        if self._was_ordered(work.key, reason):
            return
        # The log has lost the order; its pods ended by it, and that is all the executor can report.
        ended = group is not None and not self.alive(group)
        to_end = work.key in self.ordered or work.key in self.cancels
        if self.is_recovered and ended and to_end and reason == _VANISHED:
            return
        if reason.startswith(_OF_THE_CLUSTER):
            return
        if reason == "deadline" and standing.over_at_s is not None:
            return
        by_itself = isinstance(event, Failed) or event.fault in OWN  # the latter is tried again
        if by_itself and group is not None and group.made.fails:
            return
        ran = standing.state is State.RUNNING
        if _is_trial(work) and reason.startswith("it ran for longer than its max_run_s"):
            return
        if reason.startswith("not all pods ran") and not ran:
            return  # its executor stood still, and heard of its own limit before it heard of them
        self.find("no job ends because of silence", f"{event}; {group}")

    def _was_ordered(self, name: Key, reason: str) -> bool:
        """Whether the log has lost the order by which an executor ended an attempt."""
        return self.is_recovered and reason in self.ordered.get(name, ())

    def _check_resolver_ending(
        self,
        event: Evicted | Failed | Cancelled | Succeeded,
        group: Group | None,
        attempt: Attempt,
        standing: Standing,
    ) -> None:
        """Only where a person said so, or where the job's own deadline has stopped its pods."""
        over_at_s = standing.over_at_s
        if "lost" in event.reason and self.lost.get(standing.cluster):
            self.doubtful.add(attempt)
        elif over_at_s is None or self.clock.now_s < over_at_s:
            self.find("no job ends because of silence", f"{event}; {group}")
        elif group is not None and self.alive(group):
            self.find("a deadline is enforced beside the pods", f"{event}; {group}")
        else:
            self.resolver_deadlines += 1

    # The pods

    def alive(self, group: Group) -> bool:
        """Whether its pods hold something now: a cluster whose process is down is behind."""
        made = group.made
        if made.expires_s is not None and self.clock.now_s >= made.expires_s:
            return False
        if group.phase not in ALIVE:
            return bool(group.held)
        return self.clock.now_s < made.ends_s or (made.fails and len(made.seats) > 1)

    def on_create(self, cluster: str, order: CreatePods, now_s: float) -> None:
        """An executor is about to create pods. ``now_s``: by its clock."""
        attempt = order.attempt
        if self.claims.get(attempt) != order.executor:
            self.find("nothing is created before it is claimed", str(order))
        late_s = now_s - (now_s if order.asked_at_s is None else order.asked_at_s)
        if attempt in self.doubtful or (
            order.stop_after_s is not None and order.stop_after_s <= late_s
        ):
            return  # the pods will not run
        for name, other in self.clusters.items():
            for group in other.world.groups.values():
                mine = (group.attempt.tenant, group.attempt.id) == attempt[:2]
                unsure = group.attempt in self.doubtful
                if not mine or unsure or not self.alive(group):
                    continue
                if (name, group.attempt) != (cluster, attempt):
                    self.find("none runs twice at once", f"{order}; {group} runs on {name}")
        if self.pending:
            return  # the order follows on what the log has lost
        work = self.workloads[key(attempt.tenant, attempt.id)]
        if work.attempt != attempt.number or work.state not in HELD:
            self.find("what ended is not created", f"{order}; {work}")
        if work.held_back:
            self.find("a gang starts when all of its parts are claimed", f"{order}; {work}")


def _is_trial(work: Workload) -> bool:
    return work.request is not None and bool(work.request.trial_of)
