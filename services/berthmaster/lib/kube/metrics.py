"""What a service's calls of an API server come to, as a figure; the client only counts them."""

from berthmaster.lib.kube.client import Client
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
