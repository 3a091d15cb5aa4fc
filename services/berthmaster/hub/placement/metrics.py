"""Metrics of the evaluator: number of Placements, duration of evaluations, delay of a change."""

from berthmaster.lib.runtime.metrics import Metrics


class PlacementMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._placements = metrics.gauge("placements", "Managed Placements")
        self._misconfigured = metrics.gauge("misconfigured", "Invalid managed Placements")
        self.look_s = metrics.histogram("look_seconds", "Seconds for one evaluation of a Placement")
        self.reaction_s = metrics.histogram(
            "reaction_seconds", "Seconds from a change to the written decisions"
        )

    def show(self, placements: int, misconfigured: int) -> None:
        self._placements.set(placements)
        self._misconfigured.set(misconfigured)
