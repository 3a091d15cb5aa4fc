"""All workloads in hand: looking at one, and turning its next step into what is to be done.

Beside the steps stands what goes with them: traps, events for people, checks of ours, and moving on
from a cluster where waiting is in vain.
"""

from collections import Counter
from typing import Final

from berthmaster.lifecycle.fold import Key
from berthmaster.lifecycle.states import State
from berthmaster.messages.fleet import CopyReport
from berthmaster.multikueue import checks, saying, telling, traps
from berthmaster.multikueue.contract import forbidden
from berthmaster.multikueue.decide import look, next_best
from berthmaster.multikueue.flight import Flight
from berthmaster.multikueue.hub import Hub
from berthmaster.multikueue.jobs import manifest
from berthmaster.multikueue.settings import Policy
from berthmaster.multikueue.state import Knowledge
from berthmaster.multikueue.steps import (
    Admit,
    Claim,
    End,
    Evict,
    Make,
    Memo,
    MoveOn,
    Nominated,
    Place,
    Run,
    Step,
    Stop,
    Submit,
    View,
    Wait,
    next_step,
)
from berthmaster.multikueue.words import (
    DeleteJob,
    Instruction,
    MakeJob,
    Nominate,
    PassCheck,
    SwitchOff,
)

AGAIN_S: Final = 1.0  # what waits for others is looked at so often at least


class Desk:
    """What is in hand, by workload."""

    def __init__(self, name: str, know: Knowledge, hub: Hub, policy: Policy) -> None:
        self._name = name
        self._know = know
        self._hub = hub
        self._policy = policy
        self.flight = Flight()
        self.memos: dict[Key, Memo] = {}
        self.trapped: dict[Key, traps.Trap] = {}
        self.due: dict[Key, float] = {}  # when time alone may change something
        self.wants: dict[Key, None] = {}  # want a place
        self.restless: dict[Key, None] = {}  # what changes in the fleet matter to
        self.counts: Counter[str] = Counter()

    def view(self, name: Key) -> View:
        """All that is known of one workload."""
        know, hub = self._know, self._hub
        bus = know.open.get(name)
        workload = hub.workload(name, bus.origin.uid if bus is not None and bus.origin else "")
        home = know.home_of(bus) if bus is not None else ""
        rules = hub.rules(workload) if workload is not None else None
        copies: dict[str, CopyReport] = {}
        if workload is not None and rules is not None:
            at = (workload.metadata.namespace, workload.metadata.name)
            for ref in rules.clusters:
                found = know.copies.get((ref.name, *at))
                if found is not None:
                    copies[ref.name] = found
        return View(
            name=name,
            bus=bus,
            ended=know.ended.get(name) if bus is None else None,
            hub=workload,
            job=hub.job(name),
            rules=rules,
            ours=name in hub.job_of or (bus is not None and bus.origin is None),
            job_was_seen=name in hub.seen_jobs,
            copies=copies,
            elsewhere="" if hub.is_mine(home) else home,
            heard_since_s=hub.heard_since_s,
        )

    def memo(self, name: Key) -> Memo:
        """What was noticed of a workload."""
        memo = self.memos.get(name)
        if memo is None:
            memo = self.memos[name] = Memo()
        return memo

    def look(self, name: Key, now_s: float) -> list[Instruction]:
        """What is to be done about one workload now."""
        if self.flight.busy(name) or name in self._know.frozen:
            return []
        bus = self._know.open.get(name)
        folded = bus.sequence if bus is not None else self._know.workloads_sequence
        until_s = self.flight.wait_until_s(name, folded, now_s)
        if until_s is not None:
            self.due[name] = until_s
            return []
        view = self.view(name)
        if view.bus is None and view.hub is None:
            self._forget(name)
            return []
        memo = self.memo(name)
        self.restless.pop(name, None)
        if (copy := view.running_copy) is not None:
            memo.ran_in = copy.cluster
        if view.elsewhere:
            return []
        told = self._told(view, memo, now_s)
        passing = self._pass_check(view, memo, now_s)
        if passing is not None:
            return [*told, passing]
        step = next_step(view, memo, self._policy, now_s)
        return told + self._carry_out(step, view, memo, now_s)

    def _forget(self, name: Key) -> None:
        self.memos.pop(name, None)
        self.trapped.pop(name, None)
        self.due.pop(name, None)
        self.wants.pop(name, None)
        self.restless.pop(name, None)
        self._hub.seen_jobs.discard(name)

    def again(self, name: Key, at_s: float) -> None:
        """Look at it again, when the fleet moves and then at the latest."""
        self.restless[name] = None
        self.due[name] = at_s

    # Steps

    def _carry_out(self, step: Step, view: View, memo: Memo, now_s: float) -> list[Instruction]:
        name = view.name
        match step:
            case Submit():
                return [
                    self.flight.append(
                        name, saying.submitted(view, self._hub.id, self._name, now_s)
                    )
                ]
            case Claim() | Evict() | Admit() | Run() | End():
                event = saying.event_of(step, view, self._name, now_s)
                return [self.flight.append(name, event)]
            case Place():
                self.wants[name] = None
                return []
            case Nominated(ref):
                return [self._nominate(view, ref.hub_name)]
            case MoveOn(reason):
                return self._move_on(view, memo, reason, now_s)
            case Make() | Stop():
                return self._make_or_stop(step, view, memo, now_s)
            case Wait():
                return self._wait(step, view, memo, now_s)

    def _wait(self, step: Wait, view: View, memo: Memo, now_s: float) -> list[Instruction]:
        memo.why = step.why
        bus = view.bus
        if step.until_s < float("inf"):
            self.due[view.name] = step.until_s
        if bus is None or bus.state is not State.CLAIMED or self._policy.mode != "dispatch":
            return []
        self.again(view.name, min(step.until_s, now_s + AGAIN_S))
        reason = self._in_vain(view, now_s)
        return self._move_on(view, memo, reason, now_s) if reason else []

    def _in_vain(self, view: View, now_s: float) -> str:
        """Why waiting for the open attempt's cluster is in vain, or ""."""
        bus, hub, rules = view.bus, view.hub, view.rules
        if bus is None or hub is None or rules is None or view.admitted_copy is not None:
            return ""
        nominated = {r.name for r in rules.clusters if r.hub_name in hub.nominated}
        if forbidden(hub, rules.check) or bus.cluster not in nominated:
            return ""
        considered = look(self._know, view, self._policy, now_s)
        why = considered.filtered.get(bus.cluster, "")
        if why and bus.cluster not in {ref.name for ref in considered.unknown}:
            return f"{bus.cluster} {why}"
        message = view.copy.message if view.copy is not None else ""
        if traps.hopeless(message):
            return message
        if traps.busy(message):
            best = next_best(view, considered, self._policy, 0.0)
            fits = {c.ref.name for c in considered.candidates if c.tier == 0}
            return message if best is not None and best[0] in fits else ""
        return ""

    def _move_on(self, view: View, memo: Memo, reason: str, now_s: float) -> list[Instruction]:
        """End the attempt if there is another place to try; both stay nominated."""
        memo.why = reason
        self.again(view.name, now_s + AGAIN_S)
        considered = look(self._know, view, self._policy, now_s)
        since_s = memo.ready_at_s if memo.ready_at_s is not None else now_s
        if next_best(view, considered, self._policy, now_s - since_s) is None:
            return []
        event = saying.event_of(Evict(reason), view, self._name, now_s)
        return [self.flight.append(view.name, event)]

    # Writes

    def _nominate(self, view: View, cluster: str) -> Nominate:
        hub, rules = view.hub, view.rules
        assert hub is not None
        assert rules is not None
        at = (hub.metadata.namespace, hub.metadata.name)
        ref, uid = self.flight.ref(), hub.metadata.uid
        return self.flight.write(view.name, Nominate(ref, view.name, at, uid, rules.check, cluster))

    def _pass_check(self, view: View, memo: Memo, now_s: float) -> PassCheck | None:
        hub = view.hub
        if self._policy.mode != "dispatch" or view.bus is None or hub is None:
            return None
        if memo.trouble and now_s < memo.trouble_until_s:
            return None
        check = checks.waiting(view)
        if check is None:
            return None
        message = checks.words(view, look(self._know, view, self._policy, now_s))
        if not message:
            self.again(view.name, now_s + AGAIN_S)
            return None
        at = (hub.metadata.namespace, hub.metadata.name)
        write = PassCheck(self.flight.ref(), view.name, at, hub.metadata.uid, check, message)
        return self.flight.write(view.name, write)

    def _make_or_stop(
        self, step: Make | Stop, view: View, memo: Memo, now_s: float
    ) -> list[Instruction]:
        name, hub, job, ref = view.name, view.hub, view.job, self.flight.ref()
        if now_s < memo.trouble_until_s:
            self.due[name] = memo.trouble_until_s
            return []
        if isinstance(step, Make):
            bus = view.bus
            assert bus is not None
            assert bus.request is not None  # only what is makeable gets here
            namespace, body = manifest(
                bus, self._know.queues.get(bus.request.queue), self._know.fleet.reports()
            )
            return [self.flight.write(name, MakeJob(ref, name, namespace, body))]
        if view.ours and job is not None:
            at = (job.metadata.namespace, job.metadata.name)
            return [self.flight.write(name, DeleteJob(ref, name, at, job.metadata.uid))]
        if hub is None or view.ours:
            return []
        at = (hub.metadata.namespace, hub.metadata.name)
        return [self.flight.write(name, SwitchOff(ref, name, at, hub.metadata.uid))]

    def _told(self, view: View, memo: Memo, now_s: float) -> list[Instruction]:
        name = view.name
        trap = traps.find(view, memo, self._know, self._policy, now_s)
        if trap is None and memo.evicting_since_s is not None:
            self.due[name] = memo.evicting_since_s + self._policy.eviction_s
        before = self.trapped.pop(name, None)
        if trap is not None:
            self.trapped[name] = trap
            if before is None or before.kind != trap.kind:
                self.counts[trap.kind] += 1
        if self._policy.mode == "observe":
            return []
        return list(telling.of(view, memo, trap, self._know, self._policy, now_s))
