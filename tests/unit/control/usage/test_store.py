"""The store, in SQLite: filled once whatever is told twice, and right at the edges of a period."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.control.usage.core.gpus import Catalogue
from berthmaster.control.usage.core.jobs import EndedJob, MeasuredUse, Use, of_story, with_use
from berthmaster.control.usage.core.spans import DAY_MS, HOUR_MS
from berthmaster.control.usage.store import reading, writing
from berthmaster.control.usage.store.database import Database, StoreError
from berthmaster.control.usage.store.reading import JobQuery, Query
from berthmaster.control.usage.store.sqlite import Sqlite
from berthmaster.control.usage.store.tables import prepare
from berthmaster.control.usage.store.writing import Batch, Cursor, Writer
from berthmaster.lib.messages.workload import Committed, Divide, Divided, Part, PartPlace, Succeeded
from tests.support.builders import node
from tests.unit.control.usage.stories import Story

DAY_S = DAY_MS / 1000
HOUR_US = 3_600_000_000
EPOCH_S = 20_000 * DAY_S  # a midnight


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Sqlite(tmp_path)
    prepare(found)
    yield found
    found.close()


def catalogue() -> Catalogue:
    found = Catalogue()
    for cluster, model in (("c1", "H100"), ("c2", "A100")):
        found.take(node(cluster, "n1", model=model))
    return found


def job(story: Story) -> EndedJob:
    found = of_story(story.tenant, story.id, story.events, catalogue(), "owner")
    assert found is not None
    return found


def ran(workload_id: str, since_h: float, until_h: float, **more: object) -> EndedJob:
    cluster = str(more.pop("cluster", "c1"))
    story = Story(workload_id, **more)  # type: ignore[arg-type]
    return job(story.ran(EPOCH_S + since_h * 3600, EPOCH_S + until_h * 3600, cluster))


def query(since_h: float, until_h: float, *group: str, **filters: str) -> Query:
    base = EPOCH_S * 1000
    return Query(
        since_ms=round(base + since_h * HOUR_MS),
        until_ms=round(base + until_h * HOUR_MS),
        group=group,  # type: ignore[arg-type]
        filters=filters,
        limit=1000,
    )


def held_hours(database: Database, since_h: float, until_h: float, **filters: str) -> float:
    return reading.report(database, query(since_h, until_h, **filters)).total.held_gpu_us / HOUR_US


def divided() -> list[EndedJob]:
    """One job in two parts, that waited for half an hour and ran for one and a half."""
    whole = Story("train")
    whole.request = replace(whole.request, divide=Divide())
    whole.submitted(EPOCH_S)
    parts = (PartPlace(id="train--1-0", cluster="c1", pods=1),)
    fields = whole._head() | {"attempt": 1, "decision": 1}
    whole._store(Divided(**fields, parts=parts), EPOCH_S + 1800)
    fields = whole._head() | {"attempt": 1, "decision": 1}
    whole._store(Committed(**fields, cluster=""), EPOCH_S + 1860)
    told = {"attempt": 1, "cluster": "", "digest": "d", "submitted_at_s": EPOCH_S}
    whole._store(Succeeded(**whole._head(), **told), EPOCH_S + 7200)  # type: ignore[arg-type]
    found = [job(whole)]
    for number in range(2):
        story = Story(f"train--1-{number}", gpus=1)
        part = Part(job="train", attempt=1, number=number, clusters=("c1",) * 2, pods=(1, 1))
        story.request = replace(story.request, part=part)
        found.append(job(story.ran(EPOCH_S + 1800, EPOCH_S + 7200, "c1")))
    return found


def test_a_divided_job_is_one_and_what_its_parts_held_is_theirs(database: Database) -> None:
    whole, *parts = divided()
    begun = whole.placed_ms, whole.running_ms
    assert begun == tuple(round(1000 * (EPOCH_S + after_s)) for after_s in (1800, 1860))
    assert [each.is_part for each in (whole, *parts)] == [False, True, True]
    Writer(database).write(Batch(jobs=[whole, *parts]))
    for until_h in (3.0, 2.4):  # of whole hours, and with a piece of one
        total = reading.report(database, query(0, until_h)).total
        assert (total.jobs, total.succeeded) == (1, 1)
        assert total.held_gpu_us == sum(each.held_gpu_us for p in parts for each in p.holdings)


def test_what_is_told_again_changes_nothing_and_the_cursor_goes_with_it(database: Database) -> None:
    batch = Batch(jobs=[ran("a", 0, 1), ran("b", 0, 2)], cursors={"log": Cursor("made", 7)})
    assert Writer(database).write(batch) == 2
    before = database.fetch("SELECT * FROM cells ORDER BY 1, 2, 3, 4")

    # The same from another stream, of other sequences, together with one that is new.
    again = Batch(jobs=[*batch.jobs, batch.jobs[0]], cursors={"log": Cursor("remade", 3)})
    assert Writer(database).write(again) == 0
    assert database.fetch("SELECT * FROM cells ORDER BY 1, 2, 3, 4") == before
    assert writing.cursors(database)["log"] == Cursor("remade", 3)
    assert held_hours(database, 0, 24) == 2 * (1 + 2)

    # The id is used anew, long after: that is another job.
    assert Writer(database).write(Batch(jobs=[ran("a", 100, 101)])) == 1


def test_hours_are_split_at_the_edges_of_a_period_to_the_millisecond(database: Database) -> None:
    # From half past ten on one day to a quarter past two on the day after the next.
    Writer(database).write(Batch(jobs=[ran("long", 10.5, 50.25)]))
    assert held_hours(database, 0, 24) == 2 * 13.5
    assert held_hours(database, 24, 48) == 2 * 24
    assert held_hours(database, 48, 72) == 2 * 2.25
    assert held_hours(database, 30.1, 30.2) == pytest.approx(2 * 0.1)  # within one whole hour
    assert held_hours(database, 10.25, 10.75) == 2 * 0.25  # its beginning in the middle
    assert held_hours(database, 50, 50.2) == pytest.approx(2 * 0.2)
    assert held_hours(database, 50.25, 60) == 0
    assert held_hours(database, 0, 10.5) == 0
    # It counts as a job where it ended.
    assert reading.report(database, query(0, 48)).total.jobs == 0
    assert reading.report(database, query(48, 50.25)).total.jobs == 0
    assert reading.report(database, query(50.25, 51)).total.jobs == 1


def test_any_period_has_what_a_plain_sum_over_all_jobs_has(database: Database) -> None:
    """The sums by hour, day and month beside their slow twin, at edges drawn from a seed."""
    chance = random.Random(7)
    jobs = []
    for number in range(300):
        since_h = chance.uniform(0, 24 * 80)
        hours = chance.choice([0.01, 0.5, 3, 40, 900]) * chance.random()
        found = ran(
            f"j{number}",
            since_h,
            since_h + hours,
            tenant=chance.choice(["acme", "evil"]),
            queue=chance.choice(["q1", "q2"]),
            gpus=chance.randint(1, 8),
            cluster=chance.choice(["c1", "c2"]),
            labels={"owner": chance.choice(["ann", "bob"])},
        )
        use = Use(round(hours * HOUR_MS * chance.random()), round(hours * HOUR_US * 0.3))
        jobs.append(with_use(found, {1: use}))
    writer = Writer(database)
    for at in range(0, 300, 40):
        writer.write(Batch(jobs=jobs[at : at + 40]))

    for _ in range(60):
        since_h, until_h = sorted(chance.uniform(-5, 24 * 125) for _ in range(2))
        by_owner = chance.random() < 0.5
        filters = chance.choice([{}, {"tenant": "acme"}, {"model": "A100"}])
        if by_owner:
            filters = filters | {"owner": "ann"}
        asked = query(since_h, until_h, **filters)
        total = reading.report(database, asked).total
        expected = plain(jobs, asked)
        assert total.held_gpu_us == pytest.approx(expected["held"], abs=1000)
        assert total.used_gpu_us == pytest.approx(expected["used"], abs=1000)
        assert (total.jobs, sum(total.waits.values())) == (expected["jobs"], expected["jobs"])
        by_day = reading.report(
            database, msgspec.structs.replace(asked, group=("day", "queue"), limit=100_000)
        )
        assert sum(row.held_gpu_us for _, row in by_day.rows) == pytest.approx(
            expected["held"], abs=4000
        )


def plain(jobs: list[EndedJob], asked: Query) -> dict[str, float]:
    """One job after the other."""
    found = {"held": 0.0, "used": 0.0, "jobs": 0}
    for job_ in jobs:
        names = {"tenant": job_.tenant, "queue": job_.queue, "owner": job_.owner}
        names |= {"model": job_.model, "cluster": job_.cluster}
        if any(names[name] != value for name, value in asked.filters.items()):
            continue
        found["jobs"] += asked.since_ms <= job_.ended_ms < asked.until_ms
        for one in job_.holdings:
            overlap = min(one.to_ms, asked.until_ms) - max(one.from_ms, asked.since_ms)
            if overlap > 0:
                found["held"] += one.held_milli * overlap
                found["used"] += one.used_gpu_us * overlap / (one.to_ms - one.from_ms)
    return found


def test_single_jobs_come_last_ended_first_page_by_page(database: Database) -> None:
    jobs = [ran(f"j{number}", 0, 1 + number // 2, tenant="acme") for number in range(7)]
    Writer(database).write(Batch(jobs=jobs))
    page = JobQuery(since_ms=0, until_ms=2**62, filters={"tenant": "acme"}, limit=3)
    seen: list[str] = []
    while True:
        rows = reading.jobs(database, page)
        seen += [row.id for row in rows[:3]]
        if len(rows) <= 3:
            break
        last = rows[2]
        page = msgspec.structs.replace(page, after=(last.ended_ms, last.tenant, last.id))
    assert seen == ["j6", "j4", "j5", "j2", "j3", "j0", "j1"]
    of_model = msgspec.structs.replace(page, after=None, filters={"model": "A100"})
    assert reading.jobs(database, of_model) == []


def test_old_months_go_with_all_their_sums_and_do_not_come_back(database: Database) -> None:
    jobs = [ran("old", 0, 30), ran("new", 24 * 60, 24 * 60 + 1)]
    Writer(database).write(Batch(jobs=jobs, uses=[MeasuredUse("t", "gone", 1, Use(5, 5), 10)]))
    kept_ms = round((EPOCH_S + 40 * DAY_S) * 1000)
    assert writing.forget(database, kept_ms, {}, 11) == 1
    assert held_hours(database, 0, 24 * 365) == 2
    assert reading.kept_since_ms(database) == jobs[1].ended_ms
    assert writing.uses(database) == []
    assert Writer(database).write(Batch(jobs=jobs, kept_since_ms=kept_ms)) == 0
    assert held_hours(database, 0, 24 * 365) == 2


@pytest.mark.parametrize(
    ("version", "advice"), [(99, "run the newer program"), (1, "move it away")]
)
def test_a_store_of_another_program_is_left_alone(
    database: Database, version: int, advice: str
) -> None:
    database.change("UPDATE cursors SET sequence = ? WHERE name = 'version'", (version,))
    with pytest.raises(StoreError, match=advice):
        prepare(database)
    database.rollback()


def test_outcomes_are_of_jobs_with_the_same_labels_or_else_of_the_same_shape(
    database: Database,
) -> None:
    def labelled(workload_id: str, gpus: int, **labels: str) -> EndedJob:
        story = Story(workload_id, gpus=gpus)
        story.request = replace(story.request, labels=labels)
        return job(story.ran(EPOCH_S, EPOCH_S + 3600, "c1"))

    bert = [labelled(f"bert-{number}", 2, model="bert") for number in range(3)]
    others = [labelled(f"other-{number}", 2, model=str(number)) for number in range(4)]
    wide = labelled("wide", 8)
    writer = Writer(database)
    writer.write(Batch(jobs=[*bert, *others, wide]))
    like = reading.likeness(database, bert[0].tenant, "bert-1")
    assert like == bert[0].likeness
    by, found = reading.outcomes(database, query(0, 24), (bert[0].tenant, bert[0].likeness))
    assert (by, len(found)) == ("labels", 3)
    by, found = reading.outcomes(database, query(0, 24), (bert[0].tenant, others[0].likeness))
    assert (by, len(found)) == ("shape", 7)
    assert {each.ended_ms - (each.running_ms or 0) for each in found} <= {3_600_000, 3_599_000}
    assert len(reading.outcomes(database, query(0, 24))[1]) == 8
    assert reading.outcomes(database, query(0, 24), ("others", bert[0].likeness)) == ("shape", [])
    assert reading.likeness(database, bert[0].tenant, "unheard") is None
    hours = reading.arrivals(database, query(0, 24))
    assert sum(row.jobs for row in hours) == 8
    assert sum(row.asked_milli for row in hours) == 1000 * (7 * 2 + 8)
    writing.forget(database, round(1000 * (EPOCH_S + 2 * DAY_S)), {}, 0)
    assert reading.likeness(database, bert[0].tenant, "bert-1") is None
