"""While the bus is away: what waits for a nomination is sent by what was known last.

A cluster is asked all that it is asked otherwise (selectors, labels, cordons, LocalQueue, models,
resources), as everything stood when the bus was last heard. Those that were heard of then go first,
those that had been silent before come after them; one of which nothing was ever known is not sent
anything. Where no cluster is left a Workload stands still, and an event on it says why: a job in
the wrong place is worse than one that waits. For the same reason nothing is moved: copies are
reported over the bus, and nobody sees now whether they are gone.

Nothing is decided and nothing is told: replicas that do this side by side know the same, what they
write is guarded by the resource version, and when the bus is back the log follows what Kueue did.

For example, when the bus falls silent w1 has 2 free GPUs and w2 has 1: of three jobs of one GPU two
go to w1 and one to w2, since what was sent there blindly takes room as well.
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
from berthmaster.hub.multikueue.settings import HubPolicy
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
    """A Workload that may be nominated and is not."""

    at: ObjectKey
    workload: KueueWorkload
    rules: Rules
    view: WorkloadView
    bus: Workload  # as on the bus, or as it would be there; without its attempt
    begun: frozenset[str]  # clusters where it may be already: those of its copies, or its attempt


class Blind:
    """What was done while the bus is away."""

    def __init__(self) -> None:
        self.standing: dict[Key, str] = {}  # for whom there is no cluster, and why
        self._look_at_s: dict[str, float] = {}  # uid -> when to look at it
        self._under_way: dict[str, Key] = {}
        self._sent: dict[Key, tuple[Workload, str]] = {}  # and to which cluster
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
        """The next nominations, and what people are told."""
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
    """The Workload, if it may be nominated, has no nomination, and the log does not forbid it."""
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
    """Where a copy may be. Kueue removes all of them when it takes the hub's quota back."""
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
    """As on the bus; for one that the bus does not know, as it will be there."""
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
    """The clusters as they stood when the bus was last heard, and whether the candidates among them
    were heard of then; if there are none, those that had been silent before."""
    shortlist = shortlist_for(know, view, policy, know.heard_at_s)
    if shortlist.candidates:
        return shortlist, True
    patient = msgspec.structs.replace(policy, stale_after_s=float("inf"))
    return shortlist_for(know, view, patient, know.heard_at_s), False


def _best(one: _Waiting, shortlist: HubShortlist) -> HubCandidate | None:
    """The best cluster; if it has begun somewhere, only there."""
    found = shortlist.candidates
    if one.begun:
        found = tuple(candidate for candidate in found if candidate.ref.name in one.begun)
    return found[0] if found else None
