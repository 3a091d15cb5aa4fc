"""Mode order: MultiKueueConfigs whose clusters stand by live room, for Kueue's own Incremental
dispatcher with a step of one.

Only the order is written, never which clusters: see contract.reordered, which is asked again on
what the API server has. Not while equal, not more often than the rate says, and by a margin.
"""

import numpy as np

from berthmaster.kueue.contract import reordered
from berthmaster.multikueue.instructions import Reorder
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.multikueue.known.hub import Hub, Rules
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
        """The orders to write now."""
        if not self.moved and now_s < self.due_s:
            return []
        self.moved = False
        self.due_s = float("inf")
        out: list[Reorder] = []
        for rules in self._configs(hub):
            wanted = order_of(know, rules, policy, now_s)
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

    def _configs(self, hub: Hub) -> list[Rules]:
        """One set of rules for each configuration that a queue uses."""
        found: dict[str, Rules] = {}
        for at in hub.local_queues:
            rules = hub.rules_at(at)
            if rules is not None and rules.clusters and not rules.problem:
                found.setdefault(rules.config, rules)
        return [found[name] for name in sorted(found)]


def order_of(know: BusState, rules: Rules, policy: HubPolicy, now_s: float) -> tuple[str, ...]:
    """A configuration's clusters by free GPUs, best first; who takes nothing new goes last. Each
    overtakes another only by a margin, so an order that is nearly right stays."""
    fleet = know.view.fleet
    fleet.arrange()
    free: dict[str, float] = {}
    if fleet.clusters:
        milli = np.add.reduceat(
            np.where(fleet.arrays.open, fleet.arrays.milli, 0), fleet.arrays.starts
        )
        free = dict(zip(fleet.clusters, (milli / 1000).tolist(), strict=True))
    worth: dict[str, float] = {}
    for ref in rules.clusters:
        seen = know.view.clusters.view(
            ref.name, now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s
        )
        coming = know.on_the_way.to(ref.name, now_s, policy.settle_s).gpus
        closed = bool(ref.closed or seen.closed)
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
