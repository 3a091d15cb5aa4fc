"""The controller's figures: what it did, and who waits or drains."""

from berthmaster.admission.core import Admission
from berthmaster.admission.selection import Reason
from berthmaster.admission.words import Done, Write
from berthmaster.runtime.metrics import Metrics


class Figures:
    """Of one replica."""

    def __init__(self, metrics: Metrics) -> None:
        self._acting = metrics.gauge("acting", "1 where this replica acts")
        self._writes = metrics.counter("writes", "Writes to the hub", ["kind", "outcome"])
        self._passed = metrics.counter("passed", "Workloads let through, each attempt anew")
        self._checks = metrics.gauge("checks", "AdmissionChecks of ours by reason", ["reason"])
        self._clusters = metrics.gauge("clusters", "Clusters of a check", ["check", "standing"])
        self._waiting = metrics.gauge("waiting", "Workloads that wait at a check", ["check"])
        self._dropped = metrics.gauge("events_dropped", "Kubernetes events not written")
        self._shown: set[str] = set()
        self._passed_told = 0

    def written(self, write: Write, done: Done) -> None:
        """What became of a write."""
        outcome = "again" if done.soon else "failed" if done.why else "done"
        self._writes.labels(type(write).__name__, outcome).inc()

    def show(self, core: Admission, *, acting: bool, passed: int, dropped: int) -> None:
        """As of now."""
        self._acting.set(acting)
        self._dropped.set(dropped)
        self._passed.inc(passed - self._passed_told)
        self._passed_told = passed
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
            self._waiting.labels(name).set(len(core.book.waiting.get(name, ())))
        self._shown |= set(core.reviews)
