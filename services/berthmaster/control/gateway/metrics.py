"""The gateway's Prometheus metrics. Labels are looked up once, not for each request."""

from typing import get_args

from prometheus_client import Counter, Histogram

from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.messages.api import ApiReply, Refusal
from berthmaster.lib.messages.workload import ExceededLimit
from berthmaster.lib.runtime.metrics import Metrics


class GatewayMetrics:
    """Counters updated at each request, and gauges refreshed from the core."""

    def __init__(self, metrics: Metrics, core: Gateway) -> None:
        self._core = core
        self._seconds = metrics.histogram(
            "request_seconds", "Seconds from a request's arrival to its reply", ("verb",)
        )
        self._requests = metrics.counter(
            "requests", "Requests by verb and result", ("verb", "outcome")
        )
        self.undecodable = metrics.counter(
            "undecodable_messages", "Messages unreadable for this version"
        )
        self._events = metrics.counter("events", "Events of the log by verdict", ("verdict",))
        self._open = metrics.gauge("open_workloads", "Open workloads in memory")
        self._ended = metrics.gauge("ended_workloads", "Ended workloads in memory")
        self._frozen = metrics.gauge("frozen_workloads", "Workloads with unreadable events")
        self._in_flight = metrics.gauge("requests_in_flight", "Requests in flight")
        self._idle = metrics.gauge("idle_jobs", "Running jobs that are idle by their queue's rule")
        self._exceeding = metrics.gauge(
            "jobs_exceeding", "Running jobs that use more than their GPU fraction", ("limit",)
        )
        self._full = metrics.gauge(
            "log_full", "1 while submits are refused because the log is nearly full"
        )
        self._seconds_of: dict[str, Histogram] = {}
        self._requests_of: dict[tuple[str, str], Counter] = {}
        self._verdicts: dict[Verdict, int] = {}

    def answered(self, verb: str, reply: ApiReply, took_s: float) -> None:
        outcome = reply.code if isinstance(reply, Refusal) else "ok"
        seconds = self._seconds_of.get(verb)
        if seconds is None:
            seconds = self._seconds_of[verb] = self._seconds.labels(verb)
        requests = self._requests_of.get((verb, outcome))
        if requests is None:
            requests = self._requests.labels(verb, outcome)
            self._requests_of[verb, outcome] = requests
        seconds.observe(took_s)
        requests.inc()

    def refresh(self) -> None:
        """Set the gauges and event counters from the core."""
        view = self._core.view
        self._open.set(view.open_count)
        self._ended.set(view.ended_count)
        self._frozen.set(view.frozen_count)
        self._in_flight.set(self._core.in_flight)
        self._idle.set(self._core.idle_jobs)
        exceeding = self._core.exceeding
        for limit in get_args(ExceededLimit):
            self._exceeding.labels(limit).set(exceeding[limit])
        self._full.set(self._core.is_full)
        for verdict, count in self._core.verdicts.items():
            new = count - self._verdicts.get(verdict, 0)
            if new:
                self._events.labels(verdict.value).inc(new)
                self._verdicts[verdict] = count
