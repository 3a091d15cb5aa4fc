"""Open Cluster Management's own Placement controller beside a plane's API server.

OCM_BIN names the folder of its programs (``placement``; ``go build ./cmd/placement`` of its
source). It reads the definitions of lab/controlplane/crds. Facts of reference: OCM 1.3 and main
of August 2026.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from berthmaster.lab.controlplane.certificates import LOOPBACK
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.runtime.ports import free_ports

WHY_NOT: Final = "needs a real Open Cluster Management: set OCM_BIN"


def is_named(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a real one was asked for."""
    return bool(environment.get("OCM_BIN"))


@contextmanager
def placement_controller(plane: Plane, namespace: str) -> Iterator[Process]:
    """It decides all Placements of the plane that are not ours, until the block ends."""
    folder = plane.folder / "ocm"
    folder.mkdir(exist_ok=True)
    [port] = free_ports(1)
    made = Process(
        f"{plane.name}: OCM's placement controller",
        [
            f"{os.environ['OCM_BIN']}/placement",
            "controller",
            f"--kubeconfig={plane.kubeconfig_for('ocm-placement', ('system:masters',))}",
            f"--namespace={namespace}",
            f"--listen={LOOPBACK}:{port}",
            "--disable-leader-election",
            "--kube-api-qps=300",
            "--kube-api-burst=500",
        ],
        folder / "placement.log",
        {"HOME": str(folder), "TMPDIR": str(folder)},
    )
    try:
        made.launch()
        made.wait_ready(lambda: "SchedulingController" in made.said())
        yield made
    finally:
        made.kill()
