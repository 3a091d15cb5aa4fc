"""The Prometheus metrics of a service, under a common naming rule.

Names are `berth_<service>_<what>_<unit>`. Each service has a registry, so that several services can
share a process, as in tests. A second request for a metric returns the existing one.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics import MetricWrapperBase

L = TypeVar("L", bound=tuple[str, ...])
M = TypeVar("M", bound=MetricWrapperBase)

# From a message within a machine to a wait that a human notices.
LATENCY_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0,
)  # fmt: skip


class GaugeSeries:
    """The series of one gauge with labels, replaced as a whole.

    Example: after ``show({("east",): 8.0})`` the call ``show({("west",): 4.0})`` removes the series
    of east.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: set[tuple[str, ...]] = set()

    def show(self, values: Mapping[L, float]) -> None:
        """Set these series by their label values, and remove the others."""
        for labels in self._shown - values.keys():
            self._gauge.remove(*labels)
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        self._shown = set(values)


class Metrics:
    """Creates and keeps the metrics of a service."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._prefix = f"berth_{service.replace('-', '_')}_"
        self._known: dict[str, MetricWrapperBase] = {}
        # Memory, CPU time and open files of the process, under Prometheus' usual names.
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def counter(self, what: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Return a metric that only grows, exported with the suffix `_total`."""
        name = self._prefix + what
        return self._keep(name, Counter, labels) or self._add(
            name, Counter(name, help, labels, registry=self.registry)
        )

    def gauge(self, what: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """Return a metric that goes up and down."""
        name = self._prefix + what
        return self._keep(name, Gauge, labels) or self._add(
            name, Gauge(name, help, labels, registry=self.registry)
        )

    def histogram(
        self,
        what: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """Return a distribution: latencies in seconds unless ``buckets`` differ."""
        name = self._prefix + what
        return self._keep(name, Histogram, labels) or self._add(
            name, Histogram(name, help, labels, buckets=buckets, registry=self.registry)
        )

    def _keep(self, name: str, kind: type[M], labels: Sequence[str]) -> M | None:
        known = self._known.get(name)
        if known is None:
            return None
        if not isinstance(known, kind) or tuple(known._labelnames) != tuple(labels):
            raise ValueError(f"{name} exists already as another kind or with other labels")
        return known

    def _add(self, name: str, figure: M) -> M:
        self._known[name] = figure
        return figure
