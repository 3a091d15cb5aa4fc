"""The evaluator's own figures: what it keeps, how long a look takes, how soon a change shows."""

from berthmaster.lib.runtime.metrics import Metrics


class PlacementMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._placements = metrics.gauge("placements", "Placements that are ours")
        self._misconfigured = metrics.gauge("misconfigured", "Placements of ours that are wrong")
        self.look_s = metrics.histogram("look_seconds", "One look at a Placement")
        self.reaction_s = metrics.histogram(
            "reaction_seconds", "From a change to the decisions written that follow from it"
        )

    def show(self, placements: int, misconfigured: int) -> None:
        self._placements.set(placements)
        self._misconfigured.set(misconfigured)
