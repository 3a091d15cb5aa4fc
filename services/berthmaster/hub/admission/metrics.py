"""Metrics of the controller: passed and waiting Workloads, draining clusters."""

from berthmaster.hub.admission.core.admission import Admission
from berthmaster.hub.admission.core.selection import Reason
from berthmaster.lib.runtime.metrics import Metrics


class AdmissionMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self.passed = metrics.counter(
            "passed", "Workloads that passed a check, counted for each attempt"
        )
        self._checks = metrics.gauge(
            "checks", "AdmissionChecks of Berthmaster by reason", ["reason"]
        )
        self._clusters = metrics.gauge("clusters", "Clusters of a check", ["check", "standing"])
        self._waiting = metrics.gauge("waiting", "Workloads waiting at a check", ["check"])
        self._shown: set[str] = set()

    def show(self, core: Admission) -> None:
        reasons = [found.verdict.reason for found in core.reviews.values()]
        for reason in Reason:
            self._checks.labels(reason.value).set(reasons.count(reason))
        for name in self._shown | set(core.reviews):
            found = core.reviews.get(name)
            members = found.members if found is not None else None
            for standing, names in (
                ("open", members.open if members else ()),
                ("draining", members.draining if members else ()),
                ("left_out", members.left_out if members else ()),
                ("unknown", members.unknown if members else ()),
            ):
                self._clusters.labels(name, standing).set(len(names))
            self._waiting.labels(name).set(len(core.index.waiting.get(name, ())))
        self._shown |= set(core.reviews)
