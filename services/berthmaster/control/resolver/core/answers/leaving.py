"""Why a job leaves its place, or has left it: cordons, drains, requested moves, rebalances."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.move_away import (
    held_inside,
    move_refusal,
    why_there_still,
)
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.queueing.eviction import drain_words
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import CordonsReply, CordonView, StillThere
from berthmaster.lib.messages.control import Cordon, GpuCordon
from berthmaster.lib.messages.placement import Decision, Rebalance, RebalanceMove

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
    inside = list(held_inside(know, order))
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


def rebalance_words(decisions: Mapping[int, Decision], workload: Workload) -> str:
    """Describe the newest available rebalancing that concerns the workload; "" without one."""
    telling = [number for number, decision in decisions.items() if decision.rebalances]
    for number in sorted(telling, reverse=True):
        for each in decisions[number].rebalances:
            if (each.tenant, each.id) == (workload.tenant, workload.id):
                return _for(number, each)
            for move in each.moves:
                mine = (move.tenant, move.id) == (workload.tenant, workload.id)
                if mine and workload.attempt <= move.attempt + 1:  # no move of the job since
                    return _moved(number, each, move)
    return ""


def _for(number: int, each: Rebalance) -> str:
    jobs = "1 job was" if len(each.moves) == 1 else f"{len(each.moves)} jobs were"
    return (
        f"{jobs} told to move for it by decision {number}: {each.gain_gpu_s:,.0f} GPU seconds of "
        f"waiting are saved, {each.cost_gpu_s:,.0f} of work lost"
    )


def _moved(number: int, each: Rebalance, move: RebalanceMove) -> str:
    """Without a name: the other may be another tenant's."""
    return (
        f"told to move from {move.cluster} to {move.to} by decision {number}, so that a job fits "
        f"that had waited for {each.waited_s:,.0f} s: {move.lost_gpu_s:,.0f} GPU seconds of its "
        f"work are lost, {each.gain_gpu_s:,.0f} of waiting saved"
    )
