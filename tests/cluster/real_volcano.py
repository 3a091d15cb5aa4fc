"""Volcano's own controller manager, scheduler and admission in a plane, outside a cluster.

VOLCANO_BIN names the folder of its programs (vc-controller-manager, vc-scheduler and
vc-webhook-manager), VOLCANO_CRDS that of its definitions (config/crd of its source).
They run on loopback beside their API server; its admission is registered by its path, as its
installer does it. Facts of reference: Volcano 1.15, installer/volcano-development.yaml.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.runtime.ports import free_ports
from tests.cluster.real_admission import Admission, configuration
from tests.support.patience import wait_until

WHY_NOT: Final = "needs a real Volcano: set VOLCANO_BIN and VOLCANO_CRDS"
QUEUES: Final = "/apis/scheduling.volcano.sh/v1beta1/queues"
_PROGRAMS: Final = ("vc-webhook-manager", "vc-controller-manager", "vc-scheduler")
# As its installer has it, with what takes room back: a gang goes whole.
SCHEDULER: Final = """\
actions: "enqueue, allocate, gangreclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
_GROUP: Final = "scheduling.volcano.sh/v1beta1"
_JOBS: Final = "batch.volcano.sh/v1alpha1/jobs"
_ADMISSION: Final = (
    Admission("/jobs/mutate", True, _JOBS, ("CREATE",)),
    Admission("/jobs/validate", False, _JOBS),
    Admission("/podgroups/validate", False, f"{_GROUP}/podgroups", ("CREATE",)),
    Admission("/queues/mutate", True, f"{_GROUP}/queues", ("CREATE",)),
    Admission("/queues/validate", False, f"{_GROUP}/queues", ("CREATE", "UPDATE", "DELETE")),
)


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a real one was asked for. Raises ValueError when only half of it is named."""
    program, crds = environment.get("VOLCANO_BIN"), environment.get("VOLCANO_CRDS")
    if bool(program) != bool(crds):
        raise ValueError("VOLCANO_BIN and VOLCANO_CRDS (two folders) go together: set both or none")
    return bool(program)


class Volcano:
    """Its processes in one plane."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self.folder = plane.folder / "volcano"
        self.folder.mkdir(exist_ok=True)
        self._definitions = documents(*sorted(Path(os.environ["VOLCANO_CRDS"]).glob("*/bases")))
        self._pair = Authority(self.folder, "volcano").serving("admission")
        ports = free_ports(7)
        self._admission = f"https://{LOOPBACK}:{ports[0]}"
        scheduler = self.folder / "scheduler" / "scheduler.conf"  # it reads again when the folder
        scheduler.parent.mkdir(exist_ok=True)  # changes, as one with logs does all the time
        scheduler.write_text(SCHEDULER)
        common = [
            f"--kubeconfig={plane.kubeconfig_for('volcano', ('system:masters',))}",
            "--logtostderr",
            "-v=3",
        ]
        once = ["--leader-elect=false", "--kube-api-qps=300", "--kube-api-burst=500"]
        health = [f"--healthz-address={LOOPBACK}:{port}" for port in ports[1:4]]
        arguments = {
            "vc-webhook-manager": [
                f"--tls-cert-file={self._pair.certificate}",
                f"--tls-private-key-file={self._pair.key}",
                f"--ca-cert-file={self.folder / 'ca.crt'}",
                f"--webhook-url={self._admission}",
                f"--enabled-admission={','.join(of.path for of in _ADMISSION)}",
                f"--listen-address={LOOPBACK}",
                f"--port={ports[0]}",
                health[0],
            ],
            "vc-controller-manager": [*once, health[1], f"--listen-address={LOOPBACK}:{ports[4]}"],
            "vc-scheduler": [
                *once,
                health[2],
                f"--listen-address={LOOPBACK}:{ports[5]}",
                f"--scheduler-conf={scheduler}",
                "--schedule-period=200ms",
                "--cache-dumper=false",
            ],
        }
        self.parts = {
            name: Process(
                f"{plane.name}: {name}",
                [f"{os.environ['VOLCANO_BIN']}/{name}", *common, *arguments[name]],
                self.folder / f"{name}.log",
                {"HOME": str(self.folder)},
            )
            for name in _PROGRAMS
        }

    def start(self) -> None:
        """All of it, until its default queue is open."""
        self._plane.apply([*self._definitions, *self._registered()])
        for part in self.parts.values():
            part.launch()
        wait_until(lambda: self._queue_is_open("default"), "Volcano's default queue is open")

    def queue(self, name: str, **spec: Any) -> None:
        """A queue of its, once it is open."""
        self._plane.api.create(
            QUEUES,
            {
                "apiVersion": _GROUP,
                "kind": "Queue",
                "metadata": {"name": name},
                "spec": {"weight": 1, "reclaimable": True, **spec},
            },
        )
        wait_until(lambda: self._queue_is_open(name), f"queue {name} is open")

    def _queue_is_open(self, name: str) -> bool:
        for part in self.parts.values():
            assert part.running, part.last_words()
        found = self._plane.api.find(f"{QUEUES}/{name}")
        return found is not None and found.get("status", {}).get("state") == "Open"

    def stop(self) -> None:
        """Nothing of it is left."""
        for part in self.parts.values():
            part.kill()
        for each in self._registered():
            self._plane.api.delete(self._plane.api.path_of(each))
        self._plane.withdraw(self._definitions)

    def _registered(self) -> list[dict[str, Any]]:
        """Under the names by which it looks for them."""
        ca = self.folder / "ca.crt"
        return [
            configuration(
                f"volcano-admission-service{of.path.replace('/', '-')}", self._admission, ca, of
            )
            for of in _ADMISSION
        ]


@contextmanager
def volcano(plane: Plane) -> Iterator[Volcano]:
    """A plane with Volcano, until the end."""
    made = Volcano(plane)
    try:
        made.start()
        yield made
    finally:
        made.stop()
