"""Which nodes of a cluster have the labels by which a flavor means nodes: worked out once for each
layout of the fleet, since labels seldom change and each ranking asks."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import Fleet

Labels = frozenset[tuple[str, str]]
MOST_KEPT: Final = 1024  # a byte a node each


class LabelledNodes:
    def __init__(self) -> None:
        self._layout = -1
        self._known: dict[tuple[range, Labels], NDArray[np.bool_]] = {}

    def of(self, fleet: Fleet, slots: range, labels: Labels) -> NDArray[np.bool_]:
        """Return which nodes in these slots have all labels. The fleet must be arranged."""
        if fleet.layout != self._layout or len(self._known) >= MOST_KEPT:
            self._layout = fleet.layout
            self._known.clear()
        found = self._known.get((slots, labels))
        if found is None:
            has = (labels <= fleet.report_at(slot).labels.items() for slot in slots)
            found = np.fromiter(has, np.bool_, len(slots))
            self._known[slots, labels] = found
        return found
