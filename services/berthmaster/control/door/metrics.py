"""The door's Prometheus metrics."""

from berthmaster.control.door.core.door import Door
from berthmaster.lib.runtime.metrics import Metrics


class DoorMetrics:
    """Counters updated at each request, and gauges refreshed from the core."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter(
            "requests", "Requests of agents by verb and result", ("verb", "result")
        )
        self._events = metrics.counter("events", "Events of agents by result", ("result",))
        self.lost = metrics.counter(
            "lost_attempts", "Attempts held by a cluster that the event log has lost"
        )
        self._facts = metrics.counter("facts_told", "Facts of agents by result", ("result",))
        self.seconds = metrics.histogram(
            "tell_seconds", "Seconds from an agent's events to the reply"
        )
        self.nudges = metrics.counter("nudges", "Wake-up messages to clusters")
        self.unreadable = metrics.counter("unreadable", "Unreadable events of the log")
        self.telemetry = metrics.counter("telemetry_passed", "Forwarded telemetry messages")
        self.dropped = metrics.counter("telemetry_dropped", "Dropped telemetry messages")
        self.job_figures = metrics.counter("figures_passed", "Forwarded usage messages of jobs")
        self.figures_dropped = metrics.counter("figures_dropped", "Dropped usage messages of jobs")
        self.figures_refused = metrics.counter(
            "figures_values_refused", "Values of jobs' usage that are impossible and left out"
        )
        self.logs_dropped = metrics.counter("logs_dropped", "Dropped log chunks")
        self.log_ends_refused = metrics.counter(
            "log_ends_refused", "Refused ends of logs, of attempts never in the sender's cluster"
        )
        self._open = metrics.gauge("open_workloads", "Open workloads")
        self._known = metrics.gauge("facts", "Facts in memory")
        self._frozen = metrics.gauge("frozen_workloads", "Workloads with unreadable events")
        self._polls = metrics.gauge("polls", "Open polls")

    def answered(self, verb: str, result: str) -> None:
        self._requests.labels(verb, result).inc()

    def told(self, result: str) -> None:
        self._events.labels(result).inc()

    def reported(self, result: str) -> None:
        self._facts.labels(result).inc()

    def show(self, core: Door, polls: int) -> None:
        """Set the gauges from the core."""
        self._open.set(core.log.open)
        self._known.set(core.fleet.facts)
        self._frozen.set(len(core.log.frozen))
        self._polls.set(polls)
