"""Compute a cluster's score from its aggregates, and whether a change is worth publishing. Pure.

The score of a withdrawn cluster is empty, so that a reader that ignores the freshness finds no
capacity.

The formula and the rounding are those of Open Cluster Management, so that numbers can be compared.
The ranges differ: OCM measures memory against 1 MiB and ties all clusters with more than 20 free
GPUs.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from berthmaster.control.scorer.core.rules import RESOURCES, Amount, ScoringRules
from berthmaster.control.scorer.core.totals import Totals
from berthmaster.lib.engine.fleet.clusters import TWIN
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClosedGpu,
    ClusterScore,
    Freshness,
    HubRoom,
    ResourceScore,
    Stamp,
)

MIN_SCORE: Final = -100
MAX_SCORE: Final = 100

# Amounts with score 100 without a setting and a fleet: OCM's own ranges, and 1 TiB.
DEFAULT_FULL_SCALE: Final = Amount(cpu=100.0, mem=1024.0 * 1024.0, gpu=20.0, tpu=20.0)

NODE_NAMES: Final = {resource: f"{resource}NodeAvailable" for resource in RESOURCES}
CLUSTER_NAMES: Final = {resource: f"{resource}ClusterAvailable" for resource in RESOURCES}


def normalise(value: float, least: float, most: float) -> int:
    """Return ``value`` on the scale from -100 (at ``least`` or below) to 100 (above ``most``),
    truncated toward zero as OCM does.
    """
    if value <= least:
        return MIN_SCORE
    if value > most:
        return MAX_SCORE
    return int(200 * (value - least) / (most - least) - 100)


def resource_score(available: float, full_scale: float) -> ResourceScore:
    """Return an available amount with its score. An amount below 0 scores -100."""
    return ResourceScore(
        score=normalise(available, 0.0, full_scale), available=available, full_scale=full_scale
    )


def round_up(amount: float) -> float:
    """Return the next 1, 2 or 5 x 10^n that is not less: a range that seldom moves."""
    if amount <= 0 or not math.isfinite(amount):
        return 0.0
    power = 10.0 ** math.floor(math.log10(amount))
    for step in (1.0, 2.0, 5.0):
        if amount <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def full_scale(fixed: Amount, largest: Amount) -> Amount:
    """Return the amounts with score 100: as set, else by the largest seen, else the default."""
    return Amount(
        *(
            getattr(fixed, resource)
            or round_up(getattr(largest, resource))
            or getattr(DEFAULT_FULL_SCALE, resource)
            for resource in RESOURCES
        )
    )


NO_FACTS: Final = "the bus has no facts of this cluster any more"


class Scales(msgspec.Struct, frozen=True):
    """Amounts with score 100, the same for every cluster of the fleet."""

    cluster: Amount
    node: Amount


def scales(rules: ScoringRules, largest_cluster: Amount, largest_node: Amount) -> Scales:
    """Return the scales by the settings, else by the largest of the fleet."""
    return Scales(
        full_scale(rules.cluster_full_scale, largest_cluster),
        full_scale(rules.node_full_scale, largest_node),
    )


class Life(msgspec.Struct, frozen=True):
    """Time of a cluster's last heartbeat, and the announced interval."""

    seen_s: float | None = None
    interval_s: float = 0.0

    def limits(self, rules: ScoringRules) -> tuple[float, float]:
        """Return the ages at which the cluster is stale and withdrawn. A cluster with a long
        announced interval is stale after three intervals, so that a slow reporter does not look
        dead.
        """
        stale_after_s = max(rules.stale_after_s, 3 * self.interval_s)
        return stale_after_s, max(rules.withdraw_after_s, 2 * stale_after_s)

    def age_s(self, now_s: float) -> float:
        """Return the age, never negative: a clock that was set back does not make inputs newer."""
        return 0.0 if self.seen_s is None else max(0.0, now_s - self.seen_s)

    def freshness(self, rules: ScoringRules, now_s: float) -> Freshness:
        if self.seen_s is None:
            return "withdrawn"
        stale_after_s, withdraw_after_s = self.limits(rules)
        if now_s >= self.seen_s + withdraw_after_s:
            return "withdrawn"
        return "stale" if now_s >= self.seen_s + stale_after_s else "fresh"

    def next_change_s(self, rules: ScoringRules, now_s: float) -> float | None:
        """Return the time at which silence changes the freshness."""
        if self.seen_s is None:
            return None
        # Use the same sums as ``freshness``: else a tick at that time might find no change.
        changes = (self.seen_s + limit_s for limit_s in self.limits(rules))
        return next((at_s for at_s in changes if now_s < at_s), None)


def cluster_score(
    cluster: str,
    totals: Totals,
    life: Life,
    scale: Scales,
    rules: ScoringRules,
    *,
    now_s: float,
    stamp: Stamp,
    expected_nodes: int = 0,
    room: HubRoom | None = None,
    same_as: str = "",
    closed_gpus: Mapping[str, tuple[ClosedGpu, ...]] = MappingProxyType({}),
) -> ClusterScore:
    """Return the score as of now.

    ``expected_nodes``: number of nodes in the cluster's profile. ``room``: the hub's measurement of
    a cluster that does not report itself. ``same_as``: name of the cluster with the same API
    server, whose score has the capacity. ``closed_gpus``: by node, for any freshness.
    """
    freshness = "withdrawn" if same_as else life.freshness(rules, now_s)
    age_s = round(life.age_s(now_s), 3)
    if freshness == "withdrawn":
        silent = f"no sign of life for {life.limits(rules)[1]:g} s"
        note = silent if life.seen_s is not None else NO_FACTS
        return ClusterScore(
            cluster=cluster,
            stamp=stamp,
            freshness=freshness,
            input_age_s=age_s,
            nodes=len(totals.parts),
            note=f"{TWIN}: {same_as}" if same_as else note,
            closed_gpus=dict(sorted(closed_gpus.items())),
        )
    return ClusterScore(
        cluster=cluster,
        stamp=stamp,
        freshness=freshness,
        input_age_s=age_s,
        resources=_resources(totals, scale) if room is None else _by_hub(room, scale),
        idle_gpu_percent=totals.idle_gpu_percent(),
        calm_gpu_percent=totals.calm_gpu_percent(),
        free_gpus=(totals.left_milli if room is None else room.available.gpu_milli) / 1000,
        largest_gang=totals.largest_gang(),
        fragmentation_percent=totals.fragmentation_percent(),
        telemetry_nodes=totals.live_nodes,
        nodes=len(totals.parts),
        note=_note(totals, freshness, life.limits(rules)[0], expected_nodes, room),
        closed_gpus=dict(sorted(closed_gpus.items())),
    )


def _resources(totals: Totals, scale: Scales) -> dict[str, ResourceScore]:
    if not totals.parts:
        return {}  # no node has reported: unknown is not zero
    node, cluster = totals.node_free(), totals.cluster_free()
    scores: dict[str, ResourceScore] = {}
    for name in RESOURCES:
        scores[NODE_NAMES[name]] = resource_score(getattr(node, name), getattr(scale.node, name))
        scores[CLUSTER_NAMES[name]] = resource_score(
            getattr(cluster, name), getattr(scale.cluster, name)
        )
    return scores


def amount_of(amounts: Amounts) -> Amount:
    """Return the amounts in the units of scores."""
    return Amount(
        cpu=amounts.cpu_milli / 1000,
        mem=float(amounts.memory_mib),
        gpu=amounts.gpu_milli / 1000,
        tpu=float(amounts.tpus),
    )


def _by_hub(room: HubRoom, scale: Scales) -> dict[str, ResourceScore]:
    """Return the scores of the cluster's free amounts. No hub reports the best node."""
    free = amount_of(room.available)
    return {
        CLUSTER_NAMES[name]: resource_score(getattr(free, name), getattr(scale.cluster, name))
        for name in RESOURCES
    }


def _note(
    totals: Totals,
    freshness: Freshness,
    stale_after_s: float,
    expected_nodes: int,
    room: HubRoom | None,
) -> str:
    notes: list[str] = []
    if room is not None:
        notes.append("as its hub has measured it: nothing of ours reports there")
    if freshness == "stale":
        notes.append(f"no sign of life for {stale_after_s:g} s")
    if expected_nodes > len(totals.parts):
        notes.append(f"{expected_nodes - len(totals.parts)} nodes have not reported")
    if totals.over_used_nodes:
        notes.append(f"{totals.over_used_nodes} nodes report less than what runs there")
    return "; ".join(notes)


def differs(told: ClusterScore, now: ClusterScore, totals: Totals, band: float) -> bool:
    """Return whether readers of ``told`` should get ``now``. Amounts are compared in percent of the
    cluster's capacity. Entries that appear, vanish or become zero always count.
    """
    if (told.freshness, told.nodes) != (now.freshness, now.nodes) or (
        told.closed_gpus != now.closed_gpus
    ):
        return True
    if told.resources.keys() != now.resources.keys():
        return True
    if told.largest_gang.keys() != now.largest_gang.keys():
        return True
    if any(_moved(told.resources[n].score, s.score, band) for n, s in now.resources.items()):
        return True
    if _moved(told.idle_gpu_percent, now.idle_gpu_percent, band):
        return True
    if _moved(told.calm_gpu_percent, now.calm_gpu_percent, band):
        return True
    if _moved(told.fragmentation_percent, now.fragmentation_percent, band):
        return True
    gpus = max(totals.healthy_gpus, 1)
    if _moved_or_emptied(100 * told.free_gpus / gpus, 100 * now.free_gpus / gpus, band):
        return True
    return any(
        _moved_or_emptied(
            100 * told.largest_gang[model] / totals.devices[model],
            100 * pods / totals.devices[model],
            band,
        )
        for model, pods in now.largest_gang.items()
    )


def _moved(told: float | None, now: float | None, band: float) -> bool:
    if told is None or now is None:
        return told is not now
    return now != told and abs(now - told) >= band


def _moved_or_emptied(told: float, now: float, band: float) -> bool:
    return _moved(told, now, band) or (told == 0) != (now == 0)


def idle_moved(told: ClusterScore, totals: Totals, band: float) -> bool:
    """Return whether telemetry alone makes a difference: the part of ``differs`` that is checked
    for every message.
    """
    if told.freshness == "withdrawn":
        return False  # facts bring a cluster back, telemetry does not
    return _moved(told.idle_gpu_percent, totals.idle_gpu_percent(), band) or _moved(
        told.calm_gpu_percent, totals.calm_gpu_percent(), band
    )
