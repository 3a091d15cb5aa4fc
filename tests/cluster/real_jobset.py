"""JobSet's own controller and admission in a plane, outside a cluster.

lab/controlplane/projects.py has its program and definition: of the version of its go.mod, or
those that JOBSET_BIN and JOBSET_CRDS (config/components/crd/bases of its source) name. It runs on
loopback beside its API server, and its admission is registered by its paths, as its installer does
it. Facts of reference: JobSet 0.12, config/components.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml

from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import CRDS
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lab.controlplane.projects import JOBSET, find_project
from berthmaster.lib.runtime.ports import free_ports
from tests.cluster.real_admission import Admission, configuration

_JOB_SETS: Final = "jobset.x-k8s.io/v1alpha2/jobsets"
_PATH: Final = "jobset-x-k8s-io-v1alpha2-jobset"
_ADMISSION: Final = (
    Admission(f"/mutate-{_PATH}", True, _JOB_SETS),
    Admission(f"/validate-{_PATH}", False, _JOB_SETS),
)


@contextmanager
def jobset(plane: Plane) -> Iterator[Process]:
    """A plane with JobSet, until the end."""
    found = find_project(JOBSET)
    assert found.definitions is not None
    folder = plane.folder / "jobset"
    folder.mkdir(exist_ok=True)
    Authority(folder, "jobset").serving("tls")
    webhook_port, health_port = free_ports(2)
    file = folder / "configuration.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
                "kind": "Configuration",
                "leaderElection": {"leaderElect": False},
                "internalCertManagement": {"enable": False},
                "webhook": {"host": LOOPBACK, "port": webhook_port, "certDir": str(folder)},
                "metrics": {"bindAddress": "0"},
                "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health_port}"},
            }
        )
    )
    url = f"https://{LOOPBACK}:{webhook_port}"
    registered = [
        configuration(f"jobset{of.path.replace('/', '-')}", url, folder / "ca.crt", of)
        for of in _ADMISSION
    ]
    made = Process(
        f"{plane.name}: jobset",
        [
            str(found.program("jobset")),
            f"--config={file}",
            f"--kubeconfig={plane.kubeconfig_for('jobset', ('system:masters',))}",
        ],
        folder / "jobset.log",
        {"HOME": str(folder)},
    )
    plane.apply(documents(found.definitions))
    try:
        made.launch()
        made.wait_ready(lambda: "Serving webhook server" in made.said())
        plane.apply(registered)
        yield made
    finally:
        made.kill()
        for each in registered:
            plane.api.delete(plane.api.path_of(each))
        plane.apply(documents(CRDS / "jobset.yaml"))  # as the other tests know the plane
