"""The resolver's knowledge: the fold of log, facts and operators' settings.

All of it follows from the messages alone, up to one sequence per stream, and nothing but a message
changes it: deciding and answering read. What is derived (derived.py) follows from the rest and
never decides anything by itself: a state that is restored or folded again decides the same.

Decisions record what they were made with, as that follows from more than the log keeps: the mix of
pods, the pressure and how long jobs take. Later decisions use the newest records (``Told``,
``ToldLives``), and a decision that is repeated uses its own (``Given``).
"""

import itertools
from collections import Counter
from typing import NamedTuple

import msgspec

from berthmaster.control.resolver.core.known.derived import Derived, foresight_of
from berthmaster.control.resolver.core.known.indexes import Parts
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.fit import assumed_gpus, holding
from berthmaster.lib.engine.fleet.fleet import Fleet, Holding, Overlay
from berthmaster.lib.engine.fleetview.shortlist import ClusterSnapshot, snapshot_of
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.engine.queueing.due_order import DueOrder
from berthmaster.lib.engine.queueing.expectations import Expectations, Learned
from berthmaster.lib.engine.queueing.life_tables import LOOKED_AT, NO_LIVES
from berthmaster.lib.engine.queueing.life_tables import is_due as is_lives_due
from berthmaster.lib.engine.queueing.lines import gpu_share
from berthmaster.lib.engine.queueing.preemption import RecentEvictions
from berthmaster.lib.engine.queueing.trial_budget import RecentTrials
from berthmaster.lib.engine.scoring.pod_mix import Sampled, sampled_from
from berthmaster.lib.engine.scoring.pressure import NO_PRESSURE, is_due
from berthmaster.lib.lifecycle.commits import Chain
from berthmaster.lib.lifecycle.fold import OpenWorkloads, Verdict
from berthmaster.lib.lifecycle.pods import set_of
from berthmaster.lib.lifecycle.states import HELD, Ending, State
from berthmaster.lib.lifecycle.trials import trial_gpu_s
from berthmaster.lib.lifecycle.workload import Key, Workload, age_s, key
from berthmaster.lib.messages.control import ControlFact, QueueSetting
from berthmaster.lib.messages.fleet import FleetFact, NodeReport
from berthmaster.lib.messages.placement import (
    Decision,
    Expected,
    Lives,
    PodBinding,
    Pressure,
    Reservation,
    ToldOutlook,
    Weighed,
)
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.workload import (
    Carried,
    Checkpointed,
    EvictionRequested,
    JobRequest,
    PodSet,
    Progressed,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that a decision reports. A repeated decision uses these values, because they depend on
    more than the log keeps.
    """

    mix: Sampled
    pressure: Pressure
    presses: bool  # the decision reports the scarcity
    outlook: ToldOutlook | None = None
    expected: tuple[Expected, ...] = ()
    weighed: dict[Key, Weighed] = {}
    lives: Lives
    tells_lives: bool  # the decision reports the tables


class ToldLives(NamedTuple):
    """Learned durations of the newest decision that reports any."""

    lives: Lives = NO_LIVES
    by: int = 0  # number of that decision


class Told(NamedTuple):
    """Scarcity of nodes of the newest decision that reports any."""

    pressure: Pressure = NO_PRESSURE
    by: int = 0  # number of that decision
    placed: int = 0  # pods placed by it and since


UNCLAIMED = "not claimed in time"
_TELLS_OF_ENDS = Progressed | Checkpointed | EvictionRequested


class Knowledge:
    """All inputs of decisions, with derived data in ``derived``."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.chain = Chain()
        self.workloads_sequence = 0
        self.workloads = OpenWorkloads(self._is_ours)
        self.open = self.workloads.open
        self.elsewhere: set[Key] = set()  # open, and placed by another cell's decider
        self.frozen = self.workloads.frozen
        self.suspended: frozenset[Key] = frozenset()  # see lifecycle.refusals
        self.retried: frozenset[Key] = frozenset()
        self.reservations: dict[Key, Reservation] = {}  # of the newest decision with reservations
        self.recent_evictions = RecentEvictions()
        self.recent_trials = RecentTrials()
        self.told_mix = Sampled()  # of the newest decision with a mix
        self.told_pressure = Told()
        self.told_lives = ToldLives()
        self._newer_lives: Lives | None = None  # than were told, for the next decision to tell
        self.expectations = Expectations()
        self.given: Given | None = None
        self.fleet = Fleet()
        # Unknown nodes, with the workloads there
        self._unseen: dict[tuple[str, str], dict[Key, None]] = {}
        self.queues: dict[str, QueueSetting] = {}
        self.runtimes: dict[str, RuntimeSetting] = dict(BUILT_IN)  # for trials of requests
        self.derived = Derived(self.fleet, self.queues, self.open, self.expectations)
        self.parts = Parts(self.open)
        self.view = FleetView(self.fleet, self.queues, self.derived)
        self.clusters = self.view.clusters
        self.verdicts: Counter[Verdict] = Counter()

    # The log

    def take_event(
        self, event: WorkloadEvent, sequence: int, stored_at_s: float, *, void: bool = False
    ) -> Verdict | None:
        """Fold one event; None if its workload has ended or is frozen. ``void``: see
        ``lifecycle.fold.offer``.
        """
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        self.view.heard_s = max(self.view.heard_s, stored_at_s)
        name = key(event.tenant, event.id)
        self.parts.heard(event)
        known = self.open.get(name)
        if known is None:
            before, was_live, attempt_cluster = State.NEW, False, ""
        else:
            before, was_live, attempt_cluster = known.state, known.live, known.cluster
        applied = self.workloads.apply(event, sequence, stored_at_s, void=void)
        if applied is None:
            return None
        verdict, workload, is_new = applied
        if is_new and isinstance(event, Ending):
            if verdict is Verdict.COUNTED:
                self.elsewhere.discard(name)
                self.parts.ended(name, event, None)
            return None
        self.verdicts[verdict] += 1
        if verdict is Verdict.AHEAD:
            self.derived.frozen(name, workload.cluster)
        if verdict is not Verdict.COUNTED:
            return verdict
        self.view.learn(event)
        if is_new:
            self.expectations.submitted(workload)
            self.derived.due_order.submitted(name)
        elif isinstance(event, Succeeded) and self.expectations.succeeded(workload, stored_at_s):
            self.derived.due_order.something_ended()
        self.derived.ends_told += isinstance(event, _TELLS_OF_ENDS)
        if workload.ended:
            self.parts.ended(name, event, workload)
        self.follow(workload, before, attempt_cluster, was_live=was_live)
        if workload.ended:
            self.expectations.ended(name)
        return verdict

    def sampled(self) -> Sampled:
        """Return the sample for scores. Decisions report it, so that a resolver starting on a
        purged log uses the earlier sample until it has seen more.
        """
        if self.given is not None:
            return self.given.mix
        own, told = self.view.mix.newest, self.told_mix
        return own if own.pods > told.pods else told

    def expect(self, learned: Learned) -> None:
        """Continue with another resolver's learned durations."""
        self.expectations = Expectations(learned)
        self.derived.due_order = DueOrder(self.expectations)
        self.derived.foresight = foresight_of(self.expectations)

    @property
    def presses(self) -> bool:
        """Return whether the scarcity of nodes is due for a new calculation, which the decision
        reports.
        """
        if self.given is not None:
            return self.given.presses
        self.fleet.arrange()
        told = self.told_pressure
        return is_due(told.pressure, self.sampled(), told.placed, len(self.fleet.names))

    def lay_out(self) -> None:
        """Prepare data that depends on the set of nodes."""
        self.view.lay_out(self.sampled())
        self.derived.movable.lay_out(self.fleet)

    def _pressure(self) -> Pressure:
        if self.given is not None:
            return self.given.pressure
        told = self.told_pressure.pressure
        return self.view.pressure(self.sampled(), told) if self.presses else told

    def repeat(self, decision: Decision) -> None:
        """Prepare to repeat a decision, with its reported inputs or those reported before."""
        mix, pressure = decision.mix, decision.pressure
        self.given = Given(
            mix=self.told_mix if mix is None else sampled_from(mix),
            pressure=self.told_pressure.pressure if pressure is None else pressure,
            presses=pressure is not None,
            outlook=decision.outlook,
            expected=decision.expected,
            weighed={key(each.tenant, each.id): each for each in decision.weighed},
            lives=self.told_lives.lives if decision.lives is None else decision.lives,
            tells_lives=decision.lives is not None,
        )
        if decision.outlook is None:
            self.derived.foresight.take(decision.expected, self.open.__contains__)
        else:
            self.expectations.take(decision.expected, self.open, self.derived.due_order.told)
        self.suspend(*(frozenset(map(Key, n)) for n in (decision.suspended, decision.retried)))
        self.clusters.claim_but_for(decision.unclaimed)
        for name, at_s in decision.unclaimed.items():
            self.clusters.left_unclaimed(name, at_s)

    def snapshot(self, policy: Policy, now_s: float, *, renew: bool) -> ClusterSnapshot:
        """Return all clusters as of now, after updating derived data. ``renew``: also renew learned
        durations, for decisions.
        """
        snapshot = snapshot_of(
            self.view,
            policy,
            now_s,
            self.sampled(),
            pressure=self._pressure(),
        )
        saw = self.workloads_sequence, self.view.fleet_sequence, self.view.control_sequence
        given = self.given.outlook if self.given is not None else None
        self.derived.refresh(
            snapshot.open,
            policy.order,
            saw,
            given,
            now_s,
            renew=renew,
            short_first=policy.short_first,
            lives=self._lives(policy, now_s) if renew else None,
            similar=policy.expects_similar,
            repeats=self.given is not None,
        )
        return snapshot

    @property
    def tells_lives(self) -> bool:
        """Whether a decision that is made now tells anew how long jobs go on."""
        if self.given is not None:
            return self.given.tells_lives
        return self._newer_lives is not None

    @property
    def lives(self) -> Lives:
        """How long jobs go on, by which a decision is made now."""
        if self.given is not None:
            return self.given.lives
        return self._newer_lives or self.told_lives.lives

    def _lives(self, policy: Policy, now_s: float) -> Lives:
        """Return the tables, renewed after enough endings if a queue uses them."""
        counts = policy.order == "due" and any(q.preempts_equals for q in self.queues.values())
        seen = self.expectations.lives
        if self.given is None and counts and is_lives_due(seen, self.lives):
            every = 1 + len(self.open) // LOOKED_AT
            some = itertools.islice(self.open.values(), 0, None, every)
            ages = ((w.request, age_s(w, now_s)) for w in some)
            of_age = ((gpu_share(r), age) for r, age in ages if r is not None and age > 0)
            self._newer_lives = seen.tabulated(of_age, every)
        return self.lives

    def tells(self) -> tuple[ToldOutlook | None, tuple[Expected, ...]]:
        """Return the outlook and unreported guesses for a new decision."""
        order, given = self.derived.due_order, self.given
        if order.seen is not None and given is not None and given.outlook is not None:
            return given.outlook, given.expected
        if self.derived.expects_similar:
            return None, self.derived.foresight.drafts() if given is None else given.expected
        return order.tells()

    def _press(self, decision: Decision) -> None:
        told = self.told_pressure
        if decision.pressure is not None:
            told = Told(decision.pressure, decision.number)
        placed = sum(len(choice.pods) for choice in decision.placements)
        self.told_pressure = told._replace(placed=told.placed + placed)

    def _is_ours(self, event: Submitted | Carried) -> bool:
        """Return whether this cell's resolver places the workload."""
        cell = event.cell if isinstance(event, Submitted) else event.workload.cell
        if cell != self.cell:
            self.elsewhere.add(key(event.tenant, event.id))
        return cell == self.cell

    def freeze(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze a workload after an undecodable event. A live placement keeps its capacity; a
        pending workload leaves its class.
        """
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        name = key(tenant, workload_id)
        self.workloads.freeze(tenant, workload_id, sequence, why)
        workload = self.open.get(name)
        self.derived.frozen(name, workload.cluster if workload is not None else None)

    def suspend(self, names: frozenset[Key], retried: frozenset[Key]) -> None:
        """Set the backed off workloads. The ``retried`` get neither preemption nor reservations."""
        before, self.suspended, self.retried = self.suspended, names, retried
        for name in sorted(before ^ names):
            if name in self.open and name not in self.frozen:
                self.derived.suspend(self.open[name], suspended=name in names)

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
            for order in decision.evictions:
                self._count_evicted(key(order.tenant, order.id), decision.now_s)
            for choice in decision.placements:
                self._count_trial(key(choice.tenant, choice.id), decision.now_s)
            for rebalance in decision.rebalances:
                for move in rebalance.moves:
                    self._count_evicted(key(move.tenant, move.id), decision.now_s)
            if decision.mix is not None:
                self.told_mix = sampled_from(decision.mix)
            self._press(decision)
            if decision.lives is not None:
                self.told_lives = ToldLives(decision.lives, decision.number)
                self.expectations.lives.told(decision.lives)
                self._newer_lives = None
            if decision.outlook is not None:
                on_told = self.derived.due_order.told
                self.expectations.take_told(decision, self.open, on_told)
            elif decision.expected:
                self.derived.foresight.take(decision.expected, self.open.__contains__)
            # The other resolver may have read claims that the log no longer keeps, of jobs that
            # have ended.
            self.clusters.claim_but_for(decision.unclaimed)
            for retraction in decision.withdrawals:
                if retraction.reason == UNCLAIMED:
                    self.clusters.left_unclaimed(retraction.cluster, decision.now_s)
            self._follow_tries(decision)

    def _follow_tries(self, decision: Decision) -> None:
        """A cluster on probation gets time to claim before more placements."""
        if not self.clusters.unclaimed:
            return
        avoid_s = Policy.from_record(decision.settings).avoid_s
        for name in self.clusters.unclaimed & {choice.cluster for choice in decision.placements}:
            if self.clusters.peek(name).is_doubted(decision.now_s, avoid_s):
                self.clusters.left_unclaimed(name, decision.now_s)

    def _count_evicted(self, name: Key, at_s: float) -> None:
        """Count an eviction against the budgets of the fleet and its queue, but not a trial's."""
        workload = self.open.get(name)
        request = workload.request if workload is not None else None
        if request is not None and request.trial_of:
            return
        self.recent_evictions.add(at_s, request.queue if request is not None else "")

    def _count_trial(self, name: Key, at_s: float) -> None:
        """Charge a placed trial to the budget of its queue."""
        workload = self.open.get(name)
        if workload is not None and workload.request is not None and workload.request.trial_of:
            request = workload.request
            self.recent_trials.add(at_s, request.queue, trial_gpu_s(request))

    def _left(self, name: Key, cluster: str) -> None:
        """An attempt is over, and another one is known at once."""
        self.fleet.release(name)
        self.derived.ledger.release(name)
        self.derived.left(name, cluster)

    def follow(
        self,
        workload: Workload,
        before: State,
        attempt_cluster: str,
        *,
        was_live: bool,
    ) -> None:
        """Update fleet and derived data after a change of a workload."""
        name, state, derived = workload.key, workload.state, self.derived
        derived.changes += was_live or workload.live
        if was_live and not workload.live:
            self.fleet.release(name)
            derived.ledger.release(name)
            derived.growth += 1
        elif workload.live and (not was_live or state is State.RUNNING):
            self._hold(workload, counted=was_live)
        if State.DIVIDED in (before, state) and before is not state:
            self._follow_division(workload)
        claimed = state in HELD and before not in HELD
        if claimed and workload.cluster in self.clusters.unclaimed:
            self.clusters.left_unclaimed(workload.cluster, None)  # the cluster claims again
            derived.growth += 1
        derived.foresight.follow(workload)
        derived.follow(workload, before, attempt_cluster, frozen=name in self.frozen)
        if State.DIVIDED in (before, state):
            self.parts.follow(workload, before)

    def _follow_division(self, workload: Workload) -> None:
        """Start or end the charge of a divided job."""
        ledger = self.derived.ledger
        if workload.state is State.DIVIDED:
            if workload.request is not None:
                ledger.divide(workload.key, workload.request)
            return
        if not workload.live:
            ledger.release(workload.key)
        self.derived.growth += 1

    def _hold(self, workload: Workload, *, counted: bool) -> None:
        if workload.request is None:
            return
        held_before = {(h.node, h.gpus) for h in self.fleet.holdings(workload.key)}
        self.fleet.release(workload.key)
        holdings = holdings_of(self.fleet, workload.request, workload.cluster, workload.pods)
        self.fleet.hold(workload.key, holdings)
        for held in holdings if any(pods.gpus for pods in workload.request.pod_sets) else ():
            if not held.gpus and self.fleet.node(held.cluster, held.node) is None:
                self._unseen.setdefault((held.cluster, held.node), {})[workload.key] = None
        derived = self.derived
        if not workload.request.trial_of:  # trials have a budget of their own
            derived.ledger.hold(workload.key, workload.request, workload.cluster, workload.pods)
        if counted and held_before != {(h.node, h.gpus) for h in holdings}:
            derived.growth += 1  # pods run elsewhere than placed, so those nodes are free

    # Facts

    def take_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        """Take over the newest value of something in the fleet."""
        self.view.take_fact(fact, sequence, stored_at_s)
        if isinstance(fact, NodeReport):  # the GPUs of placements on it are now known
            for name in self._unseen.pop((fact.cluster, fact.node), ()):
                workload = self.open.get(name)
                if workload is not None and workload.live:
                    self._hold(workload, counted=False)

    def take_control(self, fact: ControlFact, sequence: int) -> None:
        """Apply an operator's setting."""
        known = self.queues.get(fact.queue) if isinstance(fact, QueueSetting) else None
        self.view.take_control(fact, sequence)
        if isinstance(fact, RuntimeSetting):
            self.runtimes[fact.runtime] = fact
        if isinstance(fact, QueueSetting):
            self.derived.queue_set(fact, known)


def holdings_of(
    fleet: Fleet, request: JobRequest, cluster: str, bindings: tuple[PodBinding, ...]
) -> list[Holding]:
    """Return the holdings of a placement's pods in order.

    A binding of an unknown pod set takes nothing. Pods with unknown GPUs are charged to other GPUs
    than the rest. On an unknown node such a pod gets no GPUs.
    """
    by_pod: dict[str, PodSet] = {p.name: p for p in request.pod_sets}
    asked = [(binding, by_pod.get(set_of(binding.pod))) for binding in bindings]
    out: dict[str, Holding] = {}
    open_: list[tuple[PodBinding, PodSet]] = []
    for binding, pods in asked:
        if pods is None:
            continue
        out[binding.pod] = holding(cluster, binding, pods)
        if pods.gpus and not binding.gpus:
            open_.append((binding, pods))
    if open_:
        unsaid = {binding.pod for binding, _ in open_}
        with Overlay(fleet) as tried:
            tried.take("said", [held for pod, held in out.items() if pod not in unsaid])
            for binding, pods in open_:
                gpus = assumed_gpus(fleet, cluster, binding.node, pods)
                held = holding(cluster, msgspec.structs.replace(binding, gpus=gpus), pods)
                tried.take(binding.pod, (held,))
                out[binding.pod] = held
    return list(out.values())
