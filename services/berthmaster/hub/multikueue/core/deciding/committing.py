"""One group commit: places all waiting Workloads by the state of one moment.

For each Workload, oldest first, the decider ranks the clusters, chooses one and records the choice.
A commit ends at its limit of events or bytes. The next commit takes the rest.

A placement of this commit counts as load for the next Workload, so the Workloads do not all choose
the same cluster. A draft holds that load and ends with the commit. Only the log changes the state.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from berthmaster.hub.multikueue.core.deciding.checks import RESTART_S, decide_eviction
from berthmaster.hub.multikueue.core.deciding.hub_preemptor import WORDS, HubPreemptor, VictimSet
from berthmaster.hub.multikueue.core.deciding.shortlist import (
    NO_RANKING,
    HubShortlist,
    better_again,
    kept_place,
    next_best,
    ranking,
    shortlist_for,
)
from berthmaster.hub.multikueue.core.deciding.steps import Place
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.hub.multikueue.core.known.workload_view import Rooms, WorkloadView
from berthmaster.hub.multikueue.policy import ENGINE_VERSION, HubPolicy
from berthmaster.lib.engine.fleetview.components import FITS
from berthmaster.lib.engine.queueing.eviction import Eviction, eviction_requested, move_order
from berthmaster.lib.engine.queueing.preemption import eviction_order
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import (
    HUB_CELL,
    Choice,
    Decision,
    EvictionOrder,
    MoveOrder,
    Saw,
    Target,
)
from berthmaster.lib.messages.workload import EvictionRequested, JobRequest, Placed

MAX_REASON_CHARS = 300
KEPT_FOR_IT: Final = "room is kept for it there"
MADE_FOR_IT: Final = "others make room for it there"


class Commit(NamedTuple):
    """A decision and its events, stored in one batch."""

    decision: Decision
    events: tuple[Placed | EvictionRequested, ...]
    notes: Mapping[Key, str] = MappingProxyType({})  # reason of each placement, in words


class ToPlace(NamedTuple):
    view: WorkloadView
    place: Place
    ready_at_s: float  # time from which the Workload may be placed
    tried: Mapping[str, float] = MappingProxyType({})  # cluster left by the Workload -> when


class Chosen(NamedTuple):
    """The chosen cluster, and the shortlist behind the choice."""

    cluster: str
    shortlist: HubShortlist
    note: str
    follows: str = ""  # why an earlier decision or Kueue had chosen already
    evicts: VictimSet | None = None  # victims in that cluster


class _Draft:
    """Entries of a commit under construction."""

    def __init__(self, policy: HubPolicy) -> None:
        self._policy = policy
        self._bytes = 0  # size of the decision's message
        self.choices: list[Choice] = []
        self.moves: list[MoveOrder] = []
        self.evictions: list[EvictionOrder] = []
        self.events: list[Placed | EvictionRequested] = []

    def add(
        self, recorded: Choice | MoveOrder | EvictionOrder, event: Placed | EvictionRequested
    ) -> None:
        """Add an entry of the decision and its event."""
        match recorded:
            case Choice():
                self.choices.append(recorded)
            case MoveOrder():
                self.moves.append(recorded)
            case EvictionOrder():
                self.evictions.append(recorded)
        self.events.append(event)
        self._bytes += len(msgspec.json.encode(recorded))

    @property
    def full(self) -> bool:
        """Return whether the commit has reached its limit of events or bytes."""
        policy = self._policy
        return len(self.events) >= policy.commit_limit or self._bytes >= policy.commit_bytes


def choose(
    know: BusState, want: ToPlace, policy: HubPolicy, now_s: float, preemptor: HubPreemptor
) -> Chosen | None:
    """Return the cluster for one Workload; None without capacity."""
    shortlist = shortlist_for(know, want.view, policy, now_s)
    if want.place.at:
        return Chosen(want.place.at, shortlist, want.place.why, want.place.why)
    kept = kept_place(shortlist, want.view)
    if kept is not None and kept.ref.name not in want.tried:
        return Chosen(kept.ref.name, shortlist, kept.words, KEPT_FOR_IT)
    tried, waited_s = want.tried, now_s - want.ready_at_s
    found = (
        next_best(shortlist, tried, policy, waited_s)
        or better_again(shortlist, tried, policy, now_s)
        or next_best(shortlist, (), policy, waited_s)
    )
    if found is None:
        return None
    if not any(each.tier == FITS and not each.last for each in shortlist.candidates):
        victims = preemptor.best(want.view, shortlist)
        if victims is not None:
            return Chosen(victims.cluster, shortlist, MADE_FOR_IT, evicts=victims)
    return Chosen(found[0], shortlist, found[1])


def decide(
    know: BusState,
    wants: Sequence[ToPlace],
    leavers: Sequence[WorkloadView],
    cramped: Sequence[WorkloadView],
    policy: HubPolicy,
    now_s: float,
    decider: str,
    hub: Hub,
    held: Rooms,
) -> tuple[Commit | None, list[ToPlace]]:
    """Return the commit (None without entries), and the Workloads without a cluster.

    ``cramped``: Workloads that wait for capacity in a worker. ``leavers``: Workloads that may move.
    """
    number = know.chain.number + 1
    made = _Draft(policy)
    preemptor = HubPreemptor(know, hub, held, policy, now_s)

    def evict(bus: Workload, reason: str, to: str = "") -> EvictionRequested:
        return eviction_requested(
            bus, reason, to, cell=HUB_CELL, decision=number, now_s=now_s, decider=decider
        )

    def preempt(victims: VictimSet, bus: Workload) -> None:
        preemptor.take(victims)
        for each in victims.victims:
            victim = know.open[each.victim.key]
            order = eviction_order(victim, bus, each.right, each.victim.lost_gpu_s)
            made.add(order, evict(victim, WORDS[each.right]))

    unplaced: list[ToPlace] = []
    notes: dict[Key, str] = {}
    with know.on_the_way.draft() as draft:
        for want in wants[: policy.commit_limit]:
            if made.full:
                break
            chosen = choose(know, want, policy, now_s, preemptor)
            if chosen is None:
                unplaced.append(want)
                continue
            choice = _choice(want, chosen, know, policy, now_s)
            made.add(choice, _placed(want, chosen.cluster, number, now_s, decider))
            notes[want.view.name] = f" ({chosen.note}){left_out(chosen.shortlist.filtered)}"
            assert want.view.bus is not None
            draft.place(want.view.bus, chosen.cluster, now_s)
            if chosen.evicts is not None:
                preempt(chosen.evicts, want.view.bus)
        for view in cramped:
            if made.full:
                break
            assert view.bus is not None
            victims = preemptor.here(view)
            if victims is not None:
                preempt(victims, view.bus)
        for view in leavers[: policy.commit_limit]:
            if made.full:
                break
            eviction = decide_eviction(know, view, policy, now_s)
            if not isinstance(eviction, Eviction) or preemptor.has_taken(view.name):
                continue
            assert view.bus is not None
            event = evict(view.bus, eviction.reason, eviction.to)
            made.add(move_order(view.bus, eviction, now_s, RESTART_S), event)
            if eviction.to:
                draft.place(view.bus, eviction.to, now_s)
    if not made.events:
        return None, unplaced
    decision = Decision(
        cell=HUB_CELL,
        number=number,
        after=know.chain.sequence,
        decider=decider,
        engine=ENGINE_VERSION,
        now_s=now_s,
        settings={**policy.as_record(), "hub": hub.id},
        saw=Saw(
            workloads=know.workloads_sequence,
            fleet=know.view.fleet_sequence,
            control=know.view.control_sequence,
        ),
        events=len(made.events),
        placements=tuple(made.choices),
        evictions=tuple(made.evictions),
        moves=tuple(made.moves),
    )
    return Commit(decision, tuple(made.events), notes), unplaced


def left_out(filtered: Mapping[str, str]) -> str:
    parts = "; ".join(f"{name}: {why}" for name, why in sorted(filtered.items()))
    return f"; left out: {parts}"[:700] if parts else ""


def _choice(
    want: ToPlace, chosen: Chosen, know: BusState, policy: HubPolicy, now_s: float
) -> Choice:
    bus = want.view.bus
    assert bus is not None
    filtered = dict(chosen.shortlist.filtered)
    weighting = chosen.shortlist.weighting
    if chosen.note == NO_RANKING:
        filtered[chosen.cluster] = NO_RANKING
    return Choice(
        tenant=bus.tenant,
        id=bus.id,
        attempt=bus.attempt + 1,
        cluster=chosen.cluster,
        pods=(),
        ranking=ranking(chosen.shortlist, chosen.cluster, know, policy, now_s),
        filtered={name: why[:MAX_REASON_CHARS] for name, why in filtered.items()},
        profile=weighting.profile if weighting is not None else "",
        weights=weighting.weights if weighting is not None else {},
        follows=chosen.follows,
    )


def _placed(want: ToPlace, cluster: str, number: int, now_s: float, decider: str) -> Placed:
    bus, hub = want.view.bus, want.view.hub
    assert bus is not None
    assert hub is not None
    return Placed(
        tenant=bus.tenant,
        id=bus.id,
        after=bus.sequence,
        at_s=now_s,
        by=decider,
        cause=f"decision/{HUB_CELL}/{number}",
        cluster=cluster,
        attempt=bus.attempt + 1,
        pods=(),
        request=bus.request or JobRequest(id=bus.id),
        decision=number,
        cell=HUB_CELL,
        submitted_at_s=bus.submitted_at_s,
        target=Target(via="hub", namespace=hub.metadata.namespace, local_queue=hub.spec.queue_name),
    )
