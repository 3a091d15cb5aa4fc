"""Turn a request into a query of the store, and the result into a report. Pure.

A refusal names the field. A tenant gets data of its own jobs. A request for another tenant is
refused, whether or not the other tenant exists.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.usage.core import waits
from berthmaster.control.usage.core.prices import Prices
from berthmaster.control.usage.core.trends import (
    LENGTH_OF,
    OF_A_TENANT,
    OF_THE_FLEET,
    RATES,
    STEP_OF,
)
from berthmaster.control.usage.store.reading import Found, JobQuery, JobRow, Query, Sums, TrendRow
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.profile import ProfileRequest
from berthmaster.lib.messages.suggest import SuggestRequest
from berthmaster.lib.messages.usage import (
    AttemptUsage,
    JobsReport,
    JobUsage,
    LoadReport,
    ReportGroup,
    ReportKind,
    Trend,
    TrendName,
    Trends,
    TrendsRequest,
    UsageReport,
    UsageReportRequest,
    UsageRow,
)

HOUR_US: Final = 3_600_000_000  # of one GPU
DEFAULT_PERIOD_S: Final = 30 * 86_400.0
FILTERS: Final = ("tenant", "queue", "owner", "model", "cluster")
BY_KIND: Final[Mapping[ReportKind, tuple[ReportGroup, ...]]] = {
    "usage": ("tenant",),
    "queue": ("tenant", "queue"),
    "cluster": ("cluster",),
    "job": (),
    "jobs": (),
    "load": (),
}


class Asked(NamedTuple):
    """A valid request. ``jobs`` is set for the kind job."""

    request: UsageReportRequest
    query: Query
    jobs: JobQuery | None


def asked(tenant: str | None, request: UsageReportRequest, now_s: float) -> Asked | Refusal:
    """Return the query of a tenant, or of an operator (None)."""
    if (forbidden := _of_another_tenant(tenant, request.tenant)) is not None:
        return forbidden
    until_s = now_s if request.until_s is None else request.until_s
    since_s = until_s - DEFAULT_PERIOD_S if request.since_s is None else request.since_s
    since_s = max(0.0, since_s)
    if since_s >= until_s:
        return invalid(("since_s",), since_s, f"a time before until_s, which is {until_s:.3f}")
    wrong = _wrong_with(request)
    if wrong is not None:
        return wrong
    filters = {name: getattr(request, name) for name in FILTERS if getattr(request, name)}
    if tenant is not None:
        filters["tenant"] = tenant
    period = {"since_ms": round(since_s * 1000), "until_ms": round(until_s * 1000)}
    group = request.group or _default_group(request.kind, tenant)
    query = Query(**period, group=group, filters=filters, limit=request.limit)
    if request.kind != "job":
        return Asked(request, query, None)
    after = None
    if request.page:
        after = _page(request.page)
        if after is None:
            return invalid(("page",), request.page, "next_page of the reply before")
    of_jobs = filters | ({"id": request.id} if request.id else {})
    jobs = JobQuery(**period, filters=of_jobs, limit=request.limit, after=after)
    return Asked(request, query, jobs)


def whose(tenant: str | None, request: ProfileRequest | SuggestRequest) -> str | Refusal:
    """Return the tenant of the requested job, for a tenant or an operator (None)."""
    if (forbidden := _of_another_tenant(tenant, request.tenant)) is not None:
        return forbidden
    if found := tenant or request.tenant:
        return found
    return invalid(("tenant",), "", "the tenant of the job: operators see those of all")


def _of_another_tenant(tenant: str | None, named: str) -> Refusal | None:
    if tenant is None or named in ("", tenant):
        return None
    return Refusal(
        code="forbidden",
        field="tenant",
        value=named,
        expected=f"{tenant!r} or nothing: a tenant sees its own jobs",
    )


def _wrong_with(request: UsageReportRequest) -> Refusal | None:
    if len(set(request.group)) < len(request.group):
        return invalid(("group",), request.group, "each group once")
    if {"day", "month"} <= set(request.group):
        return invalid(("group",), request.group, "day or month, not both")
    if not BY_KIND[request.kind] and request.group:
        return invalid(("group",), request.group, f"none with the kind {request.kind}")
    for name in ("id", "page"):
        if getattr(request, name) and request.kind != "job":
            return invalid((name,), getattr(request, name), f"only with the kind job: {name}")
    if request.like and request.kind != "jobs":
        return invalid(("like",), request.like, "only with the kind jobs: like")
    return None


def _default_group(kind: ReportKind, tenant: str | None) -> tuple[ReportGroup, ...]:
    if kind == "usage" and tenant is not None:
        return ("queue",)
    return BY_KIND[kind]


class _Page(msgspec.Struct, array_like=True):
    ended_ms: int
    tenant: str
    id: str


_PAGES: Final = msgspec.json.Decoder(_Page)


def _page(text: str) -> tuple[int, str, str] | None:
    try:
        page = _PAGES.decode(base64.urlsafe_b64decode(text.encode()))
    except (msgspec.DecodeError, UnicodeError, binascii.Error, ValueError):
        return None
    return page.ended_ms, page.tenant, page.id


def next_page(last: JobRow) -> str:
    """Return the text for the start of the next reply."""
    page = msgspec.json.encode(_Page(last.ended_ms, last.tenant, last.id))
    return base64.urlsafe_b64encode(page).decode()


# Replies


class Beside(NamedTuple):
    """Data of a report beside rows: of the kinds job, jobs and load."""

    jobs: list[JobRow] | None = None
    summary: JobsReport | None = None
    load: LoadReport | None = None


class About(NamedTuple):
    """State of the store, for every report."""

    prices: Prices | None
    filled_until_s: float
    kept_since_s: float
    is_behind: bool  # the streams have not been read to their ends


def report_of(ask: Asked, found: Found, beside: Beside, about: About) -> UsageReport:
    request, query, jobs = ask.request, ask.query, beside.jobs
    shown = (jobs or [])[: request.limit]
    more = jobs is not None and len(jobs) > request.limit
    has_rows = bool(BY_KIND[request.kind])
    rows = (
        [_row(query.group, key, sums, about.prices) for key, sums in found.rows] if has_rows else []
    )
    return UsageReport(
        kind=request.kind,
        since_s=query.since_ms / 1000,
        until_s=query.until_ms / 1000,
        group=query.group,
        rows=tuple(rows),
        total=_row((), (), found.total, about.prices),
        groups=found.groups if has_rows else 0,
        jobs=tuple(_job(job, about.prices, with_each=bool(request.id)) for job in shown),
        next_page=next_page(shown[-1]) if more else "",
        summary=beside.summary,
        load=beside.load,
        currency=about.prices.currency if about.prices else "",
        filled_until_s=about.filled_until_s,
        kept_since_s=about.kept_since_s,
        notes=tuple(_notes(query, found, about)),
    )


def _notes(query: Query, found: Found, about: About) -> list[str]:
    notes = []
    if not about.prices:
        notes.append("no prices are set, so there is no cost")
    if found.total.held_gpu_us and not found.total.measured_gpu_us:
        notes.append("nothing was measured of these jobs' GPUs")
    if about.is_behind and about.filled_until_s * 1000 < query.until_ms:
        notes.append("jobs that ended lately are missing: the log is still being read")
    return notes


def _row(
    group: tuple[ReportGroup, ...], key: tuple[str, ...], sums: Sums, prices: Prices | None
) -> UsageRow:
    names = {
        "period" if name in ("day", "month") else name: value
        for name, value in zip(group, key, strict=True)
    }
    cost, unpriced = _cost(sums.held_by_model, prices)
    return UsageRow(
        **names,
        jobs=sums.jobs,
        succeeded=sums.succeeded,
        failed=sums.failed,
        cancelled=sums.cancelled,
        evictions=sums.evictions,
        asked_gpu_h=_hours(sums.asked_gpu_us),
        held_gpu_h=_hours(sums.held_gpu_us),
        used_gpu_h=_hours(sums.used_gpu_us) if sums.measured_gpu_us else None,
        measured_gpu_h=_hours(sums.measured_gpu_us),
        wait_p50_s=waits.percentile(sums.waits, 0.50),
        wait_p95_s=waits.percentile(sums.waits, 0.95),
        start_p50_s=waits.percentile(sums.starts, 0.50),
        start_p95_s=waits.percentile(sums.starts, 0.95),
        cost=cost,
        unpriced_gpu_h=unpriced if prices else 0.0,
    )


def _cost(held_by_model: Mapping[str, int], prices: Prices | None) -> tuple[float | None, float]:
    """Return the cost, and the hours of models without a price."""
    if prices is None:
        return None, 0.0
    cost: float | None = None
    unpriced = 0
    for model, held in held_by_model.items():
        price = prices.of(model)
        if price is None:
            unpriced += held
        else:
            cost = (cost or 0.0) + price * held / HOUR_US
    if cost is None and not unpriced:
        cost = 0.0  # no GPU was held
    return None if cost is None else round(cost, 4), _hours(unpriced)


def _hours(gpu_us: int) -> float:
    return round(gpu_us / HOUR_US, 6)


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000


def _job(job: JobRow, prices: Prices | None, *, with_each: bool) -> JobUsage:
    held_by_model: dict[str, int] = {}
    asked = held = used = measured = 0
    each = []
    for one in job.holdings:
        length_ms = one.to_ms - one.from_ms
        amount = one.held_milli * length_ms
        held_by_model[one.model] = held_by_model.get(one.model, 0) + amount
        asked += one.asked_milli * length_ms
        held, used = held + amount, used + one.used_gpu_us
        measured += one.measured_gpu_us
        each.append(
            AttemptUsage(
                attempt=one.attempt,
                cluster=one.cluster,
                model=one.model,
                gpus_asked=one.asked_milli / 1000,
                gpus_held=one.held_milli / 1000,
                placed_at_s=one.placed_ms / 1000,
                running_at_s=_seconds(one.running_ms),
                ended_at_s=one.to_ms / 1000,
                end=one.how,  # type: ignore[arg-type] # as it was written
                reason=one.reason,
                held_gpu_h=_hours(amount),
                used_gpu_h=_hours(one.used_gpu_us) if one.measured_gpu_us else None,
                measured_gpu_h=_hours(one.measured_gpu_us),
            )
        )
    last = max((one.attempt for one in job.holdings), default=0)
    models = dict.fromkeys(one.model for one in job.holdings if one.model)
    return JobUsage(
        tenant=job.tenant,
        id=job.id,
        state=job.state,  # type: ignore[arg-type] # as it was written
        queue=job.queue,
        owner=job.owner,
        cluster=job.cluster,
        models=tuple(models),
        hub=job.hub,
        gpus_asked=job.asked_milli / 1000,
        gpus_held=sum(one.held_milli for one in job.holdings if one.attempt == last) / 1000,
        attempts=job.attempts,
        evictions=job.evictions,
        submitted_at_s=job.submitted_ms / 1000,
        placed_at_s=_seconds(job.placed_ms),
        running_at_s=_seconds(job.running_ms),
        ended_at_s=job.ended_ms / 1000,
        wait_s=_between(job.submitted_ms, job.placed_ms),
        start_s=_between(job.submitted_ms, job.running_ms),
        asked_gpu_h=_hours(asked),
        held_gpu_h=_hours(held),
        used_gpu_h=_hours(used) if measured else None,
        measured_gpu_h=_hours(measured),
        cost=_cost(held_by_model, prices)[0],
        reason=job.reason,
        each=tuple(each) if with_each else (),
    )


def _between(since_ms: int, until_ms: int | None) -> float | None:
    return None if until_ms is None else max(0, until_ms - since_ms) / 1000


# Trends


class Window(NamedTuple):
    """Points of a request: step and limits in seconds."""

    step_s: int
    since_s: int
    until_s: int


def window_of(request: TrendsRequest, now_s: float) -> Window:
    """Return the points to show. The last step contains ``until_s`` and may not be over."""
    step_s = STEP_OF[request.span]
    at_s = now_s if request.until_s is None else request.until_s
    until_s = int(at_s) // step_s * step_s + step_s
    return Window(step_s, until_s - LENGTH_OF[request.span], until_s)


def trends_of(
    tenant: str | None,
    request: TrendsRequest,
    window: Window,
    of_all: list[TrendRow],
    own: list[TrendRow],
    now_s: float,
) -> Trends:
    """Return the reply. ``of_all`` has the fleet's rows, ``own`` a tenant's."""
    wanted = set(request.names)
    lines: dict[tuple[str, str], list[TrendRow]] = {}
    for row in of_all:
        if tenant is None or row.name in OF_THE_FLEET:
            lines.setdefault((row.name, row.cell), []).append(row)
    for row in own:
        if row.name in OF_A_TENANT:
            lines.setdefault((row.name, ""), []).append(row)
    seen = {(row.at_s - window.since_s) // window.step_s for row in of_all}
    trends = [
        _trend(name, cell, rows, window, seen, now_s)
        for (name, cell), rows in sorted(lines.items())
        if (not wanted or name in wanted) and (not request.cell or cell in ("", request.cell))
    ]
    notes = () if of_all else ("nothing was kept of this time",)
    return Trends(
        span=request.span,
        since_s=float(window.since_s),
        until_s=float(window.until_s),
        step_s=float(window.step_s),
        trends=tuple(trends),
        notes=notes,
    )


def _trend(
    name: str, cell: str, rows: list[TrendRow], window: Window, seen: set[int], now_s: float
) -> Trend:
    """Return a trend, with None for unknown steps. A rate is 0 if the service saw no event."""
    count = (window.until_s - window.since_s) // window.step_s
    is_rate = name in RATES
    means: list[float | None] = [0.0 if is_rate and at in seen else None for at in range(count)]
    lows, highs = list(means), list(means)
    for row in rows:
        at = (row.at_s - window.since_s) // window.step_s
        if not 0 <= at < count:
            continue
        mean = row.total / row.n
        if is_rate:
            mean = row.total / max(1.0, min(window.step_s, now_s - row.at_s))
        means[at] = round(mean, 6)
        # In a step of several minutes, some had no event.
        lows[at] = 0.0 if is_rate and row.n * 60 < window.step_s else round(row.low, 6)
        highs[at] = round(row.high, 6)
    known: TrendName = name  # type: ignore[assignment] # as it was written
    return Trend(name=known, cell=cell, means=tuple(means), lows=tuple(lows), highs=tuple(highs))
