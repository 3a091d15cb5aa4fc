"""The reconciler's core: log, facts and a hub's objects in; events, decisions and writes out.

Rules of this file:

- One thing at a time for a workload: an append or a write that is under way is waited for, and what
  the log stored is folded, before the next look.
- A decision and its events are one batch and arrive one by one: nothing is decided between them.
- Only what changed is looked at, and what waits for the fleet when the fleet changed.
- Without the bus nothing is decided. ``blind`` then keeps Workloads moving by the configuration's
  order alone, so that we are never the reason for a standstill; when the bus is back, the log
  follows what Kueue did.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.selector import Selector
from berthmaster.lifecycle.fold import Key, Verdict, key
from berthmaster.lifecycle.instructions import Append, Outcome, Refused, Stored
from berthmaster.messages.api import WhyReply
from berthmaster.messages.control import ControlFact
from berthmaster.messages.fleet import CopyReport, FleetFact
from berthmaster.messages.placement import HUB_CELL, Decision
from berthmaster.messages.workload import WorkloadEvent
from berthmaster.multikueue import explain
from berthmaster.multikueue.blind import Blind
from berthmaster.multikueue.checks import Checks
from berthmaster.multikueue.decide import Plan, Want, decide
from berthmaster.multikueue.desk import AGAIN_S, Desk
from berthmaster.multikueue.hub import Hub, ObjectKey
from berthmaster.multikueue.kueue import HubJob, KueueWorkload
from berthmaster.multikueue.ordering import Ordering
from berthmaster.multikueue.settings import Policy
from berthmaster.multikueue.state import Knowledge
from berthmaster.multikueue.steps import Place, next_step
from berthmaster.multikueue.words import DeleteJob, Done, Instruction, Nominate

SWEEP_S: Final = 0.1  # what waits for the fleet is looked at again at most so often
TROUBLE_S: Final = 1.0  # after a write to Kubernetes that failed
LASTING_TROUBLE_S: Final = 15.0  # one that will fail again
FAILURE_S: Final = 30.0  # after an error of ours
CHOICES_KEPT: Final = 10_000  # records at hand for "why"


class Reconciler:
    """One replica. Whether it may act is its shell's to know."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        tenants: Mapping[str, str],
        former_hubs: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.policy = policy
        self.know = Knowledge()
        self.hub = Hub(tenants, former_hubs)
        self.desk = Desk(name, self.know, self.hub, policy)
        self.decisions: OrderedDict[int, Decision] = OrderedDict()
        self.latencies_s: list[float] = []  # may be nominated -> nominated; drained by the shell
        self.failures: list[tuple[Key, Exception]] = []  # errors of ours; drained by the shell
        self.pending: Plan | None = None
        self.unreadable_decision = ""  # why this replica must not decide at all
        self._choices = 0
        self._wait_for = 0
        self._batch_end = 0
        self._dirty: dict[Key, None] = {}
        self._fleet_moved = False
        self._swept_at_s = float("-inf")
        self._ordering = Ordering()
        self._checks = Checks()
        self.blindly = Blind()

    # What happened on the bus

    def on_event(self, event: WorkloadEvent, sequence: int, stored_at_s: float) -> Verdict | None:
        """An event of the log, in its order."""
        verdict = self.know.take_event(event, sequence, stored_at_s)
        name = key(event.tenant, event.id)
        if verdict is not None or name in self.hub.workload_of:
            self._dirty[name] = None
        return verdict

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """An event that this reader does not understand: its workload is frozen."""
        self.know.freeze(tenant, workload_id, sequence, why)

    def on_unreadable_decision(self, why: str) -> None:
        """A newer decider is at work: this one must not decide on what it cannot read."""
        self.unreadable_decision = why

    def on_decision(self, decision: Decision, sequence: int) -> None:
        """A decision of the log, ours or another replica's."""
        self.know.take_decision(decision, sequence)
        if decision.cell != HUB_CELL:
            return
        events = len(decision.placements) + len(decision.withdrawals)
        self._batch_end = max(self._batch_end, sequence + events)  # stored without gaps
        self.decisions[decision.number] = decision
        self._choices += len(decision.placements)
        while self._choices > CHOICES_KEPT and len(self.decisions) > 1:
            _, oldest = self.decisions.popitem(last=False)
            self._choices -= len(oldest.placements)

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        """A fact of the fleet."""
        self.know.take_fact(fact, sequence, stored_at_s)
        self._fleet_moved = True
        if isinstance(fact, CopyReport):
            self._touch((fact.namespace, fact.workload))

    def on_node_gone(self, cluster: str, node: str) -> None:
        """A relisting did not find a node."""
        self.know.drop_node(cluster, node)
        self._fleet_moved = True

    def on_copy_gone(self, cluster: str, namespace: str, workload: str) -> None:
        """A relisting did not find a copy: its time in the log of facts is over."""
        self.know.copies.pop((cluster, namespace, workload), None)
        self._touch((namespace, workload))

    def on_control(self, fact: ControlFact, sequence: int) -> None:
        """What an operator set."""
        self.know.take_control(fact, sequence)
        self._fleet_moved = True

    def _touch(self, at: ObjectKey) -> None:
        name = self.hub.name_of(at)
        if name is not None:
            self._dirty[name] = None

    # What happened on the hub

    def on_object(self, thing: Object, *, gone: bool = False) -> None:
        """An object of the hub as it is now, or as it was last."""
        touched = self.hub.drop(thing) if gone else self.hub.put(thing)
        self._dirty.update(dict.fromkeys(touched))
        if not isinstance(thing, KueueWorkload | HubJob):
            self._ordering.moved = self._checks.moved = True

    def on_parameters(self, check: str, found: Selector | str) -> None:
        """What the parameters of a check of ours say, or what is wrong with them."""
        self._dirty.update(dict.fromkeys(self.hub.set_parameters(check, found)))
        self._checks.moved = True

    def begin(self) -> None:
        """Everything is known, and this replica is the one that acts: look at all of it."""
        self.desk.flight.forget()
        self._dirty.update(dict.fromkeys([*self.know.open, *self.hub.workload_of]))
        self._ordering.moved = self._checks.moved = True

    # What became of what was asked

    def on_appended(self, ref: str, outcome: Outcome, now_s: float) -> None:
        """What became of an Append."""
        landed = self.desk.flight.landed(ref)
        if landed is None:
            return
        name, asked = landed
        self._dirty[name] = None
        if isinstance(asked, Append):
            self.desk.flight.fold_first(name, asked.event.after, outcome, now_s)

    def on_done(self, done: Done, now_s: float) -> None:
        """What became of a write to Kubernetes."""
        if done.thing is not None:
            self.on_object(done.thing)
        self._ordering.on_done(done, now_s)
        self._checks.on_done(done, now_s)
        self.blindly.on_done(done, now_s)
        landed = self.desk.flight.landed(done.ref)
        if landed is None:
            return
        name, asked = landed
        self._dirty[name] = None
        memo = self.desk.memo(name)
        memo.trouble, memo.trouble_passes = done.why, done.pause_s is not None
        if done.why:
            pause_s = LASTING_TROUBLE_S if done.permanent else done.pause_s or TROUBLE_S
            memo.trouble_until_s = self.desk.due[name] = now_s + pause_s
        elif isinstance(asked, DeleteJob):
            memo.trouble_until_s = now_s + TROUBLE_S  # until its end is seen
        elif isinstance(asked, Nominate):
            memo.nominated.setdefault(asked.cluster, now_s)
            if memo.ready_at_s is not None:
                self.latencies_s.append(max(0.0, now_s - memo.ready_at_s))

    def on_outcome(self, outcome: Outcome, log_end: int) -> None:
        """What became of the pending plan. ``log_end``: the last sequence of WORKLOADS as far as is
        known; after anything but success, deciding waits until that much was folded."""
        plan, self.pending = self.pending, None
        if isinstance(outcome, Stored):
            self._wait_for = max(self._wait_for, outcome.sequence)
            return
        last = (outcome.last or 0) if isinstance(outcome, Refused) else 0
        self._wait_for = max(self._wait_for, last, log_end)
        for event in plan.events if plan is not None else ():
            self._dirty[key(event.tenant, event.id)] = None

    # What to do

    @property
    def behind(self) -> bool:
        """Whether something that was written is not folded yet."""
        return self.know.workloads_sequence < max(self._wait_for, self._batch_end)

    @property
    def cell(self) -> str:
        """Whose chain of decisions is its own."""
        return HUB_CELL

    @property
    def dirty(self) -> bool:
        """Whether something is to be looked at now."""
        return bool(self._dirty)

    @property
    def stirred(self) -> bool:
        """The same, or soon, since the fleet has moved."""
        return self.dirty or self._fleet_moved

    def waited_long_enough(self) -> None:
        """What was to be folded does not come (purged, say). Guards keep us safe: go on."""
        self._wait_for = 0

    def act(self, now_s: float) -> list[Instruction]:
        """Steps for all that changed. Only for the replica that may act."""
        desk = self.desk
        if self._fleet_moved and now_s - self._swept_at_s >= SWEEP_S:
            self._fleet_moved = False
            self._swept_at_s = now_s
            self._dirty.update(desk.restless)
            self._ordering.moved = True
        for name in [name for name, at_s in desk.due.items() if at_s <= now_s]:
            del desk.due[name]
            self._dirty[name] = None
        names, self._dirty = list(self._dirty), {}
        out: list[Instruction] = []
        for name in names:
            try:
                out += desk.look(name, now_s)
            except Exception as error:  # noqa: BLE001 # one odd object must not stop all others
                self.failures.append((name, error))
                desk.memo(name).trouble = f"it cannot be handled: {error!r}"[:500]
                desk.due[name] = now_s + FAILURE_S
        if self.policy.mode == "order":
            out += self._ordering.look(self.hub, self.know, self.policy, now_s)
        if self.policy.mode == "dispatch":
            out += self._checks.look(self.hub, now_s)
        return out

    def blind(self, now_s: float) -> list[Nominate]:
        """The bus is away: what keeps Workloads moving without it."""
        if self.policy.mode != "dispatch" or not self.hub.complete:
            return []
        return self.blindly.look(self.hub, self.policy, now_s)

    def decide(self, now_s: float) -> Plan | None:
        """The next commit, or None if there is nothing to decide, or not now."""
        desk = self.desk
        if self.pending is not None or self.behind or self.unreadable_decision or not desk.wants:
            return None
        wants: list[Want] = []
        for name in list(desk.wants):
            view, memo = desk.view(name), desk.memo(name)
            step = None if desk.flight.busy(name) else next_step(view, memo, self.policy, now_s)
            if isinstance(step, Place):
                wants.append(Want(view, step, memo.ready_at_s or now_s))
            else:
                del desk.wants[name]
                self._dirty[name] = None
        wants.sort(key=lambda want: want.view.bus.submitted_sequence if want.view.bus else 0)
        plan, unplaced = decide(self.know, wants, self.policy, now_s, self.name, self.hub.id)
        for event in plan.events if plan is not None else ():
            desk.wants.pop(key(event.tenant, event.id), None)
        for want in unplaced:
            desk.wants.pop(want.view.name, None)
            desk.again(want.view.name, now_s + AGAIN_S)
        self.pending = plan
        return plan

    def wake_at_s(self) -> float:
        """When time alone will change something."""
        times = [min(self.desk.due.values(), default=float("inf")), self._ordering.due_s]
        if self._fleet_moved:
            times.append(self._swept_at_s + SWEEP_S)
        return min(times)

    def why(self, tenant: str, workload_id: str, now_s: float) -> WhyReply | None:
        """Why there, or why not yet; None if it is none of this cell's."""
        name = key(tenant, workload_id)
        if name not in self.know.open:
            return None
        about = explain.About(self.know, self.desk, self.policy, self.hub.trouble, now_s)
        return explain.why(about, self.decisions, name)
