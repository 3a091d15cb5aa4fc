"""The real manager of Kueue outside a cluster: certificates, configuration, arguments.

It runs on loopback beside its API server, with leader election, metrics and visibility off, and
with certificates of our own for the webhooks that nobody calls (policies.yaml does their work). It
insists on certificates for its metrics in a fixed folder even when they are off, so they are put
there if they are missing, which needs the right to write there. Facts of reference: Kueue's
documented Configuration, v0.19.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml

from berthmaster.runtime.ports import free_ports
from tests.controlplane.certificates import Authority
from tests.controlplane.plane import Plane
from tests.controlplane.processes import Process

METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
LOOPBACK = "127.0.0.1"
NAMES = {
    "AllAtOnce": "kueue.x-k8s.io/multikueue-dispatcher-all-at-once",
    "Incremental": "kueue.x-k8s.io/multikueue-dispatcher-incremental",
}


def configuration(options: Mapping[str, object], ports: tuple[int, int], certificates: Path) -> str:
    """The configuration file of one manager."""
    webhook_port, health_port = ports
    dispatcher = str(options["dispatcher"])
    multikueue: dict[str, object] = {
        "gcInterval": f"{options['collect_s']}s",
        "origin": "multikueue",
        "workerLostTimeout": f"{options['worker_lost_timeout_s']}s",
        "dispatcherName": NAMES.get(dispatcher, dispatcher),
    }
    if dispatcher == "Incremental":
        multikueue["incrementalDispatcherConfig"] = {"stepSize": options["dispatch_step"]}
    classes = cast("Mapping[str, Sequence[str]]", options["device_classes"])
    mappings = [{"name": n, "deviceClassNames": list(each)} for n, each in classes.items()]
    text: str = yaml.safe_dump(
        {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": LOOPBACK, "port": webhook_port, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": list(cast("Sequence[str]", options["frameworks"]))},
            "multiKueue": multikueue,
            "resources": {"deviceClassMappings": mappings},
        }
    )
    return text


def manager(plane: Plane, role: str, options: Mapping[str, object], program: Path) -> Process:
    """The manager of one plane, not started yet."""
    folder = plane.folder / "kueue"
    certificates = folder / "certificates"
    if not (certificates / "tls.crt").exists():
        pair = Authority(certificates, f"kueue of {plane.name}").serving("tls")
        assert pair.certificate.name == "tls.crt"
    if not (METRICS_CERTIFICATES / "tls.crt").exists():
        METRICS_CERTIFICATES.mkdir(parents=True, exist_ok=True)
        for name in ("tls.crt", "tls.key"):
            shutil.copy(certificates / name, METRICS_CERTIFICATES / name)
    webhook_port, health_port = free_ports(2)
    file = folder / "configuration.yaml"
    file.write_text(configuration(options, (webhook_port, health_port), certificates))
    gates = {
        "VisibilityOnDemand": False,
        "ElasticJobsViaWorkloadSlices": bool(options["elastic_jobs"]),
        "WorkloadRequestUseMergePatch": bool(options["merge_patch_gate"]),
    }
    argv = [
        str(program),
        f"--config={file}",
        f"--kubeconfig={plane.kubeconfig_for('kueue-manager', ('system:masters',))}",
        f"--feature-gates={','.join(f'{name}={str(on).lower()}' for name, on in gates.items())}",
        "--zap-log-level=3",
    ]
    environment = {"HOME": str(folder), "POD_NAMESPACE": "kueue-system"}
    return Process(f"{plane.name}: kueue ({role})", argv, folder / "manager.log", environment)
