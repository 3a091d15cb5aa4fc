"""What-if for drains, preemption and rebalancing: tried on a copy of the knowledge."""

from collections.abc import Iterable

from msgspec.structs import replace

from berthmaster.control.resolver.core.answers.fork import fork
from berthmaster.control.resolver.core.answers.suppositions import refused, submission
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.decide import decide, rebalanced
from berthmaster.control.resolver.core.deciding.draft import Draft
from berthmaster.control.resolver.core.deciding.move_away import held_inside, why_there_still
from berthmaster.control.resolver.core.deciding.preemptor import REFUSED, Evictions, why_evicted
from berthmaster.control.resolver.core.deciding.rebalance import REBALANCED, Weighed
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.lifecycle.bindings import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import (
    DrainRequest,
    Ended,
    Rebalanced,
    RebalanceRequest,
    Refusal,
    WhatifReply,
)
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.workload import JobRequest

TOLD = 200
MOST_REBALANCED = 32  # jobs that are looked at: each look tries some sets in some clusters
NODES_TOLD = 16  # maximum number of nodes shown for a job


def drained(
    know: Knowledge, policy: Policy, now_s: float, tenant: str | None, asked: DrainRequest
) -> WhatifReply | Refusal:
    """Return the moves of a drain now, and the jobs that would stay for now."""
    place = f"node {asked.node} of {asked.cluster}" if asked.node else asked.cluster
    known = {each.name for each in know.clusters.known() if each.profile is not None}
    if asked.cluster not in known:
        return refused("drain.cluster", asked.cluster, f"one of {', '.join(sorted(known)[:10])}")
    if asked.node is not None and know.fleet.node(asked.cluster, asked.node) is None:
        return refused("drain.node", asked.node, f"a node of {asked.cluster} that has reported")
    copy = fork(know, sharing=(Workload,))
    drain = Cordon(
        cluster=asked.cluster,
        node=asked.node,
        cordoned=True,
        drain=True,
        drain_by_s=asked.by_s,
        reason=asked.reason,
    )
    copy.take_control(drain, copy.view.control_sequence + 1)
    plan = decide(copy, policy, now_s, "whatif")
    orders = plan.decision.moves if plan is not None else ()
    gone = {key(each.tenant, each.id) for each in orders}
    ended = [
        _ended(copy.open[key(o.tenant, o.id)], o.lost_gpu_s, "room is kept elsewhere", o.to)
        for o in orders
    ]
    stay = [w for w in held_inside(copy, drain) if w.key not in gone]
    ended += [
        _ended(w, 0.0, why_there_still(copy, w, drain, now_s, policy.restart_s)) for w in stay
    ]
    cost = sum(order.lost_gpu_s for order in orders)
    summary = (
        f"drain {place}: {len(orders)} would move at once at a cost of {cost:,.0f} GPU seconds, "
        f"{len(stay)} would stay for now"
    )
    return _reply(f"drain {place}", summary, ended, cost, tenant)


def preempted(
    know: Knowledge,
    policy: Policy,
    now_s: float,
    tenant: str | None,
    asked: str | JobRequest,
) -> WhatifReply | Refusal:
    """Return the evictions for a pending job, or for a job that is not submitted."""
    owner = tenant or "default"
    copy = fork(know, sharing=(Workload,))
    if isinstance(asked, str):
        name = key(owner, asked)
        if copy.derived.lines.line_of(name) is None:
            right = "a workload of this tenant that waits for its place"
            return refused("preempt", asked, right + _instead(copy.open.get(name)))
    else:
        name = key(owner, asked.id)
        event = submission(copy, now_s, owner, asked, "preempt_for")
        if isinstance(event, Refusal):
            return event
        copy.take_event(event, copy.workloads_sequence + 1, now_s)
    found, why = _room_for(copy, policy, now_s, name)
    change = f"make room for {name.partition('/')[2]}"
    if found is None:
        return _reply(change, f"{change}: {why}", [], 0.0, tenant)
    ended = [
        _ended(copy.open[key(o.tenant, o.id)], o.lost_gpu_s, why_evicted(o), for_=name)
        for o in found.orders
    ]
    cost = sum(order.lost_gpu_s for order in found.orders)
    summary = (
        f"{change}: {len(ended)} would be ended in {found.reservation.cluster} at a cost of "
        f"{cost:,.0f} GPU seconds"
    )
    return _reply(change, summary, ended, cost, tenant)


def rebalancing(
    know: Knowledge, policy: Policy, now_s: float, tenant: str | None, asked: RebalanceRequest
) -> WhatifReply | Refusal:
    """Return the moves if all queues had the supposed setting of rebalancing."""
    if tenant is not None:
        return refused("rebalance", "", "to be asked by an operator, as it is about all tenants'")
    copy = fork(know, sharing=(Workload,))
    for queue in sorted(copy.derived.lines.by_queue()):
        setting = copy.queues.get(queue) or QueueSetting(queue=queue)
        setting = replace(setting, rebalances=asked.whose)
        copy.take_control(setting, copy.view.control_sequence + 1)
    supposed = replace(
        policy,
        rebalance_moves=asked.moves or policy.rebalance_moves,
        rebalance_after_s=policy.rebalance_after_s if asked.after_s is None else asked.after_s,
    )
    if not supposed.rebalance_moves:
        right = "a number from 1 to 64, as the resolver is set to move nobody"
        return refused("rebalance.moves", "", right)
    weighed, kept = rebalanced(copy, supposed, now_s, MOST_REBALANCED)
    ended = [
        replace(
            _ended(copy.open[victim.key], victim.lost_gpu_s, REBALANCED, place.cluster, for_=w.key),
            nodes=_nodes(binding.node for binding in copy.open[victim.key].pods),
            to_nodes=_nodes(held.node for held in kept[victim.key].held),
        )
        for w in weighed
        if w.moves is not None
        for victim, place in w.moves.moved
    ]
    told = [_rebalanced(copy.open[w.key], w) for w in weighed]
    begin = sum(not each.why_not for each in told)
    cost = sum(each.cost_gpu_s for each in told)
    gain = sum(each.gain_gpu_s for each in told if not each.why_not)
    summary = (
        f"rebalance: {len(ended)} would move so that {begin} could begin, at a cost of {cost:,.0f} "
        f"GPU seconds for {gain:,.0f} of waiting; for {len(told) - begin} more nothing would move"
    )
    reply = _reply("rebalance", summary, ended, cost, tenant)
    told.sort(key=lambda each: bool(each.why_not))  # stable sort, keeps the order of turns
    return replace(reply, rebalances=tuple(told[:TOLD]))


def _rebalanced(workload: Workload, weighed: Weighed) -> Rebalanced:
    moves, request = weighed.moves, workload.request
    told = Rebalanced(
        tenant=workload.tenant,
        id=workload.id,
        queue=request.queue if request is not None else "",
        gpus=gpu_milli_of(workload) / 1000,
        waited_s=round(weighed.waited_s, 3),
        why_not=weighed.why_not,
    )
    if moves is None:
        return told
    return replace(
        told,
        cluster=moves.found.cluster,
        nodes=_nodes(binding.node for binding in moves.found.bound.bindings),
        moves=len(moves.moved),
        saves_s=round(moves.worth.saves_s, 3),
        gain_gpu_s=round(moves.worth.gain_gpu_s, 3),
        cost_gpu_s=round(moves.found.cost, 3),
    )


def _nodes(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names))[:NODES_TOLD])


def _instead(workload: Workload | None) -> str:
    """Describe the state of a workload that is not pending."""
    if workload is None:
        return ""
    if workload.hold is not None:
        return f"; this one is held by {workload.hold.who}"
    return f"; this one is {workload.state}"


def _room_for(
    know: Knowledge, policy: Policy, now_s: float, name: Key
) -> tuple[Evictions | None, str]:
    """Search victims as a decision would at this job's turn."""
    cycle = Cycle(know, policy, now_s)
    with Draft(cycle, "whatif", anew=True) as draft:
        turns = draft.begin()
        while (turn := turns.next()) is not None and turn.key != name:
            if turn.key in know.retried:
                turns.skipped()
            else:
                turns.passed()
        if turn is None:
            return None, "others that ask for the same go before it"
        request = know.open[name].request
        if turn.right.refusal or request is None:
            return None, turn.right.refusal
        if cycle.bind(request, cycle.shortlist(request)) is not None:
            return None, "nobody need be ended: there is room for it"
        if name in know.retried:
            return None, REFUSED
        with draft.reservations.only(draft.reservations.others(name)):
            found = draft.preemptor.search(turn, request, turn.line.shape)
        return (found, "") if isinstance(found, Evictions) else (None, "nobody may be ended for it")


def _ended(workload: Workload, lost: float, why: str, to: str = "", *, for_: str = "") -> Ended:
    request = workload.request
    return Ended(
        tenant=workload.tenant,
        id=workload.id,
        queue=request.queue if request is not None else "",
        cluster=workload.cluster,
        gpus=gpu_milli_of(workload) / 1000,
        lost_gpu_s=round(lost, 3),
        why=why,
        to=to,
        for_id=for_,
    )


def _reply(
    change: str, summary: str, ended: Iterable[Ended], cost: float, tenant: str | None
) -> WhatifReply:
    listed = sorted(ended, key=lambda each: (not each.to, each.lost_gpu_s, each.tenant, each.id))
    mine = [each for each in listed if tenant in (None, each.tenant)]
    return WhatifReply(
        change=change,
        summary=summary,
        ended=tuple(mine[:TOLD]),
        lost_gpu_s=round(cost, 3),
        hidden=len(listed) - len(mine),
    )
