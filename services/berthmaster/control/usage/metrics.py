"""The usage service's Prometheus metrics."""

from collections.abc import Mapping
from typing import Final

from berthmaster.control.usage.core.profiles import Now
from berthmaster.lib.runtime.metrics import GaugeSeries, Metrics

MAX_QUEUES: Final = 100  # number with metrics of their own
OTHERS: Final = "(others)"


class UsageMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self.stored = metrics.counter("stored_jobs", "Ended jobs added to the store")
        self.writes = metrics.counter("store_writes", "Committed transactions of the store")
        self.failures = metrics.counter("store_failures", "Failures of the store")
        self.failing = metrics.gauge("store_failing", "1 while the store is unavailable")
        self.store_bytes = metrics.gauge("store_bytes", "Size of the store in bytes")
        self.write_s = metrics.histogram("write_seconds", "Seconds for one write to the store")
        self.report_s = metrics.histogram("report_seconds", "Seconds to answer a report", ["kind"])
        self.open_jobs = metrics.gauge("open_jobs", "Open jobs")
        self.waiting_jobs = metrics.gauge("unstored_jobs", "Ended jobs not stored yet")
        self.waiting_samples = metrics.gauge(
            "unstored_samples", "Samples of past minutes not stored yet"
        )
        self.lost_samples = metrics.counter(
            "lost_samples",
            "Samples of past minutes dropped because the store was unavailable too long",
        )
        self.left_to_archive = metrics.gauge(
            "left_to_archive_jobs",
            "Jobs with an incomplete event history in the log, since the start",
        )
        self.incomplete = metrics.gauge(
            "incomplete_stories", "Incomplete event histories in the archive, since the start"
        )
        self.unreadable = metrics.counter("unreadable", "Unreadable messages", ["stream"])
        self.behind_s = metrics.gauge(
            "behind_seconds", "Age of the newest event read, until the end of the log is reached"
        )
        self.notices = metrics.counter(
            "notices", "Webhook delivery attempts", ["webhook", "outcome"]
        )
        self.webhooks_wrong = metrics.gauge(
            "webhooks_wrong", "1 while the webhooks file is invalid and the previous one is used"
        )
        self.undelivered = metrics.counter(
            "undelivered_notices", "Undelivered webhook notices after the last attempt"
        )
        self.spans = metrics.counter(
            "spans", "Spans of jobs by result: sent, failed (the collector), dropped", ["result"]
        )
        self.profiles = metrics.gauge("profiles", "Profiles of attempts in memory")
        self.profiles_left_out = metrics.gauge(
            "profiles_left_out", "Messages of attempts for whose profiles there was no room"
        )
        labels = ["queue"]
        gauges = {
            "gpus": metrics.gauge("queue_gpus", "GPUs of measured jobs, by queue", labels),
            "busy_gpus": metrics.gauge(
                "queue_busy_gpus", "Of these, by the share of time in which kernels ran", labels
            ),
            "cpu_cores": metrics.gauge("queue_cpu_cores", "CPU cores that they use", labels),
        }
        self._by_queue = {field: GaugeSeries(gauge) for field, gauge in gauges.items()}
        self.prices_wrong = metrics.gauge(
            "prices_wrong", "1 while the prices file is invalid and the previous prices are used"
        )

    def show_queues(self, found: Mapping[str, Now]) -> None:
        """Set the gauges of each queue: the largest queues by name, the others together."""
        largest = sorted(found, key=lambda name: (-found[name].gpus, name))[:MAX_QUEUES]
        shown = {name: found[name] for name in largest}
        for name in found.keys() - shown.keys():
            rest = shown.get(OTHERS, Now())
            shown[OTHERS] = rest.plus(found[name])
        for field, series in self._by_queue.items():
            series.show({(name,): getattr(now, field) for name, now in shown.items()})
