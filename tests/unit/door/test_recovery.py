"""What is brought back into a damaged log, and everything that an agent may try in vain."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.door.receipts import Receipt, Receipts
from berthmaster.door.recovery import (
    BringBack,
    Losses,
    No,
    Stands,
    judged,
    may_lack,
    refused_at_once,
)
from berthmaster.lifecycle.fold import Verdict, offer
from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Workload
from berthmaster.logcheck.core import Loss
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.placement import HUB_CELL
from berthmaster.messages.workload import (
    Cancelled,
    Claimed,
    Evicted,
    Placed,
    Recovered,
    Reprioritized,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.builders import job
from tests.support.lives import CLUSTER, DIGEST, ID, PODS, REQUEST, TENANT, fitting, lived, new

LOG = "made on Tuesday"
ACCEPTED_S = 1000.0
KINDS = (Submitted, Placed, Claimed, Running)
SIGNER = Receipts(b"k" * 32)


def receipt(**changes: Any) -> Receipt:
    """Of the placement in a life of four events, under 10, 20, 30 and 40."""
    usual: dict[str, Any] = {
        "tenant": TENANT,
        "id": ID,
        "cluster": CLUSTER,
        "attempt": 1,
        "request": REQUEST,
        "digest": DIGEST,
        "pods": PODS,
        "decision": 7,
        "sequence": 20,
        "submitted_sequence": 10,
        "log": LOG,
        "submitted_at_s": 1.0,
        "placed_at_s": 2.0,
    }
    return Receipt(**usual | changes)


def life(*kinds: type[WorkloadEvent]) -> list[RecordedEvent]:
    workload, story = new(), []
    for at, kind in enumerate(kinds, 1):
        event = fitting(kind, workload)
        assert offer(workload, event, 10 * at, float(at)) is Verdict.COUNTED
        story.append(RecordedEvent(sequence=10 * at, stored_at_s=float(at), event=event))
    return story


def cut_at(last: int, *missing: int) -> Losses:
    """The log ended there when a person accepted it, and lacked these."""
    return Losses((Loss(LOG, ACCEPTED_S, last, tuple((n, n) for n in missing)),))


def gap(*numbers: int) -> Losses:
    """These are missing in the midst of the log."""
    return Losses((Loss(LOG, ACCEPTED_S, 500, tuple((n, n) for n in numbers)),))


def verdict(
    told: Receipt,
    story: list[RecordedEvent],
    losses: Losses,
    *,
    archived: list[RecordedEvent] | None = None,
    log: str = LOG,
    taken: tuple[int, ...] = (),
    now_s: float = ACCEPTED_S + 5,
) -> BringBack | Stands | No:
    lost = {n for loss in losses.each for first, last in loss.missing for n in (first, last)}
    return judged(
        told,
        story,
        archived or [],
        losses,
        log,
        is_lost=lost.__contains__,
        taken=frozenset(taken),
        executor="executor/c1",
        now_s=now_s,
        within_s=60,
    )


def test_a_later_attempt_is_brought_back_where_its_own_job_s_news_took_its_number() -> None:
    """The log went back to the first attempt, and grew again by words about the same job."""
    story = [
        *life(*KINDS),
        RecordedEvent(
            sequence=62,
            stored_at_s=9.0,
            event=Reprioritized(tenant=TENANT, id=ID, after=40, at_s=9.0, by="gateway", priority=1),
        ),
    ]
    second = receipt(attempt=2, sequence=62, cluster="c2")
    found = verdict(second, story, cut_at(62))
    assert isinstance(found, BringBack)
    assert (found.event.attempt, found.event.cluster, found.event.after) == (2, "c2", 62)
    # Under its number stands what it says: the log has lost nothing of it.
    assert verdict(receipt(), story, cut_at(62)) == Stands()


@pytest.mark.parametrize(
    ("left", "losses"),
    [
        ([], cut_at(5)),
        ([10], cut_at(10)),
        ([10, 30, 40], gap(20)),
        ([20, 30, 40], gap(10)),
        ([10, 20, 40], gap(30)),
        ([30, 40], gap(10, 20)),
    ],
    ids=["all", "all but the submission", "placed", "submitted", "claimed", "two"],
)
def test_lost_running_job_is_recovered(left: list[int], losses: Losses) -> None:
    story = [one for one in life(*KINDS) if one.sequence in left]
    found = verdict(receipt(), story, losses)
    assert isinstance(found, BringBack)
    after = story[-1].sequence if story else 0
    assert found.event == Recovered(
        tenant=TENANT,
        id=ID,
        after=after,
        at_s=ACCEPTED_S + 5,
        by="door",
        cause="placed as 20",
        cluster=CLUSTER,
        attempt=1,
        executor="executor/c1",
        pods=PODS,
        request=REQUEST,
        digest=DIGEST,
        decision=7,
        submitted_at_s=1.0,
        placed_at_s=2.0,
    )
    # A second report of the same finds it, and one after its end is in vain.
    told = [*story, RecordedEvent(sequence=60, stored_at_s=6.0, event=found.event)]
    assert verdict(receipt(), told, losses) == Stands()
    work = Workload(tenant=TENANT, id=ID, sequence=after)
    assert offer(work, found.event, 60, 6.0) is Verdict.COUNTED
    assert (work.state, work.cluster, work.attempt) == (State.CLAIMED, CLUSTER, 1)
    for kind in (Evicted, Succeeded):
        over = RecordedEvent(sequence=70, stored_at_s=7.0, event=fitting(kind, work))
        assert isinstance(verdict(receipt(), [*told, over], losses), No)


def test_where_nothing_is_lost_nothing_is_brought_back() -> None:
    running = life(*KINDS)
    assert verdict(receipt(), running, cut_at(100)) == Stands()
    for lost in (cut_at(100), gap(200)):
        assert verdict(receipt(), [], lost) == No("the log has lost nothing of it")
    none: dict[str, Any] = {"losses": Losses(), "log": LOG}
    name = (TENANT, ID)
    assert "accepted" in refused_at_once(receipt(), CLUSTER, name, **none)
    # What was cut off and accepted on Monday says nothing of what was placed on Tuesday.
    later = receipt(accepted_at_s=ACCEPTED_S)
    assert isinstance(verdict(later, [], cut_at(5)), No)
    assert isinstance(verdict(receipt(), [], cut_at(5), now_s=ACCEPTED_S + 61), No)


def test_what_a_log_lost_before_it_grew_again_is_brought_back() -> None:
    grown = cut_at(100)  # it went to 40, lost 20 to 40, and others' events came after
    assert verdict(receipt(), [], grown) == No("the log has lost nothing of it")
    assert isinstance(verdict(receipt(), [], grown, taken=(20, 30)), BringBack)
    assert isinstance(verdict(receipt(), life(Submitted), grown, taken=(20,)), BringBack)
    # What was signed after the acceptance was read in the log as it is.
    later = receipt(accepted_at_s=ACCEPTED_S)
    assert isinstance(verdict(later, [], grown, taken=(20,)), No)


def test_a_log_that_was_made_anew_has_lost_what_the_one_before_held() -> None:
    made_anew = Losses((Loss("made on Friday", ACCEPTED_S, 0),))
    assert isinstance(verdict(receipt(), [], made_anew, log="made on Friday"), BringBack)
    assert refused_at_once(receipt(), CLUSTER, (TENANT, ID), Losses(), "made on Friday")


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ((Submitted, Cancelled), "the log says that it has cancelled"),
        ((Submitted, Placed, Withdrawn), "the log says that this attempt is over"),
        ((Submitted, Placed, Claimed, Evicted), "the log says that this attempt is over"),
    ],
)
def test_what_the_log_knows_better_stands(kinds: tuple[type[WorkloadEvent], ...], why: str) -> None:
    assert verdict(receipt(), life(*kinds), cut_at(5)) == No(why)
    # Also where its beginning is lost, so that none of it counts.
    assert isinstance(verdict(receipt(), life(*kinds)[1:], gap(10)), No)


def test_what_others_say_of_an_attempt_that_was_given_here_is_void_behind_a_gap_too() -> None:
    """Nothing behind a gap is judged by the fold: a forged word would keep a job lost for good."""
    story = life(*KINDS)[1:]  # its beginning is lost
    for at, kind in ((50, Running), (60, Evicted), (70, Claimed)):
        forged = replace(fitting(kind, lived(*KINDS)), cluster="evil", after=at - 10, by="liar")
        story.append(RecordedEvent(sequence=at, stored_at_s=9.0, event=forged))
    found = verdict(receipt(), story, gap(10))
    assert isinstance(found, BringBack)
    assert (found.event.cluster, found.event.attempt, found.event.after) == (CLUSTER, 1, 70)
    # Also where the log has lost what gave it: of two that tell of it one can show a receipt.
    found = verdict(receipt(), story[1:], gap(10, 20))
    assert isinstance(found, BringBack)
    only_others = verdict(receipt(), story[3:], gap(10, 20, 30, 40))
    assert isinstance(only_others, No)
    # Who was given it last has it: nobody can say that by a word alone.
    elsewhere = RecordedEvent(
        sequence=80, stored_at_s=9.0, event=replace(fitting(Placed, new()), cluster="c9", after=70)
    )
    assert isinstance(verdict(receipt(), [*story, elsewhere], gap(10)), No)


def _told(sequence: int, stored_at_s: float, event: WorkloadEvent, cluster: str) -> RecordedEvent:
    told = replace(event, cluster=cluster, after=sequence - 5)
    return RecordedEvent(sequence=sequence, stored_at_s=stored_at_s, event=told)


@pytest.mark.parametrize(
    "word",
    [
        fitting(Evicted, lived(*KINDS)),
        fitting(Withdrawn, lived(Submitted, Placed)),
        fitting(Claimed, lived(Submitted, Placed)),
        fitting(Placed, lived(Submitted)),
        replace(fitting(Running, lived(*KINDS)), attempt=2),
    ],
    ids=["its end", "taken back", "another's", "given to another", "a later attempt"],
)
def test_who_wrote_before_the_placement_says_nothing_of_the_attempt(word: WorkloadEvent) -> None:
    lost = cut_at(15, 4)  # nothing is left but a lie of before it was submitted, on what is lost
    for cluster in ("evil", CLUSTER):
        found = verdict(receipt(), [_told(9, 0.5, word, cluster)], lost)
        assert isinstance(found, BringBack)
        assert (found.event.cluster, found.event.attempt, found.event.after) == (CLUSTER, 1, 9)

    # A number that was given anew, a clock that was put back, a message behind an accepted end.
    assert isinstance(verdict(receipt(), [_told(9, 2.5, word, "evil")], lost), No)
    later = [_told(21, 0.5, word, "evil")]
    assert isinstance(verdict(receipt(), later, cut_at(25, 16), taken=(20,)), No)
    assert isinstance(verdict(receipt(), [_told(9, 0.5, word, "evil")], cut_at(8, 4)), No)
    # That the log ended there before the receipt was signed says nothing.
    twice = Losses((Loss(LOG, ACCEPTED_S - 9, 8, ((4, 4),)), *lost.each))
    signed = receipt(accepted_at_s=ACCEPTED_S - 9)
    assert isinstance(verdict(signed, [_told(9, 0.5, word, "evil")], twice), BringBack)


def test_recovery_of_unknown_attempt_is_refused() -> None:
    """The log was cut behind the submission, and lied to before anybody looked."""
    for kind in (Evicted, Succeeded, Running):
        word = replace(fitting(kind, lived(*KINDS)), cluster="evil", after=10)
        story = [*life(Submitted), RecordedEvent(sequence=25, stored_at_s=9.0, event=word)]
        found = verdict(receipt(), story, cut_at(25), taken=(20,))
        assert isinstance(found, BringBack)
        assert (found.event.cluster, found.event.after) == (CLUSTER, 25)
        # Who builds on what is lost may have known it.
        knew = [story[0], replace(story[1], event=replace(word, after=20))]
        assert isinstance(verdict(receipt(), knew, gap(20)), No)


@pytest.mark.parametrize("kind", [Running, Evicted, Claimed])
def test_what_builds_on_nothing_that_is_lost_says_nothing(kind: type[WorkloadEvent]) -> None:
    """Of the story nothing is left but lies from after the log was cut, or lost its middle."""
    word = replace(fitting(kind, lived(*KINDS)), cluster="evil")

    def told(*links: tuple[int, int]) -> list[RecordedEvent]:
        return [
            RecordedEvent(sequence=at, stored_at_s=9.0, event=replace(word, after=after))
            for at, after in links
        ]

    for story in (told((45, 0)), told((45, 44)), told((45, 0), (46, 45))):  # 44 is another's
        for losses, taken in ((cut_at(15), ()), (cut_at(50), (20,)), (cut_at(60, 50), (20,))):
            found = verdict(receipt(), story, losses, taken=taken)
            assert isinstance(found, BringBack)
            assert (found.event.cluster, found.event.after) == (CLUSTER, story[-1].sequence)
    assert isinstance(verdict(receipt(), told((45, 0)), gap(10, 20)), BringBack)
    # On what is lost, or behind it: he may have known.
    for story in (told((45, 20)), told((45, 0), (46, 45))):
        assert isinstance(verdict(receipt(), story, gap(10, 20)), No)


def test_what_counts_stands_however_old_it_is() -> None:
    """The log as it was before its id was used again for the same job."""
    for kinds in ((Submitted, Placed, Withdrawn), (*KINDS, Evicted)):
        again = receipt(sequence=200, submitted_sequence=190, placed_at_s=99.0)
        found = verdict(again, life(*kinds), cut_at(60))
        assert found == No("the log says that this attempt is over")


def test_an_ending_in_the_archive_outweighs_a_receipt_of_that_life_and_of_no_later_one() -> None:
    ended = life(*KINDS, Succeeded)
    why = No("the archive says how it ended")
    assert verdict(receipt(), [], cut_at(5), archived=ended) == why
    again = receipt(placed_at_s=99.0)
    assert isinstance(verdict(again, [], cut_at(5), archived=ended), BringBack)


def test_of_two_clusters_that_hold_a_job_the_later_attempt_is_right() -> None:
    first = verdict(receipt(), [], cut_at(5))
    assert isinstance(first, BringBack)
    story = [RecordedEvent(sequence=60, stored_at_s=6.0, event=first.event)]
    later = receipt(cluster="other", attempt=2, sequence=50, evictions=1)
    second = verdict(later, story, cut_at(5))
    assert isinstance(second, BringBack)
    assert isinstance(second.event, Recovered)
    assert (second.event.cluster, second.event.after, second.event.evictions) == ("other", 60, 1)
    story.append(RecordedEvent(sequence=70, stored_at_s=7.0, event=second.event))
    assert verdict(receipt(), story, cut_at(5)) == No("the log has a later attempt of it, 2")
    # The same number in two clusters is no attempt of one life.
    twin = receipt(cluster="third", attempt=2)
    assert verdict(twin, story, cut_at(5)) == No(
        "the log says that this attempt is another cluster's"
    )


def test_what_runs_outweighs_a_placement_that_nobody_has_claimed() -> None:
    """A decider that began after the log had lost its end placed the same attempt elsewhere."""
    running = receipt(cluster="other")
    for lost, taken in ((cut_at(5), ()), (cut_at(100), (20,))):
        found = verdict(running, life(Submitted, Placed), lost, taken=taken)
        assert isinstance(found, BringBack)
        assert (found.event.cluster, found.event.attempt, found.event.after) == ("other", 1, 20)
        work = lived(Submitted, Placed)
        assert offer(work, found.event, 60, 6.0) is Verdict.COUNTED
        assert (work.state, work.cluster) == (State.CLAIMED, "other")
        # Who has it placed claims it too late.
        late = fitting(Claimed, lived(Submitted, Placed))
        assert offer(work, late, 61, 6.1) is Verdict.VOID
    claimed = life(Submitted, Placed, Claimed)
    assert verdict(running, claimed, cut_at(5)) == No(
        "the log says that this attempt is another cluster's"
    )


def test_where_only_the_claim_is_lost_it_is_stored_again_and_all_else_stands() -> None:
    """Who holds the pods does not wait until claims are taken again: by then it may be cut off."""
    story = [
        *life(Submitted, Placed),
        RecordedEvent(
            sequence=25,
            stored_at_s=2.5,
            event=Reprioritized(tenant=TENANT, id=ID, after=20, at_s=2.5, by="gateway", priority=9),
        ),
    ]
    found = verdict(receipt(), story, cut_at(25))
    assert isinstance(found, BringBack)
    claimed = fitting(Claimed, lived(Submitted, Placed))
    assert found.event == msgspec.structs.replace(
        claimed,
        after=25,
        at_s=ACCEPTED_S + 5,
        by="door",
        cause="placed as 20",
        executor="executor/c1",
    )
    # In a copy that was put back as another log, too; but not by a receipt of after the acceptance.
    assert verdict(receipt(log="on Monday"), story, cut_at(25)) == found
    assert isinstance(verdict(receipt(accepted_at_s=ACCEPTED_S), story, cut_at(25)), No)
    assert isinstance(verdict(receipt(), story, cut_at(25), now_s=ACCEPTED_S + 61), No)

    # What runs elsewhere in the cluster than it was placed anew is brought back as it was.
    there = receipt(pods=(msgspec.structs.replace(PODS[0], node="elsewhere"),))
    moved = verdict(there, story, Losses((Loss(LOG, ACCEPTED_S, 15),)))
    assert isinstance(moved, BringBack)
    assert isinstance(moved.event, Recovered)
    assert moved.event.pods == there.pods


def test_the_log_may_lack_a_later_attempt_or_the_claim_of_what_is_held() -> None:
    held = receipt(attempt=2)
    assert may_lack(held, 1, State.RUNNING)
    assert may_lack(held, 2, State.PLACED)
    assert not may_lack(held, 2, State.CLAIMED)
    assert not may_lack(held, 3, State.PLACED)


def test_a_job_that_was_submitted_again_is_taken_for_the_same_only_with_the_same_content() -> None:
    same = life(Submitted)
    assert isinstance(verdict(receipt(), same, cut_at(5)), BringBack)
    other = receipt(request=job(ID, gpus=7), digest="another")
    assert verdict(other, same, cut_at(5)) == No("another job was submitted under its id meanwhile")


def test_a_receipt_is_believed_only_as_the_door_signed_it_and_for_what_it_names() -> None:
    text = SIGNER.signed(receipt())
    opened = SIGNER.opened(text)
    assert opened == receipt(log="")
    content, _, mac = text.partition(".")
    forged = Receipts(b"another key" * 2).signed(receipt())
    other = SIGNER.signed(receipt(id="train-2"))
    for lie in (
        "",
        ".",
        content,
        f"{content}.",
        f"{content}.{mac[:-4]}AAAA",
        f"{other.partition('.')[0]}.{mac}",
        f"{content}.{mac}.{mac}",
        forged,
        "ä.ö",
        "x" * 1000,
        msgspec.json.encode(receipt()).decode(),
    ):
        assert SIGNER.opened(lie) is None, lie
    lost = cut_at(5)
    name = (TENANT, ID)
    assert refused_at_once(opened, CLUSTER, name, lost, LOG) == ""
    assert "not signed" in refused_at_once(None, CLUSTER, name, lost, LOG)
    for cluster, named in (("other", name), (CLUSTER, (TENANT, "train-2")), (CLUSTER, ("b", ID))):
        assert "something else" in refused_at_once(opened, cluster, named, lost, LOG)
    by_the_hub = receipt(cell=HUB_CELL)
    assert "hub" in refused_at_once(by_the_hub, CLUSTER, name, lost, LOG)
