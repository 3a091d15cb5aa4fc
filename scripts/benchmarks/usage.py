"""A report over a million ended jobs, and how fast the store is filled with them.

Jobs of 20 tenants, 60 queues, 200 owners, 4 models of GPUs and 8 clusters end over 90 days, some
after days. Periods begin and end in the middle of an hour, so that every report has edges. A report
is timed from the request to the bytes of the reply, with a new connection each time.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from berthmaster.messages.api import Refusal
from berthmaster.messages.families import encode
from berthmaster.messages.usage import UsageReport, UsageReportRequest
from berthmaster.usage.jobs import EndedJob, Holding
from berthmaster.usage.prices import Prices
from berthmaster.usage.report import About, asked, report_of
from berthmaster.usage.spans import DAY_MS
from berthmaster.usage.store import reading
from berthmaster.usage.store.database import Database
from berthmaster.usage.store.sqlite import Sqlite
from berthmaster.usage.store.tables import prepare
from berthmaster.usage.store.writing import Batch, Writer

JOBS: Final = 1_000_000
DAYS: Final = 90
BATCH: Final = 5_000  # as many as the service stores at once when it catches up
BEGIN_MS: Final = 20_454 * DAY_MS  # a midnight at the beginning of 2026
END_MS: Final = BEGIN_MS + DAYS * DAY_MS
ROUNDS: Final = 5
REPORTS: Final[dict[str, dict[str, Any]]] = {
    "tenant": {},
    "queue": {"kind": "queue"},
    "owner": {"group": ("owner",)},
    "model_and_cluster": {"group": ("model", "cluster")},
    "queue_and_day": {"group": ("queue", "day"), "limit": 1000},
    "jobs": {"kind": "job"},
}
BUDGETS = {f"report_{name}_worst_s": ("<=", 2.0) for name in REPORTS} | {
    "report_one_tenant_worst_s": ("<=", 2.0),
    "report_one_day_worst_s": ("<=", 2.0),
}


def _jobs() -> Iterator[EndedJob]:
    chance = random.Random(16)
    models = ("H100", "A100", "L40S", "T4")
    for number in range(JOBS):
        tenant = chance.randrange(20)
        cluster = chance.randrange(8)
        length_ms = round(chance.lognormvariate(14, 1.6))  # 20 minutes; one of a hundred 14 hours
        ended_ms = BEGIN_MS + chance.randrange(DAYS * DAY_MS)
        placed_ms = ended_ms - length_ms
        submitted_ms = placed_ms - round(chance.lognormvariate(9, 2))
        milli = chance.choice((500, 1000, 1000, 2000, 8000))
        holding = Holding(
            attempt=1,
            cluster=f"cluster-{cluster}",
            model=models[cluster // 2],
            asked_milli=milli,
            held_milli=milli,
            placed_ms=placed_ms,
            running_ms=placed_ms,
            from_ms=placed_ms,
            to_ms=ended_ms,
            end="succeeded",
            reason="",
            used_gpu_us=milli * length_ms // 2,
            measured_gpu_us=milli * length_ms,
        )
        yield EndedJob(
            tenant=f"tenant-{tenant}",
            id=f"job-{number}",
            submitted_ms=submitted_ms,
            ended_ms=ended_ms,
            placed_ms=placed_ms,
            running_ms=placed_ms + 20,
            state="succeeded" if number % 20 else "failed",
            queue=f"queue-{tenant}-{chance.randrange(3)}",
            owner=f"owner-{tenant}-{chance.randrange(10)}",
            cluster=holding.cluster,
            hub="",
            asked_milli=milli,
            attempts=1,
            evictions=0,
            reason="",
            holdings=(holding,),
        )


def _fill(database: Database) -> float:
    """Jobs a second."""
    writer = Writer(database)
    took_s = 0.0
    some: list[EndedJob] = []
    for job in _jobs():
        some.append(job)
        if len(some) == BATCH:
            began_s = time.perf_counter()
            writer.write(Batch(jobs=some))
            took_s += time.perf_counter() - began_s
            some = []
    return JOBS / took_s


def _time_report(database: Database, request: UsageReportRequest) -> tuple[float, UsageReport]:
    prices = Prices(currency="EUR", gpu_hour={"H100": 2.9}, other=1.0)
    began_s = time.perf_counter()
    ask = asked(None, request, END_MS / 1000)
    assert not isinstance(ask, Refusal)
    jobs = None if ask.jobs is None else reading.jobs(database, ask.jobs)
    found = reading.report(database, ask.query)
    reply = report_of(ask, found, jobs, About(prices, END_MS / 1000, 0.0, False))
    encode(reply)
    return time.perf_counter() - began_s, reply


def _worst_s(folder: Path, request: UsageReportRequest, expected: int | None = None) -> float:
    """Of some rounds, each with a connection of its own."""
    worst_s = 0.0
    for _ in range(ROUNDS):
        database = Sqlite(folder)
        took_s, reply = _time_report(database, request)
        database.close()
        if expected is not None and reply.total.jobs != expected:
            raise AssertionError(f"{reply.total.jobs} jobs of {expected} in the report")
        worst_s = max(worst_s, took_s)
    return worst_s


def _period(since_s: float, until_s: float) -> dict[str, Any]:
    return {"since_s": since_s, "until_s": until_s}


def measure() -> dict[str, float]:
    """Fill a store, then ask."""
    with tempfile.TemporaryDirectory(prefix="berth-usage-") as name:
        folder = Path(name)
        database = Sqlite(folder)
        prepare(database)
        figures = {"jobs": float(JOBS), "filled_jobs_per_s": _fill(database)}
        figures["store_mib"] = database.bytes() / 2**20
        database.close()
        # A period with edges that all jobs have ended in.
        whole = _period((BEGIN_MS - 40 * DAY_MS) / 1000 + 1020, END_MS / 1000 + 19_080)
        for label, asked_for in REPORTS.items():
            request = UsageReportRequest(**whole, **asked_for)
            figures[f"report_{label}_worst_s"] = _worst_s(folder, request, JOBS)
        # From the middle of an hour to the middle of another, inside.
        inside = _period(BEGIN_MS / 1000 + 99_000.5, END_MS / 1000 - 5_000.25)
        one = UsageReportRequest(**inside, tenant="tenant-7", group=("queue", "owner"), limit=1000)
        figures["report_one_tenant_worst_s"] = _worst_s(folder, one)
        day = _period(END_MS / 1000 - 90_000.5, END_MS / 1000 - 3_600.25)
        figures["report_one_day_worst_s"] = _worst_s(folder, UsageReportRequest(**day))
    return figures
