"""The core: takes log events, node reports and Karmada's objects, and returns events and writes.

Rules of this file:

- A workload has at most one operation in flight. The next pass waits until the operation ends and
  the stored events are folded.
- A pass evaluates only changed workloads.
- The core makes no scheduling decisions: the resolver places jobs, across all queues.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from berthmaster.hub.karmada.core import log_events, writes
from berthmaster.hub.karmada.core.instructions import PutOverride, Write
from berthmaster.hub.karmada.core.known import Known
from berthmaster.hub.karmada.core.steps import (
    Ask,
    Claim,
    End,
    Evict,
    Hold,
    Label,
    Release,
    Run,
    Say,
    Step,
    Submit,
    View,
    Wait,
    changed,
    next_step,
)
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.controller.work_queue import InFlight, WorkQueue
from berthmaster.lib.kube.objects import Metadata, Object, key_of
from berthmaster.lib.kube.resources import RESOURCE_BINDINGS
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.instructions import Append
from berthmaster.lib.lifecycle.instructions import Outcome as LogOutcome
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent

TROUBLE_S: Final = 1.0  # seconds after a failed write
LASTING_TROUBLE_S: Final = 15.0  # seconds after a write that will fail again
FAILURE_S: Final = 30.0  # seconds after an internal error


class KarmadaCore:
    """One replica. Its shell decides whether the replica may act."""

    def __init__(self, name: str, tenants: Mapping[str, str]) -> None:
        self.name = name
        self.know = Known(tenants)
        self.appends: list[Append] = []  # events to store; the shell drains the list
        self.trouble: dict[Key, str] = {}  # the last failed write
        self._aside = SetAside()
        self._work = WorkQueue()
        self._in_flight = InFlight()
        self._until_s: dict[Key, float] = {}  # pause after a failure
        self._empty_since_s: dict[Key, float] = {}
        # attempt with written labels, and the time of writing
        self._labelled: dict[Key, tuple[int, float]] = {}
        self._told: dict[Key, tuple[str, ...]] = {}

    # Input from the bus

    @property
    def cell(self) -> str:
        """Return a name instead of a decision chain, because the service makes no decisions."""
        return "karmada"

    @property
    def stirred(self) -> bool:
        """Return whether work is pending."""
        return bool(self._work)

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Verdict | None:
        """Apply an event of the log, in order."""
        verdict = self.know.take_event(event, sequence, stored_at_s, void=void)
        if verdict is not None:
            self._work.add([key(event.tenant, event.id)])
        return verdict

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze the workload of an event that this reader does not understand."""
        self.know.sequence = max(self.know.sequence, sequence)
        self.know.workloads.freeze(tenant, workload_id, sequence, why)

    def on_unreadable_decision(self, sequence: int, why: str) -> None:
        """Ignore: the service reads no decisions."""

    def on_decision(self, decision: Decision, sequence: int) -> None:
        """Ignore: the service reads no decisions."""

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        touched = self.know.take_fact(fact)
        self._work.add(name for name in touched if name in self.know.open)

    def on_node_gone(self, cluster: str, node: str) -> None:
        touched = self.know.drop_node(cluster, node)
        self._work.add(name for name in touched if name in self.know.open)

    def on_control(self, fact: ControlFact, sequence: int) -> None:
        self.know.take_control(fact)
        self._work.add(self.know.names)

    # Input from Karmada's objects

    @property
    def aside(self) -> SetAside:
        """Return the objects that were skipped with an error."""
        return self._aside

    def on_object(self, thing: Object, *, gone: bool = False) -> None:
        self._work.add(self.know.put(thing, gone=gone))

    def begin(self) -> None:
        """Start acting, and evaluate every workload."""
        self._in_flight.forget()
        self._work.add([*self.know.open, *self.know.names])

    # Results of appends and writes

    def on_appended(self, ref: str, outcome: LogOutcome, now_s: float) -> None:
        landed = self._in_flight.landed(ref)
        if landed is not None:
            name, asked = landed
            self._work.add([name])
            self._in_flight.fold_first(name, asked.event.after, outcome, now_s)

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> tuple[()]:
        landed = self._in_flight.landed(write.ref)
        if landed is None:
            return ()
        name, _ = landed
        if answer.done:
            if isinstance(write, PutOverride) and (work := self.know.open.get(name)) is not None:
                self._labelled[name] = (work.attempt, now_s)
            self.trouble.pop(name, None)
            self._work.add([name])
            return ()
        self.trouble[name] = answer.why
        pause_s = LASTING_TROUBLE_S if answer.outcome is Outcome.DENIED else TROUBLE_S
        self._until_s[name] = now_s + (answer.pause_s or pause_s)
        self._work.add_at(name, self._until_s[name])
        return ()

    # Actions

    def wake_at_s(self) -> float:
        """Return the time of the next change without an event."""
        return self._work.wake_at_s()

    def act(self, now_s: float) -> Iterable[Write | KubeEvent]:
        """Return the steps of every changed workload. Log events go to ``appends``."""
        out: list[Write | KubeEvent] = []
        for name in self._work.take(now_s):
            about = self._about(name)
            with self._aside.trying(Phase.ACTING, RESOURCE_BINDINGS, about):
                out += self._look(name, now_s)
            if self._aside.holds(Phase.ACTING, RESOURCE_BINDINGS, key_of(about)):
                self._work.add_at(name, now_s + FAILURE_S)
        return out

    def _about(self, name: Key) -> Metadata:
        at = self.know.names.get(name)
        return self.know.bindings[at].metadata if at is not None else Metadata(name=name)

    def _look(self, name: Key, now_s: float) -> list[Write | KubeEvent]:
        know, work = self.know, self.know.open.get(name)
        if self._in_flight.busy(name) or name in know.frozen:
            return []
        if work is None and name not in know.names:
            self._forget(name)
            return []
        if work is not None and not know.is_mine(work):
            return []  # belongs to another control plane
        folded = work.sequence if work is not None else know.sequence
        until_s = self._in_flight.wait_until_s(name, folded, now_s)
        until_s = max(until_s or 0.0, self._until_s.get(name, 0.0))
        if now_s < until_s:
            self._work.add_at(name, until_s)
            return []
        self._until_s.pop(name, None)
        if not know.is_empty(name):
            self._empty_since_s.pop(name, None)
        else:
            self._empty_since_s.setdefault(name, now_s)
        attempt, labelled_s = self._labelled.get(name, (0, 0.0))
        is_labelled = work is not None and work.attempt == attempt
        empty_since_s = self._empty_since_s.get(name)
        view = know.view(name, empty_since_s, labelled_s if is_labelled else None)
        told, step = self._tell(name, view), next_step(view, now_s)
        return [*told, *self._carry_out(name, step, view, now_s)]

    def _forget(self, name: Key) -> None:
        self._work.forget(name)
        for kept in (self.trouble, self._until_s, self._empty_since_s, self._labelled, self._told):
            kept.pop(name, None)

    def _tell(self, name: Key, view: View) -> list[KubeEvent]:
        """Return events for a binding's problems, once."""
        if view.read is None or view.binding is None:
            return []
        problems = tuple(filter(None, (*view.read.problems, changed(view))))
        if problems == self._told.get(name, ()):
            return []
        self._told[name] = problems
        about = view.binding.metadata
        note = "; ".join(problems)
        return [KubeEvent(RESOURCE_BINDINGS, about, True, "NotAllUnderstood", note)] if note else []

    def _carry_out(self, name: Key, step: Step, view: View, now_s: float) -> list[Write]:
        flight, binding, work = self._in_flight, view.binding, view.work
        match step:
            case Wait():
                if step.until_s < float("inf"):
                    self._work.add_at(name, step.until_s)
                return []
            case Submit():
                tenant = name.partition("/")[0]
                event = log_events.submitted(view, tenant, self.know.id, self.name, now_s)
                self.appends.append(flight.append(name, event))
                return []
            case Claim() | Run() | Evict() | End() | Ask():
                self._empty_since_s.pop(name, None)
                executor = f"karmada/{self.know.id}"
                said = log_events.event_of(step, view, self.name, executor, now_s)
                self.appends.append(flight.append(name, said))
                return []
            case Hold():
                assert binding is not None
                return [flight.write(name, writes.hold(binding, step, flight.ref()))]
            case Label():
                assert binding is not None
                assert work is not None
                return [flight.write(name, writes.label(binding, work, flight.ref()))]
            case Release():
                assert binding is not None
                assert work is not None
                return [flight.write(name, writes.release(binding, work, flight.ref()))]
            case Say():
                assert binding is not None
                return [flight.write(name, writes.say(binding, step, flight.ref(), now_s))]
