"""Finds objects that have the name of a copy's job and are not MultiKueue's.

Kueue admits the copy of a Workload in a worker, then makes its job there. Where another object has
the job's name, Kueue leaves that alone, tries again for ever, and reports it nowhere but in the log
of the hub's manager. So each copy that has no job is looked at: example ``job-train-3f9a1`` in the
namespace ``team`` is of the Job ``train``, and a Job ``team/train`` without MultiKueue's label
blocks it.

Limits: a few calls a beat, and one a minute for a copy that waits for quota.
"""

from collections.abc import Callable
from typing import Final

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import Forbidden, KubernetesError, NotFound
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import JOB_SETS, JOBS, RAY_JOBS, Resource
from berthmaster.lib.kueue.jobs import JobOfWorkload, read_workload_name
from berthmaster.lib.kueue.names import ORIGIN_LABEL
from berthmaster.worker.inventory.core.queue_index import Key, QueueIndex
from berthmaster.worker.inventory.core.queues import Copy

FIRST_S: Final = 2.0  # from the admission of a copy until Kueue has made its job, usually
ADMITTED_S: Final = 5.0  # interval of checks for an admitted copy
WAITING_S: Final = 60.0  # interval of checks for another copy
DENIED_S: Final = 60.0
AT_ONCE: Final = 5  # looks a beat
# The kinds that MultiKueue copies, by lower-case name.
_KUBEFLOW: Final = ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
_KINDS: Final = {
    one.kind.lower(): one
    for one in (
        JOBS,
        JOB_SETS,
        RAY_JOBS,
        Resource("ray.io", "v1", "rayclusters", "RayCluster"),
        Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"),
        *(Resource("kubeflow.org", "v1", f"{kind.lower()}s", kind) for kind in _KUBEFLOW),
    )
}


class Blockers:
    def __init__(self, client: Client, queues: QueueIndex, wake: Callable[[], None]) -> None:
        self._client = client
        self._queues = queues
        self._wake = wake
        # Copy -> time of the next check, whether admitted
        self._due: dict[Key, tuple[float, bool]] = {}
        self._denied: dict[str, float] = {}  # kind -> end of the pause after a denial

    async def look(self, now_s: float) -> None:
        """Check the copies that are due."""
        for key, copy in self._take_due(now_s):
            wait_s = ADMITTED_S if copy.admitted else WAITING_S
            self._due[key] = (now_s + wait_s, copy.admitted)
            of = read_workload_name(key[1])
            resource = _KINDS.get(of.kind) if of is not None else None
            if of is None or resource is None or now_s < self._denied.get(of.kind, 0.0):
                continue
            try:
                found = await self._find(resource, key[0], of, copy.origin)
            except Forbidden:
                self._denied[of.kind] = now_s + DENIED_S
                continue
            except KubernetesError:
                continue  # the mirrors report an unreachable API server
            self._queues.set_blocked(key, found)
            self._wake()

    def _take_due(self, now_s: float) -> list[tuple[Key, Copy]]:
        there = dict(self._queues.without_job())
        for key in [key for key in self._due if key not in there]:
            del self._due[key]
        for key, copy in there.items():
            due_s, was_admitted = self._due.get(key, (now_s + FIRST_S, copy.admitted))
            if copy.admitted and not was_admitted:
                due_s = min(due_s, now_s + FIRST_S)
            self._due[key] = (due_s, copy.admitted)
        due = sorted((due_s, key) for key, (due_s, _) in self._due.items() if due_s <= now_s)
        return [(key, there[key]) for _, key in due[:AT_ONCE]]

    async def _find(
        self, resource: Resource, namespace: str, of: JobOfWorkload, origin: str
    ) -> str:
        """Return what blocks the job, such as "Job team/train", or "". Raises KubernetesError."""
        if of.whole:
            path = resource.path(namespace=namespace, name=of.name)
            try:
                found = [await self._client.get(path, Object)]
            except NotFound:
                return ""
        else:
            found = await self._with_prefix(resource, namespace, of.name)
        strange = [
            one.metadata.name for one in found if one.metadata.labels.get(ORIGIN_LABEL) != origin
        ]
        return f"{resource.kind} {namespace}/{min(strange)}" if strange else ""

    async def _with_prefix(self, resource: Resource, namespace: str, prefix: str) -> list[Object]:
        found: list[Object] = []
        try:
            async for page in self._client.list_pages(resource, Object, namespace=namespace):
                items = [one for one in page.items if one.metadata.name.startswith(prefix)]
                found = items if page.first else [*found, *items]
        except NotFound:
            return []
        return found
