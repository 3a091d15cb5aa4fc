"""Answers to ``why`` and ``dry_run``, from the present knowledge.

The functions that decide also compute the answers, so an explanation equals the next decision.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from berthmaster.control.resolver.core.answers.expected import of_live, of_request, of_waiting
from berthmaster.control.resolver.core.answers.first_free import (
    Times,
    busy_ends,
    first_free,
    stated,
)
from berthmaster.control.resolver.core.answers.hints import hints
from berthmaster.control.resolver.core.answers.leaving import leaving_words, rebalance_words
from berthmaster.control.resolver.core.answers.waiting import (
    left_alone_by,
    places,
    shorter,
    without_room,
)
from berthmaster.control.resolver.core.deciding.choosing import Pick, pick, words_of
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.decide import planned
from berthmaster.control.resolver.core.deciding.division import Shares, shares_of, why_parted
from berthmaster.control.resolver.core.deciding.preemptor import REFUSED
from berthmaster.control.resolver.core.deciding.resize import most_that
from berthmaster.control.resolver.core.deciding.turns import (
    queue_refusal,
    queue_right,
    shortlist_of,
    within_right,
)
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.topology import never
from berthmaster.lib.engine.fleet.cluster_filters import NOT_ASKED
from berthmaster.lib.engine.fleet.needs import NO_MODEL, NO_PROFILE, NOT_LINKED, TOO_DEAR, TOO_SOFT
from berthmaster.lib.engine.fleet.pieces import NO_PIECES, NO_TOPOLOGY, TOO_FEW_PIECES, pieces_of
from berthmaster.lib.engine.fleetview.fleet_problems import all_unlisted, unlisted_words
from berthmaster.lib.engine.fleetview.shortlist import BUSY, Shortlist
from berthmaster.lib.engine.queueing.queues import GPU, QueueShare
from berthmaster.lib.engine.queueing.trial_budget import trial_refusal
from berthmaster.lib.jobs.kinds.ray_job import made_as
from berthmaster.lib.lifecycle.choices import has_choice
from berthmaster.lib.lifecycle.fold import frozen_summary
from berthmaster.lib.lifecycle.pods import at_size, is_elastic, least_request, size_steps, without
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import DryRunReply, QueueAccount, QueueStanding, Refusal, WhyReply
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Choice, Decision, Reservation
from berthmaster.lib.messages.workload import Hold, JobRequest

_BUSY = "busy"
_DAY_S = 86_400.0


def why(
    know: Knowledge,
    policy: Policy,
    now_s: float,
    tenant: str,
    workload_id: str,
    decisions: Mapping[int, Decision],
    *,
    blind: str = "",
) -> WhyReply | Refusal:
    """Return why a workload is where it is. ``decisions``: those at hand, by number. ``blind``: why
    this replica decides nothing at all; "" = it decides."""
    if blind and key(tenant, workload_id) in know.derived.lines:
        summary = f"waits: nothing is decided: {blind}"
        return WhyReply(tenant=tenant, id=workload_id, summary=summary)
    name = key(tenant, workload_id)
    if name in know.frozen:
        return WhyReply(
            tenant=tenant,
            id=workload_id,
            summary=frozen_summary(know.frozen[name], f"{tenant}/{workload_id}"),
        )
    workload = know.open.get(name)
    if workload is None:
        return Refusal(
            code="not_found",
            field="id",
            value=workload_id,
            expected="a workload of this tenant that has not ended",
        )
    if name in know.suspended:
        return WhyReply(
            tenant=tenant,
            id=workload_id,
            summary="suspended: the log refuses what is decided about it, although nothing new is "
            f"heard of it; it is tried again soon. `berth audit` and `berth job {name} --raw` "
            "show whether its story is damaged",
        )
    if workload.state is State.QUEUED and (first := _waits_for_jobs(know, workload)):
        return WhyReply(tenant=tenant, id=workload_id, state="queued", summary=first)
    if workload.state is State.QUEUED:
        reply = _why_not_yet(know, policy, now_s, workload)
        said = rebalance_words(decisions, workload)
        return msgspec.structs.replace(reply, summary=f"{reply.summary}; {said}") if said else reply
    if workload.state is State.DIVIDED:
        return _why_divided(know, policy, now_s, workload)
    return _why_there(know, policy, now_s, workload, decisions)


def _why_divided(know: Knowledge, policy: Policy, now_s: float, job: Workload) -> WhyReply:
    """Return the placements of a divided job's parts, and what the job waits for."""
    told = []
    for place, part in zip(job.parts, know.parts.of(job), strict=True):
        state = part.shown if isinstance(part, Workload) else part.state
        told.append(f"{place.id} with {place.pods} pods on {place.cluster} {state}")
    summary = f"divided over {len(job.parts)} clusters: {', '.join(told)}"
    if reason := why_parted(know, policy, now_s, job):
        summary += f"; all of it ends: {reason}"
    elif job.shown is State.PLACED:
        left_s = max(0.0, job.placed_at_s + policy.gather_s - now_s)
        summary += f"; it starts when all are claimed, or waits again in {left_s:.0f} s"
    return WhyReply(
        tenant=job.tenant,
        id=job.id,
        state=job.shown.value,  # type: ignore[arg-type] # one of those that are told
        summary=summary,
        waiting=know.derived.lines.jobs,
        decision=job.decision,
    )


def _waits_for_jobs(know: Knowledge, workload: Workload) -> str:
    """Return the dependencies that a workload waits for; "" without any."""
    request = workload.request
    if request is None:
        return ""
    if workload.depends:
        return f"waits for {workload.waited_for}; then for a place"
    if live := know.derived.sets.outside(workload):
        return (
            f"waits for jobs of its set {request.set} to end: {live} have a place, and it gets "
            f"none while {request.set_at_most} do"
        )
    return ""


KEEPS_SIZE: Final = "; the worker's Kueue governs it: with as many pods as it lets in it goes on"
# The same for a job whose size could change if its Kueue allowed it.
NO_ELASTIC_JOBS: Final = f"{KEEPS_SIZE}, as it has no elastic jobs (from 0.18 on, unless off)"


def _why_there(
    know: Knowledge,
    policy: Policy,
    now_s: float,
    workload: Workload,
    decisions: Mapping[int, Decision],
) -> WhyReply:
    decision = decisions.get(workload.decision)
    choice = _choice_of(decision, workload) if decision is not None else None
    nodes = sorted({binding.node for binding in workload.pods})
    where = f"{workload.state} on {workload.cluster} ({', '.join(nodes[:3])}"
    where += f" and {len(nodes) - 3} more)" if len(nodes) > 3 else ")"
    if choice is not None and choice.ranking:
        best = choice.ranking[0]
        where += f": best of {len(choice.ranking)} that could take it, score {best.score:.1f}"
    if said := _made_as(know, workload):
        where += f"; {said}"
    if workload.wished is not None and has_choice(workload.wished):
        assert workload.request is not None  # of the open attempt
        where += f"; chosen: {words_of(workload.wished, workload.request)}"
    elif workload.wished is not None:
        wished = sum(pods.count for pods in workload.wished.pod_sets)
        where += f"; with {len(workload.pods)} pods, {wished} are wished for"
    if (asked := workload.wished or workload.request) is not None and is_elastic(asked):
        where += _keeps_size(workload, asked)
    if workload.resizing:
        where += f"; it is to have {len(workload.resizing)}"
    elif workload.kept_size:
        where += f"; it was to have more, and goes on with what it has: {workload.kept_size}"
    if workload.held_back:
        where += "; it starts when all parts of its job are claimed"
    if workload.cancel_requested:
        where += "; its executor was asked to stop it"
    elif workload.leaving:
        where += f"; it is told to go: {workload.leaving}"
        where += f"; room is kept for it in {workload.leads_to}" if workload.leads_to else ""
    elif said := leaving_words(know, policy, now_s, workload):
        where += f"; {said}"
    if said := rebalance_words(decisions, workload):
        where += f"; {said}"
    if said := unlisted_words(know.clusters.peek(workload.cluster)):
        where += f"; {said}"
    return WhyReply(
        tenant=workload.tenant,
        id=workload.id,
        state=workload.shown.value,  # type: ignore[arg-type] # NEW has no events, so never here
        summary=where,
        waiting=know.derived.lines.jobs,
        choice=choice,
        decision=workload.decision,
        decided_at_s=decision.now_s if decision is not None else 0.0,
        filtered=_left_out(choice, workload) if choice is not None else {},
        expected=of_live(know, workload, now_s),
    )


def _keeps_size(workload: Workload, asked: JobRequest) -> str:
    """Return why the number of pods cannot change under the worker's Kueue; "" if it can."""
    let_in = workload.state in (State.ADMITTED, State.RUNNING)
    if workload.target.via != "worker" or workload.resizable or not let_in:
        return ""
    return NO_ELASTIC_JOBS if len(asked.pod_sets) == 1 else KEEPS_SIZE


def _made_as(know: Knowledge, workload: Workload) -> str:
    """Return the kind of the job object, where that depends on the cluster."""
    profile = know.clusters.peek(workload.cluster).profile
    if workload.request is None or profile is None:
        return ""
    return made_as(workload.request, workload.target.via, profile.job_kinds)


def _left_out(choice: Choice, workload: Workload) -> dict[str, str]:
    """Return the reasons by cluster. A moved job had one cluster only, by its reservation and not
    by its request.
    """
    asked = workload.request.clusters if workload.request is not None else ()
    kept = f"room was kept for it on {choice.cluster}"
    return {
        cluster: kept if why == NOT_ASKED and (not asked or cluster in asked) else why
        for cluster, why in choice.filtered.items()
    }


def _choice_of(decision: Decision, workload: Workload) -> Choice | None:
    for choice in decision.placements:
        if (choice.tenant, choice.id) == (workload.tenant, workload.id):
            return choice
    return None


def _why_not_yet(know: Knowledge, policy: Policy, now_s: float, workload: Workload) -> WhyReply:
    assert workload.request is not None  # every pending job has a request
    if workload.hold is not None:
        return _held(know, now_s, workload, workload.hold)
    cycle = Cycle(know, policy, now_s)
    choosing = pick(cycle, workload.tenant, workload.request, workload.trials)
    # The minimum size is enough to start
    request = choosing.awaited if choosing is not None else least_request(workload.request)
    if (again_at_s := know.derived.resting.get(workload.key)) is not None:
        return WhyReply(
            tenant=workload.tenant,
            id=workload.id,
            summary=f"waits {again_at_s - now_s:.0f} s more: {workload.reason}",
        )
    fits_beside_nobody = bool(_look(cycle, request)[0].candidates)
    kept = planned(know, policy, now_s)
    own = kept.get(workload.key)
    left_alone = left_alone_by(cycle, kept, workload.key, request, workload.priority)
    place = places(cycle, workload.key)
    free: Times | None = None
    known: dict[Key, Times] | None = None
    held_back = 0
    with without_room(cycle, left_alone) as taking_all:
        shortlist, refusal = _look(cycle, request)
        reasons = Counter(_group(why) for why in shortlist.filtered.values())
        if refusal:
            summary = f"waits: {refusal}"
        elif shortlist.candidates:
            summary = "about to be placed"
        else:
            known = busy_ends(cycle, shortlist)
            with taking_all():
                free = first_free(cycle, request, known)
            if own is not None and own.expected_at_s is not None:
                free = _kept_at(own.expected_at_s, free)
            free_s = free.middle_s if free is not None else None
            summary = f"waits: {_counts(reasons, request, free_s, now_s)}"
        told = _hints(cycle, workload.tenant, request, shortlist, refusal)
    if not refusal and not shortlist.candidates:
        if own is not None:
            summary += f"; {_kept(know, own)}"
        elif fits_beside_nobody:
            held_back = len(left_alone)
            who = "a job" if held_back == 1 else f"{held_back} jobs"
            summary += f"; it would fit, but the capacity is reserved for {who} before it"
            told += shorter(cycle, request, left_alone)
    starts = stated(now_s) if not refusal and shortlist.candidates else free
    before = () if own is not None else place.before  # nobody takes what is kept for it
    if choosing is not None and choosing.weighed is not None:
        summary += f"; chosen: {words_of(workload.request, request)}"
    if workload.key in know.retried:
        summary += f"; {REFUSED}"
    if workload.reason:
        summary += f"; last attempt: {workload.reason}"
    return WhyReply(
        tenant=workload.tenant,
        id=workload.id,
        state="queued",
        summary=summary,
        position=place.overall,
        waiting=know.derived.lines.jobs,
        queue_position=place.in_queue,
        account=account(know, request.queue, place.queued),
        first_free_s=free.middle_s if free is not None else None,
        expected=of_waiting(cycle, workload, shortlist, starts, before, known),
        reservation=own,
        held_back=held_back,
        filtered=shortlist.filtered,
        reasons=dict(reasons.most_common()),
        hints=told,
    )


def _kept_at(at_s: float, free: Times | None) -> Times:
    """When room is there that is kept until then. ``free``: by the ends as they are known now."""
    if free is None or not free.jobs:
        return stated(at_s)
    return Times(min(free.low_s, at_s), at_s, max(free.high_s, at_s), free.jobs)


def _held(know: Knowledge, now_s: float, workload: Workload, hold: Hold) -> WhyReply:
    because = f": {hold.reason}" if hold.reason else ""
    since = f"{max(0.0, now_s - hold.since_s):.0f} s"
    release = "an operator releases it" if hold.operator else f"`berth release {workload.id}`"
    return WhyReply(
        tenant=workload.tenant,
        id=workload.id,
        state="queued",
        summary=f"waits: held by {hold.who} for {since}{because}",
        waiting=know.derived.lines.jobs,
        hints=(f"it goes on when {release}" if hold.operator else f"{release} lets it go on",),
    )


def _kept(know: Knowledge, own: Reservation) -> str:
    """Describe the reservation of a pending job."""
    if own.moving:
        return f"capacity is reserved for the job on {own.cluster}, where it continues"
    if not own.owed:
        return f"capacity is reserved for the job on {own.cluster}"
    nodes = {held.node for held in own.held}
    ending = sum(
        know.open[name].cluster == own.cluster
        and any(binding.node in nodes for binding in know.open[name].pods)
        for name in know.derived.leaving
    )
    shrinking = sum(
        know.open[name].cluster == own.cluster
        and any(b.node in nodes for b in without(know.open[name].pods, know.open[name].resizing))
        for name in know.derived.resizing
    )
    told = [
        f"1 job is {doing}" if number == 1 else f"{number} jobs are {doing}"
        for number, doing in ((ending, "ending"), (shrinking, "shrinking"))
        if number or (doing == "ending" and not shrinking)
    ]
    return f"room is being made for it on {own.cluster}: {' and '.join(told)}"


def account(know: Knowledge, queue: str, waiting: int) -> QueueAccount:
    """Return usage and limits of a queue and of its parents."""
    parents = tuple(_together(know, share) for share in know.derived.path(queue)[1:])
    own = _standing(know, queue, waiting)
    fields = QueueStanding.__struct_fields__
    return QueueAccount(**{name: getattr(own, name) for name in fields}, parents=parents)


def _standing(know: Knowledge, queue: str, waiting: int) -> QueueStanding:
    """Return usage and limits of a queue without children."""
    amounts = dict(know.derived.ledger.used(queue))
    running = know.derived.ledger.running[queue]
    setting = know.queues.get(queue) or QueueSetting(queue=queue)
    own = setting.deserved_gpu_milli
    if own is None:
        own = setting.guarantee_gpu_milli
    used = amounts.get(GPU, 0)
    return QueueStanding(
        queue=queue,
        used_gpu_milli=used,
        used=amounts,
        running=running,
        max_running_jobs=setting.max_running_jobs,
        waiting=waiting,
        guarantee_gpu_milli=setting.guarantee_gpu_milli,
        deserved_gpu_milli=setting.deserved_gpu_milli,
        capability_gpu_milli=setting.capability_gpu_milli,
        borrowed_gpu_milli=max(0, used - own) if own is not None else 0,
        priority=setting.priority,
        held=setting.held,
    )


def _together(know: Knowledge, share: QueueShare) -> QueueStanding:
    """Return usage and limits of a parent, with sums of its children where it sets none."""
    ledger = know.derived.ledger
    amounts = dict(ledger.used_together(share.queue))
    used, own = amounts.get(GPU, 0), share.deserved.get(GPU, share.guarantee.get(GPU))
    return QueueStanding(
        queue=share.queue,
        used_gpu_milli=used,
        used=amounts,
        running=ledger.running_together(share.queue),
        max_running_jobs=share.max_running,
        guarantee_gpu_milli=share.guarantee.get(GPU),
        deserved_gpu_milli=share.deserved.get(GPU),
        capability_gpu_milli=share.capability.get(GPU),
        borrowed_gpu_milli=max(0, used - own) if own is not None else 0,
        priority=share.priority,
        held=share.held,
    )


def why_all(know: Knowledge, policy: Policy, now_s: float, tenant: str) -> WhyReply:
    """The reasons of all of a tenant's waiting workloads, with how many wait for each."""
    cycle = Cycle(know, policy, now_s)
    reasons: Counter[str] = Counter()
    waiting = 0
    for line in know.derived.lines.lines():
        mine = sum(know.open[name].tenant == tenant for name in line.members)
        if not mine:
            continue
        waiting += mine
        request = least_request(line.request)
        shortlist, refusal = _look(cycle, request)
        if refusal:
            reasons[refusal] += mine
        elif shortlist.candidates:
            reasons["about to be placed"] += mine
        else:
            groups = Counter(_group(why) for why in shortlist.filtered.values())
            reasons[_counts(groups, request)] += mine
    summary = f"{waiting} pending" if waiting else "no job is pending"
    return WhyReply(
        tenant=tenant,
        summary=summary,
        waiting=waiting,
        reasons=dict(reasons.most_common()),
        accounts=_accounts(know, tenant),
    )


def _accounts(know: Knowledge, tenant: str) -> tuple[QueueStanding, ...]:
    """Return the queues open to the tenant, with their parents."""
    tree, lines = know.derived.tree, know.derived.lines
    seen = [n for n, s in know.queues.items() if not s.tenants or tenant in s.tenants]
    names = {above for name in seen for above in tree.parents.get(name, ())} | set(seen)
    return tuple(
        _together(know, tree.share(name))
        if name in tree.children
        else _standing(know, name, lines.waiting(name))
        for name in sorted(names)
    )


def dry_run(
    know: Knowledge, policy: Policy, now_s: float, tenant: str, request: JobRequest
) -> DryRunReply:
    """Return the placement of a request, if it were the only one to place now."""
    cycle = Cycle(know, policy, now_s)
    kept = planned(know, policy, now_s)
    choosing = pick(cycle, tenant, request)
    if choosing is not None:
        request = choosing.awaited
    left_alone = left_alone_by(cycle, kept, None, request, request.priority)
    with without_room(cycle, left_alone):
        if choosing is not None:
            request, tried = _tried_choice(cycle, tenant, choosing)
        else:
            tried = _tried_sizes(cycle, tenant, request)
        starts: Times | None = stated(now_s) if tried.placed else None
        if not tried.placed and not queue_refusal(know, request):
            known = busy_ends(cycle, _look(cycle, request)[0])
            starts = first_free(cycle, request, known)
    return msgspec.structs.replace(tried, expected=of_request(know, tenant, request, starts))


def _tried_sizes(cycle: Cycle, tenant: str, request: JobRequest) -> DryRunReply:
    """With as many pods as are wished for, or as there is room for."""
    tried = _tried(cycle, tenant, request)
    spread = request.divide is not None and request.divide.by == "weight"
    if (spread or not tried.placed) and not queue_refusal(cycle.know, request):
        shares = shares_of(cycle, request)
        if shares is not None:
            return _divided(shares)
    if tried.placed or not is_elastic(request):
        return tried

    def find(step: int) -> DryRunReply | None:
        smaller = _tried(cycle, tenant, at_size(request, step))
        return smaller if smaller.placed else None

    found = most_that(0, size_steps(request), find)
    if found is None or found.choice is None:
        return _tried(cycle, tenant, least_request(request))
    wished = sum(pods.count for pods in request.pod_sets)
    told = f"{found.summary}, with {len(found.choice.pods)} of {wished} pods"
    return msgspec.structs.replace(found, summary=told)


def _tried_choice(cycle: Cycle, tenant: str, choosing: Pick) -> tuple[JobRequest, DryRunReply]:
    """Return the first configuration with a place, or the awaited one, and its reply."""
    lacks: dict[int, str] = {}
    for number in choosing.tries:
        request = choosing.each[number]
        tried = _tried(cycle, tenant, request)
        if tried.choice is not None:
            options = choosing.taken(number, lacks)
            choice = msgspec.structs.replace(tried.choice, options=options)
            return request, msgspec.structs.replace(tried, choice=choice)
        lacks[number] = BUSY
    return choosing.awaited, _tried(cycle, tenant, choosing.awaited)


def _divided(shares: Shares) -> DryRunReply:
    told = ", ".join(f"{each.cluster} {each.pods}" for each in shares.parts)
    summary = f"would be divided over {len(shares.parts)} clusters, with pods on {told}"
    return DryRunReply(placed=True, summary=summary, filtered=shares.filtered)


def _tried(cycle: Cycle, tenant: str, request: JobRequest) -> DryRunReply:
    know = cycle.know
    shortlist, refusal = _look(cycle, request)
    best = shortlist.candidates[:1]
    ranking = shortlist.ranking(best[0]) if best else ()
    if refusal:
        return DryRunReply(placed=False, summary=f"would wait: {refusal}", ranking=ranking)
    allowed = within_right(know, queue_right(know, request), request)
    found = cycle.bind(allowed or request, shortlist)
    if found is None:
        reasons = Counter(_group(why) for why in shortlist.filtered.values())
        return DryRunReply(
            placed=False,
            summary=f"would wait: {_counts(reasons, request)}",
            filtered=shortlist.filtered,
        )
    candidate, bound = found
    ranking = shortlist.ranking(candidate)
    nodes = sorted({binding.node for binding in bound.bindings})
    ahead = len(know.derived.lines)
    unlisted = unlisted_words(know.clusters.peek(candidate.cluster))
    return DryRunReply(
        placed=True,
        summary=f"would run on {candidate.cluster}, {', '.join(nodes[:3])}"
        + (f"; {ahead} wait already" if ahead else "")
        + (f"; {unlisted}" if unlisted else ""),
        ranking=ranking,
        filtered=shortlist.filtered,
        choice=Choice(
            tenant=tenant,
            id=request.id,
            attempt=1,
            cluster=candidate.cluster,
            pods=bound.bindings,
            ranking=ranking,
            filtered=shortlist.filtered,
            profile=shortlist.weighting.profile,
            weights=shortlist.weighting.weights,
        ),
    )


def _look(cycle: Cycle, request: JobRequest) -> tuple[Shortlist, str]:
    right = queue_right(cycle.know, request)
    shortlist = shortlist_of(cycle, request, right)
    # Shared with other shortlists
    shortlist = shortlist._replace(filtered=dict(shortlist.filtered))
    narrowed = within_right(cycle.know, right, request) or request
    if shortlist.candidates and cycle.bind(narrowed, shortlist) is None:
        shortlist.candidates.clear()
    _tell_never(cycle.know, shortlist, request)
    refusal = right.refusal
    if not refusal and request.trial_of:
        know = cycle.know
        setting = know.queues.get(request.queue)
        refusal = trial_refusal(know.recent_trials, setting, request, cycle.now_s)
    return shortlist, refusal


def _tell_never(know: Knowledge, shortlist: Shortlist, request: JobRequest) -> None:
    """Replace "busy" by the reason of clusters too small even when empty. Changes the shortlist's
    own reasons.
    """
    filtered = shortlist.filtered
    for number, cluster in enumerate(know.fleet.clusters):
        if filtered.get(cluster) == BUSY:
            said = never(know.fleet, number, request.pod_sets, shortlist.suitables)
            filtered[cluster] = said or BUSY


def _group(why: str) -> str:
    """Reduce a reason to its common part."""
    return why.split(" (", maxsplit=1)[0].split(":", maxsplit=1)[0]


def _counts(
    reasons: Counter[str], request: JobRequest, free_s: float | None = None, now_s: float = 0.0
) -> str:
    """Summarize the reasons of clusters in one line."""
    total = sum(reasons.values())
    if not total:
        return "no cluster has reported yet"
    parts = [f"{count} {_words(why, count, request)}" for why, count in reasons.most_common()]
    if free_s is not None:
        busy = next((n for n, part in enumerate(parts) if part.endswith(f" {_BUSY}")), None)
        if busy is not None:  # comes last in the line
            parts.append(f"{parts.pop(busy)}: first free {_about(free_s, now_s)}")
    return f"of {total} clusters: {', '.join(parts)}"


def _words(why: str, count: int, request: JobRequest) -> str:
    has = "has" if count == 1 else "have"
    sets = request.pod_sets
    if why == NO_MODEL:
        models = sorted({model for pods in sets for model in pods.gpu_models})
        return f"{has} no {' or '.join(models)}"
    if why == NO_PROFILE:
        profiles = sorted({pods.mig_profile for pods in sets if pods.mig_profile})
        return f"{has} no MIG {' or '.join(profiles)}"
    if why == NO_TOPOLOGY:
        shapes = sorted({pods.tpu_topology for pods in sets if pods.tpu_topology})
        return f"{has} no TPUs of topology {' or '.join(shapes)}"
    if why in (NO_PIECES, TOO_FEW_PIECES):
        names = sorted({f"{n} {name}" for pods in sets for name, n in pieces_of(pods)})
        return f"{has} no node with {' and '.join(names)}"
    if why == TOO_DEAR and count > 1:
        return why.replace("charges", "charge", 1)
    if why == TOO_SOFT:
        least = next(one for one in ("hardware", "memory") if one in {p.isolation for p in sets})
        return f"{has} no GPU fraction with isolation {least}"
    if why == NOT_LINKED:
        most = max(p.gpus for p in sets if p.topology is not None and p.topology.gpu_domain)
        return f"{has} no node with {most} GPUs in one NVLink domain"
    return why


def _about(at_s: float, now_s: float) -> str:
    """Format a time of day in UTC, or the number of days if later."""
    if at_s - now_s > _DAY_S:
        return f"in about {(at_s - now_s) / _DAY_S:.0f} days"
    minute = round(at_s / 60) % 1440
    return f"about {minute // 60:02}:{minute % 60:02} UTC"


def _hints(
    cycle: Cycle,
    tenant: str,
    request: JobRequest,
    shortlist: Shortlist,
    refusal: str,
) -> tuple[str, ...]:
    """Return suggestions, each tried on the present fleet."""
    asked = (
        cluster
        for cluster in cycle.know.clusters.known()
        if shortlist.filtered.get(cluster.name) != NOT_ASKED
    )
    unlisted = all_unlisted(asked)
    if shortlist.candidates and not refusal:
        return tuple(unlisted)
    whys = {_group(why) for why in shortlist.filtered.values()}
    told = list(hints(cycle, tenant, request, shortlist))
    models = sorted({m for p in request.pod_sets for m in p.gpu_models})
    if models and whys and whys <= {NO_MODEL, "no GPUs"}:
        told.append(f"no cluster has {' or '.join(models)}")
    claims = sorted({name for pods in request.pod_sets for name in pods.claims})
    told += [f"claim {name}: its devices are the cluster's to give: uncounted" for name in claims]
    if "silent" in whys:
        told.append("a cluster that fell silent: see `berth top`")
    return (*told, *unlisted)


__all__ = ["Key", "account", "dry_run", "why", "why_all"]
