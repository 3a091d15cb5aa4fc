"""Cordons: those in force, those without a matching cluster or node, and the progress of drains."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.move_away import (
    held_inside,
    move_refusal,
    why_there_still,
)
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.queueing.eviction import drain_words
from berthmaster.lib.lifecycle.bindings import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import CordonsReply, CordonView, StillThere
from berthmaster.lib.messages.control import Cordon, GpuCordon

MOST_TOLD: Final = 100  # workloads of one cordon


def cordons(know: Knowledge, policy: Policy, now_s: float, cluster: str) -> CordonsReply:
    found = sorted(know.view.cordons_set.items())
    views = [
        _view(know, policy, now_s, cordon) for (name, _), cordon in found if cluster in ("", name)
    ]
    for (name, _), orders in sorted(know.view.gpu_cordons.items()):
        if cluster in ("", name):
            views += [_gpu_view(know, one) for _, one in sorted(orders.items()) if one.cordoned]
    return CordonsReply(cordons=tuple(views))


def _gpu_view(know: Knowledge, order: GpuCordon) -> CordonView:
    report = know.fleet.node(order.cluster, order.node)
    inside = [
        workload
        for workload in held_inside(
            know, Cordon(cluster=order.cluster, node=order.node, cordoned=True)
        )
        if any(pod.node == order.node and order.gpu in pod.gpus for pod in workload.pods)
    ]
    return CordonView(
        cluster=order.cluster,
        node=order.node,
        gpu=order.gpu,
        reason=order.reason,
        set_by=order.set_by,
        set_at_s=order.set_at_s,
        matches=report is not None and any(gpu.index == order.gpu for gpu in report.gpus),
        jobs=len(inside),
        gpus=sum(map(_gpus, inside)),
    )


def _view(know: Knowledge, policy: Policy, now_s: float, cordon: Cordon) -> CordonView:
    inside = list(held_inside(know, cordon))
    inside.sort(key=lambda workload: (-_gpus(workload), workload.key))
    names = list(_names(know, cordon))
    wanted = cordon.node or cordon.cluster
    matches = wanted in names
    near = [] if matches else get_close_matches(wanted, names, n=1, cutoff=0.7)
    return CordonView(
        cluster=cordon.cluster,
        node=cordon.node,
        drain=cordon.drain,
        drain_by_s=cordon.drain_by_s,
        reason=cordon.reason,
        set_by=cordon.set_by,
        set_at_s=cordon.set_at_s,
        matches=matches,
        nearest=near[0] if near else "",
        jobs=len(inside),
        gpus=sum(map(_gpus, inside)),
        still_there=tuple(
            StillThere(
                tenant=workload.tenant,
                id=workload.id,
                gpus=_gpus(workload),
                since_s=workload.claimed_at_s,
                why=why_there_still(know, workload, cordon, now_s, policy.restart_s)
                if cordon.drain
                else "a cordon ends nothing",
            )
            for workload in inside[:MOST_TOLD]
        ),
    )


def _names(know: Knowledge, cordon: Cordon) -> Iterator[str]:
    """Yield names that may have been meant."""
    if cordon.node is None:
        yield from (known.name for known in know.clusters.known() if known.profile is not None)
        return
    for report in know.fleet.reports():
        if report.cluster == cordon.cluster:
            yield report.node


def _gpus(workload: Workload) -> float:
    return gpu_milli_of(workload) / 1000


def leaving_words(know: Knowledge, policy: Policy, now_s: float, workload: Workload) -> str:
    """Return why a running job is about to leave; "" if it may stay."""
    for _, drain in sorted(know.view.drains.items()):
        if workload.cluster == drain.cluster and any(
            drain.node in (None, binding.node) for binding in workload.pods
        ):
            why = why_there_still(know, workload, drain, now_s, policy.restart_s)
            return f"{drain_words(drain)}; {why}"
    if workload.wish is None:
        return ""
    return move_refusal(know, Cycle(know, policy, now_s), workload)
