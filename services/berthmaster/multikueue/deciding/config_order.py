"""Mode order: MultiKueueConfigs whose clusters stand by live room, for Kueue's own Incremental
dispatcher with a step of one.

Only the order is written, never which clusters: see contract.reordered, which is asked again on
what the API server has. Not while equal, not more often than the rate says, and by a margin.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.fleet.fleet import Fleet, NodeKind
from berthmaster.kueue.contract import reordered
from berthmaster.kueue.quota import DIVISIBLE
from berthmaster.multikueue.instructions import Reorder
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.multikueue.known.hub import Hub, Rules
from berthmaster.multikueue.known.labelled_nodes import Labels
from berthmaster.multikueue.settings import HubPolicy


class ConfigOrder:
    """When each configuration was last written."""

    def __init__(self) -> None:
        self.moved = True  # something that an order depends on has changed
        self.due_s = float("inf")  # when the rate lets the next one through
        self._free_at_s: dict[str, float] = {}
        self._under_way: dict[str, str] = {}
        self._number = 0

    def on_answer(self, ref: str) -> None:
        """A new order was written, or not."""
        if self._under_way.pop(ref, None) is not None:
            self.moved = True

    def look(self, hub: Hub, know: BusState, policy: HubPolicy, now_s: float) -> list[Reorder]:
        if not self.moved and now_s < self.due_s:
            return []
        self.moved = False
        self.due_s = float("inf")
        out: list[Reorder] = []
        for rules, granted in self._configs(hub):
            wanted = order_of(know, rules, granted, policy, now_s)
            current = hub.configs[rules.config].clusters
            if reordered(current, wanted) is None:
                continue
            if rules.config in self._under_way.values():
                continue
            free_at_s = self._free_at_s.get(rules.config, 0.0)
            if now_s < free_at_s:
                self.due_s = min(self.due_s, free_at_s)
                continue
            self._free_at_s[rules.config] = now_s + policy.order_every_s
            self._number += 1
            ref = f"order/{self._number}"
            self._under_way[ref] = rules.config
            out.append(Reorder(ref, rules.config, wanted))
        return out

    def _configs(self, hub: Hub) -> list[tuple[Rules, set[str]]]:
        """One set of rules for each configuration that a queue uses, and the resources that these
        queues grant."""
        found: dict[str, tuple[Rules, set[str]]] = {}
        for at in hub.local_queues:
            rules = hub.rules_at(at)
            if rules is not None and rules.clusters and not rules.problem:
                granted = found.setdefault(rules.config, (rules, set()))[1]
                granted |= hub.cluster_queues[rules.cluster_queue].resources
        return [found[name] for name in sorted(found)]


def order_of(
    know: BusState, rules: Rules, granted: Collection[str], policy: HubPolicy, now_s: float
) -> tuple[str, ...]:
    """A configuration's clusters by free GPUs, best first; who takes nothing new goes last. Each
    overtakes another only by a margin, so an order that is nearly right stays. ``granted``: the
    resources by which GPUs count, since another maker's are no room for what these queues let in;
    where they grant no GPUs at all, any count. Nodes count that a flavor of the cluster means."""
    fleet = know.view.fleet
    fleet.arrange()
    free: dict[str, float] = {}
    if fleet.clusters:
        usable = np.where(fleet.arrays.open, _free_milli(fleet, granted), 0)
        for ref in rules.clusters:
            slots = fleet.slots_of(ref.name)
            if slots and (labels := _flavor_labels(know, ref.name, granted)):
                meant = [know.labelled.of(fleet, slots, each) for each in labels]
                usable[slots.start : slots.stop] *= np.logical_or.reduce(meant)
        milli = np.add.reduceat(usable, fleet.arrays.starts)
        free = dict(zip(fleet.clusters, (milli / 1000).tolist(), strict=True))
    worth: dict[str, float] = {}
    demoted = know.demoted(policy, now_s)
    for ref in rules.clusters:
        seen = know.view.clusters.view(
            ref.name, now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s
        )
        way = know.on_the_way.to(ref.name, now_s, policy.settle_s)
        coming = way.gpus
        closed = bool(ref.closed or seen.closed or ref.name in demoted)
        worth[ref.hub_name] = float("-inf") if closed else free.get(ref.name, 0.0) - coming
    order = [ref.hub_name for ref in rules.clusters]
    for end in range(1, len(order)):
        at = end
        while at and _overtakes(worth[order[at]], worth[order[at - 1]], policy.order_margin):
            order[at - 1], order[at] = order[at], order[at - 1]
            at -= 1
    return tuple(order)


def _flavor_labels(know: BusState, cluster: str, granted: Collection[str]) -> set[Labels]:
    """By which labels the flavors of its queues mean nodes with GPUs; empty where any node will do,
    or nothing is known of its queues."""
    found = {
        frozenset(flavor.node_labels.items())
        for report in know.view.clusters.peek(cluster).queues.values()
        for flavor in report.flavors
        if any(name in granted for name in flavor.resources if name not in DIVISIBLE)
    }
    return set() if frozenset() in found else found


def _free_milli(fleet: Fleet, granted: Collection[str]) -> NDArray[np.int64]:
    """Of each node, what is free of GPUs that are had by one of these resources."""
    counts = [_counting(kind, granted) for kind in fleet.kinds]
    if all(all(each) for each in counts) or not any(any(each) for each in counts):
        return fleet.arrays.milli
    width = fleet.arrays.gpu.shape[1]
    by_kind = np.array([[*each, *(False,) * (width - len(each))] for each in counts], np.bool_)
    free = np.where(by_kind[fleet.arrays.kind], np.maximum(fleet.arrays.gpu, 0), 0)
    total: NDArray[np.int64] = free.sum(axis=1)
    return total


def _counting(kind: NodeKind, granted: Collection[str]) -> list[bool]:
    """Of each GPU of such nodes, whether it counts; what is handed out in parts has their names."""
    granted_parts = [share.gpus for share in kind.shares if share.resource in granted]
    return [
        resource in granted or any(not gpus or index in gpus for gpus in granted_parts)
        for resource, index in zip(kind.resources, kind.indices, strict=True)
    ]


def _overtakes(behind: float, ahead: float, margin: float) -> bool:
    return behind > ahead and behind - ahead >= margin
