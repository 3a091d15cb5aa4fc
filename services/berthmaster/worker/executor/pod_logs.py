"""Logs of pods as a kubelet has them, by way of the API server."""

from collections.abc import Sequence
from datetime import UTC, datetime

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.kube.transport import Stream
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.core.objects import PodObject
from berthmaster.worker.executor.hub_jobs import HubJobs
from berthmaster.worker.executor.logs import LogStream, NoLog
from berthmaster.worker.executor.runtime import ClusterRuntime


class PodLogs:
    """Logs of an executor's pods, and of pods that a hub sent into its namespaces."""

    def __init__(self, client: Client, runtime: ClusterRuntime, hub_jobs: HubJobs) -> None:
        self._client = client
        self._runtime = runtime
        self._hub_jobs = hub_jobs

    def _pods_of(self, attempt: Attempt) -> Sequence[PodObject]:
        if self._runtime.holds(attempt):
            return self._runtime.pods_of(attempt)
        return self._hub_jobs.pods_of(attempt)

    async def pods(self, attempt: Attempt) -> Sequence[str]:
        """Return the names of its pods in order. Raises NoLog."""
        return [pod.metadata.name for pod in self._pods_of(attempt)]

    async def open(
        self,
        attempt: Attempt,
        pod: str,
        *,
        since_s: float | None,
        tail: int | None,
        follow: bool,
    ) -> LogStream:
        """Raises NoLog."""
        found = self._hub_jobs.find(attempt, pod)
        if self._runtime.holds(attempt):
            pods = self._runtime.pods_of(attempt)
            found = next((p for p in pods if p.metadata.name == pod), None)
        if found is None:
            raise NoLog(f"pod {pod} is gone")
        since = ""
        if since_s is not None:
            since = datetime.fromtimestamp(int(since_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            stream = await self._client.pod_log(
                found.metadata.namespace,
                pod,
                container=found.main_container,
                since=since,
                tail=tail,
                follow=follow,
            )
        except KubernetesError as error:
            raise NoLog(f"pod {pod}: {error}") from error
        return _PodLog(stream)


class _PodLog:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        """Raises NoLog."""
        try:
            return await self._stream.read()
        except KubernetesError as error:
            raise NoLog(str(error)) from error

    def close(self) -> None:
        self._stream.close()
