"""HAMi's own scheduler in a plane, outside a cluster: its extender and webhook beside a
kube-scheduler of its own, as its chart installs them.

HAMI_BIN names the folder of its program (scheduler). What its device plugin does as far as the API
is concerned is done here: it lists a node's devices in an annotation, and when a pod gets them it
says so and gives the node free for the next. Facts of reference: HAMi 2.10, charts/hami and
pkg/device-plugin/nvidiadevice.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from berthmaster.lab.controlplane import components
from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.build import find
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.nodes import Node, cpu_node
from berthmaster.lab.controlplane.plane import ADMINS, Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.runtime.ports import free_ports
from tests.cluster.real_admission import Admission, configuration
from tests.support.patience import hang_s, wait_until

WHY_NOT: Final = "needs a real HAMi: set HAMI_BIN"
SCHEDULER: Final = "hami-scheduler"
REGISTER: Final = "hami.io/node-nvidia-register"
MEMORY_MIB: Final = 81_559
SPLIT: Final = 10  # pods that a GPU may have at once, as its chart has it
_LOCK: Final = "hami.io/mutex.lock"
_PHASE: Final = "hami.io/bind-phase"
_POLL_S: Final = 0.05
_PODS: Final = Admission("/webhook", True, "/v1/pods", ("CREATE",))
_RESOURCES: Final = ("gpu", "gpumem", "gpucores", "gpumem-percentage", "priority")
# Its chart's, as far as it is about NVIDIA's GPUs.
_DEVICES: Final = """\
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  gpuCorePolicy: default
  libCudaLogLevel: 1
"""


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a real one was asked for."""
    return bool(environment.get("HAMI_BIN"))


def listed(node: str, position: int, **other: Any) -> dict[str, Any]:
    """One GPU, as HAMi's device plugin writes it: what is 0, "" or false is left out."""
    device = {
        "id": f"GPU-{node}-{position}",
        "index": position,
        "count": SPLIT,
        "devmem": MEMORY_MIB,
        "devcore": 100,
        "type": "NVIDIA-NVIDIA H100 80GB HBM3",
        "mode": "hami-core",
        "health": True,
    }
    return {name: value for name, value in (device | other).items() if value}


def hami_node(
    name: str, devices: Sequence[Mapping[str, Any]], annotations: Mapping[str, str] = {}
) -> Node:
    """A node whose GPUs HAMi shares out; its resource counts what a GPU may be split into."""
    usable = sum(device.get("count", 0) for device in devices if device.get("health"))
    return Node(
        name=name,
        capacity={**cpu_node(name).capacity, "nvidia.com/gpu": str(usable)},
        annotations={REGISTER: json.dumps(list(devices)), **annotations},
    )


class Hami:
    """Its processes in one plane, and its device plugin's part."""

    def __init__(self, plane: Plane, nodes: Sequence[str]) -> None:
        self._plane, self._nodes = plane, nodes
        self.folder = plane.folder / "hami"
        self.folder.mkdir(exist_ok=True)
        pair = Authority(self.folder, "hami").serving("extender")
        port, metrics = free_ports(2)
        self._url = f"https://{LOOPBACK}:{port}"
        self._stop = threading.Event()
        self._plugin = threading.Thread(target=self._allocate, name="hami-device-plugin")
        (self.folder / "devices.yaml").write_text(_DEVICES)
        identity = plane.kubeconfig_for("hami", ADMINS)
        self.extender = Process(
            f"{plane.name}: hami",
            [
                f"{os.environ['HAMI_BIN']}/scheduler",
                f"--http_bind={LOOPBACK}:{port}",
                f"--cert_file={pair.certificate}",
                f"--key_file={pair.key}",
                f"--metrics-bind-address={LOOPBACK}:{metrics}",
                f"--scheduler-name={SCHEDULER}",
                f"--device-config-file={self.folder / 'devices.yaml'}",
                "--node-scheduler-policy=binpack",
                "--gpu-scheduler-policy=spread",
                "--v=4",
            ],
            self.folder / "hami.log",
            {"HOME": str(self.folder), "KUBECONFIG": str(identity)},
        )
        settings = self.folder / "scheduler.json"
        settings.write_text(json.dumps(components.scheduler_configuration(identity, self._told())))
        self.scheduler = Process(
            f"{plane.name}: {SCHEDULER}",
            components.kube_scheduler(find(), identity, settings),
            self.folder / "scheduler.log",
        )

    def _told(self) -> dict[str, Any]:
        """What its kube-scheduler is told; who was refused is tried again soon."""
        managed = [
            {"name": f"nvidia.com/{name}", "ignoredByScheduler": True} for name in _RESOURCES
        ]
        extender = {
            "urlPrefix": self._url,
            "enableHTTPS": True,
            "tlsConfig": {"insecure": True},
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "weight": 1,
            "httpTimeout": "30s",
            "managedResources": managed,
        }
        return {
            "profiles": [{"schedulerName": SCHEDULER}],
            "extenders": [extender],
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }

    def start(self) -> None:
        """All of it, until it knows the nodes."""
        self.extender.launch()
        self.scheduler.launch()
        self._plane.apply([self._registered()])
        self._plugin.start()
        wait_until(self._knows_all, f"HAMi knows {self._nodes}")

    def _knows_all(self) -> bool:
        for part in (self.extender, self.scheduler):
            assert part.running, part.last_words()
        words = self.extender.log_path.read_text(errors="replace")
        return all(f'"Node device added" nodeName="{name}"' in words for name in self._nodes)

    def stop(self) -> None:
        """Nothing of it is left."""
        self._stop.set()
        if self._plugin.is_alive():
            self._plugin.join(hang_s())
        self._plane.api.delete(self._plane.api.path_of(self._registered()))
        self.scheduler.kill()
        self.extender.kill()

    def _registered(self) -> dict[str, Any]:
        """It leaves alone what says so, and what is there is there without it."""
        made = configuration("hami-webhook", self._url, self.folder / "ca.crt", _PODS)
        [hook] = made["webhooks"]
        left_alone = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
        hook |= {"name": "vgpu.hami.io", "objectSelector": {"matchExpressions": [left_alone]}}
        return made

    def _allocate(self) -> None:
        """Its device plugin, asked by the kubelet of a pod: the lock names the pod."""
        api = self._plane.api_for("hami-device-plugin", ADMINS)
        while not self._stop.wait(_POLL_S):
            for name in self._nodes:
                path = f"/api/v1/nodes/{name}"
                node = api.find(path) or {"metadata": {}}
                lock = node["metadata"].get("annotations", {}).get(_LOCK, "")
                if lock.count(",") != 2:
                    continue
                _, namespace, pod_name = lock.split(",")
                of_pod = f"/api/v1/namespaces/{namespace}/pods/{pod_name}"
                pod = api.find(of_pod)
                if pod is not None and not pod["spec"].get("nodeName"):
                    continue
                try:
                    if pod is not None:
                        api.merge(of_pod, {"metadata": {"annotations": {_PHASE: "success"}}})
                    api.merge(path, {"metadata": {"annotations": {_LOCK: None}}})
                except ApiError:  # the pod has gone meanwhile
                    continue


@contextmanager
def hami(plane: Plane, nodes: Sequence[str]) -> Iterator[Hami]:
    """A plane with HAMi, until the end."""
    made = Hami(plane, nodes)
    try:
        made.start()
        yield made
    finally:
        made.stop()
