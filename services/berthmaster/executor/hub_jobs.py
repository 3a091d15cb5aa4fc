"""Jobs that came by way of the hub, as their logs need them: MultiKueue's copy, and its pods.

The hub's Job says in its labels whose it is, and MultiKueue copies them. Its pods have no label of
ours, and nobody here made it: so nothing is watched, and whoever asks for a log makes us look. Only
pods that the copy itself controls count, whatever others are called.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from berthmaster.executor.cluster_protocol import Attempt
from berthmaster.executor.kinds import PodObject
from berthmaster.kubernetes import labels
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import JOBS, PODS, Resource
from berthmaster.kueue.names import ORIGIN_LABEL

FRESH_S: Final = 5.0  # so long pods that were found are taken to be there
MAX_KEPT: Final = 256
T = TypeVar("T", bound=Object)


class _Found(NamedTuple):
    at_s: float
    pods: tuple[PodObject, ...]


class HubJobs:
    """What of them is in the namespaces of one executor."""

    def __init__(self, client: Client, namespaces: Sequence[str]) -> None:
        self._client = client
        self._namespaces = namespaces
        self._found: OrderedDict[tuple[str, str], _Found] = OrderedDict()

    async def pods_of(self, attempt: Attempt, now_s: float) -> tuple[PodObject, ...]:
        """The pods of a workload's copy, in the order of their indices; none if there is no copy.
        Raises KubernetesError."""
        name = attempt.tenant, attempt.id
        known = self._found.get(name)
        if known is not None and now_s - known.at_s < FRESH_S:
            return known.pods
        found = _Found(now_s, await self._look(attempt))
        self._found[name] = found
        self._found.move_to_end(name)
        while len(self._found) > MAX_KEPT:
            self._found.popitem(last=False)
        return found.pods

    async def _look(self, attempt: Attempt) -> tuple[PodObject, ...]:
        mine = {labels.TENANT: attempt.tenant, labels.WORKLOAD: attempt.id}
        chosen = [f"{key}={labels.value(text)}" for key, text in mine.items()]
        selector = ",".join([*chosen, ORIGIN_LABEL, f"!{labels.EXECUTOR}"])
        for namespace in self._namespaces:
            for job in await self._all(JOBS, Object, namespace, selector):
                told = job.metadata.labels | job.metadata.annotations
                if all(told.get(key) == text for key, text in mine.items()):
                    return await self._pods(job)
        return ()

    async def _pods(self, job: Object) -> tuple[PodObject, ...]:
        meta = job.metadata
        selector = f"{labels.JOB_NAME}={labels.value(meta.name)}"
        pods = await self._all(PODS, PodObject, meta.namespace, selector)
        mine = [p for p in pods if meta.uid in [one.uid for one in p.metadata.owner_references]]
        return tuple(sorted(mine, key=_index))

    async def _all(
        self, resource: Resource, kind: type[T], namespace: str, selector: str
    ) -> list[T]:
        found: list[T] = []
        pages = self._client.list_pages(
            resource, kind, namespace=namespace, label_selector=selector
        )
        async for page in pages:
            if page.first:
                found = []
            found += page.items
        return found


def _index(pod: PodObject) -> tuple[int, str]:
    told = pod.metadata.annotations.get(labels.INDEX, "")
    return (int(told) if told.isascii() and told.isdecimal() else 0, pod.metadata.name)
