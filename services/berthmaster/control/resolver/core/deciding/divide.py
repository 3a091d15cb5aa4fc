"""Jobs that are divided over clusters: where their parts go, when those start, and when they end.

Rules of this file:

- A division is one decision: the job is ``divided``, its parts are submitted as workloads of their
  own, and for each room is kept in its cluster, which it gets with the next decision.
- A gang starts in two phases: when all parts are claimed, one commit lets all start. Whatever part
  is not claimed by then, or loses its place, or ends before its work is done: all go, and the job
  waits again with its age. So it is when people hold, evict or cancel the job.
- Parts that are no gang start as they come, and wait again by themselves when they are evicted. One
  that fails ends the others.
- A part that no divided job has is ended: its job is over.
- The job ends once all of its parts have.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.draft import CHOICE_BYTES, Draft
from berthmaster.control.resolver.core.deciding.move_away import leave, ours_to_end
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.core.known.part_ends import PartEnd
from berthmaster.control.resolver.core.known.parts import open_parts
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.queueing.dividing import divided
from berthmaster.lib.engine.queueing.making_room import ending_with, lost_gpu_s
from berthmaster.lib.engine.queueing.reservations import owed_room
from berthmaster.lib.lifecycle.attempt_faults import OWN, SAME_WAY, is_tried_again, repeats_after
from berthmaster.lib.lifecycle.digest import request_digest
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key, part_id
from berthmaster.lib.messages.placement import Commit, DividedPart, Division, PartOrder
from berthmaster.lib.messages.workload import (
    MAX_PARTS,
    Cancelled,
    Committed,
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

GANG_EVICTIONS: Final = 1000  # of a part of a gang: its job counts them
_LEAST_RUN_S: Final = 0.001
_NODE_BYTES: Final = 60


class Share(NamedTuple):
    """What one cluster gets."""

    cluster: str
    pods: int
    room: int
    bound: Bound


class Shares(NamedTuple):
    parts: tuple[Share, ...]
    filtered: dict[str, str]  # clusters that get nothing, and why


def with_pods(request: JobRequest, pods: int) -> JobRequest:
    return msgspec.structs.replace(
        request, pod_sets=(msgspec.structs.replace(request.pod_sets[0], count=pods),)
    )


def rooms(cycle: Cycle, request: JobRequest, least: int) -> tuple[dict[str, int], dict[str, str]]:
    """For how many of its pods clusters have room, those that have it for the least; and why the
    others are out."""
    shortlist = cycle.shortlist(with_pods(request, least))
    names = [candidate.cluster for candidate in shortlist.candidates][:MAX_PARTS]
    return {name: _fitting(cycle, request, least, name) for name in names}, shortlist.filtered


def _fitting(cycle: Cycle, request: JobRequest, least: int, cluster: str) -> int:
    """By halving."""
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
    """Places for all of its pods in several clusters; None if there are none."""
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
        max_run_s=None if most_s is None else max(_LEAST_RUN_S, most_s - job.ran_s),
    )


def record_division(draft: Draft, job: Workload, request: JobRequest, shares: Shares) -> None:
    """The job, its parts, and the room that is kept for them."""
    attempt = job.attempt + 1
    division = draft.know.parts.next_number(job)
    ids = [part_id(job.id, division, number) for number in range(len(shares.parts))]
    draft.divisions.append(
        Division(
            tenant=job.tenant,
            id=job.id,
            attempt=attempt,
            parts=tuple(
                DividedPart(id=name, cluster=each.cluster, pods=each.pods, room=each.room)
                for name, each in zip(ids, shares.parts, strict=True)
            ),
            filtered=shares.filtered,
        )
    )
    places = tuple(
        PartPlace(id=name, cluster=each.cluster, pods=each.pods)
        for name, each in zip(ids, shares.parts, strict=True)
    )
    draft.events.append(
        Divided(
            **_head(draft, job),
            attempt=attempt,
            parts=places,
            decision=draft.number,
            cell=draft.know.cell,
        )
    )
    for number, (name, share) in enumerate(zip(ids, shares.parts, strict=True)):
        asked = part_request(job, request, shares, number, name)
        draft.events.append(
            Submitted(
                **_head(draft, job) | {"id": name, "after": 0},
                request=asked,
                digest=request_digest(asked),
                cell=draft.know.cell,
            )
        )
        room = owed_room(job.tenant, name, share.cluster, share.bound.holdings, moving=True)
        draft.reserves.keep_moving(key(job.tenant, name), room)
        draft.bytes += CHOICE_BYTES + _NODE_BYTES * len(room.held)
    draft.bytes += CHOICE_BYTES + 60 * len(shares.filtered)


def _head(draft: Draft, workload: Workload) -> dict[str, Any]:
    return {
        "tenant": workload.tenant,
        "id": workload.id,
        "after": workload.sequence,
        "at_s": draft.now_s,
        "by": draft.decider,
        "cause": draft.cause,
    }


# While it is divided


def follow_parts(draft: Draft) -> None:
    """Let gangs start whose parts are all claimed, and tell those to go whose others do not go
    on."""
    know = draft.know
    told: set[Key] = {key(event.tenant, event.id) for event in draft.events}
    for name in sorted(know.parts.jobs):
        if draft.full:
            return
        job = know.open[name]
        if name in know.suspended or name in know.frozen:
            continue
        parts = know.parts.of(job)
        if reason := why_parted(know, draft.policy, draft.now_s, job):
            for part in open_parts(parts):
                _send_away(draft, part, reason, told)
        elif _is_claimed(know, job, parts) and not any(
            part.key in told or part.key in know.suspended for part in open_parts(parts)
        ):
            _commit(draft, job, list(open_parts(parts)), (job,))
        elif late := _left_out(know, job, parts, told):
            _commit(draft, job, late)
    for name in sorted(know.derived.parts):
        if draft.full:
            return
        part = know.open[name]
        if know.parts.job_of(part) is None:
            _send_away(draft, part, LEFT_BEHIND, told)


LEFT_BEHIND: Final = "the job that it is a part of is over"


def _send_away(draft: Draft, part: Workload, reason: str, told: set[Key]) -> None:
    know = draft.know
    if part.key in told or part.key in know.suspended or part.key in know.frozen:
        return
    if part.state is State.PLACED:
        draft.withdraw(part, reason)
    elif not part.leaving and ours_to_end(part):
        lost = lost_gpu_s(part, draft.now_s, draft.policy.restart_s)
        if part.request is not None:
            lost /= ending_with(part.request)  # the others are told, and charged, for themselves
        draft.partings.append(
            PartOrder(
                tenant=part.tenant,
                id=part.id,
                attempt=part.attempt,
                cluster=part.cluster,
                lost_gpu_s=round(lost, 3),
                reason=reason,
            )
        )
        leave(draft, part, reason)
        draft.bytes += CHOICE_BYTES


def _is_gang(job: Workload) -> bool:
    return job.request is not None and job.request.divide is not None and job.request.divide.gang


def _is_claimed(know: Knowledge, job: Workload, parts: list[Workload | PartEnd]) -> bool:
    """Whether it is a gang that may start."""
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
    know: Knowledge, job: Workload, parts: list[Workload | PartEnd], told: set[Key]
) -> list[Workload]:
    """Parts of a gang that has started which nobody told so: a damaged log has lost their share of
    the commit."""
    if not (_is_gang(job) and job.committed):
        return []
    return [
        part
        for part in open_parts(parts)
        if part.state is State.CLAIMED
        and not (part.committed or part.leaving)
        and part.key not in know.frozen
        and part.key not in told | know.suspended
    ]


def _commit(
    draft: Draft, job: Workload, parts: list[Workload], also: tuple[Workload, ...] = ()
) -> None:
    """``also``: the job itself, unless it is known to have started."""
    ids = tuple(part.id for part in parts)
    draft.commits.append(Commit(tenant=job.tenant, id=job.id, attempt=job.attempt, parts=ids))
    for each in (*parts, *also):
        draft.events.append(
            Committed(
                **_head(draft, each),
                cluster=each.cluster,
                attempt=each.attempt,
                decision=draft.number,
                cell=draft.know.cell,
            )
        )
    draft.bytes += CHOICE_BYTES


def is_parted(draft: Draft, workload: Workload) -> bool:
    """Whether it is a part that must not go on, and is about to be ended."""
    request = workload.request
    if request is None or request.part is None:
        return False
    job = draft.know.parts.job_of(workload)
    return job is None or bool(why_parted(draft.know, draft.policy, draft.now_s, job))


def why_parted(know: Knowledge, policy: Policy, now_s: float, job: Workload) -> str:
    """Why its parts must not go on; "" if they may."""
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
    """When the time of a gang is over that is not whole yet. ``again_s``: when to look again where
    it is over by our clock, and not yet by the server's messages."""
    jobs = (know.open[name] for name in know.parts.jobs)
    times = (job.placed_at_s + policy.gather_s for job in jobs if not job.committed)
    heard_s = know.view.heard_s
    next_s = (at_s if at_s > after_s else again_s for at_s in times if at_s > min(after_s, heard_s))
    return min(next_s, default=float("inf"))


# Endings


def part_endings(
    know: Knowledge, policy: Policy, now_s: float, by: str
) -> Iterator[tuple[Workload, WorkloadEvent]]:
    """Of parts that are with no cluster and must not go on, and of jobs whose parts have ended. By
    a clock of ours that is ahead each division would be over as soon as it is made, and the next
    one: so the messages' time stamps must say that its time is over."""
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
    """By how its parts ended, and by the rules for what is tried again."""
    if all(end.state is State.SUCCEEDED for end in ends):
        return Succeeded(**_last(job, now_s, by, ""))
    failed = [end for end in ends if end.state is State.FAILED]
    blamed = [end for end in ends if end.blamed and end.state is not State.SUCCEEDED]
    worst = next(end for end in (*failed, *blamed, *ends) if end.state is not State.SUCCEEDED)
    reason = f"part {worst.id}: {worst.reason}".removesuffix(": ")
    if job.cancel_requested:
        return Cancelled(**_last(job, now_s, by, reason))
    request = job.request
    assert request is not None  # it was submitted
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
