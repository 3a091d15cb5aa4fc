"""Prometheus metrics of the credentials service."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from berthmaster.hub.credentials.core.credentials import Counts, Status
from berthmaster.hub.credentials.core.stages import Stage
from berthmaster.hub.credentials.renewal import Renewal
from berthmaster.lib.runtime.metrics import GaugeSeries, Metrics

NEVER_S: Final = 1e9


class CredentialsMetrics:
    """Gauges and counters of one replica."""

    def __init__(self, metrics: Metrics) -> None:
        self._clusters = metrics.gauge("clusters", "Clusters by state", ["stage"])
        self._usable = metrics.gauge("usable_tokens", "Clusters with a valid token")
        self._failing = metrics.gauge("failing_renewals", "Clusters with a failing token renewal")
        self._draining = metrics.gauge(
            "draining", "Clusters kept from removal by a MultiKueueConfig"
        )
        left_s = metrics.gauge(
            "token_seconds_left", "Seconds until Kueue's token expires", ["cluster"]
        )
        self._left_s = GaugeSeries(left_s)
        self._issued = metrics.counter("issued", "First tokens of clusters")
        self._rotated = metrics.counter("rotated", "Rotated tokens")
        self._revoked = metrics.counter("revoked", "Clusters with revoked access")
        self._ways_in = metrics.counter("bootstrap_renewed", "Renewed bootstrap tokens")
        self._ways_in_failing = metrics.gauge(
            "failing_bootstraps", "Clusters with a failing renewal of the bootstrap token"
        )
        self._plugins_failing = metrics.gauge(
            "failing_plugins", "Clusters whose credential plugin fails"
        )
        self._failures = metrics.counter("failures", "Failed steps", ["stage"])
        self._shown: dict[str, float] = {}

    def show_ways_in(self, renewal: Renewal) -> None:
        """Show the metrics of the bootstrap tokens."""
        self._ways_in.inc(renewal.renewed - self._shown.get("ways in", 0))
        self._shown["ways in"] = renewal.renewed
        self._ways_in_failing.set(len(renewal.failing))

    def show_plugins(self, failing: int) -> None:
        """Show the number of clusters whose plugin fails."""
        self._plugins_failing.set(failing)

    def show(self, statuses: Sequence[Status], counts: Counts, now_s: float) -> None:
        stages = Counter(one.stage for one in statuses)
        for stage in Stage:
            self._clusters.labels(stage.value).set(stages.get(stage, 0))
        self._usable.set(sum(one.usable for one in statuses))
        self._failing.set(sum(one.failing for one in statuses))
        self._draining.set(sum(one.draining for one in statuses))
        left = {
            (one.cluster,): one.expires_at_s - now_s if one.expires_at_s else NEVER_S
            for one in statuses
            if one.usable
        }
        self._left_s.show(left)
        for name, figure, total in (
            ("issued", self._issued, counts.issued),
            ("rotated", self._rotated, counts.rotated),
            ("revoked", self._revoked, counts.revoked),
        ):
            figure.inc(total - self._shown.get(name, 0))
            self._shown[name] = total
        for step, total in counts.failures.items():
            self._failures.labels(step).inc(total - self._shown.get(f"failed {step}", 0))
            self._shown[f"failed {step}"] = total
