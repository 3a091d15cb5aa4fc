"""KAI's own scheduler, binder, podgrouper and admission in a plane, outside a cluster.

KAI_BIN names the folder of its programs (scheduler, binder, podgrouper and admission), KAI_CRDS
that of its definitions (deployments/kai-scheduler/crds of its source). They run on loopback beside
their API server; what its chart installs beside them (namespaces, priority classes, the default
queue and its parent, with the names and limits that they have there) is made here. The pods that
keep its shared GPUs run under kwok, so this stands in for their container: it writes which GPU the
device plugin gave it, as theirs does. Facts of reference: KAI 0.17.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import ApiError, documents
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.accelerators.written import KAI_GROUP
from berthmaster.lib.runtime.ports import free_ports
from tests.cluster.real_admission import Admission, configuration
from tests.support.patience import hang_s

WHY_NOT: Final = "needs a real KAI: set KAI_BIN and KAI_CRDS"
QUEUES: Final = "/apis/scheduling.run.ai/v2/queues"
KEEPERS: Final = "kai-resource-reservation"  # the namespace of the pods that keep shared GPUs
GPU_OF_KEEPER: Final = "run.ai/reserve_for_gpu_index"  # annotation, by their container
QUEUE: Final = "default-queue"
PARENT: Final = "default-parent-queue"
_NAMESPACES: Final = (KEEPERS, "kai-scale-adjust")
_PRIORITIES: Final = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
_LOOK_S: Final = 0.1
_ADMISSION: Final = (
    Admission("/mutate--v1-pod", True, "/v1/pods", ("CREATE",)),
    Admission("/validate--v1-pod", False, "/v1/pods", ("CREATE", "UPDATE")),
)


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a real one was asked for. Raises ValueError when only half of it is named."""
    program, crds = environment.get("KAI_BIN"), environment.get("KAI_CRDS")
    if bool(program) != bool(crds):
        raise ValueError("KAI_BIN and KAI_CRDS (two folders) go together: set both or none")
    return bool(program)


class Kai:
    """Its processes in one plane."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self.folder = plane.folder / "kai"
        self.folder.mkdir(exist_ok=True)
        self._definitions = documents(Path(os.environ["KAI_CRDS"]))
        self._stopped = threading.Event()
        self._containers = threading.Thread(target=self._stand_in, name="containers", daemon=True)
        ports = free_ports(8)
        self._admission = f"https://{LOOPBACK}:{ports[0]}"
        pair = Authority(self.folder, "kai").serving("admission")
        served = self.folder / "k8s-webhook-server" / "serving-certs"  # below TMPDIR
        served.mkdir(parents=True, exist_ok=True)
        (served / "tls.crt").write_bytes(pair.certificate_pem)
        (served / "tls.key").write_bytes(pair.key_pem)
        of_controllers = ["--qps=300", "--zap-log-level=info"]
        arguments = {
            "admission": [
                *of_controllers,
                f"--webhook-addr={ports[0]}",
                f"--metrics-bind-address={LOOPBACK}:{ports[1]}",
                f"--health-probe-bind-address={LOOPBACK}:{ports[2]}",
                "--gpu-sharing-enabled",
                "--block-nvidia-visible-devices",
            ],
            "podgrouper": [
                *of_controllers,
                f"--metrics-bind-address={LOOPBACK}:{ports[3]}",
                f"--health-probe-bind-address={LOOPBACK}:{ports[4]}",
                "--generic-karta-fallback=false",
            ],
            "binder": [
                *of_controllers,
                f"--metrics-bind-address={LOOPBACK}:{ports[5]}",
                f"--health-probe-bind-address={LOOPBACK}:{ports[6]}",
            ],
            "scheduler": [
                "--qps=300",
                "--v=4",
                "--schedule-period=200ms",
                f"--listen-address={LOOPBACK}:{ports[7]}",
                f"--plugin-server-port={free_ports(1)[0]}",
            ],
        }
        environment = {
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "KUBECONFIG": str(plane.kubeconfig_for("kai", ("system:masters",))),
        }
        self.parts = {
            name: Process(
                f"{plane.name}: KAI's {name}",
                [f"{os.environ['KAI_BIN']}/{name}", *flags],
                self.folder / f"{name}.log",
                environment,
            )
            for name, flags in arguments.items()
        }

    def start(self) -> None:
        """All of it, until pods are taken."""
        self._plane.apply(self._definitions)
        for name in _NAMESPACES:
            if self._plane.api.find(f"/api/v1/namespaces/{name}") is None:
                self._plane.make_namespace(name)
        self._plane.apply(self._installed())
        self.queue(PARENT, parent="")
        self.queue(QUEUE)
        for part in self.parts.values():
            part.launch()
        self._containers.start()
        admission = self.parts["admission"]
        admission.wait_ready(lambda: "Serving webhook server" in admission.said())
        self._plane.apply(self._registered())

    def queue(self, name: str, *, parent: str = PARENT, gpus: int = 0) -> None:
        """A queue of its; it has what the chart gives the default one: nothing for itself, no
        limit, and an equal part of what is left. ``gpus``: that are its own, with CPU and memory
        as it likes."""
        rest = {"quota": -1 if gpus else 0, "limit": -1, "overQuotaWeight": 1}
        spec: dict[str, Any] = {
            "resources": {"cpu": rest, "memory": rest, "gpu": rest | {"quota": gpus}},
        }
        if parent:
            spec["parentQueue"] = parent
        body = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}}
        self._plane.api.create(QUEUES, body | {"spec": spec})

    def keepers(self) -> dict[str, str]:
        """The groups that share a GPU, and the index of it."""
        pods = self._plane.api.items(f"/api/v1/namespaces/{KEEPERS}/pods")
        return {
            pod["metadata"]["labels"][KAI_GROUP]: pod["metadata"]["annotations"][GPU_OF_KEEPER]
            for pod in pods
            if GPU_OF_KEEPER in pod["metadata"].get("annotations", {})
        }

    def stop(self) -> None:
        """Nothing of it is left but its namespaces, which are empty."""
        self._stopped.set()
        if self._containers.is_alive():
            self._containers.join(hang_s())
        for part in self.parts.values():
            part.kill()
        for each in (*self._registered(), *self._installed()):
            path = self._plane.api.path_of(each)
            if self._plane.api.find(path) is not None:
                self._plane.api.delete(path)
        pods = f"/api/v1/namespaces/{KEEPERS}/pods"
        self._plane.api.delete(pods, gracePeriodSeconds=0)
        self._plane.withdraw(self._definitions)

    def _stand_in(self) -> None:
        """For the container of each keeper: the first GPU of its node that no other keeps."""
        path = f"/api/v1/namespaces/{KEEPERS}/pods"
        api = self._plane.api_for("kai-container", ("system:masters",))
        while not self._stopped.wait(_LOOK_S):
            pods = api.items(path)
            kept: dict[str, set[int]] = {}
            for pod in pods:
                told = pod["metadata"].get("annotations", {}).get(GPU_OF_KEEPER)
                if told is not None:
                    kept.setdefault(pod["spec"]["nodeName"], set()).add(int(told))
            for pod in pods:
                if GPU_OF_KEEPER in pod["metadata"].get("annotations", {}):
                    continue
                taken = kept.setdefault(pod["spec"]["nodeName"], set())
                first = next(at for at in range(len(taken) + 1) if at not in taken)
                taken.add(first)
                told = {"metadata": {"annotations": {GPU_OF_KEEPER: str(first)}}}
                try:
                    api.merge(f"{path}/{pod['metadata']['name']}", told)
                except ApiError as gone:
                    if gone.status != 404:
                        raise

    def _installed(self) -> list[dict[str, Any]]:
        """What its chart makes beside its own kinds; the runtime class is NVIDIA's."""
        return [
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": KEEPERS, "namespace": KEEPERS},
            },
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            },
            *(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                }
                for name, value in _PRIORITIES.items()
            ),
        ]

    def _registered(self) -> list[dict[str, Any]]:
        ca = self.folder / "ca.crt"
        return [
            configuration(f"kai-admission{of.path.replace('/', '-')}", self._admission, ca, of)
            for of in _ADMISSION
        ]


@contextmanager
def kai(plane: Plane) -> Iterator[Kai]:
    """A plane with KAI, until the end."""
    made = Kai(plane)
    try:
        made.start()
        yield made
    finally:
        made.stop()
