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

ReportKind = Literal["usage", "queue", "job", "cluster", "jobs", "load"]
SimilarBy = Literal["all", "labels", "program", "shape"]
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
    """Usage from ``since_s`` (included) to ``until_s`` (excluded), by groups."""

    kind: ReportKind = "usage"
    # kind: content of the report: usage, queue or cluster in rows; job = single jobs; jobs = all
    # jobs summed up, or similar ones; load = arrivals by hour and weekday, with a forecast
    since_s: EndS | None = None  # seconds since 1970; null = 30 days before until_s
    until_s: EndS | None = None  # seconds since 1970; null = now
    group: Annotated[tuple[ReportGroup, ...], Meta(max_length=4)] = ()
    # group: fields to group by; empty = by the kind
    tenant: LabelText = ""  # only this tenant; a tenant may name only itself; "" = all
    queue: LabelText = ""  # only this queue; "" = all
    owner: LabelText = ""  # only this owner; "" = all
    model: LabelText = ""  # only this GPU model; "" = all
    cluster: LabelText = ""  # only this cluster; "" = all
    id: LabelText = ""  # kind job: only this job, with its attempts; "" = all
    like: LabelText = ""  # kind jobs: only jobs similar to this open or ended one; "" = all
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 100  # maximum number of rows
    page: Annotated[str, Meta(max_length=512)] = ""
    # page: kind job: next_page of the reply before; "" = the first page


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One group of a report. Names are set for the fields of the grouping, and may be empty there:
    unknown, or none.
    """

    tenant: str = ""  # tenant of the group
    queue: str = ""  # queue of the group
    owner: str = ""  # owner of the group
    model: str = ""  # GPU model of the group
    cluster: str = ""  # cluster of the group
    period: str = ""  # day or month in UTC, such as 2026-11-24 or 2026-11
    jobs: int = 0  # number of jobs that ended in the period
    succeeded: int = 0  # number of succeeded jobs
    failed: int = 0  # number of failed jobs
    cancelled: int = 0  # number of cancelled jobs
    evictions: int = 0  # number of evictions of those jobs
    asked_gpu_h: float = 0.0  # requested GPU hours, over the time with a placement
    held_gpu_h: float = 0.0  # allocated GPU hours
    used_gpu_h: float | None = None  # utilization times measured hours; null = not measured
    measured_gpu_h: float = 0.0  # allocated GPU hours with a measurement
    wait_p50_s: float | None = None
    # wait_p50_s: median of submission to first placement, within 1 %; null = unset
    wait_p95_s: float | None = (
        None  # p95 of submission to first placement, within 1 %; null = unset
    )
    start_p50_s: float | None = None
    # start_p50_s: median of submission to first running, within 1 %; null = unset
    start_p95_s: float | None = None  # p95 of submission to first running, within 1 %; null = unset
    cost: float | None = None  # allocated hours by price; null = no price is set for these models
    unpriced_gpu_h: float = 0.0  # allocated hours of models without a price, not in the cost


class AttemptUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of an ended job on one GPU model."""

    attempt: int
    cluster: str
    model: str = ""  # GPU model; "" = unknown
    gpus_asked: float = 0.0  # requested GPUs
    gpus_held: float = 0.0  # allocated GPUs
    placed_at_s: float
    running_at_s: float | None = None  # start of all pods; null = never
    ended_at_s: float  # end of the attempt
    end: Literal["withdrawn", "evicted", "succeeded", "failed", "cancelled"]
    # end: how the attempt ended
    reason: str = ""  # reason of the end
    held_gpu_h: float = 0.0  # allocated GPU hours
    used_gpu_h: float | None = None  # utilization times measured hours; null = not measured
    measured_gpu_h: float = 0.0  # allocated GPU hours with a measurement


class JobUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One ended job with all of its attempts, whatever the report's period."""

    tenant: str
    id: str
    state: Literal["succeeded", "failed", "cancelled"]  # state at the end
    queue: str
    owner: str = ""  # owner of the job
    cluster: str = ""  # cluster of the last attempt; "" = never placed
    models: tuple[str, ...] = ()  # GPU models of the attempts
    hub: str = ""  # id of the hub's cluster; "" = submitted by a request
    gpus_asked: float = 0.0  # requested GPUs
    gpus_held: float = 0.0  # allocated GPUs of the last attempt
    attempts: int = 0  # number of attempts
    evictions: int = 0  # number of evictions
    submitted_at_s: float
    placed_at_s: float | None = None  # first placement; null = never
    running_at_s: float | None = None  # first start of all pods; null = never
    ended_at_s: float
    wait_s: float | None = None  # seconds from submission to first placement; null = never
    start_s: float | None = None  # seconds from submission to first running; null = never
    asked_gpu_h: float = 0.0  # requested GPU hours, over the time with a placement
    held_gpu_h: float = 0.0  # allocated GPU hours
    used_gpu_h: float | None = None  # utilization times measured hours; null = not measured
    measured_gpu_h: float = 0.0  # allocated GPU hours with a measurement
    cost: float | None = None  # allocated hours by price; null = no price is set for these models
    reason: str = ""  # reason of the end
    each: tuple[AttemptUsage, ...] = ()  # attempts, if the request named one job


class JobsReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ended jobs summed up."""

    by: SimilarBy = "all"
    # by: property that the jobs share with the one in ``like``; all = no job was named
    jobs: int = 0  # number of jobs that ended in the period
    succeeded: int = 0  # number of jobs that succeeded
    failed: int = 0  # number of jobs that failed
    cancelled: int = 0  # number of jobs that were cancelled
    ran_low_s: float | None = None
    # ran_low_s: run time in seconds that one successful job in ten stays below; null = none ran
    ran_s: float | None = None  # median run time of successful jobs in seconds; null = none ran
    ran_high_s: float | None = None
    # ran_high_s: run time in seconds that one successful job in ten exceeds; null = none ran
    wait_p50_s: float | None = None  # median wait for placement in seconds; null = none placed
    wait_p95_s: float | None = None  # 95th percentile of the wait in seconds; null = none placed
    causes: dict[str, int] = {}  # number of failed jobs by reason, with numbers replaced by N
    capped: bool = False  # True: only the newest jobs of the period are counted


class WeekHour(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One hour of the week, on average over the weeks of the period, in UTC."""

    weekday: int  # 0 = Monday
    hour: int  # 0 to 23
    jobs: float = 0.0  # jobs submitted in the hour
    gpus: float = 0.0  # GPUs requested by those jobs
    wait_s: float | None = None  # mean wait of those jobs in seconds; null = none was placed


class HourForecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Expected arrivals in one hour to come."""

    at_s: float  # begin of the hour, in seconds since 1970
    jobs: float = 0.0  # median of the number of jobs
    jobs_low: float = 0.0  # number that one hour in ten stays below
    jobs_high: float = 0.0  # number that one hour in ten exceeds


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arrivals by hour and weekday, and the forecast of the day after the period."""

    week: tuple[WeekHour, ...] = ()  # hours of the week that the period has, Monday first
    forecast: tuple[HourForecast, ...] = ()  # the next 24 hours
    calm_at_s: float | None = None
    # calm_at_s: begin of the calmest three hours of the forecast, in seconds since 1970; null =
    # no forecast


class UsageReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.report.v1"
):
    """Reply to ``report``. ``rows`` of kinds usage, queue and cluster come with the most allocated
    hours first, or by period. ``jobs`` of kind job come last ended first. ``total`` includes rows
    that were cut off.
    """

    kind: ReportKind  # content of the report
    since_s: float  # start of the report, included
    until_s: float  # end of the report, excluded
    group: tuple[ReportGroup, ...] = ()  # fields of the grouping
    rows: tuple[UsageRow, ...] = ()  # groups of kinds usage, queue and cluster
    total: UsageRow = UsageRow()  # sum of all groups
    groups: int = 0  # total number of rows
    jobs: tuple[JobUsage, ...] = ()  # jobs of kind job
    next_page: str = ""  # kind job: page for the next request; "" = the end
    summary: JobsReport | None = None  # kind jobs: sums of the jobs; null = another kind
    load: LoadReport | None = None  # kind load: arrivals and forecast; null = another kind
    currency: str = ""  # currency of cost
    filled_until_s: float = 0.0  # end of the last job in the store; earlier ends are complete
    kept_since_s: float = 0.0  # end of the oldest job in the store; 0 = empty
    notes: tuple[str, ...] = ()  # missing data and the causes, for display


class TrendsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Metrics over an hour (a point a minute), a day (a point each 15 minutes) or a month (6
    hours).
    """

    span: TrendSpan = "day"  # length of the period
    until_s: EndS | None = None  # end of the period, in seconds since 1970; null = now
    names: Annotated[tuple[TrendName, ...], Meta(max_length=16)] = ()
    # names: metrics to return; empty = all
    cell: LabelText = ""  # cell of the metrics; "" = all cells, one after the other


class Trend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One metric over time. Point i covers the step from ``since_s + i * step_s``; null = no
    sample.
    """

    name: TrendName  # name of the metric
    cell: str = ""  # cell of the metric; "" = all cells, for a tenant
    means: tuple[float | None, ...] = ()  # mean of each step
    lows: tuple[float | None, ...] = ()  # minimum of each step
    highs: tuple[float | None, ...] = ()  # maximum of each step


class Trends(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.trends.v1"):
    """Reply to ``trends``. A tenant gets its own waits, starts, placements and endings, and metrics
    of the whole fleet.
    """

    span: TrendSpan  # length of the period
    since_s: float  # start of the period
    until_s: float  # end of the period
    step_s: float  # length of a step in seconds
    trends: tuple[Trend, ...] = ()  # metrics, each with one point a step
    notes: tuple[str, ...] = ()  # missing data and the causes, for display
