"""The figures that every controller has: whether it acts, what it writes, what it cannot handle."""

from berthmaster.lib.kube.controller.answer import Answer
from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.runtime.metrics import Metrics


class ControllerMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._acting = metrics.gauge("acting", "1 where this replica acts")
        self._writes = metrics.counter(
            "writes", "Writes by what became of them", ["kind", "outcome"]
        )
        self._dropped = metrics.gauge("events_dropped", "Kubernetes events not written")
        self._aside = metrics.gauge("set_aside", "Objects that cannot be handled", ["resource"])
        self._faults = metrics.counter("faults", "Times the core raised on an answer or a fact")
        self._shown: set[str] = set()

    def acting(self, acting: bool) -> None:
        self._acting.set(acting)

    def wrote(self, write: object, answer: Answer) -> None:
        self._writes.labels(type(write).__name__, answer.outcome.value).inc()

    def fault(self) -> None:
        """The core raised, and it is not known on which object."""
        self._faults.inc()

    def show(self, aside: SetAside, dropped: int) -> None:
        self._dropped.set(dropped)
        counts = aside.count()
        for plural in self._shown | counts.keys():
            self._aside.labels(plural).set(counts[plural])
        self._shown |= counts.keys()
