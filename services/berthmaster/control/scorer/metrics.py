"""The scorer's Prometheus metrics, counted as plain numbers and updated once a second."""

from collections import Counter

from berthmaster.control.scorer.core.instructions import PutScore
from berthmaster.control.scorer.core.scorer import Scorer
from berthmaster.lib.runtime.metrics import GaugeSeries, Metrics


class ScorerMetrics:
    """Counters that cost one addition per message. Only ``refresh`` takes the locks of
    Prometheus.
    """

    def __init__(self, metrics: Metrics, core: Scorer) -> None:
        self._core = core
        self.messages: Counter[str] = Counter()  # by kind
        self.not_believed: Counter[tuple[str, str]] = Counter()  # by kind and reason
        self._shown: Counter[tuple[str, ...]] = Counter()
        self._messages = metrics.counter("messages", "Messages received", ("kind",))
        self._dropped = metrics.counter(
            "messages_dropped", "Ignored messages by kind and reason", ("kind", "reason")
        )
        self._seconds = metrics.histogram(
            "score_seconds", "Seconds from a received change to the stored score"
        )
        self._scores = metrics.counter("scores", "Stored scores", ("freshness",))
        self._failed = metrics.counter("scores_failed", "Scores not stored")
        age = metrics.gauge("input_age_seconds", "Age of a cluster's last heartbeat", ("cluster",))
        self._age = GaugeSeries(age)
        closed = metrics.gauge(
            "closed_gpus", "GPUs that get no new pods because of a fault", ("cluster", "fault")
        )
        self._closed = GaugeSeries(closed)
        self._leading = metrics.gauge("leading", "1 while this scorer publishes for its shard")

    def stored(self, put: PutScore, now_s: float) -> None:
        self._scores.labels(put.fact.freshness).inc()
        if put.since_s is not None:
            self._seconds.observe(max(0.0, now_s - put.since_s))

    def failed(self) -> None:
        self._failed.inc()

    def refresh(self, now_s: float) -> None:
        for kind, count in self.messages.items():
            if more := count - self._shown[(kind,)]:
                self._messages.labels(kind).inc(more)
                self._shown[(kind,)] = count
        for (kind, why), count in (self.not_believed + self._core.dropped).items():
            if more := count - self._shown[kind, why]:
                self._dropped.labels(kind, str(why)).inc(more)
                self._shown[kind, why] = count
        ages = self._core.input_ages_s(now_s)
        self._age.show({(cluster,): age_s for cluster, age_s in ages.items()})
        self._closed.show(self._core.closed_gpus())
        self._leading.set(self._core.leading)
