"""Interference: how many of the GPUs that a part of one would share are calm.

Counts for jobs that ask for part of a GPU only. Two jobs on one GPU hardly slow each other while
both use it below 70 % (Lucid, ASPLOS'23: of such pairs 3.4 % run below 0.85 of their speed).
"""

from berthmaster.lib.engine.scoring.parts.values import Floats, believed, within_bounds


def part(calm_percent: Floats) -> Floats:
    """From what the scorer tells while it is fresh."""
    return within_bounds(believed(calm_percent))
