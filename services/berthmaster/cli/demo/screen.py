"""Screens of the demo: the live view, its summary, and a replay's account."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.demo.load import Account, LoadResult
from berthmaster.cli.demo.stats import Latency, WorkloadSummary
from berthmaster.cli.fleet.screen import fleet_line
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.engine.fleetview.rows import ClusterRow
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.runtime.visible_text import visible

STEPS: Final = {
    "submit_to_placed": "submit -> placed",
    "placed_to_running": "placed -> running",
    "submit_to_running": "submit -> running",
}
SHOWN_REASONS: Final = 6


class PlacementLine(msgspec.Struct, frozen=True, kw_only=True):
    """One placement in the live view."""

    at_s: float
    id: str
    gpus: float
    cluster: str
    waited_s: float
    reason: str


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    summary: WorkloadSummary
    took_s: float
    started_in_s: float  # seconds until every process was ready
    first_placed_s: float | None  # seconds from the command's start
    gpus: int
    gpus_used: float | None  # according to the scores, including unmanaged load
    waiting: WhyReply | None
    restarts: int
    refused: int = 0


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    account: Account
    balanced: bool
    load: LoadResult
    latencies: dict[str, Latency]
    took_s: float
    evictions: int
    submits_per_s: float


def live(
    rows: Sequence[ClusterRow],
    summary: WorkloadSummary,
    placements: Sequence[PlacementLine],
    *,
    head: str,
    held: Mapping[str, float],
    width: int,
    ascii_only: bool = False,
) -> RenderableType:
    """Return the live view: clusters with bars, jobs by state, last placements with reasons."""
    table = plain_table(
        "CLUSTER", "GPUS", "USED", "", "OURS", "STATE", right=("GPUS", "USED", "OURS")
    )
    bar_width = max(10, min(40, width - 52))
    for row in rows:
        share = row.used_share
        table.add_row(
            safe(row.cluster),
            str(row.gpus),
            amounts.percent(share),
            safe(
                amounts.bar(share or 0.0, bar_width, ascii_only=ascii_only),
                style="green" if (share or 0) < 0.9 else "yellow",
            ),
            f"{held.get(row.cluster, 0):.0f}",
            safe("cordoned" if row.cordoned is not None else row.freshness),
        )
    lines: list[RenderableType] = [safe(head, style="bold"), safe(), table, safe()]
    lines += [fleet_line(rows), jobs_line(summary)]
    if latency := summary.latencies.get("submit_to_running"):
        lines.append(safe(f"Submit to running: {_latency(latency)}", style="dim"))
    if placements:
        lines += [safe(), safe("Placed last, and why there:", style="bold")]
        lines += [placement_line(each, width) for each in reversed(placements)]
    return Group(*lines)


def jobs_line(summary: WorkloadSummary) -> Text:
    line = safe("Jobs: ", style="bold")
    line.append(amounts.counted(summary.states) or "none yet", style="not bold")
    return line


def placement_line(placement: PlacementLine, width: int) -> Text:
    gpus = amounts.number(placement.gpus)
    line = safe(f"{placement.id:<12} {gpus:>4} GPU  -> ")
    line.append(visible(f"{placement.cluster} "), style="cyan")
    line.append(visible(f"after {amounts.duration(placement.waited_s)}: {placement.reason}"))
    line.truncate(max(20, width), overflow="ellipsis")
    return line


def progress_line(at_s: float, summary: WorkloadSummary, gpus: int) -> str:
    """Return the demo's progress line for output without a terminal."""
    share = f", {summary.gpus_held:.0f} of {gpus} GPUs held by jobs" if gpus else ""
    text = f"{at_s:6.1f} s  {amounts.counted(summary.states, ', ') or 'no jobs yet'}{share}"
    latency = summary.latencies.get("submit_to_running")
    return text + (f"; submit to running {_latency(latency)}" if latency else "")


def _latency(latency: Latency) -> str:
    return f"p50 {amounts.duration(latency.p50_s)}, p99 {amounts.duration(latency.p99_s)}"


def demo(report: DemoReport) -> RenderableType:
    summary = report.summary
    facts = plain_table("", "")
    facts.show_header = False
    facts.columns[0].style = "bold"
    first = report.first_placed_s
    facts.add_row("up after", amounts.duration(report.started_in_s))
    facts.add_row(
        "first job placed", "never" if first is None else f"after {amounts.duration(first)}"
    )
    facts.add_row("submitted", f"{summary.submitted:,} jobs in {amounts.duration(report.took_s)}")
    if report.refused:
        facts.add_row("refused", f"{report.refused:,}")
    facts.add_row("placed", f"{summary.placed_at_least_once:,}")
    facts.add_row("running", f"{summary.running:,}")
    facts.add_row("waiting", f"{summary.waiting:,}")
    facts.add_row("ended", ended(summary))
    facts.add_row("evicted", amounts.many(summary.evictions, "time"))
    facts.add_row("GPUs", allocation(report))
    if report.restarts:
        facts.add_row("restarted", amounts.many(report.restarts, "time"))
    lines: list[RenderableType] = [safe("Summary", style="bold"), facts, safe()]
    lines.append(latencies(summary.latencies))
    if summary.waiting and report.waiting is not None:
        lines += [safe(), *waiting_reasons(report.waiting)]
    return Group(*lines)


def ended(summary: WorkloadSummary) -> str:
    how = {name: summary.states.get(name, 0) for name in ("succeeded", "failed", "cancelled")}
    return f"{summary.ended:,}" + (f" ({amounts.counted(how, ', ')})" if summary.ended else "")


def allocation(report: DemoReport) -> str:
    """Return the allocated part of the fleet as text."""
    held = report.summary.gpus_held
    text = f"{amounts.number(round(held, 1))} of {report.gpus:,} held by these jobs"
    if report.gpus:
        text += f" ({amounts.percent(held / report.gpus)})"
    if report.gpus_used is not None and report.gpus:
        text += f"; {amounts.percent(report.gpus_used / report.gpus)} in use with foreign load"
    return text


def latencies(found: Mapping[str, Latency]) -> RenderableType:
    """Return latencies by step, from the server's time stamps."""
    if not found:
        return safe("No job was placed, so there are no latencies.")
    table = plain_table("LATENCY", "JOBS", "P50", "P99", "MAX", right=("JOBS", "P50", "P99", "MAX"))
    for step, name in STEPS.items():
        if latency := found.get(step):
            table.add_row(
                safe(name),
                f"{latency.count:,}",
                *(amounts.duration(each) for each in (latency.p50_s, latency.p99_s, latency.max_s)),
            )
    return table


def waiting_reasons(reply: WhyReply) -> list[RenderableType]:
    lines: list[RenderableType] = [safe(f"Why they wait: {reply.summary}")]
    table = plain_table("WORKLOADS", "REASON", right=("WORKLOADS",))
    ordered = sorted(reply.reasons.items(), key=lambda item: (-item[1], item[0]))
    for reason, count in ordered[:SHOWN_REASONS]:
        table.add_row(f"{count:,}", safe(reason))
    return [*lines, table] if reply.reasons else lines


def balance(balance_: Account, problems: Mapping[str, int]) -> RenderableType:
    """Return a replay's account: the state of every workload."""
    table = plain_table("", "", right=())
    table.show_header = False
    table.columns[1].justify = "right"
    for name, count in (
        ("offered", balance_.offered),
        ("refused", balance_.refused),
        ("submitted", balance_.submitted),
        ("  succeeded", balance_.succeeded),
        ("  failed", balance_.failed),
        ("  cancelled", balance_.cancelled),
        ("  running", balance_.running),
        ("  waiting", balance_.waiting),
        ("  missing", balance_.missing),
    ):
        table.add_row(name, f"{count:,}")
    if balance_.balanced:
        verdict = safe("Every workload is accounted for.", style="bold green")
    else:
        names = ", ".join(balance_.missing_ids)
        verdict = safe(
            f"The account does not balance. Missing: {names or 'none by name'}", style="bold red"
        )
    lines: list[RenderableType] = [table, verdict]
    lines += [safe(f"{count:,} x {problem}", style="yellow") for problem, count in problems.items()]
    return Group(*lines)


def replay(report: ReplayReport) -> RenderableType:
    head = safe(
        f"{report.load.accepted:,} submitted at {report.submits_per_s:,.0f}/s, "
        f"{amounts.duration(report.took_s)} in all, {amounts.many(report.evictions, 'eviction')}"
    )
    if report.load.late_s > 1:
        head.append(f"; {amounts.duration(report.load.late_s)} behind the pace that was asked for")
    parts: list[RenderableType] = [head, safe(), balance(report.account, report.load.problems)]
    return Group(*parts, safe(), latencies(report.latencies))
