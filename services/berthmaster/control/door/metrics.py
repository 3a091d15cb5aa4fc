"""The door's figures for Prometheus."""

from berthmaster.control.door.core.door import Door
from berthmaster.lib.runtime.metrics import Metrics


class DoorMetrics:
    """What is counted as it happens, and what is read from the core now and then."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter(
            "requests", "Requests of agents, by verb and by what became of them", ("verb", "result")
        )
        self._events = metrics.counter("events", "Events told, by what became of them", ("result",))
        self.lost = metrics.counter(
            "lost_attempts", "Times that a cluster held an attempt which the log has lost"
        )
        self._facts = metrics.counter(
            "facts_told", "Facts told, by what became of them", ("result",)
        )
        self.seconds = metrics.histogram("tell_seconds", "From events told to their answer")
        self.nudges = metrics.counter("nudges", "Clusters told that there is something to take")
        self.unreadable = metrics.counter("unreadable", "Events of the log that cannot be read")
        self.telemetry = metrics.counter("telemetry_passed", "Telemetry messages passed on")
        self.dropped = metrics.counter("telemetry_dropped", "Telemetry messages dropped")
        self.job_figures = metrics.counter("figures_passed", "Figures of jobs passed on")
        self.figures_dropped = metrics.counter("figures_dropped", "Figures of jobs dropped")
        self.figures_refused = metrics.counter(
            "figures_values_refused", "Values of jobs' figures that no job can have, left out"
        )
        self.logs_dropped = metrics.counter("logs_dropped", "Pieces of logs dropped")
        self.log_ends_refused = metrics.counter(
            "log_ends_refused", "Ends of logs of attempts that were never in the asker's cluster"
        )
        self._open = metrics.gauge("open_workloads", "Workloads that have not ended")
        self._known = metrics.gauge("facts", "Facts at hand")
        self._frozen = metrics.gauge("frozen_workloads", "Workloads with unreadable events")
        self._polls = metrics.gauge("polls", "Polls that wait")

    def answered(self, verb: str, result: str) -> None:
        self._requests.labels(verb, result).inc()

    def told(self, result: str) -> None:
        self._events.labels(result).inc()

    def reported(self, result: str) -> None:
        self._facts.labels(result).inc()

    def show(self, core: Door, polls: int) -> None:
        """Take over the present values."""
        self._open.set(core.log.open)
        self._known.set(core.fleet.facts)
        self._frozen.set(len(core.log.frozen))
        self._polls.set(polls)
