"""Price: what a GPU's hour costs on the cluster, beside the cheapest that has room.

A cluster, or its hub, tells it as a label or property ``berthmaster.io/price-per-gpu-hour``, a bare
number in whatever money; ``berthmaster.io/price-per-gpu-hour.<model>`` goes before it for a model.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.models import is_model
from berthmaster.lib.engine.scoring.parts.values import MOST, UNKNOWN, Floats, believed

NAME: Final = "berthmaster.io/price-per-gpu-hour"


def price_of(told: Mapping[str, str], model: str) -> float:
    """The price that a cluster tells for GPUs of a model ("" = none in particular)."""
    if model:
        for name in sorted(told):
            if name.startswith(f"{NAME}.") and is_model(name[len(NAME) + 1 :], model):
                return _number(told[name])
    return _number(told.get(NAME, ""))


def _number(text: str) -> float:
    """UNKNOWN if it is no price."""
    try:
        price = float(text) if len(text) <= 32 else UNKNOWN
    except ValueError:
        return UNKNOWN
    return price if math.isfinite(price) and price >= 0 else UNKNOWN


def part(price: Floats, among: NDArray[np.bool_]) -> Floats:
    """100 for the cheapest of those that are ``among`` the choice, 50 for twice its price."""
    price = believed(price)
    known = price[among & ~np.isnan(price)]
    if not known.size:
        return np.full(len(price), UNKNOWN)
    cheapest = known.min()
    with np.errstate(all="ignore"):  # what costs nothing is as cheap as can be
        share = np.where(price <= cheapest, 1.0, cheapest / price)
    return np.where(np.isnan(price), UNKNOWN, MOST * share)
