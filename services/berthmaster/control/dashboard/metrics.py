"""The dashboard's Prometheus metrics."""

from berthmaster.control.dashboard.core.dashboard import Dashboard
from berthmaster.control.dashboard.streaming import Streams
from berthmaster.control.dashboard.web import Site
from berthmaster.lib.runtime.metrics import Metrics


class DashboardMetrics:
    """Metrics updated at every tick."""

    def __init__(self, metrics: Metrics) -> None:
        self._viewers = metrics.gauge("viewers", "Connected dashboard pages")
        self._connections = metrics.gauge("connections", "Open connections of browsers")
        self._gpus = metrics.gauge("gpus", "GPUs on the dashboard")
        self._jobs = metrics.gauge("open_jobs", "Open jobs on the dashboard")
        self._counters = {
            "refused_viewers": metrics.counter("refused_viewers", "Refused pages above the limit"),
            "refused_connections": metrics.counter(
                "refused_connections", "Refused connections above the limit"
            ),
            "let_go": metrics.counter(
                "slow_viewers_let_go", "Pages disconnected because they were slow"
            ),
            "sent_bytes": metrics.counter("sent_bytes", "Bytes sent to pages"),
            "unknown": metrics.counter("unknown_readings", "Samples of unknown nodes"),
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
