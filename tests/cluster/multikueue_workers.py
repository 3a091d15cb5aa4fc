"""What really happens in the workers of a MultiKueue: every pod is counted, and real inventories
tell what there is, each as its own process with the rights of its role and no others.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from berthmaster.lifecycle.workload import Key, key
from berthmaster.messages.fleet import ClusterAlive, NodeReport, QueueReport
from berthmaster.messages.workload import Ending
from tests.cluster.multikueueing import ROOT, Rig
from tests.controlplane.api import ApiError, Unreachable, documents
from tests.controlplane.kueue.setup import Kueue
from tests.controlplane.plane import Plane
from tests.support import warm
from tests.support.patience import hang_s

INVENTORY_RBAC: Final = ROOT / "deploy" / "kubernetes" / "agent" / "inventory-rbac.yaml"
INVENTORY: Final = "berthmaster-inventory"
POLL_S: Final = 0.3  # pods of these stories live for seconds
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
ENDS: Final = ("succeeded", "failed", "cancelled")
UNTOLD: Final = "the hub does not say in which"


class Census:
    """Every pod that was ever seen in a worker, by job, while the block lasts."""

    def __init__(self, k: Kueue) -> None:
        self._k = k
        self._seen: dict[str, set[tuple[str, str]]] = {}  # job -> (worker, pod's uid)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._count, args=(plane,), name=f"census of {plane.name}")
            for plane in k.planes.workers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _count(self, plane: Plane) -> None:
        path = f"/api/v1/namespaces/{self._k.namespace}/pods"
        while not self._over.wait(POLL_S):
            # A worker that does not answer makes no pods.
            with contextlib.suppress(ApiError, Unreachable):
                for pod in plane.api.items(path):
                    job = pod["metadata"].get("labels", {}).get(JOB_LABEL, "")
                    self._seen.setdefault(job, set()).add((plane.name, pod["metadata"]["uid"]))

    def where(self, job: str) -> list[str]:
        """A worker for each pod that a job ever had."""
        return sorted(worker for worker, _ in self._seen.get(job, ()))


def each_ends_once(rig: Rig, census: Census, names: dict[str, Key]) -> None:
    """Every one of these jobs of one pod succeeds, once, and ran once: where the log says, unless
    it says that nobody told where (Kueue had not noted it, and no inventory reports copies)."""
    for job, name in names.items():
        rig.until(
            lambda n=name: (rig.bus.kinds(n) or [""])[-1].startswith(ENDS),  # type: ignore[misc]
            f"{job} ends",
        )
        story = rig.bus.kinds(name)
        assert [kind.partition(" ")[0] for kind in story if kind.startswith(ENDS)] == ["succeeded"]
        ran = census.where(job)
        told = [e for e in list(rig.bus.events) if key(e.tenant, e.id) == name]
        (ending,) = (event for event in told if isinstance(event, Ending))
        assert len(ran) == 1, (job, story, ran)
        if UNTOLD in ending.reason:
            assert f"placed {ran[0]}" in story, (job, story, ran)
        else:
            assert ran == [ending.cluster], (job, story, ran, ending.reason)
        rig.until(lambda j=job: rig.k.has(j, "Finished"), f"{job} is over on the hub")  # type: ignore[misc]
    rig.nothing_wrong()


@contextlib.contextmanager
def inventories(rig: Rig) -> Iterator[None]:
    """One in every worker, each of which has told all its nodes and its queue by the beginning."""
    with contextlib.ExitStack() as running:
        for plane in rig.k.planes.workers:
            running.enter_context(_inventory(plane, rig))
        for plane in rig.k.planes.workers:
            rig.until(lambda p=plane: _told(rig, p), f"{plane.name} is told")  # type: ignore[misc]
        yield


def _told(rig: Rig, plane: Plane) -> bool:
    nodes = {node["metadata"]["name"] for node in plane.api.items("/api/v1/nodes")}
    seen = list(rig.bus.facts.values())
    facts = [one.fact for one in seen if one.fact.cluster == plane.name]
    queues = [fact for fact in facts if isinstance(fact, QueueReport) and not fact.gone]
    return (
        any(local.namespace == rig.k.namespace for queue in queues for local in queue.local_queues)
        and {fact.node for fact in facts if isinstance(fact, NodeReport)} == nodes
        and any(isinstance(fact, ClusterAlive) for fact in facts)
    )


@contextlib.contextmanager
def _inventory(plane: Plane, rig: Rig) -> Iterator[None]:
    for document in documents(INVENTORY_RBAC):
        plane.api.apply(document)
    group = "rbac.authorization.k8s.io"
    plane.api.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": INVENTORY},
            "subjects": [{"kind": "User", "name": INVENTORY, "apiGroup": group}],
            "roleRef": {"kind": "ClusterRole", "name": INVENTORY, "apiGroup": group},
        }
    )
    with serving_inventory(rig.bus.url, rig.folder, plane.name, plane.kubeconfig_for(INVENTORY)):
        yield


@contextlib.contextmanager
def serving_inventory(url: str, folder: Path, cluster: str, kubeconfig: Path) -> Iterator[None]:
    """A cluster's own inventory, behind a door."""
    common = ["--nats-url", url, "--http-port", "-1", "--log-format", "text"]
    argv = ["serve", "inventory", "--cluster", cluster, *common, "--kubeconfig", str(kubeconfig)]
    env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
    with (folder / f"inventory-{cluster}.log").open("ab") as log:
        door = warm.berth("serve", "door", *common, output=log, env=env)
        process = warm.berth(*argv, output=log, env=env)
    try:
        yield
    finally:
        for one in (process, door):
            one.kill()
            one.wait(hang_s())
