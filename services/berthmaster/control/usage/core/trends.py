"""Trends over time: samples by the minute, kept in steps that get longer with age. Pure.

Quality reports of deciders are averaged over the minute of their arrival. Waits, starts, placements
and endings come from events and belong to the minute in which the events were stored. A service
that was down thus fills its gap when reading the log again.
"""

from collections import defaultdict
from typing import Final, NamedTuple

from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.usage import TrendName, TrendSpan

MINUTE_S: Final = 60
STEP_OF: Final[dict[TrendSpan, int]] = {"hour": 60, "day": 900, "month": 21_600}
LENGTH_OF: Final[dict[TrendSpan, int]] = {"hour": 3_600, "day": 86_400, "month": 31 * 86_400}
KEPT_STEPS: Final = tuple(STEP_OF.values())
# Retention of points: some 3,000, 1,300 and, of the longest step, the jobs' retention.
KEEP_S: Final = {60: 2 * 86_400, 900: 14 * 86_400}
RATES: Final[frozenset[TrendName]] = frozenset({"placements_per_s", "endings_per_s"})
# Trends of the fleet that tenants see: none shows another tenant's jobs.
OF_THE_FLEET: Final[frozenset[TrendName]] = frozenset(
    {"allocation_percent", "fragmentation_percent"}
)
OF_A_TENANT: Final[frozenset[TrendName]] = RATES | {
    "wait_p50_s",
    "wait_p95_s",
    "start_p50_s",
    "start_p95_s",
}
MOST_TENANTS: Final = 200  # of a minute, with the most events. Others have no trend then
MOST_OF_A_MINUTE: Final = 100_000  # waits behind one percentile
MOST_MINUTES: Final = 2 * 1_440  # open at a time, when a long log is read again


class Sample(NamedTuple):
    """One value of one minute. For rates ``total`` is a count."""

    at_s: int
    name: TrendName
    cell: str
    tenant: str  # "" = all tenants
    total: float
    low: float
    high: float


class _Minute:
    def __init__(self) -> None:
        self.means: dict[tuple[TrendName, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.counts: dict[tuple[TrendName, str, str], int] = defaultdict(int)
        self.waits: dict[tuple[str, str, str], list[float]] = defaultdict(list)


class Collector:
    """Collects samples, and returns the minutes that are over."""

    def __init__(self) -> None:
        self._minutes: dict[int, _Minute] = defaultdict(_Minute)

    def quality(self, report: QualityReport, now_s: float) -> None:
        """Take the quality report of a decider."""
        minute = self._minutes[_minute(now_s)]
        told: dict[TrendName, float | None] = {
            "allocation_percent": report.allocation_percent,
            "fragmentation_percent": report.fragmentation_percent,
            "waiting": float(report.waiting),
            "live": float(report.live),
            "decide_ms": report.decide_ms,
        }
        for name, value in told.items():
            if value is not None:
                mean = minute.means[name, report.cell]
                mean[0] += value
                mean[1] += 1

    def placed(self, at_s: float, cell: str, tenant: str, wait_s: float | None) -> None:
        """Count a placement. ``wait_s``: since the submission, for a job's first placement."""
        self._count("placements_per_s", at_s, cell, tenant)
        if wait_s is not None:
            self._wait("wait", at_s, cell, tenant, wait_s)

    def running(self, at_s: float, cell: str, tenant: str, start_s: float) -> None:
        """Count a start, with the time since the placement."""
        self._wait("start", at_s, cell, tenant, start_s)

    def ended(self, at_s: float, cell: str, tenant: str) -> None:
        self._count("endings_per_s", at_s, cell, tenant)

    def _count(self, name: TrendName, at_s: float, cell: str, tenant: str) -> None:
        minute = self._minutes[_minute(at_s)]
        minute.counts[name, cell, ""] += 1
        minute.counts[name, "", tenant] += 1

    def _wait(self, what: str, at_s: float, cell: str, tenant: str, value_s: float) -> None:
        minute = self._minutes[_minute(at_s)]
        for place in ((what, cell, ""), (what, "", tenant)):
            if len(minute.waits[place]) < MOST_OF_A_MINUTE:
                minute.waits[place].append(max(0.0, value_s))

    def take(self, now_s: float) -> list[Sample]:
        """Return the samples of minutes that are over, and of all beyond the bound."""
        over = [at for at in self._minutes if at + MINUTE_S <= now_s]
        if len(self._minutes) - len(over) > MOST_MINUTES:
            over = list(self._minutes)
        samples: list[Sample] = []
        for at in sorted(over):
            samples += _samples(at, self._minutes.pop(at))
        return samples


def _samples(at_s: int, minute: _Minute) -> list[Sample]:
    found = [
        _same(at_s, name, cell, "", total / count)
        for (name, cell), (total, count) in minute.means.items()
    ]
    shown = _busiest(minute)
    for (name, cell, tenant), count in minute.counts.items():
        if not tenant or tenant in shown:
            a_second = count / MINUTE_S
            found.append(Sample(at_s, name, cell, tenant, count, a_second, a_second))
    for (what, cell, tenant), values in minute.waits.items():
        if not tenant or tenant in shown:
            values.sort()
            p50: TrendName = "wait_p50_s" if what == "wait" else "start_p50_s"
            p95: TrendName = "wait_p95_s" if what == "wait" else "start_p95_s"
            found.append(_same(at_s, p50, cell, tenant, _rank(values, 0.50)))
            found.append(_same(at_s, p95, cell, tenant, _rank(values, 0.95)))
    return found


def _busiest(minute: _Minute) -> set[str]:
    busy: dict[str, int] = defaultdict(int)
    for (_, _, tenant), count in minute.counts.items():
        if tenant:
            busy[tenant] += count
    for (_, _, tenant), values in minute.waits.items():
        if tenant:
            busy[tenant] += len(values)
    return set(sorted(busy, key=lambda name: (-busy[name], name))[:MOST_TENANTS])


def _rank(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _same(at_s: int, name: TrendName, cell: str, tenant: str, value: float) -> Sample:
    return Sample(at_s, name, cell, tenant, value, value, value)


def _minute(at_s: float) -> int:
    return int(at_s) - int(at_s) % MINUTE_S
