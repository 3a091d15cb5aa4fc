"""The usage service's figures for Prometheus."""

from berthmaster.lib.runtime.metrics import Metrics


class UsageMetrics:
    """Made once; each is told where it happens."""

    def __init__(self, metrics: Metrics) -> None:
        self.stored = metrics.counter("stored_jobs", "Ended jobs that were new to the store")
        self.writes = metrics.counter("store_writes", "Transactions that the store took")
        self.failures = metrics.counter("store_failures", "Times that the store could not be used")
        self.failing = metrics.gauge("store_failing", "1 while the store cannot be used")
        self.store_bytes = metrics.gauge("store_bytes", "How large the store is")
        self.write_s = metrics.histogram("write_seconds", "Time to store what ended meanwhile")
        self.report_s = metrics.histogram("report_seconds", "Time to answer a report", ["kind"])
        self.open_jobs = metrics.gauge("open_jobs", "Jobs that have not ended")
        self.waiting_jobs = metrics.gauge("unstored_jobs", "Ended jobs that are not stored yet")
        self.waiting_samples = metrics.gauge(
            "unstored_samples", "Figures of past minutes that are not stored yet"
        )
        self.lost_samples = metrics.counter(
            "lost_samples",
            "Figures of past minutes that were given up: the store was away too long",
        )
        self.left_to_archive = metrics.gauge(
            "left_to_archive_jobs", "Jobs whose story the log did not have whole, since the start"
        )
        self.incomplete = metrics.gauge(
            "incomplete_stories", "Stories of the archive without all their parts, since the start"
        )
        self.unreadable = metrics.counter(
            "unreadable", "Messages that could not be decoded", ["stream"]
        )
        self.behind_s = metrics.gauge(
            "behind_seconds", "Age of the newest event that was read, until all of the log was"
        )
        self.notices = metrics.counter(
            "notices", "Tries to tell a webhook of an end", ["webhook", "outcome"]
        )
        self.webhooks_wrong = metrics.gauge(
            "webhooks_wrong", "1 while the webhooks' file is wrong and the one before counts"
        )
        self.undelivered = metrics.counter(
            "undelivered_notices", "Ends that a webhook was not told of after the last try"
        )
        self.spans = metrics.counter(
            "spans", "Spans of jobs by result: sent, failed (the collector), dropped", ["result"]
        )
        self.prices_wrong = metrics.gauge(
            "prices_wrong", "1 while the prices' file cannot be read and the prices before count"
        )
