"""How well a decider does: one screen."""

from rich.console import Group, RenderableType

from berthmaster.cli.output.amounts import clock, duration, zone
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.messages.quality import QualityReport

SHOWN = 20


def report(told: QualityReport) -> RenderableType:
    """One report: the whole, then the queues."""
    deciding = f", {told.decide_ms:.2g} ms each" if told.decide_ms is not None else ""
    lines: list[RenderableType] = [
        safe(
            f"{told.decider} at {clock(told.observed_at_s)[:8]} {zone(told.observed_at_s)}",
            style="bold",
        ),
        safe(
            f"{told.live:,} placed, {told.waiting:,} wait; GPUs {_percent(told.allocation_percent)}"
            f" taken, {_percent(told.fragmentation_percent)} of the rest fragmented;"
            f" fairness {told.fairness:.2f}; {told.placements_per_s:,g} placements/s{deciding}"
        ),
    ]
    if told.queues:
        columns = ("PLACED", "WAIT", "GPUS", "MEAN WAIT", "DONE", "MEAN TIME", "EVICTED")
        table = plain_table("QUEUE", *columns, right=columns)
        for queue in told.queues[:SHOWN]:
            table.add_row(
                safe(queue.queue),
                f"{queue.live:,}",
                f"{queue.waiting:,}",
                f"{queue.used_gpu_milli / 1000:g}",
                _span(queue.mean_wait_s),
                f"{queue.succeeded:,}",
                _span(queue.mean_completion_s),
                f"{queue.evicted:,}",
            )
        lines.append(table)
        if len(told.queues) > SHOWN:
            lines.append(safe(f"and {len(told.queues) - SHOWN:,} more queues"))
    return Group(*lines)


def _percent(value: float | None) -> str:
    return f"{value:.1f}%" if value is not None else "?%"


def _span(seconds: float | None) -> str:
    return duration(seconds) if seconds is not None else "-"
