"""The dashboard's figures for Prometheus."""

from berthmaster.control.dashboard.core.dashboard import Dashboard
from berthmaster.control.dashboard.streaming import Streams
from berthmaster.control.dashboard.web import Site
from berthmaster.lib.runtime.metrics import Metrics


class DashboardMetrics:
    """Brought up to date once a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._viewers = metrics.gauge("viewers", "Pages that are kept up to date")
        self._connections = metrics.gauge("connections", "Open connections of browsers")
        self._gpus = metrics.gauge("gpus", "GPUs that are shown")
        self._jobs = metrics.gauge("open_jobs", "Open jobs that are shown")
        self._counters = {
            "refused_viewers": metrics.counter("refused_viewers", "Pages beyond the bound"),
            "refused_connections": metrics.counter(
                "refused_connections", "Connections beyond the bound"
            ),
            "let_go": metrics.counter("slow_viewers_let_go", "Pages that took nothing for long"),
            "sent_bytes": metrics.counter("sent_bytes", "Sent to pages that are kept up to date"),
            "unknown": metrics.counter("unknown_readings", "Readings of nodes that no fact names"),
        }
        self._told = dict.fromkeys(self._counters, 0)

    def show(self, known: Dashboard, streams: Streams, site: Site) -> None:
        self._viewers.set(streams.viewers)
        self._connections.set(site.connections)
        self._gpus.set(sum(grid.gpus for grid in known.grids.values()))
        self._jobs.set(len(known.jobs.open))
        now = {
            "refused_viewers": streams.refused,
            "refused_connections": site.refused,
            "let_go": streams.let_go,
            "sent_bytes": streams.sent_bytes,
            "unknown": known.unknown_readings,
        }
        for what, value in now.items():
            self._counters[what].inc(value - self._told[what])
            self._told[what] = value
