"""What really happens in the workers of a MultiKueue: every pod is counted, and real inventories
tell what there is, each as its own process with the rights of its role and no others.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from berthmaster.lab.controlplane.api import ApiError, Object, Unreachable
from berthmaster.lab.controlplane.kueue.setup import Kueue
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.fleet import ClusterAlive, NodeReport, QueueReport
from berthmaster.lib.messages.workload import Ending
from tests.cluster.multikueueing import Rig
from tests.support import warm
from tests.support.chart import rights
from tests.support.patience import hang_s

INVENTORY: Final = "berthmaster-inventory"
WATCH_S: Final = 1.0  # of one watch; the next goes on where it ended
RETRY_S: Final = 0.3
APART_S: Final = 0.5  # by which the news of two workers may differ
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
ENDS: Final = ("succeeded", "failed", "cancelled")
UNTOLD: Final = "the hub does not say in which"


class Census:
    """Every pod that a worker ever had, by job, while the block lasts. It watches: Kueue deletes
    some pods within milliseconds of their making."""

    def __init__(self, k: Kueue) -> None:
        self._path = f"/api/v1/namespaces/{k.namespace}/pods"
        self._seen: dict[str, set[tuple[str, str]]] = {}  # job -> (worker, pod's uid)
        self.succeeded: dict[str, set[tuple[str, str]]] = {}  # the same of those that did
        self.twice: set[tuple[str, tuple[str, ...]]] = set()  # jobs that ran in two workers at once
        self._alive: dict[str, dict[tuple[str, str], float]] = {}  # job -> pod -> since when
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(plane,), name=f"census of {plane.name}")
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
        for job, alive in self._alive.items():
            for one in alive:
                self._compare(job, one)

    def _follow(self, plane: Plane) -> None:
        version = ""
        while not self._over.is_set():
            try:
                if not version:
                    found = plane.api.get(self._path)
                    version = found["metadata"]["resourceVersion"]
                    for pod in found["items"]:
                        self._take(plane.name, pod)
                for event in plane.api.watch(self._path, WATCH_S, resourceVersion=version):
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(plane.name, event["object"], gone=event["type"] == "DELETED")
            except ApiError:
                version = ""  # it is too old by now, or the server has just started
                self._lose(plane.name)
            except Unreachable:
                self._lose(plane.name)  # and it makes no pods: go on from there when it is back

    def _take(self, worker: str, pod: Object, *, gone: bool = False) -> None:
        meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        job, one = meta.get("labels", {}).get(JOB_LABEL, ""), (worker, meta["uid"])
        with self._lock:
            self._seen.setdefault(job, set()).add(one)
            if phase == "Succeeded":
                self.succeeded.setdefault(job, set()).add(one)
            alive = self._alive.setdefault(job, {})
            if one in alive:
                self._compare(job, one)
            if phase == "Running" and not gone and "deletionTimestamp" not in meta:
                alive.setdefault(one, time.monotonic())
            else:
                alive.pop(one, None)

    def _compare(self, job: str, one: tuple[str, str]) -> None:
        """Note it if a pod that lived until now and one in another worker lived at the same time.
        One worker's news may come a little later than another's."""
        alive, now_s = self._alive[job], time.monotonic()
        for other, since_s in alive.items():
            if other[0] != one[0] and now_s - max(since_s, alive[one]) > APART_S:
                self.twice.add((job, tuple(sorted((one[0], other[0])))))

    def _lose(self, worker: str) -> None:
        """Nothing is known of a worker that does not answer."""
        with self._lock:
            for alive in self._alive.values():
                for one in [one for one in alive if one[0] == worker]:
                    del alive[one]
        self._over.wait(RETRY_S)

    def where(self, job: str) -> list[str]:
        """A worker for each pod that a job ever had."""
        with self._lock:
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
    for document in rights(INVENTORY, role="worker"):
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
