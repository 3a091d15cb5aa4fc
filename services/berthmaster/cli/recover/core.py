"""The start of a new log, from the remains of the old one and the clusters' attempts. Pure.

For each workload, the longest history without a gap is used, from all copies of the log together:
the remaining stream, a backup, and the archive. Then the history is joined with the clusters'
attempts. Each attempt is proven by the receipt that the agent gateway (door) signed at the
placement:

    history says                 clusters hold                   the new log says
    ended                        anything                        ended: its tombstone
    attempt 2 on a, claimed      attempt 2 on a                  as the history says
    attempt 2 on a, placed       attempt 2 on a                  claimed by a
    attempt 2 on a, any          attempt 3 on b                  claimed by b
    nothing                      attempt 1 on a                  claimed by a, as the receipt says
    only later events            nothing                         named as lost; a placement carries
                                                                 the request and is enough
    attempt 2 on a, live         nothing, and a has answered     queued again
    anything                     a is silent                     refused, unless a is named as gone:
                                                                 the log may have lost a placement
                                                                 there
    attempt 2 evicted            attempt 2 on a                  queued; a ends its pods
    any                          attempt 3 on a and on b,        cancelled: the right one is unknown
                                 each with its receipt
    anything else                attempt 3 on a, no receipt      as the history says; a ends it

No agent holds a placement through a hub (Kueue, Karmada). Such a placement stays as in the history,
and the hub's reconciler corrects it from the hub's objects.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, Literal, NamedTuple

import msgspec

from berthmaster.lib.lifecycle.attempts import ending_event
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.pods import set_pods, together
from berthmaster.lib.lifecycle.states import LIVE, Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key, request_digest
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.door import PlacementReceipt, ProvenAttempt
from berthmaster.lib.messages.placement import HUB_CELL, Decision, Saw
from berthmaster.lib.messages.records import ArchivedStory
from berthmaster.lib.messages.workload import (
    Carried,
    CarriedWorkload,
    Placed,
    Submitted,
    WorkloadEvent,
)

BY: Final = "berth recover"
UNUSED: Final = 1_000_000  # number of skipped sequences between the old log and the new one
UNUSED_NUMBERS: Final = 1_000  # number of skipped decision numbers of a chain
Outcome = Literal["claimed", "queued", "cancelled", "lost", "unproven"]


class Copy(NamedTuple):
    """The contents of one copy of the log, in the order of sequences."""

    events: Sequence[RecordedEvent] = ()
    decisions: Sequence[tuple[int, Decision]] = ()  # with their sequences
    last: int = 0  # highest sequence of the copy


class Held(NamedTuple):
    """An attempt that a cluster holds."""

    cluster: str
    attempt: ProvenAttempt


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one workload that is not simply kept, for the operator."""

    tenant: str
    id: str
    outcome: Outcome
    why: str
    cluster: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The new log, and the information for the operator."""

    first: int  # sequence of its first message
    decisions: tuple[Decision, ...]  # the head of each chain
    carried: tuple[Carried, ...]  # one per open workload
    tombstones: tuple[WorkloadEvent, ...]  # ends
    histories: tuple[ArchivedStory, ...]  # histories missing in the archive
    lines: tuple[Line, ...]
    silent: tuple[str, ...]  # clusters that neither answered nor are named


def plan(
    copies: Sequence[Copy],
    archived: Sequence[RecordedEvent],
    held: Iterable[Held],
    *,
    answered: Set[str],
    asked: Set[str] = frozenset(),
    without: Set[str] = frozenset(),
    seen: int = 0,
    now_s: float,
) -> Plan:
    """Plan the new log.

    ``copies``: the remaining stream, then backups, the newest first. ``answered``: clusters that
    have reported all attempts. ``asked``: all known clusters, where the log may have lost
    placements. ``without``: clusters that an operator names as gone. ``seen``: the highest sequence
    in any other record.
    """
    by_name: dict[Key, list[Held]] = defaultdict(list)
    for one in held:
        by_name[key(one.attempt.tenant, one.attempt.id)].append(one)
    histories = _histories(copies, archived)
    in_archive = {one.sequence for one in archived}
    carried: list[Carried] = []
    tombstones: list[tuple[float, WorkloadEvent]] = []
    kept: list[ArchivedStory] = []
    lines: list[Line] = []
    silent = set(asked - answered - without)
    for name in sorted(histories.keys() | by_name.keys()):
        tenant, _, workload_id = name.partition("/")
        workload, events, ending = _longest(tenant, workload_id, histories.get(name, []))
        proven, unproven = _sorted_out(workload, by_name.get(name, []))
        joined = _join(workload, proven, answered, without)
        lines += unproven
        if joined.line is not None:
            lines.append(joined.line)
        now = joined.workload
        if joined.silent:
            silent.add(joined.silent)
        elif joined.line is not None and joined.line.outcome == "cancelled":
            tombstones.append(
                (now_s, ending_event(now, State.CANCELLED, joined.line.why, BY, now_s))
            )
        elif now.ended:
            if ending is not None:
                tombstones.append((now.changed_at_s, ending))
        elif now.state is not State.NEW:
            carried.append(_carry(now, now_s))
        if any(one.sequence not in in_archive for one in events):
            kept.append(ArchivedStory(tenant=tenant, id=workload_id, events=tuple(events)))
    carried.sort(key=lambda one: (one.workload.submitted_sequence, one.tenant, one.id))
    tombstones.sort(key=lambda each: (each[0], each[1].tenant, each[1].id))
    return Plan(
        first=_highest(copies, archived, by_name, seen) + UNUSED,
        decisions=tuple(_heads(copies, by_name, now_s)),
        carried=tuple(carried),
        tombstones=tuple(event for _, event in tombstones),
        histories=tuple(kept),
        lines=tuple(lines),
        silent=tuple(sorted(silent)),
    )


def _carry(workload: Workload, now_s: float) -> Carried:
    fields = {name: getattr(workload, name) for name in CarriedWorkload.__struct_fields__}
    return Carried(
        tenant=workload.tenant,
        id=workload.id,
        after=0,
        at_s=now_s,
        by=BY,
        workload=CarriedWorkload(**fields),
        cluster=workload.cluster if workload.live else "",
    )


def _highest(
    copies: Sequence[Copy],
    archived: Sequence[RecordedEvent],
    held: Mapping[Key, Sequence[Held]],
    seen: int,
) -> int:
    """Return the highest known sequence of the old log."""
    receipts = (one.attempt.receipt for many in held.values() for one in many)
    return max(
        seen,
        max((copy.last for copy in copies), default=0),
        max((one.sequence for one in archived), default=0),
        max((receipt.sequence for receipt in receipts if receipt is not None), default=0),
    )


# Histories


def _histories(
    copies: Sequence[Copy], archived: Sequence[RecordedEvent]
) -> dict[Key, list[list[RecordedEvent]]]:
    """Return each copy's events of each workload; the archive counts as the last copy."""
    found: dict[Key, list[list[RecordedEvent]]] = {}
    sources = [*(copy.events for copy in copies), archived]
    for number, events in enumerate(sources):
        for one in events:
            name = key(one.event.tenant, one.event.id)
            mine = found.setdefault(name, [[] for _ in sources])
            mine[number].append(one)
    return found


class _History(NamedTuple):
    """A folded workload and its events."""

    workload: Workload
    events: list[RecordedEvent]
    ending: WorkloadEvent | None = None

    @property
    def reach(self) -> tuple[bool, int, int, float]:
        """Return a sort key: a longer history is greater."""
        newest_s = max((one.stored_at_s for one in self.events), default=0.0)
        return self.workload.ended, self.workload.attempt, len(self.events), newest_s


def _longest(tenant: str, workload_id: str, sources: Sequence[Sequence[RecordedEvent]]) -> _History:
    """Return the longest unbroken history of all copies together, folded.

    A log that lost its end and grew again has other events under sequences of the backup. So the
    copies are joined twice, with the remaining stream first and the backup first. The longer
    history is used.
    """
    both = [_fold(tenant, workload_id, _together(each)) for each in (sources, sources[::-1])]
    return max(both, key=lambda history: history.reach)


def _together(sources: Sequence[Sequence[RecordedEvent]]) -> list[RecordedEvent]:
    """Return one event per sequence, from the first source that has one."""
    by_sequence: dict[int, RecordedEvent] = {}
    for events in sources:
        for one in events:
            by_sequence.setdefault(one.sequence, one)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def _fold(tenant: str, workload_id: str, events: Sequence[RecordedEvent]) -> _History:
    """Fold up to the first gap, and apply an end after the gap, because nothing can follow an
    end."""
    workload = Workload(tenant=tenant, id=workload_id)
    kept: list[RecordedEvent] = []
    ending: WorkloadEvent | None = None
    broken = False
    for one in events:
        event = one.event
        if isinstance(event, Submitted) and event.after == 0 and workload.ended:
            workload = Workload(tenant=tenant, id=workload_id)  # the id is used again
            kept, ending, broken = [], None, False
        is_new = workload.state is State.NEW and not one.void
        if is_new and isinstance(event, Placed) and event.after:
            _begin_with(workload, event)
            broken = False
        if broken and not isinstance(event, Ending):
            continue
        verdict = offer(workload, event, one.sequence, one.stored_at_s, void=one.void)
        if verdict is Verdict.AHEAD:
            broken = True
        elif verdict is not Verdict.REPEATED:
            kept.append(one)
        if verdict is Verdict.COUNTED and isinstance(event, Ending):
            ending = event
    return _History(workload, kept, ending)


def _begin_with(workload: Workload, placed: Placed) -> None:
    """Begin with a placement, which carries the request of the lost submission."""
    workload.state = State.QUEUED
    workload.request = placed.request
    workload.digest = request_digest(placed.request)
    workload.cell = placed.cell
    workload.priority = placed.request.priority
    workload.submitted_at_s = placed.submitted_at_s
    workload.attempt = placed.attempt - 1
    workload.checkpoint, workload.ran_s = placed.checkpoint, placed.ran_s
    workload.sequence = placed.after


# Attempts of clusters


class _Joined(NamedTuple):
    """A workload for the new log. ``silent``: the cluster without an answer about it; "" = none."""

    workload: Workload
    line: Line | None = None
    silent: str = ""


def _join(
    workload: Workload, held: Sequence[Held], answered: Set[str], without: Set[str]
) -> _Joined:
    if not held and (workload.ended or workload.state is State.NEW):
        if workload.ended:
            return _Joined(workload)
        return _tell(workload, "lost", "its submission is lost, and no cluster holds it")
    newest = max((one.attempt.attempt for one in held), default=0)
    holders = [one for one in held if one.attempt.attempt == newest]
    if newest > workload.attempt or (workload.ended and held):
        proven = [(one, one.attempt.receipt) for one in holders if one.attempt.receipt is not None]
        if len(proven) > 1:
            return _contradicts(workload, newest, [one for one, _ in proven])
        holder, receipt = proven[0]
        return _claim_by_receipt(workload, holder, receipt)
    if workload.state not in LIVE or newest < workload.attempt:
        holders = []
    if workload.state not in LIVE or not _is_asked(workload):
        return _Joined(workload)
    if len(holders) > 1:
        return _contradicts(workload, newest, holders)
    if holders and holders[0].cluster == workload.cluster:
        _hold_pods(workload, holders[0])
        if workload.state is not State.PLACED:
            return _Joined(workload)
        workload.state = State.CLAIMED
        workload.executor = holders[0].attempt.executor
        workload.claimed_at_s = workload.claimed_at_s or workload.placed_at_s
        return _tell(workload, "claimed", "its cluster holds what was placed there")
    if holders and workload.cluster in answered:
        by = holders[0].attempt.receipt
        if by is not None:
            return _claim_by_receipt(workload, holders[0], by)
    if workload.cluster not in answered | without:
        return _Joined(workload, silent=workload.cluster)
    gone = "is named as gone" if workload.cluster in without else "does not hold it"
    why = f"{workload.cluster} {gone}"
    return _queue_again(workload, why)


def _sorted_out(workload: Workload, held: Sequence[Held]) -> tuple[list[Held], list[Line]]:
    """Return the proven attempts of this workload, and the unproven ones for the operator."""
    proven: list[Held] = []
    unproven: list[Line] = []
    for one in held:
        if one.attempt.receipt is not None:
            if _is_of_this(workload, one.attempt.receipt):
                proven.append(one)
        elif workload.live and _names(one) == (workload.cluster, workload.attempt):
            proven.append(one)  # the history proves it
        else:
            why = f"no receipt proves attempt {one.attempt.attempt}: {one.cluster} ends it"
            line = Line(
                tenant=one.attempt.tenant,
                id=one.attempt.id,
                outcome="unproven",
                why=why,
                cluster=one.cluster,
            )
            unproven.append(line)
    return proven, unproven


def _names(one: Held) -> tuple[str, int]:
    return one.cluster, one.attempt.attempt


def _is_of_this(workload: Workload, receipt: PlacementReceipt) -> bool:
    """Return whether the receipt belongs to this workload, not to another job with the same id.

    A job that ended before the placement was another job. A job that ended later is this one, and
    the cluster ends its attempt.
    """
    if workload.ended:
        return receipt.submitted_at_s > workload.changed_at_s
    if workload.request is None or receipt.digest == workload.digest:
        return True
    return receipt.submitted_at_s > workload.submitted_at_s


def _is_asked(workload: Workload) -> bool:
    """Return whether an executor holds the workload and answers for it."""
    return workload.cell != HUB_CELL and workload.target.via != "hub"


def _claim_by_receipt(workload: Workload, holder: Held, receipt: PlacementReceipt) -> _Joined:
    """Claim by the receipt, because the history lacks the placement or everything."""
    is_same = workload.request is not None and workload.digest == receipt.digest
    known = (
        workload
        if is_same and not workload.ended
        else Workload(tenant=receipt.tenant, id=receipt.id)
    )
    for field in _OF_RECEIPT:
        setattr(known, field, getattr(receipt, field))
    known.state = State.CLAIMED
    known.wished = None
    known.resizing, known.parts = (), ()
    known.resizable, known.coming, known.kept_size, known.kept_sizes = False, 0, "", 0
    known.leaving = known.leads_to = ""
    known.executor = holder.attempt.executor
    known.wish = None
    known.claimed_at_s = receipt.placed_at_s
    known.running_at_s = known.resized_at_s = 0.0
    known.committed = receipt.request.part is not None  # its cluster has its pods
    known.cluster = holder.cluster
    _hold_pods(known, holder)
    return _tell(
        known, "claimed", f"{holder.cluster} holds attempt {receipt.attempt}, as its receipt says"
    )


def _hold_pods(workload: Workload, holder: Held) -> None:
    """Hold all pods of a grown job, so that no other job gets their GPUs."""
    if holder.attempt.pods:
        set_pods(workload, together(workload.pods, holder.attempt.pods))


def _queue_again(workload: Workload, why: str) -> _Joined:
    cluster = workload.cluster
    workload.state = State.QUEUED
    if workload.wished is not None:
        workload.request, workload.wished = workload.wished, None
    workload.resizing, workload.pods = (), ()
    workload.coming = 0
    workload.wish = None
    workload.leaving = ""
    workload.reason = why
    return _tell(workload, "queued", why, cluster)


def _contradicts(workload: Workload, attempt: int, held: Sequence[Held]) -> _Joined:
    where = " and ".join(sorted(one.cluster for one in held))
    workload.cluster = ""
    why = f"{where} both hold attempt {attempt}: one of them is wrong"
    return _tell(workload, "cancelled", why, where)


def _tell(workload: Workload, outcome: Outcome, why: str, cluster: str = "") -> _Joined:
    where = cluster or workload.cluster
    line = Line(tenant=workload.tenant, id=workload.id, outcome=outcome, why=why, cluster=where)
    return _Joined(workload, line)


_OF_RECEIPT: Final = tuple(
    set(PlacementReceipt.__struct_fields__) & set(CarriedWorkload.__struct_fields__)
)


# Decisions


def _heads(
    copies: Sequence[Copy], held: Mapping[Key, Sequence[Held]], now_s: float
) -> Iterator[Decision]:
    """Yield the first decision of each chain in the new log.

    The decision places nothing, and its number is above all used ones.
    """
    newest: dict[str, Decision] = {}
    for copy in copies:
        for _, decision in copy.decisions:
            known = newest.get(decision.cell)
            if known is None or decision.number > known.number:
                newest[decision.cell] = decision
    told: dict[str, int] = {}
    for many in held.values():
        for one in many:
            if (receipt := one.attempt.receipt) is not None:
                told[receipt.cell] = max(told.get(receipt.cell, 0), receipt.decision)
    for cell in sorted(newest.keys() | told.keys()):
        last = newest.get(cell)
        number = max(told.get(cell, 0), last.number if last is not None else 0)
        yield Decision(
            cell=cell,
            number=number + UNUSED_NUMBERS,
            after=0,
            decider=BY,
            engine="",
            now_s=now_s,
            settings=last.settings if last is not None else {},
            saw=Saw(workloads=0, fleet=0, control=0),
            events=0,
            reservations=(),
        )
