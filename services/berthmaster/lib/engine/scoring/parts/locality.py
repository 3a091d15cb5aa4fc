"""Locality: whether the cluster is where the job says that its data is.

Counts for requests that say it: names of clusters, or labels or properties as key=value, such as
``topology.kubernetes.io/region=eu-north``. Of several, the share that holds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from berthmaster.lib.engine.scoring.parts.values import MOST, Floats, believed


def holds(place: str, cluster: str, told: Mapping[str, str]) -> bool:
    """Whether one of the request's words fits a cluster that tells this of itself."""
    key, equals, value = place.partition("=")
    return told.get(key) == value if equals else place == cluster


def matches(data: Sequence[str], cluster: str, told: Mapping[str, str]) -> int:
    """How many of the request's words fit."""
    return sum(holds(place, cluster, told) for place in data)


def part(matching: Floats, asked: int) -> Floats:
    """From ``matches`` of ``asked`` words; always known, as what is not told does not hold."""
    return MOST * np.minimum(believed(matching) / max(1, asked), 1.0)
