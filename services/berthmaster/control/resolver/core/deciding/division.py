"""Divided jobs: the parts in several clusters, the start of gangs, and the ends.

``divided`` and ``on_fewest`` divide equal pods. ``shares_of`` finds the parts of a job, and
``record_division`` records these. ``follow_parts`` and ``part_endings`` act on parts later.

Example: 12 pods over clusters with free capacity for 6, 8 and 10. The last two hold 18 together,
which is enough. By 8 and 10 they get 5 and 7.

Rules of this file:

- Each pod goes to the cluster with the most votes per pod (Webster's method, as in Karmada): votes
  / (2 * pods + 1). So parts are as close to the weights as whole pods allow, and no cluster gets
  more than fits. Each part gets its minimum first.
- A division is one decision. The job becomes ``divided``, its parts are submitted as workloads, and
  each part has nodes reserved. The next decision places the parts there.
- A gang starts in two phases: once all parts are claimed, one commit starts all. If a part is not
  claimed in time, loses its placement or ends early, all parts end. The job is requeued with its
  age. The same follows when an operator holds, evicts or cancels the job.
- Without a gang, parts start as placed and are requeued alone. A failed part ends the others.
- A part without its divided job is ended, because the job is over.
- The job ends after all of its parts.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.draft import NODE_BYTES, RECORD_BYTES, Draft
from berthmaster.control.resolver.core.deciding.move_away import ours_to_end
from berthmaster.control.resolver.core.deciding.reservations import owed_capacity
from berthmaster.control.resolver.core.known.indexes import PartEnd, open_parts
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.queueing.preemption import ending_with, lost_gpu_s
from berthmaster.lib.lifecycle.attempts import OWN, SAME_WAY, is_tried_again, repeats_after
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key, part_id, request_digest
from berthmaster.lib.messages.placement import Commit, DividedPart, Division, PartOrder
from berthmaster.lib.messages.workload import (
    MAX_PARTS,
    Cancelled,
    Committed,
    Divide,
    Divided,
    Evicted,
    Failed,
    JobRequest,
    Part,
    PartPlace,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

GANG_EVICTIONS: Final = 1000  # for parts of a gang, whose job counts evictions
_LEAST_RUN_S: Final = 0.001
LEFT_BEHIND: Final = "the job that it is a part of is over"


def by_weight(
    pods: int, weights: Mapping[str, int], most: Mapping[str, int] | None = None, least: int = 0
) -> dict[str, int]:
    """Return the pods of each cluster. ``most``, ``least``: of each. Pods that fit nowhere are left
    out."""
    given = {name: least if votes > 0 else 0 for name, votes in weights.items()}
    pods -= sum(given.values())
    heap: list[tuple[float, int, str]] = [
        (-votes / (2 * least + 1), -votes, name) for name, votes in weights.items() if votes > 0
    ]
    heapq.heapify(heap)
    while pods > 0 and heap:
        _, votes, name = heapq.heappop(heap)
        if most is not None and given[name] >= most.get(name, 0):
            continue
        given[name] += 1
        pods -= 1
        heapq.heappush(heap, (votes / (2 * given[name] + 1), votes, name))
    return given


def on_fewest(pods: int, room: Mapping[str, int], least: int = 1) -> dict[str, int]:
    """Return the same by free capacity, on as few clusters as are enough, or on all of them. No
    cluster gets fewer than ``least``."""
    chosen: dict[str, int] = {}
    for name, free in sorted(room.items(), key=lambda each: (-each[1], each[0])):
        enough = sum(chosen.values()) >= pods
        if free < least or enough or least * (len(chosen) + 1) > pods:
            break
        chosen[name] = free
    return by_weight(min(pods, sum(chosen.values())), chosen, chosen, least)


def divided(pods: int, room: Mapping[str, int], how: Divide) -> dict[str, int]:
    """Return the pods of each cluster; {} if they do not fit. ``room``: how many pods fit in each
    cluster."""
    least = how.min_part
    if how.by == "room":
        parts = on_fewest(pods, dict(_largest(room, MAX_PARTS)), least)
    else:
        votes = {
            name: how.weights.get(name, 0) if how.weights else free
            for name, free in room.items()
            if free >= least and (name in how.weights or not how.weights)
        }
        votes = dict(_largest(votes, min(MAX_PARTS, pods // least)))
        parts = by_weight(pods, votes, room, least)
    parts = {name: count for name, count in parts.items() if count}
    return parts if sum(parts.values()) == pods else {}


def _largest(votes: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    return sorted(votes.items(), key=lambda each: (-each[1], each[0]))[:most]


# The search


class Share(NamedTuple):
    """The share of one cluster."""

    cluster: str
    pods: int
    room: int  # pods that fit in the cluster
    bound: Bound


class Shares(NamedTuple):
    parts: tuple[Share, ...]
    filtered: dict[str, str]  # clusters without a share -> why


def with_pods(request: JobRequest, pods: int) -> JobRequest:
    return msgspec.structs.replace(
        request, pod_sets=(msgspec.structs.replace(request.pod_sets[0], count=pods),)
    )


def rooms(cycle: Cycle, request: JobRequest, least: int) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many pods of a job fit in each cluster that holds ``least``, and why the other
    clusters are out."""
    shortlist = cycle.shortlist(with_pods(request, least))
    names = [candidate.cluster for candidate in shortlist.candidates][:MAX_PARTS]
    return {name: _fitting(cycle, request, least, name) for name in names}, shortlist.filtered


def _fitting(cycle: Cycle, request: JobRequest, least: int, cluster: str) -> int:
    """Return how many pods fit in a cluster."""
    fits, too_many = least - 1, request.pod_sets[0].count + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        asked = with_pods(request, middle)
        if cycle.bind_in(asked, shape_of(asked), cluster) is not None:
            fits = middle
        else:
            too_many = middle
    return fits


def shares_of(cycle: Cycle, request: JobRequest) -> Shares | None:
    """Return parts in several clusters for all pods of a job; None without a fit."""
    how = request.divide
    if how is None:
        return None
    room, filtered = rooms(cycle, request, how.min_part)
    found = []
    for cluster, pods in sorted(divided(request.pod_sets[0].count, room, how).items()):
        asked = with_pods(request, pods)
        bound = cycle.bind_in(asked, shape_of(asked), cluster)
        if bound is None:
            return None
        found.append(Share(cluster, pods, room[cluster], bound))
    return Shares(tuple(found), filtered) if len(found) > 1 else None


def part_request(
    job: Workload, request: JobRequest, shares: Shares, number: int, name: str
) -> JobRequest:
    how, share = request.divide, shares.parts[number]
    assert how is not None
    part = Part(
        job=job.id,
        attempt=job.attempt + 1,
        number=number,
        clusters=tuple(each.cluster for each in shares.parts),
        pods=tuple(each.pods for each in shares.parts),
        gang=how.gang,
        address=how.address,
        checkpoint=job.checkpoint,
    )
    most_s = request.max_run_s
    return msgspec.structs.replace(
        with_pods(request, share.pods),
        id=name,
        priority=job.priority,
        clusters=(share.cluster,) if how.gang else request.clusters,
        depends_on=(),
        set="",
        set_at_most=None,
        divide=None,
        part=part,
        retries=0 if how.gang else request.retries,
        max_evictions=GANG_EVICTIONS if how.gang else request.max_evictions,
        # The first pod of the job alone reports progress.
        stalls_after_s=None if number else request.stalls_after_s,
        max_run_s=None if most_s is None else max(_LEAST_RUN_S, most_s - job.ran_s),
    )


def record_division(draft: Draft, job: Workload, request: JobRequest, shares: Shares) -> None:
    """Record a division: the job, its parts, and their reservations."""
    attempt = job.attempt + 1
    number = draft.cycle.know.parts.next_number(job)
    named = [(part_id(job.id, number, at), share) for at, share in enumerate(shares.parts)]
    division = Division(
        tenant=job.tenant,
        id=job.id,
        attempt=attempt,
        parts=tuple(
            DividedPart(id=name, cluster=each.cluster, pods=each.pods, room=each.room)
            for name, each in named
        ),
        filtered=shares.filtered,
    )
    places = tuple(PartPlace(id=name, cluster=each.cluster, pods=each.pods) for name, each in named)
    draft.add(division, RECORD_BYTES + 60 * len(shares.filtered))
    draft.events.append(Divided(**draft.head(job), attempt=attempt, parts=places))
    head = draft.head(job)
    del head["decision"]
    for at, (name, share) in enumerate(named):
        asked = part_request(job, request, shares, at, name)
        draft.events.append(
            Submitted(
                **head | {"id": name, "after": 0}, request=asked, digest=request_digest(asked)
            )
        )
        room = owed_capacity(job.tenant, name, share.cluster, share.bound.holdings, moving=True)
        draft.reservations.add_moving(key(job.tenant, name), room)
        draft.size += RECORD_BYTES + NODE_BYTES * len(room.held)


# While a job is divided


def follow_parts(draft: Draft) -> None:
    """Start gangs with all parts claimed, and evict parts whose job does not continue."""
    know, policy, now_s = draft.cycle.know, draft.cycle.policy, draft.cycle.now_s
    changed: set[Key] = {key(event.tenant, event.id) for event in draft.events}
    for name in sorted(know.parts.jobs):
        if draft.full:
            return
        job = know.open[name]
        if name in know.suspended or name in know.frozen:
            continue
        parts = know.parts.of(job)
        if reason := why_parted(know, policy, now_s, job):
            for part in open_parts(parts):
                _send_away(draft, part, reason, changed)
        elif _is_claimed(know, job, parts) and not any(
            part.key in changed or part.key in know.suspended for part in open_parts(parts)
        ):
            _commit(draft, job, list(open_parts(parts)), (job,))
        elif late := _left_out(know, job, parts, changed):
            _commit(draft, job, late)
    for name in sorted(know.derived.parts):
        if draft.full:
            return
        part = know.open[name]
        if know.parts.job_of(part) is None:
            _send_away(draft, part, LEFT_BEHIND, changed)


def _send_away(draft: Draft, part: Workload, reason: str, changed: set[Key]) -> None:
    know, policy = draft.cycle.know, draft.cycle.policy
    if part.key in changed or part.key in know.suspended or part.key in know.frozen:
        return
    if part.state is State.PLACED:
        draft.withdraw(part, reason)
    elif not part.leaving and ours_to_end(part):
        lost = lost_gpu_s(part, draft.cycle.now_s, policy.restart_s)
        if part.request is not None:
            lost /= ending_with(part.request)  # the other parts have orders of their own
        order = PartOrder(
            tenant=part.tenant,
            id=part.id,
            attempt=part.attempt,
            cluster=part.cluster,
            lost_gpu_s=round(lost, 3),
            reason=reason,
        )
        draft.add(order, RECORD_BYTES)
        draft.evict(part, reason)


def _is_gang(job: Workload) -> bool:
    return job.request is not None and job.request.divide is not None and job.request.divide.gang


def _is_claimed(know: Knowledge, job: Workload, parts: list[Workload | PartEnd]) -> bool:
    """Return whether a job is a gang ready to start."""
    return (
        _is_gang(job)
        and not job.committed
        and all(
            isinstance(part, Workload)
            and part.state is State.CLAIMED
            and part.key not in know.frozen
            for part in parts
        )
    )


def _left_out(
    know: Knowledge, job: Workload, parts: list[Workload | PartEnd], changed: set[Key]
) -> list[Workload]:
    """Return parts of a started gang without the start event, which a damaged log lost."""
    if not (_is_gang(job) and job.committed):
        return []
    return [
        part
        for part in open_parts(parts)
        if part.state is State.CLAIMED
        and not (part.committed or part.leaving)
        and part.key not in know.frozen
        and part.key not in changed | know.suspended
    ]


def _commit(
    draft: Draft, job: Workload, parts: list[Workload], also: tuple[Workload, ...] = ()
) -> None:
    """Start parts. ``also``: the job itself, unless already started."""
    ids = tuple(part.id for part in parts)
    draft.add(Commit(tenant=job.tenant, id=job.id, attempt=job.attempt, parts=ids), RECORD_BYTES)
    for each in (*parts, *also):
        head = draft.head(each)
        draft.events.append(Committed(**head, cluster=each.cluster, attempt=each.attempt))


def is_parted(cycle: Cycle, workload: Workload) -> bool:
    """Return whether a workload is a part that is about to be ended."""
    request = workload.request
    if request is None or request.part is None:
        return False
    job = cycle.know.parts.job_of(workload)
    return job is None or bool(why_parted(cycle.know, cycle.policy, cycle.now_s, job))


def why_parted(know: Knowledge, policy: Policy, now_s: float, job: Workload) -> str:
    """Return why the parts of a job must not continue; "" if they may."""
    if job.cancel_requested:
        return "its job is cancelled by request"
    if job.hold is not None:
        return f"its job is held by {job.hold.who}"
    if job.wish is not None:
        return f"its job is evicted by {job.wish.who}"
    gang = _is_gang(job)
    for part in know.parts.of(job):
        if isinstance(part, PartEnd):
            if part.state is not State.SUCCEEDED:
                return f"part {part.id} {part.state}: {part.reason}".removesuffix(": ")
        elif gang and part.leaving:
            return f"part {part.id} goes: {part.leaving}"
        elif gang and part.state is State.QUEUED and part.attempt:
            return f"part {part.id} has no place any more: {part.reason}"
    if gang and not job.committed and now_s >= job.placed_at_s + policy.gather_s:
        return f"not all parts were claimed within {policy.gather_s:g} s"
    return ""


def gathers_until_s(know: Knowledge, policy: Policy, after_s: float, again_s: float) -> float:
    """Return when the first gang that is not complete has run out of time. ``again_s``: the result
    where its time is over by our clock, and not yet by the server's messages."""
    jobs = (know.open[name] for name in know.parts.jobs)
    times = (job.placed_at_s + policy.gather_s for job in jobs if not job.committed)
    heard_s = know.view.heard_s
    next_s = (at_s if at_s > after_s else again_s for at_s in times if at_s > min(after_s, heard_s))
    return min(next_s, default=float("inf"))


# Endings


def part_endings(
    know: Knowledge, policy: Policy, now_s: float, by: str
) -> Iterator[tuple[Workload, WorkloadEvent]]:
    """Yield the endings of parts that must not continue, and of jobs after their last part.

    A fast local clock would end each division at once, so message time stamps must also be past the
    limit.
    """
    sure_s = min(now_s, know.view.heard_s)
    for name in sorted(know.derived.parts):
        part = know.open[name]
        if part.state is not State.QUEUED or name in know.frozen:
            continue
        job = know.parts.job_of(part)
        reason = why_parted(know, policy, sure_s, job) if job is not None else LEFT_BEHIND
        if reason and (job is None or job.key not in know.frozen):
            yield part, Cancelled(**_last(part, now_s, by, part.reason or reason))
    for name in sorted(know.parts.jobs):
        ends = know.parts.of(know.open[name])
        if name not in know.frozen and not any(open_parts(ends)):
            ended = [end for end in ends if isinstance(end, PartEnd)]
            yield know.open[name], _end_of(know.open[name], ended, now_s, by)


def _end_of(job: Workload, ends: list[PartEnd], now_s: float, by: str) -> WorkloadEvent:
    """Return the end of a job, by the ends of its parts and the rules of retries."""
    if all(end.state is State.SUCCEEDED for end in ends):
        return Succeeded(**_last(job, now_s, by, ""))
    failed = [end for end in ends if end.state is State.FAILED]
    blamed = [end for end in ends if end.blamed and end.state is not State.SUCCEEDED]
    worst = next(end for end in (*failed, *blamed, *ends) if end.state is not State.SUCCEEDED)
    reason = f"part {worst.id}: {worst.reason}".removesuffix(": ")
    if job.cancel_requested:
        return Cancelled(**_last(job, now_s, by, reason))
    request = job.request
    assert request is not None  # every submitted job has a request
    last: dict[str, Any] = {"fault": worst.fault, "node": worst.node, "exit_code": worst.exit_code}
    again = worst.fault in OWN and is_tried_again(request, job.failures, worst.exit_code)
    same_way = repeats_after(worst.fault, job.last_fault, job.repeats) >= SAME_WAY
    too_often = bool(blamed) and (same_way or job.evictions >= request.max_evictions)
    if too_often or (failed and not again):
        return Failed(**_last(job, now_s, by, reason), **last)
    return Evicted(
        **_common(job, now_s, by, reason),
        **last,
        blameless=not (failed or blamed),
        checkpoint=ends[0].checkpoint,
    )


def _common(workload: Workload, now_s: float, by: str, reason: str) -> dict[str, Any]:
    return {
        "tenant": workload.tenant,
        "id": workload.id,
        "after": workload.sequence,
        "at_s": now_s,
        "by": by,
        "cluster": workload.cluster if workload.state in HELD else "",
        "attempt": workload.attempt,
        "reason": reason,
    }


def _last(workload: Workload, now_s: float, by: str, reason: str) -> dict[str, Any]:
    told = {"digest": workload.digest, "submitted_at_s": workload.submitted_at_s}
    return _common(workload, now_s, by, reason) | told
