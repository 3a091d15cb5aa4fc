"""Metrics of every controller: API calls, whether the replica acts, writes, faults."""

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.runtime.metrics import Metrics


class CallMetrics:
    """``api_calls`` by verb and resource."""

    def __init__(self, metrics: Metrics, client: Client, help: str) -> None:
        self._client = client
        self._calls = metrics.counter("api_calls", help, ["verb", "resource"])
        self._shown: dict[tuple[str, str], int] = {}

    def show(self) -> None:
        for key, count in self._client.calls.items():
            self._calls.labels(*key).inc(count - self._shown.get(key, 0))
            self._shown[key] = count


class ControllerMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._acting = metrics.gauge("acting", "1 on the acting replica")
        self._writes = metrics.counter("writes", "Writes by result", ["kind", "outcome"])
        self._dropped = metrics.gauge("events_dropped", "Kubernetes events not written")
        self._aside = metrics.gauge("set_aside", "Objects skipped because of errors", ["resource"])
        self._faults = metrics.counter("faults", "Exceptions of the core on an answer or a fact")
        self._shown: set[str] = set()

    def acting(self, acting: bool) -> None:
        self._acting.set(acting)

    def wrote(self, write: object, answer: Answer) -> None:
        self._writes.labels(type(write).__name__, answer.outcome.value).inc()

    def fault(self) -> None:
        """Count an exception of the core that names no object."""
        self._faults.inc()

    def show(self, aside: SetAside, dropped: int) -> None:
        self._dropped.set(dropped)
        counts = aside.count()
        for plural in self._shown | counts.keys():
            self._aside.labels(plural).set(counts[plural])
        self._shown |= counts.keys()
