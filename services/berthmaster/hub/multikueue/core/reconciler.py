"""The reconciler's core: log, facts and hub objects in, events, decisions and writes out.

Rules of this file:

- One action at a time for a workload: a pending append or write is awaited, and its stored event
  folded, before the next check.
- A decision and its events are one batch and arrive one by one. Nothing is decided in between.
- Only changed workloads are checked, and those waiting for the fleet after a change of the fleet.
- Nothing is decided without the bus. ``blind`` then nominates by the last known state, so that the
  bus stops no queue and sends no job to a wrong cluster. Later the log follows Kueue's actions.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from berthmaster.hub.multikueue.core.answers import events, explain
from berthmaster.hub.multikueue.core.deciding import checks, moving_on, traps, writes
from berthmaster.hub.multikueue.core.deciding.blind import Blind
from berthmaster.hub.multikueue.core.deciding.checks import Checks, decide_eviction
from berthmaster.hub.multikueue.core.deciding.committing import Commit, ToPlace, decide
from berthmaster.hub.multikueue.core.deciding.hub_preemptor import waits_for_room
from berthmaster.hub.multikueue.core.deciding.shortlist import shortlist_for
from berthmaster.hub.multikueue.core.deciding.steps import (
    Admit,
    Back,
    Claim,
    Clear,
    End,
    Evict,
    Hold,
    LetGoOn,
    Make,
    MoveOn,
    Nominated,
    Place,
    Run,
    Step,
    Stop,
    Submit,
    Wait,
    next_step,
)
from berthmaster.hub.multikueue.core.deciding.writes import cleared_at_s
from berthmaster.hub.multikueue.core.instructions import (
    ClearNomination,
    DeleteJob,
    FindWriter,
    ForgetPods,
    Instruction,
    MakeJob,
    Nominate,
    Nudge,
    PassCheck,
    Write,
    Writers,
)
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, ObjectKey
from berthmaster.hub.multikueue.core.known.hub_kueue import HubKueue, HubPace
from berthmaster.hub.multikueue.core.known.workload_view import Memo, Rooms, WorkloadView, view_of
from berthmaster.hub.multikueue.policy import NAME, HubPolicy
from berthmaster.lib.engine.queueing.eviction import Eviction, Stay
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.kube.controller.shell_contract import Outcome as WriteOutcome
from berthmaster.lib.kube.controller.work_queue import InFlight, WorkQueue
from berthmaster.lib.kube.objects import Metadata, Object, key_of
from berthmaster.lib.kube.resources import KUEUE_WORKLOADS
from berthmaster.lib.kube.selector import Selector
from berthmaster.lib.kueue.contract import forbidden
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.commits import Commits
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.instructions import Append, Outcome, Stored
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import ControlFact, Cordon
from berthmaster.lib.messages.fleet import CopyReport, FleetFact
from berthmaster.lib.messages.placement import HUB_CELL, Decision
from berthmaster.lib.messages.workload import Submitted, WorkloadEvent

STAY_S: Final = 5.0  # interval of checks for a workload that must leave and fits nowhere
AGAIN_S: Final = 1.0  # maximum interval of checks for workloads that wait for others
TROUBLE_S: Final = 1.0  # pause after a failed write to Kubernetes
LASTING_TROUBLE_S: Final = 15.0  # pause after a failure that will repeat
FAILURE_S: Final = 30.0  # after an error of ours
WRITERS: Final = f"{NAME}-"  # replicas, as named by kube_events.instance_of
LATE_S: Final = 1.0  # delay from an event to its storing that shows an unwritable log
CHOICES_KEPT: Final = 10_000  # records at hand for "why"


class Reconciler:
    """One replica. Its shell knows whether it may act."""

    def __init__(
        self,
        name: str,
        policy: HubPolicy,
        tenants: Mapping[str, str],
        former_hubs: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.policy = policy
        self.know = BusState()
        self.hub = Hub(tenants, former_hubs)
        self.rooms = Rooms(self.know, self.hub)
        self.decisions: OrderedDict[int, Decision] = OrderedDict()
        self.latencies_s: list[float] = []  # may be nominated -> nominated; drained by the shell
        self.appends: list[Append] = []  # to be stored; drained by the shell
        self.aside = SetAside()
        self.commits = Commits[Commit]()
        self.unreadable_decision = ""  # why this replica must not decide at all
        self.trapped: dict[Key, traps.Trap] = {}
        self.trap_counts: Counter[str] = Counter()
        self.blindly = Blind()
        self.kueue = HubKueue()
        self.contests = 0  # number of observed foreign nominations
        self._memos: dict[Key, Memo] = {}
        self._work = WorkQueue()
        self._in_flight = InFlight()
        self._pace = HubPace()
        self._wants: dict[Key, None] = {}  # want a place
        self._leavers: dict[Key, None] = {}  # workloads with an eviction request
        self._cramped: dict[Key, None] = {}  # workloads in a worker without capacity for them
        self._checks = Checks()
        self._choices = 0
        self._written_at_s = 0.0  # when a reconciler wrote to the log last
        self._has_begun = False  # events from now on are new, not history

    # Events of the bus

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Verdict | None:
        """Apply an event of the log in order. ``void``: its content is another workload's."""
        verdict = self.know.take_event(event, sequence, stored_at_s, void=void)
        name = key(event.tenant, event.id)
        if isinstance(event, Submitted) and verdict is Verdict.COUNTED and self._has_begun:
            # The server may have been silent with the event in its buffer while the Workload ended.
            waited = stored_at_s > event.at_s + LATE_S
            if waited and self.hub.is_over_unwritten(name):
                self._memo(name).is_late = True
        if name in self.know.ended:
            self.hub.lives.ended(name)
        elif verdict is not None:
            self.hub.lives.began(name)
        if event.by.startswith(WRITERS):
            self._written_at_s = max(self._written_at_s, stored_at_s)
        self.rooms.heard_of([name])
        if verdict is not None or name in self.hub.workload_of:
            self._work.add([name])
        return verdict

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze the workload of an undecodable event."""
        self.know.freeze(tenant, workload_id, sequence, why)

    def on_unreadable_decision(self, sequence: int, why: str) -> None:
        """Stop deciding: a newer version wrote a decision that this one cannot read."""
        self.know.workloads_sequence = max(self.know.workloads_sequence, sequence)
        self.unreadable_decision = self.unreadable_decision or why

    def on_decision(self, decision: Decision, sequence: int) -> None:
        """A decision of the log, ours or another replica's."""
        self.know.take_decision(decision, sequence)
        if decision.cell != HUB_CELL:
            return
        self.commits.saw(decision, sequence)
        self.decisions[decision.number] = decision
        self._choices += len(decision.placements)
        while self._choices > CHOICES_KEPT and len(self.decisions) > 1:
            _, oldest = self.decisions.popitem(last=False)
            self._choices -= len(oldest.placements)

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        if isinstance(fact, CopyReport):
            self._on_copy(fact)
        self.know.take_fact(fact, sequence, stored_at_s)
        self._work.fleet_moved = True

    def _on_copy(self, copy: CopyReport) -> None:
        """Note what the next look may not see any more. ``know`` has still the report before."""
        at = (copy.namespace, copy.workload)
        name = self.hub.name_of(at)
        if name is not None:
            memo = self._memo(name)
            if copy.ran and not copy.gone:
                memo.ran_in = copy.cluster
            if copy.finished or copy.succeeded > self.know.completed(copy.cluster, *at):
                memo.ended_in.add(copy.cluster)
        self._touch(at)

    def on_node_gone(self, cluster: str, node: str) -> None:
        """A relisting did not find a node."""
        self.know.drop_node(cluster, node)
        self._work.fleet_moved = True

    def on_copy_gone(self, cluster: str, namespace: str, workload: str) -> None:
        """A relisting did not find a copy: its time in the log of facts is over."""
        self.know.drop_copy(cluster, namespace, workload)
        self._touch((namespace, workload))

    def on_control(self, fact: ControlFact, sequence: int) -> None:
        self.know.take_control(fact, sequence)
        self._work.fleet_moved = True
        if isinstance(fact, Cordon) and fact.drain:
            mine = self.know.open.items()
            self._work.add(name for name, each in mine if each.cluster == fact.cluster)

    def _touch(self, at: ObjectKey) -> None:
        name = self.hub.name_of(at)
        if name is not None:
            self._work.add([name])

    # Events of the hub

    def on_object(self, thing: Object, *, gone: bool = False) -> None:
        """Apply an object of the hub, or its removal."""
        touched = self.hub.drop(thing) if gone else self.hub.put(thing)
        if gone:
            self._remember_last(thing, {name for name in touched if name not in self.know.ended})
        self._work.add(touched)
        self.rooms.heard_of(touched)
        if not gone and isinstance(thing, KueueWorkload):
            name = self.hub.name_of(key_of(thing.metadata))
            if name is not None and name not in self.know.open and name not in self.know.ended:
                self.hub.lives.seen(name, thing)
        if not isinstance(thing, KueueWorkload | HubJob):
            self._checks.moved = True

    def _remember_last(self, thing: Object, names: set[Key]) -> None:
        """Keep a removed Workload or Job that the log must still learn of. ``names``: its workloads
        without an end in the log.
        """
        for name in names:
            if isinstance(thing, HubJob) and thing.ended:
                self.hub.lives.job_lost(name, thing)
            elif isinstance(thing, KueueWorkload):
                self.hub.lives.lost(name, thing, is_open=name in self.know.open)

    def on_parameters(self, check: str, found: Selector | str) -> None:
        """Apply the parameters of a Berthmaster check, or the error."""
        touched = self.hub.set_parameters(check, found)
        self._work.add(touched)
        self.rooms.heard_of(touched)
        self._checks.moved = True

    def begin(self) -> None:
        """Start acting: all input is read, so check everything."""
        self._in_flight.forget()
        self._has_begun = True
        if self._written_at_s and self.hub.lives.written_until_s == float("inf"):
            self.hub.lives.written_until_s = self._written_at_s
        self._work.add([*self.know.open, *self.hub.workload_of, *self.hub.lives.gone])
        self._checks.moved = True

    # Results

    def on_appended(self, ref: str, outcome: Outcome, now_s: float) -> None:
        landed = self._in_flight.landed(ref)
        if landed is None:
            return
        name, asked = landed
        self._work.add([name])
        if isinstance(asked, Append):
            self._in_flight.fold_first(name, asked.event.after, outcome, now_s)

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> tuple[()]:
        self._checks.on_answer(write.ref, now_s)
        self._on_blind_answer(write, answer)
        landed = self._in_flight.landed(write.ref)
        if landed is None:
            return ()
        name, asked = landed
        self._work.add([name])
        memo = self._memo(name)
        if isinstance(asked, FindWriter):
            if isinstance(answer.found, Writers):
                memo.contest.by = answer.found.names
            return ()
        if isinstance(asked, Nudge):
            return ()  # changes nothing that is awaited
        memo.trouble, memo.trouble_passes = answer.why, answer.passes
        if isinstance(asked, MakeJob) and answer.is_about_object:
            memo.unmakeable = answer.why
        if not answer.done:
            memo.trouble_until_s = now_s + _pause_s(write, answer)
            self._work.add_at(name, memo.trouble_until_s)
        elif isinstance(asked, DeleteJob):
            memo.trouble_until_s = now_s + TROUBLE_S  # until its end is seen
        elif isinstance(asked, Nominate):
            memo.nominated.setdefault(asked.cluster, now_s)
            memo.copy_was_seen = False
            if memo.ready_at_s is not None:
                self.latencies_s.append(max(0.0, now_s - memo.ready_at_s))
        elif isinstance(asked, ClearNomination):
            memo.cleared(self._leaving(name, memo), now_s)
        if answer.done and isinstance(asked, Nominate | ClearNomination):
            stands = answer.found if isinstance(answer.found, KueueWorkload) else None
            if (stands := stands or self.hub.workload(name)) is not None:
                memo.contest.wrote(stands)
        return ()

    def _leaving(self, name: Key, memo: Memo) -> str:
        """Return the cluster of a cleared nomination."""
        bus = self.know.open.get(name)
        return bus.cluster if bus is not None and memo.leaving else ""

    def _on_blind_answer(self, write: Write, answer: Answer) -> None:
        self.blindly.on_answer(write.ref, done=answer.done)
        if not (isinstance(write, Nominate) and write.workload is None and answer.done):
            return
        if (name := self.hub.name_of(write.at)) is not None:
            self._memo(name).blind = True

    def on_outcome(self, outcome: Outcome, log_end: int) -> None:
        """Apply the result of the pending commit: see ``Commits.came``."""
        plan = self.commits.came(outcome, log_end)
        if plan is None:
            return
        if isinstance(outcome, Stored):
            for name, note in plan.notes.items():
                self._memo(name).placed_for = note
        else:
            self._work.add(key(e.tenant, e.id) for e in plan.events)

    def on_too_large(self, now_s: float) -> None:
        """A message of the pending commit is too large: see ``Refusals.too_large``."""
        plan, event = self.commits.was_too_large(self.know.open, self.name, now_s)
        if event is not None:
            self.appends.append(self._in_flight.append(key(event.tenant, event.id), event))
        self._work.add(key(e.tenant, e.id) for e in (plan.events if plan is not None else ()))

    @property
    def behind(self) -> bool:
        """Return whether stored messages are not folded yet."""
        return self.commits.is_behind(self.know.workloads_sequence)

    @property
    def cell(self) -> str:
        """Return the cell of its decision chain."""
        return HUB_CELL

    @property
    def dirty(self) -> bool:
        """Whether something is to be looked at now."""
        return bool(self._work)

    @property
    def stirred(self) -> bool:
        """The same, or soon, since the fleet has moved."""
        return self.dirty or self._work.fleet_moved

    def act(self, now_s: float) -> list[Write | KubeEvent]:
        """Return the writes for all changes, on the acting replica. Log events are put into
        ``appends``.
        """
        self._work.sweep(now_s)
        if self.kueue.look(self.hub, self.know, self.policy, now_s):
            self.hub.kueue_since_s = self.kueue.since_s
            self._work.add([*self.know.open, *self.hub.workload_of])
        out: list[Instruction] = []
        for name in self._work.take(now_s):
            about = self._about(name)
            with self.aside.trying(Phase.ACTING, KUEUE_WORKLOADS, about):
                out += self._look(name, now_s)
            if why := self.aside.why(Phase.ACTING, KUEUE_WORKLOADS, key_of(about)):
                self._memo(name).trouble = f"it cannot be handled: {why}"
                self._work.add_at(name, now_s + FAILURE_S)
        if self.policy.mode == "dispatch":
            out += self._checks.look(self.hub, now_s)
        self.appends += [one for one in out if isinstance(one, Append)]
        return [one for one in out if not isinstance(one, Append)]

    def blind(self, now_s: float, *, has_read: bool) -> list[Nominate | KubeEvent]:
        """Return actions without the bus, or the reasons why there are none if this process run has
        read nothing of the bus (``has_read``).
        """
        if self.policy.mode != "dispatch" or not self.hub.complete:
            return []
        if not has_read:
            return list(self.blindly.stand_still(self.hub, self.know, self.policy, now_s))
        return self.blindly.look(self.hub, self.know, self.policy, now_s)

    def decide(self, now_s: float) -> Commit | None:
        """The next commit, or None if there is nothing to decide, or not now."""
        if self.commits.pending is not None or self.behind or self.unreadable_decision:
            return None
        if not self._wants and not self._leavers and not self._cramped:
            return None
        self.commits.refusals.look(self.know.chain.sequence, self.know.open, now_s)
        suspended, policy = self.commits.refusals.suspended(now_s), self.policy
        if self.commits.refusals.limit is not None:
            policy = msgspec.structs.replace(policy, commit_limit=self.commits.refusals.limit)
        wants: list[ToPlace] = []
        for name in [each for each in self._wants if each not in suspended]:
            view, memo = view_of(name, self.know, self.hub), self._memo(name)
            busy = self._in_flight.busy(name)
            step = None if busy else next_step(view, memo, self.policy, now_s)
            if isinstance(step, Place):
                wants.append(ToPlace(view, step, memo.ready_at_s or now_s, memo.tried))
            else:
                del self._wants[name]
                self._work.add([name])
        wants.sort(key=lambda want: want.view.bus.submitted_sequence if want.view.bus else 0)
        leavers, cramped = (
            [
                view_of(name, self.know, self.hub)
                for name in names
                if name not in suspended and not self._in_flight.busy(name)
            ]
            for names in (self._leavers, self._cramped)
        )
        self._leavers.clear()  # waiting workloads are checked in their time
        self._cramped.clear()
        cramped.sort(key=lambda view: view.bus.submitted_sequence if view.bus else 0)
        plan, unplaced = decide(
            self.know,
            wants,
            leavers,
            cramped,
            policy,
            now_s,
            self.name,
            self.hub,
            self.rooms,
        )
        for event in plan.events if plan is not None else ():
            self._wants.pop(key(event.tenant, event.id), None)
        for want in unplaced:
            self._wants.pop(want.view.name, None)
            self._work.add_on_fleet(want.view.name, now_s + AGAIN_S)
        self.commits.pending = plan
        return plan

    def wake_at_s(self) -> float:
        """When time alone will change something."""
        return min(self._work.wake_at_s(), self.kueue.due_s, self.commits.refusals.next_s())

    @property
    def contested(self) -> int:
        """Return the number of Workloads with another nomination writer."""
        return sum(memo.contest.times > 0 for memo in self._memos.values())

    def elsewhere(self) -> Counter[str]:
        """Return the open workloads of other hubs, by the id of the hub."""
        homes = Counter(self.know.home_of(workload) for workload in self.know.open.values())
        return Counter({home: n for home, n in homes.items() if not self.hub.is_mine(home)})

    def why(self, tenant: str, workload_id: str, now_s: float) -> WhyReply | None:
        """Return the reasons of a workload; None for other cells."""
        name = key(tenant, workload_id)
        if name not in self.know.open:
            return None
        about = explain.About(
            view=view_of(name, self.know, self.hub),
            memo=self._memos.get(name) or Memo(),
            trap=self.trapped.get(name),
            know=self.know,
            policy=self.policy,
            decisions=self.decisions,
            hub_trouble=self.hub.trouble,
            kueue_silence=self.kueue.words(now_s),
            now_s=now_s,
        )
        return explain.why(about)

    # One workload

    def _about(self, name: Key) -> Metadata:
        """Return the metadata of the Workload, or of the future one."""
        workload = self.hub.workload(name)
        return workload.metadata if workload is not None else Metadata(name=name)

    def _memo(self, name: Key) -> Memo:
        memo = self._memos.get(name)
        if memo is None:
            memo = self._memos[name] = Memo()
            workload = self.hub.workload(name)
            if workload is not None:  # an earlier process run may have seen its beginning
                memo.ended_in = self.know.ended_in(*key_of(workload.metadata))
        return memo

    def _look(self, name: Key, now_s: float) -> list[Instruction]:
        if self._in_flight.busy(name) or name in self.know.frozen:
            return []
        bus = self.know.open.get(name)
        folded = bus.sequence if bus is not None else self.know.workloads_sequence
        until_s = self._in_flight.wait_until_s(name, folded, now_s)
        if until_s is not None:
            self._work.add_at(name, until_s)
            return []
        view = view_of(name, self.know, self.hub)
        if view.bus is None and view.hub is None:
            self._forget(name)
            return []
        memo = self._memo(name)
        self._work.settled(name)
        if (copy := view.running_copy) is not None:
            memo.ran_in = copy.cluster
        if view.elsewhere:
            return []
        memo.patience_since_s = self._pace.since_s(view, now_s)
        memo.is_refused = self._pace.is_refused(name)
        memo.clears_until_s = self._pace.clears_until_s(cleared_at_s(view, memo), now_s)
        told = self._tell(view, memo, now_s)
        if (freeing := self._forget_pods(view, memo, now_s)) is not None:
            return [*told, freeing]
        passing = self._pass_check(view, memo, now_s)
        if passing is not None:
            return [*told, passing]
        step = next_step(view, memo, self.policy, now_s)
        if (asking := self._notice_others(view, memo, now_s)) is not None:
            return [*told, asking]
        told += self._carry_out(step, view, memo, now_s)
        self._look_who_leaves(view, now_s)
        self._look_for_room(view, now_s)
        return told

    def _look_who_leaves(self, view: WorkloadView, now_s: float) -> None:
        """Note a workload with an eviction request for the next decisions."""
        match decide_eviction(self.know, view, self.policy, now_s):
            case Eviction():
                self._leavers[view.name] = None
                self._work.add_by(view.name, now_s + AGAIN_S)
            case Stay(_, until_s):
                self._work.add_by(view.name, min(until_s, now_s + STAY_S))
            case None:
                pass

    def _look_for_room(self, view: WorkloadView, now_s: float) -> None:
        """Note a workload without capacity in its worker for the next decisions."""
        if self.policy.mode == "dispatch" and waits_for_room(view):
            self._cramped[view.name] = None
            self._work.add_by(view.name, now_s + STAY_S)

    def _notice_others(self, view: WorkloadView, memo: Memo, now_s: float) -> FindWriter | None:
        """Ask for the other writer of a nomination after a foreign write."""
        hub, rules = view.hub, view.rules
        if self.policy.mode != "dispatch" or hub is None or rules is None:
            return None
        if forbidden(hub, rules.check) or not memo.contest.look(hub, now_s):
            return None
        self.contests += 1
        self._work.add_at(view.name, memo.contest.until_s)
        return self._in_flight.write(view.name, writes.find_writer(view, self._in_flight.ref()))

    def _forget(self, name: Key) -> None:
        self._memos.pop(name, None)
        self.trapped.pop(name, None)
        self._wants.pop(name, None)
        self._leavers.pop(name, None)
        self._cramped.pop(name, None)
        self._work.forget(name)
        self._pace.over(name)
        self.hub.seen_jobs.discard(name)

    def _tell(self, view: WorkloadView, memo: Memo, now_s: float) -> list[Instruction]:
        """Return Kubernetes events for failure states and changes."""
        name = view.name
        trap = traps.find(view, memo, self.know, self.policy, now_s)
        due_s = traps.due_s(view, memo, self.policy)
        if now_s < due_s < float("inf"):
            self._work.add_at(name, due_s)
        if self.kueue.silent:
            trap = traps.of_silent_kueue(trap, view)
        before = self.trapped.pop(name, None)
        if trap is not None:
            self.trapped[name] = trap
            if before is None or before.kind != trap.kind:
                self.trap_counts[trap.kind] += 1
        if self.policy.mode == "observe":
            return []
        return list(events.kube_events_of(view, memo, trap, self.know, self.policy, now_s))

    def _forget_pods(self, view: WorkloadView, memo: Memo, now_s: float) -> ForgetPods | None:
        """Return the write that ends a stuck eviction which no other party can end."""
        trap = self.trapped.get(view.name)
        if trap is None or trap.kind != traps.STUCK_EVICTION or self.policy.mode != "dispatch":
            return None
        if memo.trouble and now_s < memo.trouble_until_s:
            return None
        self._work.add_by(view.name, now_s + STAY_S)
        if not traps.is_forgotten(view, self.know, self.policy, now_s):
            return None
        write = writes.forget_pods(view, self._in_flight.ref())
        return self._in_flight.write(view.name, write) if write is not None else None

    def _pass_check(self, view: WorkloadView, memo: Memo, now_s: float) -> PassCheck | None:
        if self.policy.mode != "dispatch" or view.bus is None or view.bus.hold is not None:
            return None
        if memo.trouble and now_s < memo.trouble_until_s:
            return None
        check = checks.waiting(view)
        if check is None:
            return None
        message = checks.words(view, shortlist_for(self.know, view, self.policy, now_s))
        if not message:
            self._work.add_on_fleet(view.name, now_s + AGAIN_S)
            return None
        write = writes.pass_check(view, self._in_flight.ref(), check, message)
        return self._in_flight.write(view.name, write)

    def _carry_out(
        self, step: Step, view: WorkloadView, memo: Memo, now_s: float
    ) -> list[Instruction]:
        name, in_flight = view.name, self._in_flight
        match step:
            case Submit():
                assert view.hub is not None
                memo.is_late = self.hub.is_over_unwritten(name)
                event = events.submitted(view, self.hub.id, self.name, now_s)
                return [in_flight.append(name, event)]
            case Claim() | Evict() | Admit() | Run() | End():
                return [self._append(step, view, now_s)]
            case Place():
                self._wants[name] = None
                return []
            case Nominated(ref):
                return [in_flight.write(name, writes.nominate(view, in_flight.ref(), ref.hub_name))]
            case Clear(reason):
                memo.why = reason
                return [in_flight.write(name, writes.clear(view, in_flight.ref()))]
            case MoveOn(reason, blameless):
                return self._move_on(view, memo, reason, now_s, blameless=blameless)
            case Back(check, reason):
                if now_s < memo.trouble_until_s:
                    self._work.add_at(name, memo.trouble_until_s)
                    return []
                write = writes.send_back(view, in_flight.ref(), check, reason)
                return [in_flight.write(name, write)]
            case Hold() | LetGoOn():
                if now_s < memo.trouble_until_s:
                    self._work.add_at(name, memo.trouble_until_s)
                    return []
                asked = in_flight.ref()
                if isinstance(step, LetGoOn):
                    return [in_flight.write(name, writes.let_go_on(view, asked))]
                return [in_flight.write(name, writes.hold(view, asked, step.who))]
            case Make() | Stop():
                return self._make_or_stop(step, view, memo, now_s)
            case Wait():
                return self._wait(step, view, memo, now_s)

    def _append(
        self, step: Claim | Evict | Admit | Run | End, view: WorkloadView, now_s: float
    ) -> Append:
        event = events.log_event_of(step, view, self.name, now_s)
        return self._in_flight.append(view.name, event)

    def _wait(self, step: Wait, view: WorkloadView, memo: Memo, now_s: float) -> list[Instruction]:
        memo.why = step.why
        bus = view.bus
        if step.until_s < float("inf"):
            self._work.add_at(view.name, step.until_s)
        if bus is None or bus.state is not State.CLAIMED or self.policy.mode != "dispatch":
            return []
        if memo.finished_since_s is not None:
            return []
        if now_s < max(memo.contest.until_s, memo.trouble_until_s):
            return []
        self._work.add_in_turn(view.name, min(step.until_s, now_s + AGAIN_S))
        if (nudging := self._nudge(view, now_s)) is not None:
            return [nudging]
        reason = moving_on.in_vain(view, memo, self.know, self.policy, now_s)
        return self._move_on(view, memo, reason, now_s) if reason else []

    def _nudge(self, view: WorkloadView, now_s: float) -> Nudge | None:
        """Return a wake-up write for a Workload held back by the hub's Kueue, if Kueue can act."""
        bus, rules = view.bus, view.rules
        if bus is None or rules is None or view.heard_since_s > now_s:
            return None
        is_open = any(ref.name == bus.cluster and not ref.closed for ref in rules.clusters)
        if not is_open or not self._pace.is_held(view.name, now_s):
            return None
        self._pace.nudged(view.name, now_s)
        return self._in_flight.write(view.name, writes.nudge(view, self._in_flight.ref()))

    def _move_on(
        self, view: WorkloadView, memo: Memo, reason: str, now_s: float, *, blameless: bool = False
    ) -> list[Instruction]:
        """Take the nomination back if there is another place to try; then the attempt ends."""
        memo.why = reason
        self._work.add_in_turn(view.name, now_s + AGAIN_S)
        waits = self.know.going_for(view.name)  # victims free capacity there
        if waits or not moving_on.another(view, memo, self.know, self.policy, now_s):
            nudging = self._nudge(view, now_s)
            return [nudging] if nudging is not None else []
        memo.leaving, memo.leaves_blameless = reason, blameless
        ref = self._in_flight.ref()
        if view.copy is not None and view.copy.blocked_by and view.copy.admitted:
            # Kueue keeps an admitted copy, whatever is nominated.
            return [self._in_flight.write(view.name, writes.begin_again(view, ref, reason))]
        return [self._in_flight.write(view.name, writes.clear(view, ref))]

    def _make_or_stop(
        self, step: Make | Stop, view: WorkloadView, memo: Memo, now_s: float
    ) -> list[Instruction]:
        if now_s < memo.trouble_until_s:
            self._work.add_at(view.name, memo.trouble_until_s)
            return []
        ref = self._in_flight.ref()
        if isinstance(step, Make):
            request = view.bus.request if view.bus is not None else None
            assert request is not None  # makeable workloads have a request
            setting = self.know.view.queues.get(request.queue)
            made = writes.make_job(view, ref, setting, self.know.view.fleet.reports())
            return [self._in_flight.write(view.name, made)]
        write = writes.stop(view, ref)
        return [self._in_flight.write(view.name, write)] if write is not None else []


def _pause_s(write: Write, answer: Answer) -> float:
    """Return the pause before a retry."""
    in_vain = answer.outcome is WriteOutcome.DENIED
    no_namespace = answer.outcome is WriteOutcome.GONE and isinstance(write, MakeJob)
    if in_vain or no_namespace:
        return LASTING_TROUBLE_S
    return answer.pause_s or TROUBLE_S
