"""Whether what an executor holds is brought back into the log, which has lost it. Pure.

Rules of this file:

- Only a receipt that the door itself has signed says anything, and only to the cluster that it
  names: an agent can invent no job, no id, no attempt, and nothing of another cluster's.
- Only what a person has accepted as lost is brought back: the placement, or the submission, was
  under a number that the log had and has no more, or gave to another's message when it grew again,
  or the story lacks what its next event builds on. A receipt of a life that the log still has
  whole, or has ended, brings nothing back.
- What the log knows outweighs the receipt: an ending, in log or archive; a later attempt; the end
  of this one; another content under the same id, which is another job.
- What counts in what is left stands. What does not says something only if it builds on what is
  lost, and not if it was stored before the placement: whoever wrote that knew of neither that
  attempt nor a later one.
- Of two clusters the later attempt is right: an attempt is placed only when the one before is over.
  Of the same attempt, what runs outweighs a placement that nobody has claimed: a decider that began
  just after the loss placed anew what it could not know of.
- Where the log has the placement and has lost only that it was claimed, that is stored again: what
  else it has of the attempt stands.
- For a while after the acceptance only: whoever comes later finds his job placed anew, or
  forgotten.
"""

from collections.abc import Callable, Sequence, Set
from typing import Final, NamedTuple

from berthmaster.door.receipts import Receipt
from berthmaster.lifecycle.fold import Verdict, judged_story
from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Workload
from berthmaster.logcheck.core import Loss, within
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.placement import HUB_CELL
from berthmaster.messages.workload import (
    Cancelled,
    Claimed,
    Evicted,
    Failed,
    Placed,
    Recovered,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)

_ENDINGS: Final = (Succeeded, Failed, Cancelled)
_GIFTS: Final = (Placed, Recovered)  # say which cluster an attempt is given to


class Losses(NamedTuple):
    """All that were accepted, the oldest first."""

    each: tuple[Loss, ...] = ()

    def of(self, log: str) -> tuple[Loss, ...]:
        """Those of one making of the log."""
        return tuple(loss for loss in self.each if loss.making == log)

    def since(self, receipt: Receipt, log: str) -> bool:
        """Whether anything was accepted as lost since the receipt was signed."""
        mine = self.of(log)
        return bool(mine) and (receipt.log != log or mine[-1].at_s > receipt.accepted_at_s)

    def underlie(
        self, one: RecordedEvent, story: Set[int], log: str, is_lost: Callable[[int], bool]
    ) -> bool:
        """Whether what it builds on may be lost: its ``after`` is, or stands in the story, which
        has lost something before that. Else it is about nothing, or all that its writer may have
        known stands there and says the same to everybody. ``story``: the numbers that are there.

        For example, 31 to 40 are lost. Of a story of which 44 and 45 are left, 44 may have known
        what is lost if it builds on 35, and not if it builds on 0 or 42; 45, which builds on 44,
        may.
        """
        after = one.event.after
        return is_lost(after) or (
            after in story
            and any(first <= after for loss in self.of(log) for first, _ in loss.missing)
        )

    def precedes(self, one: RecordedEvent, receipt: Receipt, log: str) -> bool:
        """Whether it was stored before the placement that the receipt is of. Its number alone does
        not say that, as numbers behind a lost tail are given anew; its time alone does not, as a
        server's clock may be put back; and what stands behind an end that was accepted since has
        come after it, whatever the clock said."""
        return (
            one.sequence < receipt.sequence
            and one.stored_at_s < receipt.placed_at_s
            and all(
                one.sequence <= loss.last
                for loss in self.of(log)
                if receipt.log != log or loss.at_s > receipt.accepted_at_s
            )
        )

    def has(self, number: int, receipt: Receipt, log: str, is_taken: Callable[[int], bool]) -> bool:
        """Whether what stood under this number when the receipt was signed is lost now.
        ``is_taken``: whether another's message stands there, for the log has grown again."""
        mine = self.of(log)
        if receipt.log != log:  # made anew, and a person has accepted that
            return bool(mine)
        return any(
            within(number, loss.missing)
            or (loss.at_s > receipt.accepted_at_s and (number > loss.last or is_taken(number)))
            for loss in mine
        )


class No(NamedTuple):
    """It is not brought back."""

    why: str


class Stands(NamedTuple):
    """The log knows it as it is: nothing is lost."""


class BringBack(NamedTuple):
    event: Recovered | Claimed


def refused_at_once(
    receipt: Receipt | None, cluster: str, name: tuple[str, str], losses: Losses, log: str
) -> str:
    """Why nothing needs to be read for it, "" = its story must be."""
    if receipt is None:
        return "its receipt was not signed by this door"
    if receipt.cluster != cluster or (receipt.tenant, receipt.id) != name:
        return "its receipt is of something else"
    if receipt.cell == HUB_CELL:
        return "the hub's reconciler brings it back"
    return "" if losses.of(log) else "the log has lost nothing that a person accepted"


def may_lack(held: Receipt, attempt: int, state: str) -> bool:
    """Whether the log, which says this of the open attempt, may have lost something of what is held
    by its receipt: another attempt that came later, or that this one was claimed."""
    return held.attempt > attempt or (held.attempt == attempt and state == State.PLACED)


def numbers_of(receipt: Receipt) -> tuple[int, int]:
    """Where the log had what the receipt builds on."""
    return receipt.sequence, receipt.submitted_sequence


def judged(
    receipt: Receipt,
    story: Sequence[RecordedEvent],
    archived: Sequence[RecordedEvent],
    losses: Losses,
    log: str,
    *,
    is_lost: Callable[[int], bool],
    taken: Set[int],
    executor: str,
    now_s: float,
    within_s: float,
) -> BringBack | Stands | No:
    """By all that is stored of the workload. ``taken``: those of its receipt's numbers under which
    another workload's message stands; ``within_s``: after the last acceptance."""
    taken = taken | _taken_by_itself(receipt, story)
    work, verdicts = judged_story(receipt.tenant, receipt.id, story, is_lost)
    has_gap = Verdict.MISSED in verdicts
    numbers_here = {one.sequence for one in story}
    telling = [
        one.event
        for one, verdict in zip(story, verdicts, strict=True)
        if verdict is Verdict.COUNTED
        or (
            _may_know(one, verdict, work.state)
            and losses.underlie(one, numbers_here, log, is_lost)
            and not losses.precedes(one, receipt, log)
        )
    ]
    if why := _known_better(receipt, work, telling, archived):
        return No(why)
    is_here = work.live and work.attempt == receipt.attempt and work.cluster == receipt.cluster
    if is_here and not has_gap and work.state is not State.PLACED:
        return Stands()
    # Else it was placed anew in the same cluster.
    is_as_placed = is_here and not has_gap and work.pods == receipt.pods
    numbers = numbers_of(receipt)
    lacks = has_gap or any(losses.has(n, receipt, log, taken.__contains__) for n in numbers)
    if not (losses.since(receipt, log) if is_as_placed else lacks):
        return No("the log has lost nothing of it")
    if now_s > losses.of(log)[-1].at_s + within_s:
        return No(f"the damage was accepted more than {within_s:.0f} s ago")
    if is_as_placed:
        return BringBack(
            Claimed(
                tenant=receipt.tenant,
                id=receipt.id,
                after=work.sequence,
                at_s=now_s,
                by="door",
                cause=f"placed as {receipt.sequence}",
                cluster=receipt.cluster,
                attempt=receipt.attempt,
                executor=executor,
            )
        )
    return BringBack(
        Recovered(
            tenant=receipt.tenant,
            id=receipt.id,
            after=story[-1].sequence if story else 0,
            at_s=now_s,
            by="door",
            cause=f"placed as {receipt.sequence}",
            cluster=receipt.cluster,
            attempt=receipt.attempt,
            executor=executor,
            pods=receipt.pods,
            request=receipt.request,
            digest=receipt.digest,
            decision=receipt.decision,
            cell=receipt.cell,
            priority=receipt.priority,
            evictions=receipt.evictions,
            submitted_at_s=receipt.submitted_at_s,
            placed_at_s=receipt.placed_at_s,
            target=receipt.target,
        )
    )


def _taken_by_itself(receipt: Receipt, story: Sequence[RecordedEvent]) -> set[int]:
    """Which of the receipt's numbers stand in the workload's own story, and are not what they
    were: for the log has grown again."""
    taken: set[int] = set()
    for one in story:
        event = one.event
        if one.sequence == receipt.sequence:
            same = (
                isinstance(event, Placed | Recovered)
                and event.attempt == receipt.attempt
                and event.cluster == receipt.cluster
            )
        elif one.sequence == receipt.submitted_sequence:
            same = isinstance(event, Submitted | Recovered)
        else:
            continue
        if not same:
            taken.add(one.sequence)
    return taken


def _may_know(one: RecordedEvent, verdict: Verdict, state: State) -> bool:
    """Whether somebody who knew the workload may have written what does not count. What lost its
    race says nothing; but of a story without its beginning nothing counts. Nor does what follows on
    what is left and makes no sense there: who had read that as the newest knew of no attempt that
    it does not know."""
    if one.void or verdict is Verdict.IMPOSSIBLE or one.event.after >= one.sequence:
        return False  # the last names what was not stored then: nobody who knew it wrote that
    return verdict is not Verdict.VOID or state is State.NEW


def _known_better(
    receipt: Receipt,
    work: Workload,
    telling: Sequence[WorkloadEvent],
    archived: Sequence[RecordedEvent],
) -> str:
    """What the log says against it, "" = nothing. ``telling``: of the story whatever may have been
    written by somebody who knew of the attempt."""
    if work.ended:
        return f"the log says that it has {work.state}"
    if work.request is not None and work.digest != receipt.digest:
        return "another job was submitted under its id meanwhile"
    for one in archived:
        if isinstance(one.event, _ENDINGS) and one.stored_at_s >= receipt.placed_at_s:
            return "the archive says how it ended"
    is_given_here = _is_given(receipt, telling)
    for event in telling:
        attempt = getattr(event, "attempt", 0)
        if attempt > receipt.attempt:
            return f"the log has a later attempt of it, {attempt}"
        if attempt < receipt.attempt:
            continue
        is_ours = getattr(event, "cluster", "") == receipt.cluster
        is_gift = isinstance(event, _GIFTS)
        if is_given_here and not is_ours and not is_gift:
            continue  # by a cluster that does not hold the attempt: void, whatever is lost before
        if isinstance(event, Evicted | Withdrawn):
            return "the log says that this attempt is over"
        is_promise = isinstance(event, Placed) and work.state is State.PLACED
        if not is_ours and not is_promise:
            return "the log says that this attempt is another cluster's"
    return ""


def _is_given(receipt: Receipt, telling: Sequence[WorkloadEvent]) -> bool:
    """Whether the newest that gives this attempt to a cluster gives it to the receipt's. Where the
    log has lost that, the receipt says so if its cluster's own word of the attempt stands: two
    clusters tell of it then, and one of them alone can show that it was given it."""
    own = False
    for event in reversed(telling):
        if getattr(event, "attempt", 0) != receipt.attempt:
            continue
        is_ours = getattr(event, "cluster", "") == receipt.cluster
        if isinstance(event, _GIFTS):
            return is_ours
        own |= is_ours
    return own
