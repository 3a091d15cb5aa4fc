"""One openb cluster behind a real kube-scheduler: its nodes, the pods sent to it, where they go.

Pods are those of the executor's own Jobs, sent as pods so that they come in the order of the list:
a job controller makes those of several Jobs in any order. A pod that kube-scheduler finds no node
for is taken away at once, as the protocol refuses what does not fit.

Parts of a GPU are no resource of plain Kubernetes. Where a list has them, GPUs are counted in milli
for each node (MILLI), and which GPU a pod gets is left to the device plugin that Devices stands in
for: the fullest GPU with room. It refuses a pod whose node has the milli on no single GPU.
"""

import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self

from msgspec.structs import replace

from berthmaster.lab.controlplane.api import ApiError, Object, Unreachable
from berthmaster.lab.controlplane.nodes import GPU, Node, make_nodes, wait_open
from berthmaster.lab.controlplane.plane import ADMIN, ADMINS, Plane
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import Attempt, CreatePods
from berthmaster.worker.executor.core.manifest import Style, document
from scripts.benchmarks.packers import WHOLE, report_of
from tests.support.patience import wait_until

NAMESPACE: Final = "bench"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
MILLI: Final = "example.com/gpu-milli"
MOST_PODS: Final = "250"  # a node; the protocol has no such limit
BOUND_LIMIT_S: Final = 120.0  # of one pod, on a machine that others use too
CLEAN_LIMIT_S: Final = 300.0
WATCH_S: Final = 600.0
EXECUTOR: Final = "bench"


class Pods:
    """Makes the pods of requests as the executor of this cluster does."""

    def __init__(self, nodes: Sequence[NodeSpec], *, in_milli: bool) -> None:
        cluster = ClusterSpec("openb", "bench", tuple(nodes))
        self._offers, self._in_milli = Offers(), in_milli
        for node in nodes:
            self._offers.take(replace(report_of(node), labels=cluster.node_labels(node)))
        self.resource = MILLI if in_milli else GPU

    def made(self, name: str, pods: PodSet, node: str | None) -> Object:
        """A pod; ``node``: the one that the engine has chosen, None where nothing was chosen."""
        asked = replace(pods, gpu_milli=WHOLE) if self._in_milli and pods.gpus else pods
        request = JobRequest(id=name, pod_sets=(asked,), run=RunSpec(image="none"))
        bound = () if node is None else (PodBinding(pod=f"{pods.name}-0", node=node),)
        order = CreatePods(Attempt("bench", name, 1), EXECUTOR, bound, request, stop_after_s=None)
        template = document(order, None, self._offers, Style())["spec"]["template"]
        if self._in_milli and pods.gpus:
            for amounts in template["spec"]["containers"][0]["resources"].values():
                amounts.pop(GPU)
                amounts[MILLI] = str(pods.gpus * pods.gpu_milli)
        metadata = template["metadata"] | {"name": name}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def kwok_nodes(nodes: Sequence[NodeSpec], *, in_milli: bool) -> list[Node]:
    """The fleet as it registers with the API server."""
    cluster = ClusterSpec("openb", "bench", tuple(nodes))
    made = []
    for node in nodes:
        gpus = {MILLI: str(node.gpus * WHOLE)} if in_milli else {GPU: str(node.gpus)}
        capacity = {
            "cpu": f"{node.cpu_milli}m",
            "memory": f"{node.memory_mib}Mi",
            "pods": MOST_PODS,
        }
        labels = cluster.node_labels(node)
        made.append(Node(name=node.name, capacity=capacity | gpus, labels=labels))
    return made


class Held(NamedTuple):
    """GPUs of a node that a pod has."""

    node: str
    gpus: tuple[int, ...]
    milli: int  # of each


class Devices:
    """What the device plugins of all nodes have handed out."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self.free = {node.name: [WHOLE] * node.gpus for node in nodes}

    def hand_out(self, node: str, pods: PodSet) -> Held | None:
        """The fullest GPU with room, or so many free ones; None where there are not enough."""
        if not pods.gpus:
            return Held(node, (), 0)
        free = self.free[node]
        room = [at for at, milli in enumerate(free) if milli >= pods.gpu_milli]
        if len(room) < pods.gpus:
            return None
        room.sort(key=lambda at: (free[at], at))
        gpus = tuple(sorted(room[: pods.gpus]))
        for at in gpus:
            free[at] -= pods.gpu_milli
        return Held(node, gpus, pods.gpu_milli)


class Bindings(threading.Thread):
    """Watches the pods: the node of each, or that there is none for it."""

    def __init__(self, plane: Plane) -> None:
        super().__init__(daemon=True, name="bindings")
        self._plane = plane
        self._news = threading.Condition()
        self._where: dict[str, str] = {}  # "" = no node will do
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(Unreachable, ApiError):  # then all of it is told again
                for event in self._plane.api.watch(PODS, limit_s=WATCH_S):
                    if self._over.is_set():
                        return
                    self._take(event["object"])

    def _take(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node is None:
            conditions = pod["status"].get("conditions", ())
            if not any(c.get("reason") == "Unschedulable" for c in conditions):
                return
        with self._news:
            self._where[pod["metadata"]["name"]] = node or ""
            self._news.notify_all()

    def wait(self, name: str) -> str | None:
        """The node of a pod, or None. Raises RuntimeError when it takes too long."""
        with self._news:
            if not self._news.wait_for(lambda: name in self._where, BOUND_LIMIT_S):
                raise RuntimeError(f"kube-scheduler did not answer for {name}: {self._last()}")
            return self._where[name] or None

    def _last(self) -> str:
        scheduler = self._plane.parts.scheduler
        return scheduler.last_words() if scheduler is not None else "there is none"

    def end(self) -> None:
        """No more of it."""
        self._over.set()


class Cluster:
    """The nodes and one kube-scheduler for as long as the block; all pods go at its end.

    Names are used once: a watch that begins may tell of pods that went a moment before.
    """

    _lives: ClassVar = itertools.count(1)

    def __init__(self, plane: Plane, settings: dict[str, Any] | None) -> None:
        self._plane, self._settings = plane, settings
        self._patient = plane.api_for(ADMIN, ADMINS, limit_s=CLEAN_LIMIT_S)
        self._bindings = Bindings(plane)
        self._life = next(self._lives)

    def name_of(self, number: int) -> str:
        """Of a pod."""
        return f"pod-{self._life}-{number}"

    def __enter__(self) -> Self:
        self._plane.configure_scheduler(self._settings)
        self._bindings.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bindings.end()
        if kind is None:
            wait_until(self._empty, "no pod left", poll_s=1.0)

    def _empty(self) -> bool:
        with suppress(Unreachable, ApiError):  # a minute is all that one call may take
            self._patient.delete(PODS, gracePeriodSeconds=0)
        return not self._plane.api.items(PODS, limit=1)

    def send(self, pod: Object) -> None:
        """Make it."""
        self._plane.api.create(PODS, pod)

    def where(self, name: str) -> str | None:
        """Its node, once there is one; None if there is none for it, and then it is gone."""
        node = self._bindings.wait(name)
        if node is None:
            self.take_away(name)
        return node

    def take_away(self, name: str) -> None:
        """It is gone, and what it held is free."""
        self._plane.api.delete(f"{PODS}/{name}", gracePeriodSeconds=0)


def register(plane: Plane, nodes: Sequence[NodeSpec], *, in_milli: bool) -> list[str]:
    """Make the nodes; their names, once pods may be put on all of them."""
    names = make_nodes(plane, kwok_nodes(nodes, in_milli=in_milli))
    wait_open(plane, names)
    return names
