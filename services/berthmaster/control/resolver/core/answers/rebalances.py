"""Explanations of rebalancing, for moved jobs and for beneficiaries."""

from collections.abc import Mapping

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import Decision, Rebalance, RebalanceMove


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
