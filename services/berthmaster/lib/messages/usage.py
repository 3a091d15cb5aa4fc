"""Reports of what ended jobs used, and trends: requests and replies of the verbs ``report`` and
``trends``.

Subjects: ``berth.api.<tenant>.{report,trends}`` for a tenant, of its own jobs alone;
``berth.operator.{report,trends}`` of all. Both only read.

GPU-hours are split at the edges of a period: a job that ran from 22:00 to 02:00 counts two hours in
each of two days. Jobs, evictions and waits count where the job ended. Open jobs are in no report
until they have ended.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.workload import LabelText

ReportKind = Literal["usage", "queue", "job", "cluster"]
ReportGroup = Literal["tenant", "queue", "owner", "model", "cluster", "day", "month"]
TrendSpan = Literal["hour", "day", "month"]
TrendName = Literal[
    "allocation_percent",  # taken share of all healthy GPUs
    "fragmentation_percent",  # of free GPU capacity, of no use to the job mix seen
    "waiting",  # workloads
    "live",  # workloads that have a place
    "placements_per_s",
    "endings_per_s",
    "wait_p50_s",  # from submission to the first placement, of what was placed in a minute
    "wait_p95_s",
    "start_p50_s",  # from a placement to running, of what began to run in a minute
    "start_p95_s",
    "decide_ms",  # to decide one placement
]
MOST_ROWS = 1_000
EndS = Annotated[float, Meta(ge=0, le=32_503_680_000)]  # the year 3000: seconds, not milliseconds


class UsageReportRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What was used from ``since_s`` (in it) to ``until_s`` (not in it), by these groups."""

    kind: ReportKind = "usage"
    since_s: EndS | None = None  # seconds since 1970; None = 30 days before until_s
    until_s: EndS | None = None  # None = now
    group: Annotated[tuple[ReportGroup, ...], Meta(max_length=4)] = ()  # empty = as the kind says
    tenant: LabelText = ""  # of this one only; a tenant may name itself and nobody else
    queue: LabelText = ""
    owner: LabelText = ""
    model: LabelText = ""
    cluster: LabelText = ""
    id: LabelText = ""  # kind job: this one only, with its attempts
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 100  # rows
    page: Annotated[str, Meta(max_length=512)] = ""  # kind job: next_page of the reply before


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One group of a report. Of the names those are given that it is grouped by, and they may be
    empty there: not known, or none."""

    tenant: str = ""
    queue: str = ""
    owner: str = ""
    model: str = ""
    cluster: str = ""
    period: str = ""  # 2026-11-24 or 2026-11, in UTC
    jobs: int = 0  # that ended in the period
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    evictions: int = 0  # of those jobs
    asked_gpu_h: float = 0.0  # the GPUs that were asked for, while the job had a place
    held_gpu_h: float = 0.0  # the GPUs that nobody else could have meanwhile
    used_gpu_h: float | None = None  # of those measured: utilization x time; None = not measured
    measured_gpu_h: float = 0.0  # for so many of the held hours it is known
    wait_p50_s: float | None = None  # submission to first placement, within 1 %; None = none was
    wait_p95_s: float | None = None
    start_p50_s: float | None = None  # submission to first running, within 1 %; None = none was
    start_p95_s: float | None = None
    cost: float | None = None  # held hours by price; None = there is no price for any of them
    unpriced_gpu_h: float = 0.0  # held hours of models that no price is set for: not in cost


class AttemptUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of an ended job on one model of GPUs."""

    attempt: int
    cluster: str
    model: str = ""  # "" = not known
    gpus_asked: float = 0.0  # GPUs' worth
    gpus_held: float = 0.0
    placed_at_s: float
    running_at_s: float | None = None  # None = it never ran
    ended_at_s: float
    end: Literal["withdrawn", "evicted", "succeeded", "failed", "cancelled"]
    reason: str = ""
    held_gpu_h: float = 0.0
    used_gpu_h: float | None = None
    measured_gpu_h: float = 0.0


class JobUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One ended job, all of its attempts together, whatever the report's period is."""

    tenant: str
    id: str
    state: Literal["succeeded", "failed", "cancelled"]
    queue: str
    owner: str = ""
    cluster: str = ""  # of its last attempt; "" = it never had a place
    models: tuple[str, ...] = ()
    hub: str = ""  # id of the hub's cluster by way of which it came; "" = by a request
    gpus_asked: float = 0.0  # GPUs' worth
    gpus_held: float = 0.0  # of its last attempt
    attempts: int = 0
    evictions: int = 0
    submitted_at_s: float
    placed_at_s: float | None = None  # first; None = never
    running_at_s: float | None = None  # first; None = never
    ended_at_s: float
    wait_s: float | None = None  # submission to first placement
    start_s: float | None = None  # submission to first running
    asked_gpu_h: float = 0.0
    held_gpu_h: float = 0.0
    used_gpu_h: float | None = None
    measured_gpu_h: float = 0.0
    cost: float | None = None
    reason: str = ""  # of its ending
    each: tuple[AttemptUsage, ...] = ()  # only if one job was asked for


class UsageReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.report.v1"
):
    """The answer to ``report``: ``rows`` of kinds usage, queue and cluster, those with the most
    held hours first, or by period where it is grouped by one; ``jobs`` of kind job, the last ended
    first. ``total`` is of all, also of what was cut off."""

    kind: ReportKind
    since_s: float
    until_s: float
    group: tuple[ReportGroup, ...] = ()
    rows: tuple[UsageRow, ...] = ()
    total: UsageRow = UsageRow()
    groups: int = 0  # how many rows there are in all
    jobs: tuple[JobUsage, ...] = ()
    next_page: str = ""  # kind job: there are more
    currency: str = ""  # of cost
    filled_until_s: float = 0.0  # jobs that ended before are in it, if the store is not behind
    kept_since_s: float = 0.0  # the end of the oldest job that the store still has; 0 = it has none
    notes: tuple[str, ...] = ()  # for people: what is missing and why


class TrendsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How figures went over an hour (a point a minute), a day (15 minutes), a month (6 hours)."""

    span: TrendSpan = "day"
    until_s: EndS | None = None  # None = now
    names: Annotated[tuple[TrendName, ...], Meta(max_length=16)] = ()  # empty = all
    cell: LabelText = ""  # whose decider's; "" = of each


class Trend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure over time. Point i is of the step that begins at ``since_s + i * step_s``; None =
    nothing was seen then."""

    name: TrendName
    cell: str = ""  # "" = of a tenant, over all cells
    means: tuple[float | None, ...] = ()
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()


class Trends(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.trends.v1"):
    """The answer to ``trends``. A tenant gets its own waits, starts, placements and endings, and
    what the whole fleet is like."""

    span: TrendSpan
    since_s: float
    until_s: float
    step_s: float
    trends: tuple[Trend, ...] = ()
    notes: tuple[str, ...] = ()
