"""Write jobs, sums, measured use, trends and stream positions to the store, in one transaction.

A job already stored changes nothing, so any part of a stream may be read again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from berthmaster.control.usage.core import waits
from berthmaster.control.usage.core.jobs import EndedJob, Holding, MeasuredUse, Use
from berthmaster.control.usage.core.profiles import ProfileRecord
from berthmaster.control.usage.core.spans import NUMBER_OF_SIZE, Size, begin_of, end_of
from berthmaster.control.usage.core.trends import KEPT_STEPS, Sample
from berthmaster.control.usage.store.database import Database, Row
from berthmaster.control.usage.store.tables import OF_A_PART, SUMS

LOG: Final = "log"
SEEN: Final = "log seen"  # newest event ever handled
ARCHIVE: Final = "archive"
MANY: Final = 200  # rows of one INSERT: 19 values each, below the 32,766 that both databases allow
FORGET_AT_ONCE: Final = 2_000
SIZES: Final[dict[int, tuple[Size, ...]]] = {0: ("hour", "day", "month"), 1: ("day", "month")}
_JOB: Final = (
    "tenant, id, submitted_ms, ended_ms, placed_ms, running_ms, state, queue, owner, cluster, hub, "
    "asked_milli, attempts, evictions, reason, wait_bucket, start_bucket, group_id, owner_group_id"
)
_HOLDING: Final = (
    "tenant, id, submitted_ms, attempt, model, cluster, asked_milli, held_milli, placed_ms, "
    "running_ms, from_ms, to_ms, how, reason, used_gpu_us, measured_gpu_us, group_id, "
    "owner_group_id"
)
GroupKey = tuple[int, str, str, str, str, str]  # by_owner, tenant, queue, model, cluster, owner
CellKey = tuple[int, int, int, int]  # by_owner, size, start, group


class Cursor(msgspec.Struct, frozen=True):
    """Position in a stream: its incarnation, and the last sequence that need not be read again."""

    created: str = ""
    sequence: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    jobs: Sequence[EndedJob] = ()
    uses: Sequence[MeasuredUse] = ()
    samples: Sequence[Sample] = ()
    profiles: Sequence[tuple[object, ...]] = ()  # rows of ``profile_row``
    cursors: dict[str, Cursor] = {}
    kept_since_ms: int = 0  # jobs that ended before are not kept


class _Cell:
    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.waits: waits.Buckets = {}
        self.starts: waits.Buckets = {}


class Writer:
    """Writer of one store. It caches group numbers, so an error needs a new writer."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._groups: dict[GroupKey, int] = {}

    def write(self, batch: Batch) -> int:
        """Write a batch, and return the number of jobs not stored before. Raises StoreError:
        nothing was written, or the outcome is unknown. The same batch may then be written again.
        """
        db = self._db
        db.begin()
        new = self._jobs([job for job in batch.jobs if job.ended_ms >= batch.kept_since_ms])
        self._holdings(new)
        self._likes(new)
        self._cells(new, batch.kept_since_ms)
        self._uses(batch.uses, batch.jobs)
        self._samples(batch.samples)
        db.change_each(
            "INSERT INTO profiles (tenant, id, attempt, submitted_ms, at_ms, ended, labels, shape, "
            "body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id, attempt) "
            "DO UPDATE SET submitted_ms = excluded.submitted_ms, at_ms = excluded.at_ms, "
            "ended = excluded.ended, labels = excluded.labels, shape = excluded.shape, "
            "body = excluded.body",
            batch.profiles,
        )
        db.change_each(
            "INSERT INTO cursors (name, created, sequence) VALUES (?, ?, ?) ON CONFLICT (name) "
            "DO UPDATE SET created = excluded.created, sequence = excluded.sequence",
            [(name, one.created, one.sequence) for name, one in batch.cursors.items()],
        )
        db.commit()
        return len(new)

    # Jobs

    def _jobs(self, jobs: Sequence[EndedJob]) -> list[EndedJob]:
        """Insert jobs, and return those not stored before."""
        by_key = {(job.tenant, job.id, job.submitted_ms): job for job in reversed(jobs)}
        new: list[EndedJob] = []
        found = list(by_key.values())
        for at in range(0, len(found), MANY):
            rows = [self._job_row(job) for job in found[at : at + MANY]]
            marks = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
            stored = self._db.fetch(
                f"INSERT INTO jobs ({_JOB}) VALUES {marks} ON CONFLICT DO NOTHING "
                "RETURNING tenant, id, submitted_ms",
                [value for row in rows for value in row],
            )
            new += [by_key[str(key[0]), str(key[1]), int(key[2])] for key in stored]
        return new

    def _job_row(self, job: EndedJob) -> Row:
        group = self._group(job.tenant, job.queue, job.model, job.cluster)
        owned = self._group(job.tenant, job.queue, job.model, job.cluster, job.owner)
        wait, start = (
            _wait(job.submitted_ms, job.placed_ms),
            _wait(job.submitted_ms, job.running_ms),
        )
        return (
            job.tenant,
            job.id,
            job.submitted_ms,
            job.ended_ms,
            job.placed_ms,
            job.running_ms,
            job.state,
            job.queue,
            _text(job.owner),
            job.cluster,
            job.hub,
            job.asked_milli,
            job.attempts,
            job.evictions,
            _text(job.reason),
            OF_A_PART if job.is_part else wait,
            start,
            group,
            owned,
        )

    def _holdings(self, jobs: Iterable[EndedJob]) -> None:
        rows = [
            (
                job.tenant,
                job.id,
                job.submitted_ms,
                one.attempt,
                one.model,
                one.cluster,
                one.asked_milli,
                one.held_milli,
                one.placed_ms,
                one.running_ms,
                one.from_ms,
                one.to_ms,
                one.end,
                _text(one.reason),
                one.used_gpu_us,
                one.measured_gpu_us,
                self._group(job.tenant, job.queue, one.model, one.cluster),
                self._group(job.tenant, job.queue, one.model, one.cluster, job.owner),
            )
            for job in jobs
            for one in job.holdings
        ]
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._db.change_each(
                f"INSERT INTO holdings ({_HOLDING}) VALUES ({marks}) ON CONFLICT DO NOTHING", rows
            )

    def _likes(self, jobs: Iterable[EndedJob]) -> None:
        self._db.change_each(
            "INSERT INTO likes (tenant, id, submitted_ms, labels, program, shape) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(job.tenant, job.id, job.submitted_ms, *job.likeness) for job in jobs],
        )
        self._db.change_each(
            "INSERT INTO forms (tenant, id, submitted_ms, tags, layout) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(job.tenant, job.id, job.submitted_ms, *job.form) for job in jobs],
        )

    def _group(
        self, tenant: str, queue: str, model: str, cluster: str, owner: str | None = None
    ) -> int:
        key: GroupKey = (
            int(owner is not None),
            tenant,
            queue,
            model,
            cluster,
            _text(owner or ""),
        )
        known = self._groups.get(key)
        if known is not None:
            return known
        where = "by_owner = ? AND tenant = ? AND queue = ? AND model = ? AND cluster = ?"
        look = f"SELECT id FROM groups WHERE {where} AND owner = ?"
        found = self._db.fetch(look, key)
        if not found:
            found = self._db.fetch(
                "INSERT INTO groups (by_owner, tenant, queue, model, cluster, owner) "
                "VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
                key,
            )
        number = self._groups[key] = int(found[0][0])
        return number

    # Sums

    def _cells(self, jobs: Iterable[EndedJob], kept_since_ms: int) -> None:
        cells: dict[CellKey, _Cell] = defaultdict(_Cell)
        for job in jobs:
            for by_owner in (0, 1):
                owner = job.owner if by_owner else None
                self._count(cells, job, by_owner, owner)
                for one in job.holdings:
                    group = self._group(job.tenant, job.queue, one.model, one.cluster, owner)
                    _hours(cells, one, by_owner, group, kept_since_ms)
        self._merge_waits(cells)
        names = ", ".join(SUMS)
        added = ", ".join(f"{name} = cells.{name} + excluded.{name}" for name in SUMS)
        marks = ", ".join("?" * (4 + len(SUMS) + 2))
        self._db.change_each(
            f"INSERT INTO cells (by_owner, size, start_ms, group_id, {names}, waits, starts) "
            f"VALUES ({marks}) ON CONFLICT (by_owner, size, start_ms, group_id) DO UPDATE SET "
            f"{added}, waits = COALESCE(excluded.waits, cells.waits), "
            "starts = COALESCE(excluded.starts, cells.starts)",
            [
                (
                    *key,
                    *cell.sums.values(),
                    waits.packed(cell.waits) if cell.waits else None,
                    waits.packed(cell.starts) if cell.starts else None,
                )
                for key, cell in cells.items()
            ],
        )

    def _count(
        self, cells: dict[CellKey, _Cell], job: EndedJob, by_owner: int, owner: str | None
    ) -> None:
        if job.is_part:
            return
        group = self._group(job.tenant, job.queue, job.model, job.cluster, owner)
        wait, start = (
            _wait(job.submitted_ms, job.placed_ms),
            _wait(job.submitted_ms, job.running_ms),
        )
        for size in SIZES[by_owner]:
            cell = cells[by_owner, NUMBER_OF_SIZE[size], begin_of(size, job.ended_ms), group]
            cell.sums["jobs"] += 1
            cell.sums[job.state] += 1
            cell.sums["evictions"] += job.evictions
            if wait is not None:
                waits.add(cell.waits, {wait: 1})
            if start is not None:
                waits.add(cell.starts, {start: 1})

    def _merge_waits(self, cells: dict[CellKey, _Cell]) -> None:
        """Add the stored buckets to cells with new waits, because buckets are written as a
        whole.
        """
        by_start: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for (by_owner, size, start_ms, group), cell in cells.items():
            if cell.waits or cell.starts:
                by_start[by_owner, size, start_ms].append(group)
        for place, groups in by_start.items():
            for at in range(0, len(groups), MANY):
                some = groups[at : at + MANY]
                there = self._db.fetch(
                    "SELECT group_id, waits, starts FROM cells WHERE by_owner = ? AND size = ? "
                    f"AND start_ms = ? AND group_id IN ({', '.join('?' * len(some))})",
                    (*place, *some),
                )
                for group, waited, started in there:
                    cell = cells[(*place, int(group))]
                    waits.add(cell.waits, waits.unpacked(waited))
                    waits.add(cell.starts, waits.unpacked(started))

    # Measured use and trends

    def _uses(self, uses: Iterable[MeasuredUse], ended: Iterable[EndedJob]) -> None:
        self._db.change_each(
            "INSERT INTO uses (tenant, id, attempt, measured_ms, used_gpu_us, at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id, attempt) DO UPDATE SET "
            "measured_ms = excluded.measured_ms, used_gpu_us = excluded.used_gpu_us, "
            "at_ms = excluded.at_ms",
            [(one.tenant, one.id, one.attempt, *one.use, one.at_ms) for one in uses],
        )
        self._db.change_each(
            "DELETE FROM uses WHERE tenant = ? AND id = ?", [(job.tenant, job.id) for job in ended]
        )

    def _samples(self, samples: Iterable[Sample]) -> None:
        self._db.change_each(
            "INSERT INTO trends (step_s, tenant, at_s, name, cell, n, total, low, high) "
            "VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?) "
            "ON CONFLICT (step_s, tenant, at_s, name, cell) DO UPDATE SET n = trends.n + 1, "
            "total = trends.total + excluded.total, "
            "low = CASE WHEN excluded.low < trends.low THEN excluded.low ELSE trends.low END, "
            "high = CASE WHEN excluded.high > trends.high THEN excluded.high ELSE trends.high END",
            [
                (
                    *(step_s, one.tenant, one.at_s - one.at_s % step_s, one.name, one.cell),
                    *(one.total, one.low, one.high),
                )
                for one in samples
                for step_s in KEPT_STEPS
            ],
        )


def _hours(
    cells: dict[CellKey, _Cell], one: Holding, by_owner: int, group: int, kept_since_ms: int
) -> None:
    if not one.asked_milli and not one.held_milli:
        return  # a job without GPUs
    smallest = SIZES[by_owner][0]
    for size in SIZES[by_owner]:
        for begin_ms, since_ms, until_ms, end_ms in _pieces(one.from_ms, one.to_ms, size):
            if end_ms <= kept_since_ms:
                continue
            cell = cells[by_owner, NUMBER_OF_SIZE[size], begin_ms, group]
            amounts = part_of(one, since_ms, until_ms)
            is_through = size == smallest and (since_ms, until_ms) == (begin_ms, end_ms)
            for name, amount in amounts.items():
                cell.sums[name] += amount
                if is_through:
                    cell.sums[f"through_{name}"] += amount


def part_of(one: Holding, since_ms: int, until_ms: int) -> dict[str, int]:
    """Return the amounts between two times within the holding. Measured use is spread evenly, with
    rounding that lets parts add up to the whole.
    """
    length_ms = one.to_ms - one.from_ms
    begin, end = since_ms - one.from_ms, until_ms - one.from_ms
    used, measured = one.used_gpu_us, one.measured_gpu_us
    return {
        "asked_gpu_us": one.asked_milli * (end - begin),
        "held_gpu_us": one.held_milli * (end - begin),
        "used_gpu_us": used * end // length_ms - used * begin // length_ms,
        "measured_gpu_us": measured * end // length_ms - measured * begin // length_ms,
    }


def _pieces(since_ms: int, until_ms: int, size: Size) -> Iterator[tuple[int, int, int, int]]:
    """Yield (begin of cell, since, until, end of cell) for each cell that a period touches."""
    while since_ms < until_ms:
        begin_ms, end_ms = begin_of(size, since_ms), end_of(size, since_ms)
        yield begin_ms, since_ms, min(until_ms, end_ms), end_ms
        since_ms = end_ms


def _wait(submitted_ms: int, until_ms: int | None) -> int | None:
    return None if until_ms is None else waits.bucket_of(until_ms - submitted_ms)


def _text(text: str) -> str:
    """Return a text without zero characters, which neither database stores."""
    return text.replace("\0", "")


# Reads at the start, and cleanup


def cursors(database: Database) -> dict[str, Cursor]:
    """Return the stored positions of the streams."""
    rows = database.fetch("SELECT name, created, sequence FROM cursors")
    return {str(name): Cursor(str(created), int(sequence)) for name, created, sequence in rows}


def uses(database: Database) -> list[MeasuredUse]:
    """Return the measured use of attempts that had not ended."""
    rows = database.fetch("SELECT tenant, id, attempt, measured_ms, used_gpu_us, at_ms FROM uses")
    return [
        MeasuredUse(str(row[0]), str(row[1]), int(row[2]), Use(int(row[3]), int(row[4])), row[5])
        for row in rows
    ]


_PROFILES: Final = msgspec.msgpack.Decoder(ProfileRecord)


def profile_row(record: ProfileRecord) -> tuple[object, ...]:
    """Return a profile as a row of the table, independent of later changes."""
    return (
        record.tenant,
        record.id,
        record.attempt,
        record.submitted_ms,
        round(max(record.until_s, record.ended_at_s) * 1000),
        int(bool(record.end)),
        record.likeness.labels,
        record.likeness.shape,
        msgspec.msgpack.encode(record),
    )


def profile_of(body: bytes | memoryview) -> ProfileRecord:
    return _PROFILES.decode(body)


def open_profiles(database: Database, most: int) -> list[ProfileRecord]:
    """Return the profiles of attempts that had not ended, newest first."""
    rows = database.fetch(
        "SELECT body FROM profiles WHERE ended = 0 ORDER BY at_ms DESC LIMIT ?", (most,)
    )
    return [profile_of(row[0]) for row in rows]


def forget(database: Database, before_ms: int, steps: dict[int, int], uses_before_ms: int) -> int:
    """Drop old rows in parts, and return the number of dropped jobs. Less than FORGET_AT_ONCE means
    that no old job is left. ``steps``: for each step of the trends, the start of retention in
    seconds.
    """
    database.begin()
    found = database.fetch(
        "SELECT tenant, id, submitted_ms FROM jobs WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?",
        (before_ms, FORGET_AT_ONCE),
    )
    for table in ("holdings", "likes", "forms", "jobs"):
        database.change_each(
            f"DELETE FROM {table} WHERE tenant = ? AND id = ? AND submitted_ms = ?", found
        )
    for by_owner, sizes in SIZES.items():
        for size in sizes:
            database.change(
                "DELETE FROM cells WHERE by_owner = ? AND size = ? AND start_ms < ?",
                (by_owner, NUMBER_OF_SIZE[size], before_ms),
            )
    for step_s, since_s in steps.items():
        database.change("DELETE FROM trends WHERE step_s = ? AND at_s < ?", (step_s, since_s))
    database.change("DELETE FROM uses WHERE at_ms < ?", (uses_before_ms,))
    database.change("DELETE FROM profiles WHERE ended IN (0, 1) AND at_ms < ?", (before_ms,))
    database.commit()
    return len(found)
