"""Who hears event by event what is left of lives comes to what whoever reads whole stories does."""

from berthmaster.lifecycle.fold import Verdict, judged_story, offer
from berthmaster.lifecycle.remains import MAX_REMAINS, Remains
from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Workload
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.workload import Cancelled, Recovered, Running, WorkloadEvent
from tests.support.builders import job

TENANT, ID = "acme", "job-15"


def heard(known: Remains, story: list[RecordedEvent]) -> tuple[Workload, list[Verdict]]:
    """By a reader that keeps of each workload what ``Remains`` does."""
    verdicts = []
    for one in story:
        work = known.take(TENANT, ID)
        verdicts.append(offer(work, one.event, one.sequence, one.stored_at_s))
        known.keep(work)
    return known.take(TENANT, ID), verdicts


def test_an_ending_that_has_lost_its_race_ends_nothing_though_nobody_knows_whose_it_is() -> None:
    """World 181000186: 14 to 18 are lost, and somebody lies of another's number before that."""
    running = Running(
        tenant=TENANT, id=ID, by="executor/c1", at_s=0.0, after=18, cluster="c1", attempt=1, pods=()
    )
    lie = Cancelled(
        tenant=TENANT,
        id=ID,
        by="liar",
        at_s=0.0,
        after=13,
        cluster="lost",
        attempt=1,
        digest="d",
        submitted_at_s=0.0,
    )
    back = Recovered(
        tenant=TENANT,
        id=ID,
        by="door",
        at_s=0.0,
        after=20,
        cluster="c1",
        attempt=1,
        executor="executor/c1",
        pods=(),
        request=job(ID),
        digest="d",
        decision=1,
        submitted_at_s=0.0,
        placed_at_s=0.0,
    )
    left: list[tuple[int, WorkloadEvent]] = [(19, running), (20, lie), (26, back)]
    story = [RecordedEvent(sequence=at, stored_at_s=0.0, event=event) for at, event in left]
    told, by_story = judged_story(TENANT, ID, story)
    work, verdicts = heard(Remains(), story)
    assert verdicts == by_story == [Verdict.VOID, Verdict.VOID, Verdict.COUNTED]
    assert (work.state, work.sequence) == (told.state, told.sequence) == (State.CLAIMED, 26)


def test_no_more_are_kept_than_so_many() -> None:
    known = Remains()
    for number in range(MAX_REMAINS + 1):
        known.keep(Workload(tenant=TENANT, id=str(number), sequence=7))
    assert [known.take(TENANT, name).sequence for name in ("0", "1", str(MAX_REMAINS))] == [0, 7, 7]
