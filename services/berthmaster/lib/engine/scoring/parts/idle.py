"""Idle: the measured idle share of the cluster's GPUs."""

from berthmaster.lib.engine.scoring.parts.values import Floats, believed, within_bounds


def part(idle_percent: Floats) -> Floats:
    """From what the scorer tells while it is fresh."""
    return within_bounds(believed(idle_percent))
