"""Queries of reports: sums of groups, single jobs, trends.

Amounts are whole numbers in the store's own units. Their meaning for users belongs elsewhere.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.control.usage.core import waits
from berthmaster.control.usage.core.load import HOUR_S, HourRow
from berthmaster.control.usage.core.profiles import ProfileRecord
from berthmaster.control.usage.core.similar import ENOUGH, Likeness, Outcome
from berthmaster.control.usage.core.spans import (
    DAY_MS,
    NUMBER_OF_SIZE,
    Cells,
    Edge,
    Size,
    begin_of,
    cut,
)
from berthmaster.control.usage.core.suggest import Form, Own, Ran
from berthmaster.control.usage.core.waits import Buckets
from berthmaster.control.usage.store.database import Database, Row
from berthmaster.control.usage.store.tables import COUNTS, HOURS, OF_A_PART, THROUGH
from berthmaster.control.usage.store.writing import profile_of
from berthmaster.lib.messages.usage import ReportGroup, SimilarBy

COLUMNS: Final[Mapping[str, str]] = {
    "tenant": "g.tenant",
    "queue": "g.queue",
    "owner": "g.owner",
    "model": "g.model",
    "cluster": "g.cluster",
}
PERIODS: Final[tuple[ReportGroup, ...]] = ("day", "month")
MOST_OUTCOMES: Final = 20_000  # jobs in one report
Key = tuple[str, ...]
_Packed = defaultdict[Key | None, list[bytes]]  # None: all groups that are not shown


class Query(msgspec.Struct, frozen=True, kw_only=True):
    since_ms: int
    until_ms: int
    group: tuple[ReportGroup, ...] = ()
    filters: Mapping[str, str] = {}  # column -> value
    limit: int = 100

    @property
    def by_owner(self) -> int:
        """Return whether sums by owner are needed, which are more rows."""
        return int("owner" in self.group or "owner" in self.filters)

    @property
    def period(self) -> ReportGroup | None:
        """Return the period of the grouping, or None."""
        return next((name for name in self.group if name in PERIODS), None)


class Sums(msgspec.Struct):
    """Sums of one group, or of one model in a group."""

    asked_gpu_us: int = 0
    held_gpu_us: int = 0
    used_gpu_us: int = 0
    measured_gpu_us: int = 0
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    evictions: int = 0
    held_by_model: dict[str, int] = msgspec.field(default_factory=dict)
    waits: Buckets = msgspec.field(default_factory=dict)
    starts: Buckets = msgspec.field(default_factory=dict)

    def add_hours(self, model: str, amounts: Sequence[int]) -> None:
        """Add amounts in the order of HOURS."""
        asked, held, used, measured = amounts
        self.asked_gpu_us += asked
        self.held_gpu_us += held
        self.used_gpu_us += used
        self.measured_gpu_us += measured
        if held:
            self.held_by_model[model] = self.held_by_model.get(model, 0) + held

    def add_counts(self, amounts: Sequence[int]) -> None:
        """Add amounts in the order of COUNTS."""
        jobs, succeeded, failed, cancelled, evictions = amounts
        self.jobs += jobs
        self.succeeded += succeeded
        self.failed += failed
        self.cancelled += cancelled
        self.evictions += evictions


class Found(NamedTuple):
    rows: list[tuple[Key, Sums]]  # shown rows, in order
    total: Sums
    groups: int


def report(database: Database, query: Query) -> Found:
    """Return sums by group. Raises StoreError."""
    return _Reading(database, query).report()


class _Reading:
    def __init__(self, database: Database, query: Query) -> None:
        self._db = database
        self._query = query
        self._by_owner = query.by_owner
        smallest: Size = "day" if self._by_owner else "hour"
        largest: Size = "day" if query.period == "day" else "month"
        self._smallest = smallest
        self._cut = cut(query.since_ms, query.until_ms, smallest=smallest, largest=largest)
        self._names = [COLUMNS[name] for name in query.group if name not in PERIODS]
        self._rows: dict[Key, Sums] = {}
        self._where = "".join(f" AND {COLUMNS[name]} = ?" for name in query.filters)
        self._values = tuple(query.filters.values())

    def report(self) -> Found:
        for cells in self._cut.cells:
            self._take_cells(cells)
        for edge in self._cut.edges:
            self._take_edge(edge)
        query, rows = self._query, self._rows
        order = sorted(rows, key=lambda key: (-rows[key].held_gpu_us, -rows[key].jobs, key))
        if query.period is not None:
            at = query.group.index(query.period)
            order.sort(key=lambda key: key[at])
        shown = order[: query.limit]
        total = Sums()
        for sums in rows.values():
            total.add_hours("", (0, 0, sums.used_gpu_us, sums.measured_gpu_us))
            total.asked_gpu_us += sums.asked_gpu_us
            total.held_gpu_us += sums.held_gpu_us
            total.add_counts([getattr(sums, name) for name in COUNTS])
            waits.add(total.held_by_model, sums.held_by_model)  # type: ignore[arg-type]
        self._take_waits(set(shown), total)
        return Found([(key, rows[key]) for key in shown], total, len(rows))

    # Keys

    def _select(self, period: str) -> str:
        """Return the columns that distinguish groups."""
        return ", ".join([period if self._query.period else "0", *self._names])

    def _key(self, row: Row) -> Key:
        """Return the key of a row that begins with the columns of ``_select``."""
        names = iter(row[1 : 1 + len(self._names)])
        query = self._query
        return tuple(
            _period(name, int(row[0])) if name in PERIODS else str(next(names))
            for name in query.group
        )

    def _sums(self, row: Row) -> Sums:
        return self._rows.setdefault(self._key(row), Sums())

    # Cells

    def _take_cells(self, cells: Cells) -> None:
        day = f"c.start_ms - c.start_ms % {DAY_MS}"
        keys = self._select(day)
        sums = ", ".join(f"CAST(SUM(c.{name}) AS BIGINT)" for name in (*HOURS, *COUNTS))
        rows = self._db.fetch(
            f"SELECT {keys}, g.model, {sums} FROM cells c JOIN groups g ON g.id = c.group_id "
            f"WHERE c.by_owner = ? AND c.size = ? AND c.start_ms >= ? AND c.start_ms < ?"
            f"{self._where} GROUP BY {_positions(1 + len(self._names) + 1)}",
            (*self._place(cells), *self._values),
        )
        at = 1 + len(self._names)
        for row in rows:
            sums_ = self._sums(row)
            sums_.add_hours(str(row[at]), row[at + 1 : at + 5])
            sums_.add_counts(row[at + 5 :])

    def _place(self, cells: Cells) -> tuple[int, int, int, int]:
        return self._by_owner, NUMBER_OF_SIZE[cells.size], cells.first_ms, cells.end_ms

    # Edges

    def _take_edge(self, edge: Edge) -> None:
        self._through(edge)
        self._begun_or_ended(edge)
        self._counts(edge)

    def _through(self, edge: Edge) -> None:
        """Add the edge's share of attempts that held their GPUs for the whole cell."""
        day = str(edge.cell_ms - edge.cell_ms % DAY_MS)
        sums = ", ".join(f"CAST(SUM(c.{name}) AS BIGINT)" for name in THROUGH)
        at = 1 + len(self._names)
        rows = self._db.fetch(
            f"SELECT {self._select(day)}, g.model, {sums} FROM cells c JOIN groups g "
            "ON g.id = c.group_id WHERE c.by_owner = ? AND c.size = ? AND c.start_ms = ?"
            f"{self._where} GROUP BY {_positions(at + 1)} HAVING SUM(c.through_held_gpu_us) > 0 "
            "OR SUM(c.through_asked_gpu_us) > 0",
            (self._by_owner, NUMBER_OF_SIZE[self._smallest], edge.cell_ms, *self._values),
        )
        length, part = edge.cell_end_ms - edge.cell_ms, edge.until_ms - edge.since_ms
        for row in rows:
            amounts = [int(value) * part // length for value in row[at + 1 :]]
            self._sums(row).add_hours(str(row[at]), amounts)

    def _begun_or_ended(self, edge: Edge) -> None:
        """Add attempts that ended in the edge's cell, or began in the cell and continued."""
        day = str(edge.cell_ms - edge.cell_ms % DAY_MS)
        group = "h.owner_group_id" if self._by_owner else "h.group_id"
        at = 1 + len(self._names)
        select = (
            f"SELECT {self._select(day)}, g.model, h.asked_milli, h.held_milli, h.from_ms, "
            f"h.to_ms, h.used_gpu_us, h.measured_gpu_us FROM holdings h JOIN groups g ON "
            f"g.id = {group} WHERE "
        )
        ended = "h.to_ms > ? AND h.to_ms < ?"
        begun = "h.from_ms > ? AND h.from_ms < ? AND h.to_ms >= ?"
        cell = (edge.cell_ms, edge.cell_end_ms)
        rows = self._db.fetch(f"{select}{ended}{self._where}", (*cell, *self._values))
        rows += self._db.fetch(
            f"{select}{begun}{self._where}", (*cell, edge.cell_end_ms, *self._values)
        )
        for row in rows:
            asked, held, from_ms, to_ms, used, measured = row[at + 1 :]
            since, until = max(from_ms, edge.since_ms), min(to_ms, edge.until_ms)
            if since >= until:
                continue
            length, first, last = to_ms - from_ms, since - from_ms, until - from_ms
            amounts = (
                asked * (until - since),
                held * (until - since),
                used * last // length - used * first // length,
                measured * last // length - measured * first // length,
            )
            self._sums(row).add_hours(str(row[at]), amounts)

    def _counts(self, edge: Edge) -> None:
        day = str(edge.cell_ms - edge.cell_ms % DAY_MS)
        states = ", ".join(
            f"CAST(SUM(CASE WHEN j.state = '{state}' THEN 1 ELSE 0 END) AS BIGINT)"
            for state in COUNTS[1:4]
        )
        at = 1 + len(self._names)
        rows = self._db.fetch(
            f"SELECT {self._select(day)}, j.wait_bucket, j.start_bucket, COUNT(*), {states}, "
            f"CAST(SUM(j.evictions) AS BIGINT) {self._from_jobs} "
            f"GROUP BY {_positions(at + 2)}",
            (edge.since_ms, edge.until_ms, *self._values),
        )
        for row in rows:
            if row[at] == OF_A_PART:
                continue
            sums = self._sums(row)
            sums.add_counts(row[at + 2 :])
            for buckets, bucket in ((sums.waits, row[at]), (sums.starts, row[at + 1])):
                if bucket is not None:
                    waits.add(buckets, {int(bucket): int(row[at + 2])})

    @property
    def _from_jobs(self) -> str:
        group = "j.owner_group_id" if self._by_owner else "j.group_id"
        return (
            f"FROM jobs j JOIN groups g ON g.id = {group} "
            f"WHERE j.ended_ms >= ? AND j.ended_ms < ?{self._where}"
        )

    # Waits

    def _take_waits(self, shown: set[Key], total: Sums) -> None:
        """Add the waits of shown groups and of the total. The waits of the edges are already
        there.
        """
        for sums in self._rows.values():
            waits.add(total.waits, sums.waits)
            waits.add(total.starts, sums.starts)
        day = f"c.start_ms - c.start_ms % {DAY_MS}"
        waited: _Packed = defaultdict(list)
        started: _Packed = defaultdict(list)
        for cells in self._cut.cells:
            rows = self._db.fetch(
                f"SELECT {self._select(day)}, c.waits, c.starts FROM cells c "
                "JOIN groups g ON g.id = c.group_id WHERE c.by_owner = ? AND c.size = ? "
                f"AND c.start_ms >= ? AND c.start_ms < ? AND c.jobs > 0{self._where}",
                (*self._place(cells), *self._values),
            )
            for row in rows:
                found = self._key(row)
                key = found if found in shown else None
                waited[key].append(row[-2] or b"")
                started[key].append(row[-1] or b"")
        for packed, name in ((waited, "waits"), (started, "starts")):
            waits.add(getattr(total, name), waits.sum_of(chain.from_iterable(packed.values())))
            for key, blobs in packed.items():
                if key is not None:
                    waits.add(getattr(self._rows[key], name), waits.sum_of(blobs))


def _positions(count: int) -> str:
    """Return the first ``count`` column numbers for GROUP BY."""
    return ", ".join(str(number) for number in range(1, count + 1))


@lru_cache(maxsize=4096)
def _period(name: str, at_ms: int) -> str:
    size: Size = "month" if name == "month" else "day"
    at = datetime.fromtimestamp(begin_of(size, at_ms) // 1000, UTC)
    return at.strftime("%Y-%m" if name == "month" else "%Y-%m-%d")


# Jobs


class JobQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of jobs, last ended first."""

    since_ms: int
    until_ms: int
    filters: Mapping[str, str] = {}  # tenant, queue, owner, model, cluster, id
    limit: int = 100
    after: tuple[int, str, str] | None = None  # ended_ms, tenant, id of the last job seen


class JobRow(NamedTuple):
    tenant: str
    id: str
    submitted_ms: int
    ended_ms: int
    placed_ms: int | None
    running_ms: int | None
    state: str
    queue: str
    owner: str
    cluster: str
    hub: str
    asked_milli: int
    attempts: int
    evictions: int
    reason: str
    holdings: tuple["HoldingRow", ...]


class HoldingRow(NamedTuple):
    """GPUs of one model in one attempt."""

    attempt: int
    model: str
    cluster: str
    asked_milli: int
    held_milli: int
    placed_ms: int
    running_ms: int | None
    from_ms: int
    to_ms: int
    how: str
    reason: str
    used_gpu_us: int
    measured_gpu_us: int


def _where(filters: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return the conditions on jobs ``j``, each behind an AND, and their values."""
    where, values = "", []
    for name, value in filters.items():
        if name == "model":
            where += (
                " AND EXISTS (SELECT 1 FROM holdings h WHERE h.tenant = j.tenant AND h.id = j.id "
                "AND h.submitted_ms = j.submitted_ms AND h.model = ?)"
            )
        else:
            where += f" AND j.{name} = ?"
        values.append(value)
    return where, values


def jobs(database: Database, query: JobQuery) -> list[JobRow]:
    """Return jobs, up to one more than the limit. Raises StoreError."""
    where, values = _where(query.filters)
    until_ms = query.until_ms
    if query.after is not None:
        ended, tenant, workload_id = query.after
        where += " AND (j.ended_ms < ? OR (j.tenant, j.id) > (?, ?))"
        values += [ended, tenant, workload_id]
        until_ms = min(until_ms, ended + 1)
    found = database.fetch(
        "SELECT j.tenant, j.id, j.submitted_ms, j.ended_ms, j.placed_ms, j.running_ms, j.state, "
        "j.queue, j.owner, j.cluster, j.hub, j.asked_milli, j.attempts, j.evictions, j.reason "
        f"FROM jobs j WHERE j.ended_ms >= ? AND j.ended_ms < ?{where} "
        "ORDER BY j.ended_ms DESC, j.tenant, j.id LIMIT ?",
        (query.since_ms, until_ms, *values, query.limit + 1),
    )
    return [JobRow._make((*row, _holdings(database, row))) for row in found]


def _holdings(database: Database, job: Row) -> tuple[HoldingRow, ...]:
    rows = database.fetch(
        "SELECT attempt, model, cluster, asked_milli, held_milli, placed_ms, running_ms, from_ms, "
        "to_ms, how, reason, used_gpu_us, measured_gpu_us FROM holdings WHERE tenant = ? "
        "AND id = ? AND submitted_ms = ? ORDER BY attempt, model",
        job[:3],
    )
    return tuple(HoldingRow._make(row) for row in rows)


def likeness(database: Database, tenant: str, workload_id: str) -> Likeness | None:
    """Return the features of the newest ended job with this id. Raises StoreError."""
    found = database.fetch(
        "SELECT labels, program, shape FROM likes WHERE tenant = ? AND id = ? "
        "ORDER BY submitted_ms DESC LIMIT 1",
        (tenant, workload_id),
    )
    return Likeness(*found[0]) if found else None


def outcomes(
    database: Database, query: Query, like: tuple[str, Likeness] | None = None
) -> tuple[SimilarBy, list[Outcome]]:
    """Return the newest jobs that ended in the period, at most one more than MOST_OUTCOMES.
    ``like`` selects this tenant's jobs with these features. Raises StoreError.
    """
    if like is None:
        return "all", _outcomes(database, query, "", ())
    tenant, alike = like
    found: list[Outcome] = []
    degrees: tuple[SimilarBy, ...] = ("labels", "program", "shape")
    for by in degrees:
        value = getattr(alike, by)
        if value:
            joined = (
                " JOIN likes l ON l.tenant = j.tenant AND l.id = j.id "
                f"AND l.submitted_ms = j.submitted_ms AND l.tenant = ? AND l.{by} = ?"
            )
            found = _outcomes(database, query, joined, (tenant, value))
        if len(found) >= ENOUGH or by == degrees[-1]:
            return by, found
    raise AssertionError("the last degree returns")


def _outcomes(
    database: Database, query: Query, joined: str, first: tuple[str, ...]
) -> list[Outcome]:
    where, values = _where(query.filters)
    rows = database.fetch(
        "SELECT j.state, j.reason, j.submitted_ms, j.placed_ms, j.running_ms, j.ended_ms "
        f"FROM jobs j{joined} WHERE j.ended_ms >= ? AND j.ended_ms < ? "
        f"AND (j.wait_bucket IS NULL OR j.wait_bucket <> {OF_A_PART}){where} "
        "ORDER BY j.ended_ms DESC LIMIT ?",
        (*first, query.since_ms, query.until_ms, *values, MOST_OUTCOMES + 1),
    )
    return [Outcome._make(row) for row in rows]


def arrivals(database: Database, query: Query) -> list[HourRow]:
    """Return ended jobs by the hour of their submission in the period. Raises StoreError."""
    where, values = _where(query.filters)
    hour = f"j.submitted_ms / {HOUR_S * 1000}"
    rows = database.fetch(
        f"SELECT {hour}, COUNT(*), CAST(SUM(j.asked_milli) AS BIGINT), COUNT(j.placed_ms), "
        "CAST(COALESCE(SUM(j.placed_ms - j.submitted_ms), 0) AS BIGINT) FROM jobs j "
        "WHERE j.ended_ms >= ? AND j.submitted_ms >= ? AND j.submitted_ms < ? "
        f"AND (j.wait_bucket IS NULL OR j.wait_bucket <> {OF_A_PART}){where} GROUP BY 1",
        (query.since_ms, query.since_ms, query.until_ms, *values),
    )
    return [HourRow(*map(int, row)) for row in rows]


def kept_since_ms(database: Database) -> int:
    """Return the end of the oldest job, or 0."""
    return int(database.fetch("SELECT MIN(ended_ms) FROM jobs")[0][0] or 0)


# Profiles

MOST_LIKES: Final = 500  # newest attempts behind one profile of similar jobs


def profiles(database: Database, tenant: str, workload_id: str) -> list[ProfileRecord]:
    """Return the profile of each attempt of a job."""
    rows = database.fetch(
        "SELECT body FROM profiles WHERE tenant = ? AND id = ? ORDER BY attempt",
        (tenant, workload_id),
    )
    return [profile_of(row[0]) for row in rows]


def likes(database: Database, tenant: str, likeness: Likeness) -> tuple[str, list[ProfileRecord]]:
    """Return ended attempts of jobs with the same labels, or else with the same shape, and the name
    of the common feature.
    """
    for by, value in (("labels", likeness.labels), ("shape", likeness.shape)):
        if not value:
            continue
        rows = database.fetch(
            f"SELECT body FROM profiles WHERE tenant = ? AND {by} = ? AND ended = 1 "
            "ORDER BY at_ms DESC LIMIT ?",
            (tenant, value, MOST_LIKES),
        )
        if rows:
            return by, [profile_of(row[0]) for row in rows]
    return "shape", []


# Suggestions

MOST_RANS: Final = 2_000  # newest jobs behind the suggestions for one


def own(database: Database, tenant: str, workload_id: str) -> Own | None:
    """Return the configuration of the newest ended job with this id. Raises StoreError."""
    found = database.fetch(
        "SELECT f.tags, f.layout, j.asked_milli, j.submitted_ms FROM forms f JOIN jobs j "
        "ON j.tenant = f.tenant AND j.id = f.id AND j.submitted_ms = f.submitted_ms "
        "WHERE f.tenant = ? AND f.id = ? ORDER BY f.submitted_ms DESC LIMIT 1",
        (tenant, workload_id),
    )
    if not found:
        return None
    tags, layout, asked_milli, submitted_ms = found[0]
    models = database.fetch(
        "SELECT model FROM holdings WHERE tenant = ? AND id = ? AND submitted_ms = ? "
        "ORDER BY attempt DESC, held_milli DESC LIMIT 1",
        (tenant, workload_id, submitted_ms),
    )
    return Own(Form(tags, layout), int(asked_milli), models[0][0] if models else "")


def rans(
    database: Database, tenant: str, likeness: Likeness, tags: str
) -> tuple[SimilarBy, list[Ran]]:
    """Return the newest ended jobs with the same program, or else with the same labels. Jobs that
    held several models or none are left out. Raises StoreError.
    """
    best: tuple[SimilarBy, list[Ran]] = ("program", [])
    degrees: tuple[tuple[SimilarBy, str, str, str], ...] = (
        ("program", "likes", "program", likeness.program),
        ("labels", "forms", "tags", tags),
    )
    for by, table, column, value in degrees:
        found = _rans(database, tenant, table, column, value) if value else []
        if len(found) > len(best[1]):
            best = by, found
        if len(found) >= ENOUGH:
            break
    return best


def _rans(database: Database, tenant: str, table: str, column: str, value: str) -> list[Ran]:
    same = "{0}.tenant = n.tenant AND {0}.id = n.id AND {0}.submitted_ms = n.submitted_ms"
    rows = database.fetch(
        "SELECT n.id, f.layout, MIN(h.model), j.asked_milli, j.state, j.submitted_ms, j.placed_ms, "
        "j.running_ms, j.ended_ms, CAST(SUM(h.held_milli * (h.to_ms - h.from_ms)) AS BIGINT) "
        f"FROM (SELECT tenant, id, submitted_ms FROM {table} WHERE tenant = ? AND {column} = ? "
        f"ORDER BY submitted_ms DESC LIMIT ?) n JOIN forms f ON {same.format('f')} "
        f"JOIN jobs j ON {same.format('j')} JOIN holdings h ON {same.format('h')} "
        f"WHERE j.wait_bucket IS NULL OR j.wait_bucket <> {OF_A_PART} "
        "GROUP BY n.id, f.layout, j.asked_milli, j.state, j.submitted_ms, j.placed_ms, "
        "j.running_ms, j.ended_ms HAVING MIN(h.model) = MAX(h.model)",
        (tenant, value, MOST_RANS),
    )
    return [
        Ran(
            id=row[0],
            layout=row[1],
            model=row[2],
            asked_milli=int(row[3]),
            state=row[4],
            wait_ms=None if row[6] is None else max(0, row[6] - row[5]),
            ran_ms=None if row[7] is None else max(0, row[8] - row[7]),
            held_milli_ms=int(row[9]),
        )
        for row in rows
    ]


# Trends


class TrendRow(NamedTuple):
    at_s: int
    name: str
    cell: str
    n: int
    total: float
    low: float
    high: float


def trends(
    database: Database, step_s: int, since_s: int, until_s: int, tenant: str
) -> list[TrendRow]:
    """Return the points of one tenant, or of all with ""."""
    rows = database.fetch(
        "SELECT at_s, name, cell, n, total, low, high FROM trends WHERE step_s = ? AND tenant = ? "
        "AND at_s >= ? AND at_s < ? ORDER BY at_s",
        (step_s, tenant, since_s, until_s),
    )
    return [TrendRow._make(row) for row in rows]
