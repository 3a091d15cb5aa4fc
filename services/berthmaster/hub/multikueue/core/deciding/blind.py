"""Degraded mode without the bus: Workloads are nominated by the last known state.

Example: when the bus falls silent, w1 has 2 free GPUs and w2 has 1. Of three jobs of one GPU two go
to w1 and one to w2, because earlier nominations count as used.

Rules of this file:

- All filters apply (selectors, labels, cordons, LocalQueue, model, resources), on the state at the
  last message. Clusters that were heard at that time go first, then silent ones. An unknown cluster
  gets nothing.
- Without a cluster a Workload stays pending, with a Kubernetes event: waiting is better than a
  wrong cluster.
- Nothing moves, because copies are reported over the bus, and their removal is invisible now.
- Nothing is decided and nothing goes to the log. Replicas that run side by side know the same, and
  the resource version guards their writes. Later the log follows Kueue's actions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from berthmaster.hub.multikueue.core.deciding.shortlist import (
    HubCandidate,
    HubShortlist,
    shortlist_for,
)
from berthmaster.hub.multikueue.core.instructions import Nominate
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, ObjectKey, Rules
from berthmaster.hub.multikueue.core.known.requests import origin_of, read_request
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView, view_of
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import seconds
from berthmaster.lib.kube.resources import KUEUE_WORKLOADS
from berthmaster.lib.kueue.contract import forbidden, held_back
from berthmaster.lib.kueue.names import QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import HUB_CELL

NOMINATED = "NominatedBlindly"
STANDS_STILL = "StandsStill"
UNREAD = (
    "NATS is silent since this reconciler started: nothing is known of any cluster, and nothing is "
    "nominated before it answers"
)
WORDS = "nominated while NATS was silent, by what was known before"


class _Waiting(NamedTuple):
    """A Workload without a nomination that may get one."""

    at: ObjectKey
    workload: KueueWorkload
    rules: Rules
    view: WorkloadView
    bus: Workload  # as on the bus, or as it would be there; without its attempt
    begun: frozenset[str]  # clusters of its copies or its attempt, where it may have started


class Blind:
    """Actions while the bus is away."""

    def __init__(self) -> None:
        self.standing: dict[Key, str] = {}  # reason of each Workload without a cluster
        self._look_at_s: dict[str, float] = {}  # uid -> time of the next check
        self._under_way: dict[str, Key] = {}
        self._sent: dict[Key, tuple[Workload, str]] = {}  # nominated Workloads, with their cluster
        self._told: dict[str, str] = {}  # uid -> the last event's note
        self._number = 0

    def over(self) -> None:
        """The bus is back."""
        self.standing.clear()
        self._look_at_s.clear()
        self._under_way.clear()
        self._sent.clear()
        self._told.clear()

    def on_answer(self, ref: str, *, done: bool) -> None:
        """A nomination was written, or not."""
        name = self._under_way.pop(ref, None)
        if name is not None and not done:
            self._sent.pop(name, None)

    def look(
        self, hub: Hub, know: BusState, policy: HubPolicy, now_s: float
    ) -> list[Nominate | KubeEvent]:
        """Return the next nominations and Kubernetes events."""
        due = sorted(
            self._due(hub, know, policy, now_s),
            key=lambda one: (one.bus.submitted_sequence or float("inf"), one.at),
        )
        if not due:
            return []
        out: list[Nominate | KubeEvent] = []
        with know.on_the_way.draft() as draft:
            for sent, cluster in self._sent.values():
                draft.place(sent, cluster, now_s)
            for one in due:
                self._look_at_s[one.workload.metadata.uid] = now_s + policy.silent_s
                shortlist, heard_of = _known_last(know, one.view, policy)
                found = _best(one, shortlist)
                out += self._tell_choice(one, found, shortlist, heard_of)
                if found is None:
                    continue
                draft.place(one.bus, found.ref.name, now_s)
                self._sent[one.view.name] = one.bus, found.ref.name
                self._number += 1
                ref = f"blind/{self._number}"
                self._under_way[ref] = one.view.name
                uid, check = one.workload.metadata.uid, one.rules.check
                out.append(Nominate(ref, None, one.at, uid, check, found.ref.hub_name))
        return out

    def stand_still(
        self, hub: Hub, know: BusState, policy: HubPolicy, now_s: float
    ) -> Iterator[KubeEvent]:
        """Report why nothing is nominated: which clusters there are, or are cordoned, is unknown to
        a process run that the bus has told nothing."""
        for one in list(self._due(hub, know, policy, now_s)):
            self._look_at_s[one.workload.metadata.uid] = now_s + policy.silent_s
            self.standing[one.view.name] = UNREAD
            yield from self._tell(one, STANDS_STILL, UNREAD)

    def _due(self, hub: Hub, know: BusState, policy: HubPolicy, now_s: float) -> Iterator[_Waiting]:
        seen: set[str] = set()
        busy = set(self._under_way.values())
        for at, workload in hub.workloads.items():
            one = _waiting(at, workload, hub, know)
            if one is None:
                continue
            uid = workload.metadata.uid
            seen.add(uid)
            due_s = self._look_at_s.setdefault(uid, now_s + policy.silent_s)
            if one.view.name not in busy and now_s >= due_s:
                yield one
        for uid in [uid for uid in self._look_at_s if uid not in seen]:
            del self._look_at_s[uid]
            self._told.pop(uid, None)
        for name in [name for name in self.standing if _uid(name, hub) not in seen]:
            del self.standing[name]

    def _tell_choice(
        self,
        one: _Waiting,
        found: HubCandidate | None,
        shortlist: HubShortlist,
        heard_of: bool,
    ) -> Iterator[KubeEvent]:
        out = "; ".join(f"{name}: {why}" for name, why in sorted(shortlist.filtered.items()))
        if found is None:
            where = f"of {', '.join(sorted(one.begun))}, where a copy may be, " if one.begun else ""
            note = f"NATS is silent, and {where}no cluster was known to be able to take it: {out}"
            self.standing[one.view.name] = note
        else:
            old = "" if heard_of else ", though it had been silent before"
            note = f"NATS is silent: {found.ref.name} by what was known before{old} ({found.words})"
            self.standing.pop(one.view.name, None)
        return self._tell(one, NOMINATED if found is not None else STANDS_STILL, note)

    def _tell(self, one: _Waiting, reason: str, note: str) -> Iterator[KubeEvent]:
        uid, note = one.workload.metadata.uid, note[:900]
        if self._told.get(uid) != note:
            self._told[uid] = note
            warning = reason == STANDS_STILL
            yield KubeEvent(KUEUE_WORKLOADS, one.workload.metadata, warning, reason, note)


def _uid(name: Key, hub: Hub) -> str:
    workload = hub.workload(name)
    return workload.metadata.uid if workload is not None else ""


def _waiting(at: ObjectKey, workload: KueueWorkload, hub: Hub, know: BusState) -> _Waiting | None:
    """Return a Workload that may be nominated, is not, and is not excluded by the log."""
    rules, name = hub.rules(workload), hub.name_of(at)
    if rules is None or rules.problem or name is None or workload.nominated:
        return None
    if forbidden(workload, rules.check) or held_back(workload, rules.check, rules.own_checks):
        return None
    view = view_of(name, know, hub)
    if view.ended is not None or name in know.frozen or view.elsewhere:
        return None
    if view.bus is not None and (view.bus.cancel_requested or view.bus.hold or view.hub is None):
        return None
    bus = _as_queued(view, workload, rules, hub.id)
    begun = _begun(view, workload, know)
    return _Waiting(at, workload, rules, view._replace(bus=bus, hub=workload), bus, begun)


def _begun(view: WorkloadView, workload: KueueWorkload, know: BusState) -> frozenset[str]:
    """Return clusters that may have a copy. Kueue removes all copies when it releases the hub's
    quota.
    """
    reserved = workload.condition(QUOTA_RESERVED)
    try:
        reserved_at_s = seconds(reserved.last_transition_time if reserved is not None else None)
    except ValueError:
        reserved_at_s = 0.0
    if reserved_at_s > know.heard_at_s:
        return frozenset()
    if view.copies:
        return frozenset(view.copies)
    bus = view.bus
    return frozenset((bus.cluster,)) if bus is not None and bus.live else frozenset()


def _as_queued(view: WorkloadView, workload: KueueWorkload, rules: Rules, hub_id: str) -> Workload:
    """Return the workload as on the bus; for an unknown one, as it would be there."""
    if view.bus is not None:
        return msgspec.structs.replace(view.bus, state=State.QUEUED)
    tenant, _, workload_id = view.name.partition("/")
    return Workload(
        tenant=tenant,
        id=workload_id,
        state=State.QUEUED,
        request=read_request(workload).request,
        cell=HUB_CELL,
        origin=origin_of(workload, rules.cluster_queue, hub_id),
    )


def _known_last(know: BusState, view: WorkloadView, policy: HubPolicy) -> tuple[HubShortlist, bool]:
    """Return the clusters at the last message, and whether the candidates were heard then. Without
    such candidates, return clusters that were silent.
    """
    shortlist = shortlist_for(know, view, policy, know.heard_at_s)
    if shortlist.candidates:
        return shortlist, True
    patient = msgspec.structs.replace(policy, stale_after_s=float("inf"))
    return shortlist_for(know, view, patient, know.heard_at_s), False


def _best(one: _Waiting, shortlist: HubShortlist) -> HubCandidate | None:
    """Return the best cluster; after a start, only that cluster."""
    found = shortlist.candidates
    if one.begun:
        found = tuple(candidate for candidate in found if candidate.ref.name in one.begun)
    return found[0] if found else None
