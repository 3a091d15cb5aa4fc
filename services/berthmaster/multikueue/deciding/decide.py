"""One group commit: places for all that want one, over one frozen moment.

Phases: take those who want a place, oldest first; look at each one's clusters; choose; record.
What is placed in this commit counts as on its way for the next in line (no herd), by a draft that
ends with it: what is known changes by the log alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from berthmaster.messages.placement import HUB_CELL, Choice, Decision, Saw, Target
from berthmaster.messages.workload import JobRequest, Placed
from berthmaster.multikueue.deciding.candidates import Asked, Considered, consider
from berthmaster.multikueue.deciding.steps import Place
from berthmaster.multikueue.known.hub import Rules
from berthmaster.multikueue.known.state import Knowledge
from berthmaster.multikueue.known.workload_view import WorkloadView
from berthmaster.multikueue.settings import ENGINE_VERSION, Policy

MAX_REASON_CHARS = 300
NO_RANKING = "nothing is known of its clusters: next in the configuration's order"


class Plan(NamedTuple):
    """A decision and the events that make it true; one batch."""

    decision: Decision
    events: tuple[Placed, ...]


class Want(NamedTuple):
    """One that wants a place."""

    view: WorkloadView
    place: Place
    ready_at_s: float  # since when it may have one


class Chosen(NamedTuple):
    """Where one goes, and what was seen."""

    cluster: str
    considered: Considered
    note: str


def asked_of(view: WorkloadView) -> Asked:
    """What is looked for on a workload's behalf."""
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    request = bus.request or JobRequest(id=bus.id)
    return Asked(bus.key, bus.tenant, hub.metadata.namespace, hub.spec.queue_name, request)


def look(know: Knowledge, view: WorkloadView, policy: Policy, now_s: float) -> Considered:
    """The clusters as one workload sees them."""
    rules = view.rules
    if rules is None:
        return Considered((), {}, (), {})
    return consider(know, rules, asked_of(view), policy, now_s)


def nominated_names(view: WorkloadView) -> frozenset[str]:
    """The fleet's names of the clusters that are nominated already."""
    hub, rules = view.hub, view.rules
    if hub is None or rules is None:
        return frozenset()
    return frozenset(r.name for r in rules.clusters if r.hub_name in hub.nominated)


def next_best(
    view: WorkloadView, considered: Considered, policy: Policy, silent_for_s: float
) -> tuple[str, str] | None:
    """(the best cluster that is not nominated yet, a note); None if there is none."""
    taken = nominated_names(view)
    for candidate in considered.candidates:
        if candidate.ref.name not in taken:
            return candidate.ref.name, candidate.words
    if considered.candidates or silent_for_s < policy.silent_s:
        return None
    for ref in considered.unknown:
        if ref.name not in taken:
            return ref.name, NO_RANKING
    return None


def choose(know: Knowledge, want: Want, policy: Policy, now_s: float) -> Chosen | None:
    """Where one goes now, or None."""
    considered = look(know, want.view, policy, now_s)
    if want.place.at:
        return Chosen(want.place.at, considered, want.place.why)
    found = next_best(want.view, considered, policy, now_s - want.ready_at_s)
    if found is None:
        return None
    return Chosen(found[0], considered, found[1])


def decide(
    know: Knowledge, wants: Sequence[Want], policy: Policy, now_s: float, decider: str, hub: str
) -> tuple[Plan | None, list[Want]]:
    """(everything that can be placed now, those for whom there is no place). ``hub``: its id."""
    number = know.chain.number + 1
    choices: list[Choice] = []
    events: list[Placed] = []
    unplaced: list[Want] = []
    with know.on_the_way.draft() as draft:
        for want in wants[: policy.commit_limit]:
            chosen = choose(know, want, policy, now_s)
            if chosen is None:
                unplaced.append(want)
                continue
            choices.append(_choice(want, chosen, policy))
            events.append(_placed(want, chosen.cluster, number, now_s, decider))
            assert want.view.bus is not None
            draft.place(want.view.bus, chosen.cluster, now_s)
    if not events:
        return None, unplaced
    decision = Decision(
        cell=HUB_CELL,
        number=number,
        after=know.chain.sequence,
        decider=decider,
        engine=ENGINE_VERSION,
        now_s=now_s,
        settings={**policy.as_record(), "hub": hub},
        saw=Saw(
            workloads=know.workloads_sequence,
            fleet=know.fleet_sequence,
            control=know.control_sequence,
        ),
        placements=tuple(choices),
    )
    return Plan(decision, tuple(events)), unplaced


def _choice(want: Want, chosen: Chosen, policy: Policy) -> Choice:
    bus = want.view.bus
    assert bus is not None
    filtered = dict(chosen.considered.filtered)
    if chosen.note == NO_RANKING:
        filtered[chosen.cluster] = NO_RANKING
    return Choice(
        tenant=bus.tenant,
        id=bus.id,
        attempt=bus.attempt + 1,
        cluster=chosen.cluster,
        pods=(),
        ranking=chosen.considered.ranking(chosen.cluster, policy.ranking_limit),
        filtered={name: why[:MAX_REASON_CHARS] for name, why in filtered.items()},
    )


def _placed(want: Want, cluster: str, number: int, now_s: float, decider: str) -> Placed:
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


def order_of(know: Knowledge, rules: Rules, policy: Policy, now_s: float) -> tuple[str, ...]:
    """A configuration's clusters by free GPUs, best first; who takes nothing new goes last. Each
    overtakes another only by a margin, so an order that is nearly right stays."""
    fleet = know.fleet
    fleet.arrange()
    free: dict[str, float] = {}
    if fleet.clusters:
        milli = np.add.reduceat(np.where(fleet.open, fleet.milli, 0), fleet.starts)
        free = dict(zip(fleet.clusters, (milli / 1000).tolist(), strict=True))
    worth: dict[str, float] = {}
    for ref in rules.clusters:
        view = know.clusters.view(ref.name, now_s, stale_after_s=policy.stale_after_s, avoid_s=0.0)
        coming = know.on_the_way.to(ref.name, now_s, policy.settle_s).gpus
        closed = bool(ref.closed or view.closed)
        worth[ref.hub_name] = float("-inf") if closed else free.get(ref.name, 0.0) - coming
    order = [ref.hub_name for ref in rules.clusters]
    for end in range(1, len(order)):
        at = end
        while at and _overtakes(worth[order[at]], worth[order[at - 1]], policy.order_margin):
            order[at - 1], order[at] = order[at], order[at - 1]
            at -= 1
    return tuple(order)


def _overtakes(behind: float, ahead: float, margin: float) -> bool:
    return behind > ahead and behind - ahead >= margin
