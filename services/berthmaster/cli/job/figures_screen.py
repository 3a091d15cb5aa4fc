"""What the GPUs of one job do, for people, in a few lines."""

from collections.abc import Sequence

from berthmaster.cli.output import amounts
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures

UNKNOWN = "-"


def use_line(use: GpuUse) -> str:
    parts = [amounts.many(use.gpus, "GPU")]
    parts.append(f"{_percent(use.utilization_percent)} busy")
    if use.sm_active_percent is not None:
        parts.append(f"{_percent(use.sm_active_percent)} of their SMs")
    if use.memory_used_mib is not None:
        whole = f" of {_gib(use.memory_total_mib)}" if use.memory_total_mib else ""
        parts.append(f"{_gib(use.memory_used_mib)}{whole}")
    if use.power_w is not None:
        parts.append(f"{use.power_w:.0f} W")
    return ", ".join(parts)


def lines(figures: Sequence[JobFigures], now_s: float) -> list[str]:
    """What one job's GPUs do, wherever it is; what is wrong comes last."""
    found: list[str] = []
    for one in figures:
        found.append(f"{one.cluster}: {use_line(one.use)}{_idle(one, now_s)}")
        if one.owner is not None and one.owner.jobs > 1:
            owner = one.owner
            found.append(f"all of {owner.kind} {owner.name}: {use_line(owner.use)}")
        found += one.disagreements
    return found


def _idle(figures: JobFigures, now_s: float) -> str:
    if figures.idle_since_s is None:
        return ""
    return f"; no GPU of it has done anything for {amounts.since(figures.idle_since_s, now_s)}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}%"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"
