"""Summaries of the fleet, the queues and the deciders. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from berthmaster.control.dashboard.core.board import ALL, WATCHERS, Audience
from berthmaster.control.dashboard.core.grid import BUSY, HELD, LOST, MARKS, UNKNOWN, Grid
from berthmaster.control.dashboard.core.known import Known
from berthmaster.lib.engine.fleetview.rows import ClusterRow
from berthmaster.lib.engine.queueing.queues import GPU, QueueTree
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import QueueReport
from berthmaster.lib.messages.quality import QualityReport, QueueQuality

MAX_KUEUE_ROWS: Final = 500
_NO_TREE: Final = QueueTree({})


def fleet_document(rows: Sequence[ClusterRow], grids: Mapping[str, Grid]) -> dict[str, Any]:
    """Return the fleet in one line. Held is the allocation of all pods, managed or not. Busy is
    measured.
    """
    held = gpus = lost = 0
    busy: list[Any] = []
    twins = {row.cluster for row in rows if row.same_as}
    for name, grid in grids.items():
        if name in twins:
            continue
        good = grid.rows[(grid.rows[:, MARKS] & LOST) == 0]
        gpus += len(good)
        lost += len(grid.rows) - len(good)
        held += int(np.minimum(good[:, HELD], 100).sum())
        busy.append(good[good[:, BUSY] != UNKNOWN, BUSY])
    measured = np.concatenate(busy) if busy else np.zeros(0, np.uint8)
    models: dict[str, int] = {}
    for row in rows:
        for model, count in row.models.items():
            models[model] = models.get(model, 0) + count
    return {
        "clusters": len(rows) - len(twins),
        "nodes": sum(row.nodes for row in rows),
        "gpus": gpus + lost,
        "lost_gpus": lost,
        "held_gpus": round(held / 100, 1),
        "held_percent": round(held / gpus, 1) if gpus else None,
        "busy_percent": round(float(measured.mean()), 1) if len(measured) else None,
        "measured_gpus": len(measured),
        "models": models,
    }


def decider_document(reports: Mapping[str, QualityReport]) -> dict[str, Any]:
    return {
        cell: {
            "waiting": report.waiting,
            "live": report.live,
            "allocation_percent": report.allocation_percent,
            "fragmentation_percent": report.fragmentation_percent,
            "fairness": round(report.fairness, 3),
            "placements_per_s": round(report.placements_per_s, 2),
            "decide_ms": report.decide_ms,
        }
        for cell, report in sorted(reports.items())
    }


def queue_documents(known: Known) -> dict[str, tuple[Any, Audience]]:
    """Return each queue for its tenants, and Kueue's own queues for users with access to all
    tenants.
    """
    seen: dict[str, QueueQuality] = {}
    for report, _ in known.quality.values():
        for each in report.queues:
            seen[each.queue] = _sum(seen.get(each.queue), each)
    found: dict[str, tuple[Any, Audience]] = {}
    tree = QueueTree(known.queues)
    for name, parents in tree.parents.items():
        for parent in parents if name in seen and name not in tree.children else ():
            seen[parent] = _sum(seen.get(parent), msgspec.structs.replace(seen[name], queue=parent))
    for name in sorted(seen.keys() | known.queues.keys()):
        setting = known.queues.get(name)
        audience = ALL
        if setting is not None and setting.tenants:
            audience = Audience(True, frozenset(setting.tenants))
        document = queue_document(name, setting, seen.get(name), tree)
        found[f"queue/{name}"] = (document, audience)
    kueue = sorted(known.kueue.items())[:MAX_KUEUE_ROWS]
    found["kueue"] = ([kueue_row(report) for _, report in kueue], WATCHERS)
    return found


def queue_document(
    name: str,
    setting: QueueSetting | None,
    seen: QueueQuality | None,
    tree: QueueTree = _NO_TREE,
) -> dict[str, Any]:
    """Return a queue's limits and use, for a parent with all queues below. Borrowed is the use
    above the deserved quota, or above the guarantee if no deserved quota is set.
    """
    own = setting or QueueSetting(queue=name)
    used = seen.used_gpu_milli if seen is not None else 0
    guarantee, deserved = own.guarantee_gpu_milli, own.deserved_gpu_milli
    if name in tree.children:  # unset limits of a parent are sums of the queues below
        share = tree.share(name)
        guarantee, deserved = share.guarantee.get(GPU), share.deserved.get(GPU)
    entitled = guarantee if deserved is None else deserved
    return {
        "queue": name,
        "above": list(reversed(tree.parents.get(name, ()))),
        "parent": name in tree.children,
        "set": setting is not None,
        "priority": own.priority,
        "weight": own.weight,
        "guarantee": _gpus(guarantee),
        "deserved": _gpus(deserved),
        "capability": _gpus(own.capability_gpu_milli),
        "used": used / 1000,
        "borrowed": max(0, used - entitled) / 1000 if entitled is not None else 0.0,
        "waiting": seen.waiting if seen is not None else 0,
        "live": seen.live if seen is not None else 0,
        "max_running_jobs": own.max_running_jobs,
        "mean_wait_s": seen.mean_wait_s if seen is not None else None,
        "evicted": seen.evicted if seen is not None else 0,
        "held": own.held,
        "deleted": own.deleted,
        "via": own.via,
        "tenants": list(own.tenants),
        "profile": own.profile,
    }


def kueue_row(report: QueueReport) -> dict[str, Any]:
    """Return a ClusterQueue of a cluster, with its GPU quota in all flavors."""
    quotas = [
        (name, quota)
        for flavor in report.flavors
        for name, quota in flavor.resources.items()
        if name not in ("cpu", "memory", "pods", "ephemeral-storage")
    ]
    return {
        "cluster": report.cluster,
        "queue": report.queue,
        "cohort": report.cohort,
        "active": report.active and not report.stopped,
        "reason": report.reason or report.stop_policy,
        "nominal": sum(quota.nominal for _, quota in quotas),
        "used": sum(quota.used for _, quota in quotas),
        "resources": sorted({name for name, _ in quotas}),
        "pending": report.pending,
        "admitted": report.admitted,
        "local_queues": [f"{each.namespace}/{each.name}" for each in report.local_queues][:20],
    }


def _sum(first: QueueQuality | None, second: QueueQuality) -> QueueQuality:
    if first is None:
        return second
    return QueueQuality(
        queue=second.queue,
        waiting=first.waiting + second.waiting,
        live=first.live + second.live,
        used_gpu_milli=first.used_gpu_milli + second.used_gpu_milli,
        mean_wait_s=second.mean_wait_s if first.mean_wait_s is None else first.mean_wait_s,
        evicted=first.evicted + second.evicted,
    )


def _gpus(milli: int | None) -> float | None:
    return None if milli is None else milli / 1000
