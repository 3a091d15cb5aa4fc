"""Steadiness: how much of what was started on the cluster lately went well.

A start and a success speak for it, an eviction, a placement that nobody claimed and a silence
against it (track_record.py counts them). Without a history nothing is known: steady is who has
shown it.
"""

from typing import Final

import numpy as np

from berthmaster.engine.scoring.parts.values import MOST, UNKNOWN, Floats, believed

TROUBLE: Final = 4.0  # what one trouble weighs against one good thing
UNPROVEN: Final = 1.0  # so that one good thing does not make a perfect record


def part(good: Floats, bad: Floats) -> Floats:
    """From what went well and what did not, older things counted less."""
    good, bad = believed(good), believed(bad)
    with np.errstate(over="ignore", invalid="ignore"):
        share = good / (good + TROUBLE * bad + UNPROVEN)
        return np.where(good + bad > 0, MOST * share, UNKNOWN)
