"""Quality of decisions as Prometheus metrics and as a message, from the deciding replica.

Other replicas fold the same events and would count twice. A starting replica reads past events,
which do not count either.
"""

from collections.abc import Callable
from typing import Final

from berthmaster.control.resolver.core.quality import OTHERS, Quality, what_happened
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.runtime.metrics import Metrics

REPORT_EVERY_S: Final = 5.0
LABELLED: Final = 200  # queues with a label of their own, since a histogram has many series
# From at once to days.
SPAN_BUCKETS_S: Final = (
    0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400,
)  # fmt: skip


class Figures:
    """Counters of events, and gauges read from the core every few seconds."""

    def __init__(self, metrics: Metrics, core: Resolver) -> None:
        self._core = core
        self._quality = Quality()
        self._queues: set[str] = set()
        labels = ("queue",)
        self._spans = {
            "waited": metrics.histogram(
                "wait_seconds", "Seconds from submission to first placement", labels, SPAN_BUCKETS_S
            ),
            "completed": metrics.histogram(
                "completion_seconds", "Seconds from submission to success", labels, SPAN_BUCKETS_S
            ),
        }
        self._evictions = metrics.counter("evictions", "Evicted attempts", labels)
        self._placement_s = metrics.histogram(
            "placement_seconds", "Seconds to decide one placement, as a share of its commit"
        )
        self._allocation = metrics.gauge(
            "allocation_percent", "Allocated share of healthy GPUs, unmanaged pods included"
        )
        self._fragmentation = metrics.gauge(
            "fragmentation_percent",
            "Share of free GPU capacity unusable for the observed mix of jobs",
        )
        self._fairness = metrics.gauge(
            "fairness", "Jain's index of queues' usage relative to their fair shares; 1 = all equal"
        )
        self._suspended = metrics.gauge(
            "suspended_workloads",
            "Workloads backed off because the event log refuses their commits",
        )
        self._per_s = metrics.gauge(
            "placements_per_second", "Placements per second, over the last report interval"
        )

    def heard(
        self, event: WorkloadEvent, stored_at_s: float, take: Callable[[], Verdict | None]
    ) -> Verdict | None:
        """Fold an event with ``take`` and count its effect if applied."""
        before = self._core.know.open.get(key(event.tenant, event.id))
        happened = what_happened(before, event, stored_at_s)  # the fold changes it in place
        verdict = take()
        if happened is None or verdict is not Verdict.COUNTED:
            return verdict
        self._quality.count(happened)
        queue = self._label(happened.queue)
        if happened.kind == "evicted":
            self._evictions.labels(queue).inc()
        else:
            self._spans[happened.kind].labels(queue).observe(happened.seconds)
        return verdict

    def decided(self, placements: int, took_s: float) -> None:
        self._quality.decided(placements, took_s)
        if placements:
            self._placement_s.observe(took_s / placements)

    def report(self, now_s: float) -> QualityReport:
        """Update the gauges and publish a report."""
        report = self._quality.report(self._core.know, self._core.name, now_s)
        for gauge, value in (
            (self._allocation, report.allocation_percent),
            (self._fragmentation, report.fragmentation_percent),
        ):
            gauge.set(value if value is not None else float("nan"))  # unknown is not zero
        self._fairness.set(report.fairness)
        self._per_s.set(report.placements_per_s)
        self._suspended.set(len(self._core.know.suspended))
        return report

    def _label(self, queue: str) -> str:
        if queue not in self._queues and len(self._queues) >= LABELLED:
            return OTHERS
        self._queues.add(queue)
        return queue


class Counted:
    """A resolver whose events are counted while ``counting`` returns True."""

    def __init__(self, core: Resolver, figures: Figures, counting: Callable[[], bool]) -> None:
        self._core = core
        self._figures = figures
        self._counting = counting

    @property
    def cell(self) -> str:
        return self._core.cell

    @property
    def stirred(self) -> bool:
        return self._core.stirred

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Verdict | None:
        """Apply an event and count it."""

        def take() -> Verdict | None:
            return self._core.on_event(event, sequence, stored_at_s, void=void)

        return self._figures.heard(event, stored_at_s, take) if self._counting() else take()

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        self._core.on_unreadable(tenant, workload_id, sequence, why)

    def on_unreadable_decision(self, sequence: int, why: str) -> None:
        self._core.on_unreadable_decision(sequence, why)

    def on_decision(self, decision: Decision, sequence: int) -> None:
        self._core.on_decision(decision, sequence)

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        self._core.on_fact(fact, sequence, stored_at_s)

    def on_control(self, fact: ControlFact, sequence: int) -> None:
        self._core.on_control(fact, sequence)
