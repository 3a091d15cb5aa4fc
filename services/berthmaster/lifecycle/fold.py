"""From events to the workload as it stands: the one fold that every reader uses.

An event counts only if its ``after`` is the sequence of the aggregate's previous event, void or
not: so a guard and an ``after`` always are the same number, and a void event blocks nobody. On
replicated streams a stale writer's event can be stored in spite of its guard; every reader drops
the same ones, so all see the same life.

An ``after`` beyond what was seen is a gap, and behind one nothing counts: whoever knows the life so
far must read its story again, since a gap is either what was removed meanwhile or a lie. Stories of
ended workloads are removed down to their ending, the oldest event first, and nothing else removes
events but a damaged log. So a story with its ``submitted`` is whole, and what stands behind a gap
in it is void; one without is what is left of an ended workload, and its ending is a tombstone. Of a
workload that nothing is known of, an ending is a tombstone too, and nothing else counts. The
``submitted`` goes first of all that is removed: where it stands behind a gap and nothing before it
counts, a damaged log has lost somebody's void words about a life that was yet to begin.

What is left of a life may be what a damaged log has left of one that goes on. Nobody can tell by
the story, but for one thing: where a placement stands in it (or a ``recovered``) that follows on
another event, or behind which its claimant's word stands, the attempt is his: what others say of
its end, or anybody of an attempt before it, is void, as in a whole story. Behind a gap in a story
his word is enough if it builds on what is lost, and others end nothing; nor do they end the attempt
that stands before the gap, whatever else of it is lost.

An ``after`` that is not below the event's own sequence names what was not stored then: it is void,
never a gap, so no ending ends anything that way. It moves the sequence like every void event, as
the server's guard does, so an honest writer that was refused fits in again.

A ``recovered`` event says all that a damaged log has lost of its workload, so it counts wherever
its guard is right, on whatever is left of the life before it. Behind a gap the story is read for it
as for any other; in a story, what stands before it and builds on what is lost is void. An ending
says all as well, where it follows on what is lost or on events that do: that life is over, whatever
was lost of it. A workload that is frozen for good is ended by an operator: his ``cancelled`` is
``given_up``, which counts in a story with a gap before it and in no other, so that the story is
always read for it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from berthmaster.lifecycle.faults import OWN, backoff_s, repeats_after
from berthmaster.lifecycle.sizes import is_elastic, together, with_bound, without
from berthmaster.lifecycle.states import (
    STATE_OF,
    Ending,
    NoSuchTransition,
    State,
    after,
)
from berthmaster.lifecycle.workload import Hold, Rest, Wish, Workload
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.placement import PodBinding, Target
from berthmaster.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Checkpointed,
    Claimed,
    Committed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Held,
    HoldReleased,
    MoveRequested,
    Placed,
    Progressed,
    Recovered,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)

_ENDINGS: Final = (Succeeded, Failed, Cancelled)
_TAKES: Final = (Claimed, Admitted, Running)
_NAMES: Final = (*_TAKES, Evicted)  # whose an attempt is, or was
TELLS_ALL: Final = (Recovered, *_ENDINGS)  # what may make sense of a story that lacks something
PROGRESS_EVERY_S: Final = 10.0
PROGRESS_SHARE: Final = 0.01  # of what it has run
_NEW: Final = State.NEW  # of an enum, looking it up takes longer than comparing


class Verdict(Enum):
    """What became of an event that was offered to the fold."""

    __hash__ = object.__hash__  # there is one of each; by its name takes a call in Python
    COUNTED = "counted"
    REPEATED = "repeated"  # seen before: nothing changed
    VOID = "void"  # lost a race: stored, and without effect
    IMPOSSIBLE = "impossible"  # passed its guard, yet no row allows it: the writer is wrong
    MISSED = "missed"  # events before it were not seen: nothing changed, read the story again


def offer(
    workload: Workload,
    event: WorkloadEvent,
    sequence: int,
    stored_at_s: float,
    *,
    judged: Verdict | None = None,
) -> Verdict:
    """Fold one event, in stream order, into its aggregate.

    ``sequence`` is the event's stream sequence, ``stored_at_s`` the server's time stamp.
    ``judged``: what the whole story says of it, for a reader that MISSED something (see
    ``judged_story``); or MISSED, while that story is not read yet: then nothing of the workload
    counts, not even as void, or what it builds on would seem to be over.
    """
    if sequence <= workload.sequence:
        return Verdict.REPEATED
    # Most events follow on what was seen, and need no second thought.
    is_next = event.after == workload.sequence
    if not is_next or judged is not None or workload.state is _NEW or is_given_up(event):
        if judged is Verdict.MISSED:
            return Verdict.MISSED
        # Nothing follows what is not stored yet: no story holds it.
        if event.after >= sequence or judged is Verdict.VOID:
            workload.sequence = sequence
            return Verdict.VOID
        if judged is None and is_given_up(event) and not workload.ended:
            return Verdict.MISSED
        if judged is Verdict.COUNTED:  # it follows on what this reader has not seen
            workload.sequence = max(workload.sequence, event.after)
        left_over = workload.state is _NEW and event.after > 0
        if (
            isinstance(event, _ENDINGS)
            and not workload.ended
            and (judged is Verdict.COUNTED or (left_over and _may_end(workload, event)))
        ):
            _raise_tombstone(workload, event, sequence, stored_at_s)
            return Verdict.COUNTED
        if left_over and not isinstance(event, Submitted | Recovered):
            _pass_over(workload, event, sequence)
            return Verdict.VOID
        if event.after > workload.sequence and not workload.ended:
            return Verdict.MISSED
        is_next = event.after == workload.sequence
    workload.sequence = sequence
    if not is_next:
        return Verdict.VOID
    try:
        state = after(workload.state, type(event))
    except NoSuchTransition:
        return Verdict.IMPOSSIBLE
    if not _names_the_open_attempt(workload, event):
        return Verdict.IMPOSSIBLE
    _apply(workload, event, sequence, stored_at_s)
    workload.state = state
    workload.changed_at_s = stored_at_s
    return Verdict.COUNTED


def is_given_up(event: WorkloadEvent) -> bool:
    """Whether an operator ends a frozen workload by it."""
    return type(event) is Cancelled and event.given_up


def _nothing_is_lost(_: int) -> bool:
    return False


def _of_gap(
    event: WorkloadEvent, is_lost: Callable[[int], bool], last: Workload, *, is_new: bool
) -> Verdict | None:
    """What becomes of an event behind a gap in a whole story; None: nobody can tell. ``last``: the
    last attempt before it of which is known whose it is. ``is_new``: nothing before it counts, or
    may have."""
    if is_new and isinstance(event, Submitted):  # that is a life, whatever is lost before it
        return Verdict.COUNTED
    if not is_lost(event.after):
        return Verdict.VOID
    return Verdict.COUNTED if isinstance(event, _ENDINGS) and _is_of(last, event) else None


def _is_of(last: Workload, event: Ending) -> bool:
    """Whether it may end this attempt, or one after it that is lost. An attempt never changes
    hands."""
    if event.attempt == last.attempt:
        return event.cluster in ("", last.cluster)
    return event.attempt > last.attempt


def judged_story(
    tenant: str,
    workload_id: str,
    story: Sequence[RecordedEvent],
    is_lost: Callable[[int], bool] = _nothing_is_lost,
) -> tuple[Workload, list[Verdict]]:
    """A whole story, as the log has it now: the workload, and what became of each event.

    ``is_lost``: whether a sequence is among what a damaged log has lost, as a person accepted it.
    Behind such a gap an ending counts, and a beginning before which nothing does; anything else is
    MISSED: nobody knows what it builds on. Unless an ending follows on that: then what was missed
    is void.
    """
    workload = Workload(tenant=tenant, id=workload_id)
    is_begun = _is_begun(story)
    ending = -1 if is_begun else _left_over(story)
    given_up = _given_up(story)
    healed = max(_recovered(story), given_up)
    verdicts: list[Verdict] = []
    has_gap = False
    # What is told behind a gap, and the last attempt of which is known whose it is.
    missed = Workload(tenant=tenant, id=workload_id)
    for at, one in enumerate(story):
        event, place = one.event, (one.sequence, one.stored_at_s)
        is_frozen = Verdict.MISSED in verdicts
        if not is_frozen:
            missed.attempt, missed.cluster = workload.attempt, workload.cluster
        follows = at > 0 and event.after == story[at - 1].sequence
        told: Verdict | None = None
        if at < ending or one.void or (has_gap and at < given_up):
            told = Verdict.VOID
        elif at == ending:
            told = Verdict.COUNTED
        elif ending < 0 and not is_begun and isinstance(event, _ENDINGS):
            told = Verdict.VOID
        elif is_given_up(event):
            told = Verdict.COUNTED if has_gap and at == given_up else Verdict.VOID
        elif is_begun and is_frozen and follows:  # on what was missed, or on what is void behind it
            told = Verdict.MISSED
            if isinstance(event, _ENDINGS) and _may_end(missed, event) and _is_of(missed, event):
                told = Verdict.COUNTED
        verdict = offer(workload, event, *place, judged=told)
        if verdict is Verdict.MISSED and told is None:
            has_gap = True
            if at <= healed:
                told = Verdict.VOID
            else:
                is_new = workload.state is _NEW and not is_frozen
                told = _of_gap(event, is_lost, missed, is_new=is_new)
            if told is not None:
                verdict = offer(workload, event, *place, judged=told)
        if told is Verdict.COUNTED:
            verdicts = [Verdict.VOID if v is Verdict.MISSED else v for v in verdicts]
        if verdict is Verdict.MISSED:
            _pass_over(missed, event, one.sequence, is_known_lost=not follows)
            if missed.rest is not None and missed.rest.certain:
                missed.attempt, missed.cluster = missed.rest.attempt, missed.rest.cluster
        missed.sequence = one.sequence
        verdicts.append(verdict)
    return workload, verdicts


def heard(story: Sequence[RecordedEvent], sequence: int) -> Sequence[RecordedEvent]:
    """What a reader judges that has followed the log up to this sequence: the rest is to come, and
    is judged then. But of what is left of an ended life all, which says that it is over."""
    if not _is_begun(story):
        return story
    return [one for one in story if one.sequence <= sequence]


def _is_begun(story: Sequence[RecordedEvent]) -> bool:
    """Whether its ``submitted`` is there, or a ``recovered`` in its place: one that follows on what
    stands before it, or a ``submitted`` on what is lost. Nothing is removed of a story with two of
    them, so one that lost its race is never taken for it."""
    return _follows(story, Submitted) >= 0 or _recovered(story) >= 0 or _begins_behind(story)


def _begins_behind(story: Sequence[RecordedEvent]) -> bool:
    """Whether a life begins behind a gap."""
    before = 0
    for one in story:
        if isinstance(one.event, Submitted) and not one.void:
            return before < one.event.after < one.sequence
        before = one.sequence
    return False


def _recovered(story: Sequence[RecordedEvent]) -> int:
    """Which of these is the newest that says what was lost before it; -1: none is."""
    return _follows(story, Recovered)


def _given_up(story: Sequence[RecordedEvent]) -> int:
    """Which of these an operator ended it by; -1: none."""
    for at in range(len(story) - 1, 0, -1):
        one = story[at]
        if is_given_up(one.event) and one.event.after == story[at - 1].sequence and not one.void:
            return at
    return -1


def _follows(story: Sequence[RecordedEvent], kind: type[Submitted | Recovered]) -> int:
    """The last event of this kind that follows on what stands before it; -1: none does."""
    found, before = -1, 0
    for at, one in enumerate(story):
        if isinstance(one.event, kind) and one.event.after == before and not one.void:
            found = at
        before = one.sequence
    return found


def _left_over(story: Sequence[RecordedEvent]) -> int:
    """Which of what is left of an ended life is its ending: the first one that names the event
    before it, as a void one may stand in between; else the first of all. -1: none is."""
    first = -1
    left = Workload(tenant="", id="")
    for at, one in enumerate(story):
        event = one.event
        if isinstance(event, _ENDINGS) and event.after and _may_end(left, event):
            if at and event.after == left.sequence:
                return at
            first = at if first < 0 else first
        if not one.void:
            _pass_over(left, event, one.sequence)
        left.sequence = one.sequence
    return first


def _may_end(left: Workload, event: Ending) -> bool:
    """Whether it may be the ending of a life of which this is left. What has lost its race ends
    nothing, and nobody ends what certainly is another's, or an attempt before it."""
    if event.after < left.sequence:
        return False
    rest = left.rest
    if rest is None or not rest.certain or event.after > left.sequence or is_given_up(event):
        return True
    return event.attempt == rest.attempt and event.cluster in ("", rest.cluster)


def _pass_over(
    left: Workload, event: WorkloadEvent, sequence: int, *, is_known_lost: bool = False
) -> None:
    """It counts for nothing, as the beginning is not there; yet it may say whose the attempt is.
    ``is_known_lost``: what it builds on is lost, so that it has lost no race as far as anybody
    knows. ``left`` has the attempt that is known for certain, if one is."""
    before, left.sequence = left.sequence, sequence
    if event.after < before or event.after >= sequence:
        return  # it has lost its race
    if isinstance(event, (Placed, *_NAMES)) and _is_anothers(left, event):
        return
    if isinstance(event, Placed | Recovered | Divided):  # what is divided is no cluster's
        cluster = "" if isinstance(event, Divided) else event.cluster
        left.rest = Rest(event.attempt, cluster, certain=event.after == before > 0)
    elif isinstance(event, _NAMES) and is_known_lost:
        left.rest = Rest(event.attempt, event.cluster, certain=True)
    elif event.after > before:
        left.rest = None
    elif isinstance(event, _TAKES) and left.rest == Rest(event.attempt, event.cluster):
        left.rest = Rest(event.attempt, event.cluster, certain=True)


def _is_anothers(left: Workload, event: Placed | Claimed | Admitted | Running | Evicted) -> bool:
    """Whether it says of an attempt that is certainly another's, or of one before it. An attempt
    never changes hands, whatever is lost behind its placement. Stricter than ``_is_of``, which is
    for endings: those may name no cluster."""
    if event.attempt == left.attempt and not isinstance(event, Placed):
        return event.cluster != left.cluster and left.attempt > 0
    return event.attempt <= left.attempt


def is_whole(events: Sequence[RecordedEvent]) -> bool:
    """Whether these are a story from its beginning, or from what was recovered, without a gap. Else
    the archive has it."""
    recovered = _recovered(events)
    last = events[recovered].event.after if recovered >= 0 else 0
    for recorded in events[max(0, recovered) :]:
        if last < recorded.event.after < recorded.sequence:  # beyond is no gap, as in offer
            return False
        last = recorded.sequence
    return last > 0


def _names_the_open_attempt(workload: Workload, event: WorkloadEvent) -> bool:
    """Its number and cluster, where the event says them; a placement opens the next one."""
    match event:
        case Submitted() | Released() | Reprioritized() | Held() | HoldReleased():
            return True
        case Placed() | Divided():
            return event.attempt == workload.attempt + 1
        case Admitted() | Running() if workload.held_back:
            return False
        case Recovered():
            # What runs outweighs a placement that nobody has claimed: whoever placed it anew had
            # not read of what the log has lost.
            here = event.cluster == workload.cluster or workload.state is State.PLACED
            same = event.attempt == workload.attempt and here and workload.live
            return event.attempt > workload.attempt or same
        case (
            Withdrawn()
            | Claimed()
            | Admitted()
            | Running()
            | Committed()
            | Evicted()
            | EvictionRequested()
            | ResizeRequested()
        ):
            return event.attempt == workload.attempt and event.cluster == workload.cluster
        case Resized():
            same = event.attempt == workload.attempt and event.cluster == workload.cluster
            return same and bool(workload.resizing) and not without(event.pods, workload.pods)
        case MoveRequested() | Progressed():
            return event.attempt == workload.attempt and event.cluster == workload.cluster
        case Checkpointed():  # once it waits again as well: it is the last attempt's
            same = event.attempt == workload.attempt and event.cluster == workload.cluster
            return same and workload.attempt > 0
        case CancelRequested():
            return event.cluster == workload.cluster
        case Succeeded() | Failed() | Cancelled():  # "" when it never was placed, or waits again
            return event.attempt == workload.attempt and event.cluster in ("", workload.cluster)


def _raise_tombstone(workload: Workload, event: Ending, sequence: int, stored_at_s: float) -> None:
    _apply(workload, event, sequence, stored_at_s)
    workload.rest = None
    workload.attempt = event.attempt
    workload.cluster = event.cluster
    workload.submitted_at_s = event.submitted_at_s
    workload.digest = event.digest
    workload.state = STATE_OF[type(event)]
    workload.sequence = sequence
    workload.changed_at_s = stored_at_s


def _apply(workload: Workload, event: WorkloadEvent, sequence: int, stored_at_s: float) -> None:
    """Take over what the event says; state and sequence are the caller's."""
    match event:
        case Submitted():
            _take_up(workload, event, sequence, stored_at_s)
        case Placed() | Divided():
            _begin(workload, event, stored_at_s)
        case Committed():
            workload.committed = True
            workload.running_at_s = stored_at_s if workload.parts else 0.0
        case Claimed():
            workload.claimed_at_s = stored_at_s
            workload.executor = event.executor
        case Recovered():
            _take_over(workload, event, sequence, stored_at_s)
        case Running():
            workload.running_at_s = workload.running_at_s or stored_at_s
            _has(workload, together(_as_seen(event.pods, workload.pods), workload.resizing))
        case ResizeRequested():
            workload.resizing = _as_placed(event.pods, workload.pods)
            workload.coming = len(without(workload.resizing, workload.pods))
            _has(workload, together(workload.pods, workload.resizing))
        case Resized():
            workload.resizing, workload.coming = (), 0
            workload.resized_at_s = stored_at_s
            workload.kept_size = event.reason
            workload.kept_sizes = workload.kept_sizes + 1 if event.reason else 0
            _has(workload, _as_seen(event.pods, workload.pods))
        case Evicted():
            _give_back(workload, event, stored_at_s)
        case Withdrawn():
            _wait_again(workload)
            workload.reason = event.reason
        case Succeeded() | Failed() | Cancelled():
            workload.resizing = workload.parts = ()
            workload.coming = 0
            workload.reason = event.reason
        case (
            Released()
            | Reprioritized()
            | Held()
            | HoldReleased()
            | CancelRequested()
            | MoveRequested()
        ):
            _wish(workload, event, stored_at_s)
        case EvictionRequested():
            workload.leaving = event.reason
            workload.leads_to = event.to
        case Checkpointed() | Progressed():
            _hear(workload, event, stored_at_s)
        case Admitted():
            workload.resizable = event.resizable


def _hear(workload: Workload, event: Checkpointed | Progressed, stored_at_s: float) -> None:
    """What the job itself says."""
    if isinstance(event, Checkpointed):
        workload.checkpoint, workload.checkpoint_at_s = event.checkpoint, stored_at_s
    else:
        workload.progress, workload.progress_at_s = event.progress, stored_at_s


def _give_back(workload: Workload, event: Evicted, stored_at_s: float) -> None:
    """Its attempt is over, and it waits again."""
    _wait_again(workload)
    _blame(workload, event, stored_at_s)
    workload.moves += bool(workload.leaving)
    workload.ran_s += _counted_s(workload, stored_at_s, blameless=event.blameless)
    workload.checkpoint = event.checkpoint or workload.checkpoint
    workload.reason = event.reason


def _blame(workload: Workload, event: Evicted, stored_at_s: float) -> None:
    """Count an attempt that was given back as whoever's fault it was."""
    own = event.fault in OWN
    workload.evictions += not (event.blameless or own)
    workload.failures += own
    workload.repeats = repeats_after(event.fault, workload.last_fault, workload.repeats)
    workload.last_fault = event.fault
    if own and workload.request is not None:
        workload.retry_at_s = stored_at_s + backoff_s(workload.request, workload.failures)


def _wish(
    workload: Workload,
    event: Released | Reprioritized | Held | HoldReleased | CancelRequested | MoveRequested,
    stored_at_s: float,
) -> None:
    """What people want of it, and that it need not wait for other jobs any more."""
    match event:
        case Released():
            workload.released = True
        case Reprioritized():
            workload.priority = event.priority
        case CancelRequested():
            workload.cancel_requested = True
        case Held():
            workload.hold = Hold(event.who, stored_at_s, event.operator, event.reason)
        case HoldReleased():
            workload.hold = None
        case MoveRequested():
            workload.wish = Wish(event.how, event.who, stored_at_s, event.to, event.reason)


def _counted_s(workload: Workload, over_at_s: float, *, blameless: bool) -> float:
    """What max_run_s counts of an attempt that is over: all that it ran; of one that was ended
    through no fault of its own, what was not lost, as far as that is known."""
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, over_at_s - workload.running_at_s)
    return ran_s - unsaved_s(workload, over_at_s) if blameless else ran_s


def progress_every_s(ran_s: float) -> float:
    """How seldom a job says how far it is: so a story stays short however long it runs (some 90 in
    the first 15 minutes, 230 more in each tenfold of that)."""
    return max(PROGRESS_EVERY_S, PROGRESS_SHARE * ran_s)


def ends_as_told_s(workload: Workload) -> float | None:
    """When its attempt ends, as the job itself said while it ran; None if it did not."""
    progress = workload.progress
    if progress is None or progress.eta_s is None or workload.state is not State.RUNNING:
        return None
    return workload.progress_at_s + progress.eta_s


def unsaved_s(workload: Workload, now_s: float) -> float:
    """Of what its attempt has run, what is lost if it ends now: since the checkpoint that it told
    last; if it told none, since the last that it should have written; without any, all of it.

    For example, an attempt that began at 1,000 s, writes a checkpoint every 600 s and told one at
    1,900 s loses 100 s at 2,000 s; one that never told any loses 400 s.
    """
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, now_s - workload.running_at_s)
    if workload.checkpoint_at_s > workload.running_at_s:
        return min(ran_s, max(0.0, now_s - workload.checkpoint_at_s))
    every_s = workload.request.checkpoint_every_s if workload.request is not None else None
    return ran_s if every_s is None else ran_s % every_s


def saved_s(workload: Workload) -> float:
    """Of what its attempts that are over have run, what is kept: of a job that writes checkpoints
    what max_run_s counts, of any other nothing."""
    request = workload.request
    writes = request is not None and request.checkpoint_every_s is not None
    return workload.ran_s if writes or workload.checkpoint is not None else 0.0


def age_s(workload: Workload, now_s: float) -> float:
    """How long a job has run, as far as that is kept: its attempts that are over, and the one that
    runs."""
    running = workload.live and workload.running_at_s > 0
    return saved_s(workload) + (max(0.0, now_s - workload.running_at_s) if running else 0.0)


def _begin(workload: Workload, event: Placed | Divided, stored_at_s: float) -> None:
    """An attempt. Of one in several clusters its parts have the pods."""
    workload.attempt = event.attempt
    if isinstance(event, Divided):
        workload.cluster, workload.target, workload.parts = "", Target(), event.parts
    else:
        workload.cluster, workload.target = event.cluster, event.target
    workload.decision = event.decision
    workload.placed_at_s = stored_at_s
    workload.claimed_at_s = workload.running_at_s = workload.resized_at_s = 0.0
    workload.progress, workload.progress_at_s = None, 0.0
    workload.kept_size, workload.kept_sizes = "", 0
    workload.executor = workload.leaving = workload.leads_to = ""
    workload.committed = workload.resizable = False
    workload.wish = None
    _has(workload, event.pods if isinstance(event, Placed) else ())


def _take_up(workload: Workload, event: Submitted, sequence: int, stored_at_s: float) -> None:
    """It is new. For a part of a divided job room is kept, and it goes on where the job was."""
    workload.rest = None
    workload.request = event.request
    workload.digest = event.digest
    workload.cell = event.cell
    workload.origin = event.origin
    workload.priority = event.request.priority
    workload.submitted_sequence = sequence
    workload.submitted_at_s = stored_at_s
    if (part := event.request.part) is not None:
        workload.leads_to = part.clusters[part.number]
        workload.checkpoint = part.checkpoint


def _take_over(workload: Workload, event: Recovered, sequence: int, stored_at_s: float) -> None:
    """All of it but what no executor knows: an origin, a wish to cancel."""
    workload.rest = None
    for field in _TOLD:
        setattr(workload, field, getattr(event, field))
    workload.submitted_sequence = workload.submitted_sequence or sequence
    workload.claimed_at_s = stored_at_s
    workload.running_at_s = workload.resized_at_s = 0.0
    workload.leaving = workload.leads_to = ""
    workload.wish = None
    workload.wished, workload.resizing, workload.parts = None, (), ()
    workload.resizable, workload.coming = False, 0
    workload.kept_size, workload.kept_sizes = "", 0
    workload.committed = event.request.part is not None  # who reports it has its pods
    _has(workload, event.pods)


def _as_placed(
    pods: tuple[PodBinding, ...], before: tuple[PodBinding, ...]
) -> tuple[PodBinding, ...]:
    """Kubernetes does not say which GPUs a pod has. On the node where it was placed it is charged
    for those that it was placed on: otherwise what was promised would be free again."""
    known = {(binding.pod, binding.node): binding.gpus for binding in before}
    return tuple(
        binding
        if binding.gpus or not known.get((binding.pod, binding.node))
        else msgspec.structs.replace(binding, gpus=known[binding.pod, binding.node])
        for binding in pods
    )


def _as_seen(
    pods: tuple[PodBinding, ...], before: tuple[PodBinding, ...]
) -> tuple[PodBinding, ...]:
    """Pods as a cluster's agent reports them. Each keeps the charge that the decision stored: the
    agent has no say in that."""
    charged = {binding.pod: binding.charged_milli for binding in before}
    return tuple(
        binding
        if binding.charged_milli == charged.get(binding.pod, 0)
        else msgspec.structs.replace(binding, charged_milli=charged.get(binding.pod, 0))
        for binding in _as_placed(pods, before)
    )


def _has(workload: Workload, pods: tuple[PodBinding, ...]) -> None:
    """These hold room, and its request says how many there are."""
    workload.pods = pods
    asked = workload.wished or workload.request
    if asked is not None and is_elastic(asked):
        workload.wished = asked
        workload.request = with_bound(asked, workload.pods)


def _wait_again(workload: Workload) -> None:
    """It wishes again for what it asked for."""
    workload.resizing = workload.parts = ()
    workload.coming = 0
    workload.wish = None
    if workload.wished is not None:
        workload.request, workload.wished = workload.wished, None


_TOLD: Final = (  # of a recovered event and of a workload
    "request",
    "digest",
    "cell",
    "priority",
    "submitted_at_s",
    "attempt",
    "evictions",
    "cluster",
    "pods",
    "target",
    "decision",
    "placed_at_s",
    "executor",
)
