"""Why there, why not yet, and what if: answers from what the resolver knows now.

They are made by the very functions that decide, so an explanation is what would be done.
"""

from collections import Counter
from collections.abc import Mapping

from berthmaster.engine.needs import gpu_milli, shape_of
from berthmaster.lifecycle.fold import Key, Workload, key
from berthmaster.lifecycle.states import State
from berthmaster.messages.api import DryRunReply, Refusal, WhyReply
from berthmaster.messages.placement import Choice, Decision
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.consider import Considered, consider, moment_at, seat
from berthmaster.resolver.decide import queue_refusal
from berthmaster.resolver.settings import Policy
from berthmaster.resolver.state import Knowledge

_MODEL = "no such GPU model"
_MEMORY = "too little GPU memory"
_BUSY = "busy"


def why(
    know: Knowledge,
    policy: Policy,
    now_s: float,
    tenant: str,
    workload_id: str,
    decisions: Mapping[int, Decision],
) -> WhyReply | Refusal:
    """Why a workload is where it is. ``decisions``: those at hand, by number."""
    name = key(tenant, workload_id)
    if name in know.frozen:
        return WhyReply(
            tenant=tenant,
            id=workload_id,
            summary=f"frozen: an event of it cannot be understood ({know.frozen[name]}); "
            "a person must look",
        )
    workload = know.open.get(name)
    if workload is None:
        return Refusal(
            code="not_found",
            field="id",
            value=workload_id,
            expected="a workload of this tenant that has not ended",
        )
    if workload.state is State.QUEUED:
        return _why_not_yet(know, policy, now_s, workload)
    return _why_there(know, workload, decisions)


def _why_there(know: Knowledge, workload: Workload, decisions: Mapping[int, Decision]) -> WhyReply:
    decision = decisions.get(workload.decision)
    choice = _choice_of(decision, workload) if decision is not None else None
    nodes = sorted({binding.node for binding in workload.pods})
    where = f"{workload.state} on {workload.cluster} ({', '.join(nodes[:3])}"
    where += f" and {len(nodes) - 3} more)" if len(nodes) > 3 else ")"
    if choice is not None and choice.ranking:
        best = choice.ranking[0]
        where += f": best of {len(choice.ranking)} that could take it, score {best.score:.1f}"
    if workload.cancel_requested:
        where += "; its executor was asked to stop it"
    return WhyReply(
        tenant=workload.tenant,
        id=workload.id,
        state=workload.state.value,  # type: ignore[arg-type] # NEW has no events, so never here
        summary=where,
        waiting=len(know.waiting),
        choice=choice,
        decision=workload.decision,
        decided_at_s=decision.now_s if decision is not None else 0.0,
        filtered=choice.filtered if choice is not None else {},
    )


def _choice_of(decision: Decision, workload: Workload) -> Choice | None:
    for choice in decision.placements:
        if (choice.tenant, choice.id) == (workload.tenant, workload.id):
            return choice
    return None


def _why_not_yet(know: Knowledge, policy: Policy, now_s: float, workload: Workload) -> WhyReply:
    request = workload.request
    assert request is not None  # it waits, so it was submitted
    considered, refusal = _look(know, policy, now_s, request)
    reasons = Counter(_group(why) for why in considered.filtered.values())
    position = know.waiting.position(workload.key)
    if refusal:
        summary = f"waits: {refusal}"
    elif considered.candidates:
        summary = "about to be placed"
    else:
        summary = f"waits: {_counts(reasons)}"
    if workload.reason:
        summary += f"; last attempt: {workload.reason}"
    return WhyReply(
        tenant=workload.tenant,
        id=workload.id,
        state="queued",
        summary=summary,
        position=position,
        waiting=len(know.waiting),
        filtered=considered.filtered,
        reasons=dict(reasons.most_common()),
        hints=_hints(know, policy, now_s, request, considered) if not refusal else (),
    )


def why_all(know: Knowledge, policy: Policy, now_s: float, tenant: str) -> WhyReply:
    """The reasons of all of a tenant's waiting workloads, with how many wait for each."""
    reasons: Counter[str] = Counter()
    waiting = 0
    for line in know.waiting.lines():
        mine = sum(know.open[name].tenant == tenant for name in line.members)
        if not mine:
            continue
        waiting += mine
        considered, refusal = _look(know, policy, now_s, line.request)
        if refusal:
            reasons[refusal] += mine
        elif considered.candidates:
            reasons["about to be placed"] += mine
        else:
            groups = Counter(_group(why) for why in considered.filtered.values())
            reasons[_counts(groups)] += mine
    summary = f"{waiting} wait" if waiting else "nothing waits"
    return WhyReply(
        tenant=tenant,
        summary=summary,
        waiting=waiting,
        reasons=dict(reasons.most_common()),
    )


def dry_run(
    know: Knowledge, policy: Policy, now_s: float, tenant: str, request: JobRequest
) -> DryRunReply:
    """Where a request would go if it were the only one to be placed now."""
    considered, refusal = _look(know, policy, now_s, request)
    best = considered.candidates[:1]
    ranking = considered.ranking(best[0]) if best else ()
    if refusal:
        return DryRunReply(placed=False, summary=f"would wait: {refusal}", ranking=ranking)
    found = seat(know, request, considered)
    if found is None:
        reasons = Counter(_group(why) for why in considered.filtered.values())
        return DryRunReply(
            placed=False,
            summary=f"would wait: {_counts(reasons)}",
            filtered=considered.filtered,
        )
    candidate, seating = found
    ranking = considered.ranking(candidate)
    nodes = sorted({binding.node for binding in seating.bindings})
    ahead = len(know.waiting)
    return DryRunReply(
        placed=True,
        summary=f"would run on {candidate.cluster}, {', '.join(nodes[:3])}"
        + (f"; {ahead} wait already" if ahead else ""),
        ranking=ranking,
        filtered=considered.filtered,
        choice=Choice(
            tenant=tenant,
            id=request.id,
            attempt=1,
            cluster=candidate.cluster,
            pods=seating.bindings,
            ranking=ranking,
            filtered=considered.filtered,
        ),
    )


def _look(
    know: Knowledge, policy: Policy, now_s: float, request: JobRequest
) -> tuple[Considered, str]:
    moment = moment_at(know, policy, now_s)
    considered = consider(know, moment, request, shape_of(request))
    if considered.candidates and seat(know, request, considered) is None:
        considered.candidates.clear()
    return considered, queue_refusal(know, request.queue, gpu_milli(request))


def _group(why: str) -> str:
    """Reasons that differ in a detail only count together."""
    return why.split(" (", maxsplit=1)[0].split(":", maxsplit=1)[0]


def _counts(reasons: Counter[str]) -> str:
    total = sum(reasons.values())
    if not total:
        return "no cluster has reported yet"
    parts = ", ".join(f"{count} {why}" for why, count in reasons.most_common())
    return f"of {total} clusters: {parts}"


def _hints(
    know: Knowledge, policy: Policy, now_s: float, request: JobRequest, considered: Considered
) -> tuple[str, ...]:
    """What would help, each tried on the fleet as it is."""
    if considered.candidates:
        return ()
    whys = {_group(why) for why in considered.filtered.values()}
    hints = []
    if _MODEL in whys and any(p.gpu_models for p in request.pod_sets):
        freed = _replaced(request, gpu_models=())
        if _would_fit(know, policy, now_s, freed):
            hints.append("any other GPU model: it would fit now")
        elif _BUSY not in whys:
            models = sorted({m for p in request.pod_sets for m in p.gpu_models})
            hints.append(f"no cluster has {' or '.join(models)}")
    if _MEMORY in whys and _would_fit(know, policy, now_s, _replaced(request, gpu_memory_mib=0)):
        hints.append("less memory a GPU: it would fit now")
    fewer = _with_fewer_gpus(request)
    while fewer is not None:
        if _would_fit(know, policy, now_s, fewer):
            gpus = gpu_milli(fewer) / 1000
            hints.append(f"fewer GPUs: {gpus:g} would fit now")
            break
        fewer = _with_fewer_gpus(fewer)
    if "silent" in whys:
        hints.append("a cluster that fell silent: see `berth clusters`")
    return tuple(hints)


def _replaced(request: JobRequest, **changes: object) -> JobRequest:
    from msgspec.structs import replace

    sets = tuple(replace(p, **changes) for p in request.pod_sets)
    return replace(request, pod_sets=sets)


def _with_fewer_gpus(request: JobRequest) -> JobRequest | None:
    """Half the pods, or half the GPUs of each pod; None when there is nothing to halve."""
    from msgspec.structs import replace

    if any(p.count > 1 and p.gpus for p in request.pod_sets):
        sets = tuple(
            replace(p, count=max(1, p.count // 2)) if p.gpus else p for p in request.pod_sets
        )
        return replace(request, pod_sets=sets)
    if any(p.gpus > 1 for p in request.pod_sets):
        sets = tuple(
            replace(p, gpus=max(1, p.gpus // 2)) if p.gpus else p for p in request.pod_sets
        )
        return replace(request, pod_sets=sets)
    return None


def _would_fit(know: Knowledge, policy: Policy, now_s: float, request: JobRequest) -> bool:
    considered, _ = _look(know, policy, now_s, request)
    return bool(considered.candidates)


__all__ = ["Key", "dry_run", "why", "why_all"]
