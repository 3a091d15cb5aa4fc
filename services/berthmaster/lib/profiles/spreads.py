"""The spreads of a job's metrics: sketches that grow with each message about it. Pure."""

from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Final

from berthmaster.lib.messages.profile import Spread
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.profiles.metrics import METRICS, values_of
from berthmaster.lib.profiles.sketch import Sketch

# Fields that have the highest sample of a metric, whose mean the message gives.
_PEAKS: Final = MappingProxyType({"gpu_utilization_percent": "utilization_max_percent"})


def add(sketches: MutableMapping[str, Sketch], figures: JobFigures) -> dict[str, float]:
    """Count one message, weighted by its seconds; its values by metric."""
    values = values_of(figures)
    weight = max(1, round(figures.window_s))
    for name, value in values.items():
        peak = getattr(figures.use, _PEAKS[name]) if name in _PEAKS else None
        sketches.setdefault(name, Sketch()).add(value, weight, peak)
    return values


def medians(sketches: Mapping[str, Sketch]) -> dict[str, float]:
    found = {name: one.quantile(0.5) for name, one in sketches.items()}
    return {name: value for name, value in found.items() if value is not None}


def spreads(sketches: Mapping[str, Sketch]) -> dict[str, Spread]:
    """In the order of METRICS."""
    found: dict[str, Spread] = {}
    for name in METRICS:
        one = sketches.get(name)
        if one is None or not one.weight:
            continue
        p50, p95 = one.quantile(0.5) or 0.0, one.quantile(0.95) or 0.0
        found[name] = Spread(p50=round(p50, 3), p95=round(p95, 3), peak=round(one.peak, 3))
    return found
