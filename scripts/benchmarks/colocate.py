"""How well the model of sharing tells harmless pairs from harmful ones, on Lucid's measured pairs.

Lucid measured the speed of 1,388 pairs of jobs on one GPU, and each job alone. A pair is bad if its
mean speed is below 0.85 of the speed alone. The bound on the product of both utilizations is chosen
on the pairs without one model (such as all that include BERT) and tried on the pairs with it, for
each model in turn, so no pair is judged by itself or by a pair of the same program. The baseline
packs where both utilizations together are below 100 %.

- ``packed_percent``, ``bad_percent``: pairs that share, and of these the bad ones.
- ``speed``: mean speed of the pairs that share.
- ``error``, ``error_of_the_mean``: root mean square errors of the expected speed, and of the mean
  of the other pairs.
- ``bound_min``, ``bound_max``: the bounds chosen without one model; the product has
  interference.MOST_PRODUCT.
"""

import csv
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from berthmaster.lab.simulate.traces import TRACES_VARIABLE
from berthmaster.lib.engine.scoring.interference import LEAST_SPEED, MOST_PRODUCT
from scripts.benchmarks.trace_files import traces_folder

FOLDER: Final = "lucid"
MOST_BAD: Final = 0.005
BUDGETS: Final = {"packed_percent": (">=", 60.0), "bad_percent": ("<=", 0.5)}
NOTES: list[str] = []


class Pair(NamedTuple):
    """One measured pair. ``speed``: mean of both jobs."""

    models: frozenset[str]
    a: float
    b: float
    speed: float


def pairs_of(folder: Path) -> list[Pair]:
    alone: dict[tuple[str, str, str], float] = {}
    for row in csv.DictReader((folder / "single_data.csv").read_text().splitlines()):
        alone[row["model"], row["batchsize"], row["amp"]] = float(row["gpu_util"]) / 100
    found = []
    for row in csv.DictReader((folder / "colocate_info.csv").read_text().splitlines()):
        first = row["model1"], row["batchsize1"], row["amp1"]
        second = row["model2"], row["batchsize2"], row["amp2"]
        speed = fmean((float(row["speed1"]), float(row["speed2"])))
        models = frozenset((first[0], second[0]))
        found.append(Pair(models, alone[first], alone[second], speed))
    return found


def bound_for(pairs: list[Pair]) -> float:
    """Return the largest product below which at most ``MOST_BAD`` of the pairs are bad."""
    bad, bound = 0, 0.0
    for number, pair in enumerate(sorted(pairs, key=lambda each: each.a * each.b), start=1):
        bad += pair.speed < LEAST_SPEED
        if bad <= MOST_BAD * number:
            bound = pair.a * pair.b
    return bound


def line_for(pairs: list[Pair]) -> tuple[float, float]:
    """Return the speed at product 0, and its loss for each unit of the product."""
    slope, start = np.polyfit([p.a * p.b for p in pairs], [p.speed for p in pairs], 1)
    return float(start), -float(slope)


def measure() -> dict[str, float]:
    NOTES.clear()
    folder = traces_folder(FOLDER)
    if folder is None:
        NOTES.append(f"Lucid's pairs are not there; {TRACES_VARIABLE} names their folder")
        return {}
    pairs = pairs_of(folder / FOLDER)
    refused = np.zeros(len(pairs), bool)
    errors: list[float] = []
    errors_of_mean: list[float] = []
    bounds = []
    for model in sorted({model for pair in pairs for model in pair.models}):
        others = [pair for pair in pairs if model not in pair.models]
        bound, (start, loss) = bound_for(others), line_for(others)
        mean = fmean(pair.speed for pair in others)
        bounds.append(bound)
        for at, pair in enumerate(pairs):
            if model in pair.models:
                refused[at] |= pair.a * pair.b > bound
                errors.append(start - loss * pair.a * pair.b - pair.speed)
                errors_of_mean.append(mean - pair.speed)
    figures: dict[str, float] = {}
    packed = [pair for pair, no in zip(pairs, refused, strict=True) if not no]
    fixed = [pair for pair in pairs if pair.a * pair.b <= MOST_PRODUCT]
    summed = [pair for pair in pairs if pair.a + pair.b < 1.0]
    for name, share in (("", packed), ("product_", fixed), ("sum_below_100_", summed)):
        figures |= {
            f"{name}packed_percent": 100 * len(share) / len(pairs),
            f"{name}bad_percent": 100 * fmean(pair.speed < LEAST_SPEED for pair in share),
            f"{name}speed": fmean(pair.speed for pair in share),
        }
    return figures | {
        "error": float(np.sqrt(np.mean(np.square(errors)))),
        "error_of_the_mean": float(np.sqrt(np.mean(np.square(errors_of_mean)))),
        "bound_min": min(bounds),
        "bound_max": max(bounds),
    }
