"""Kueue's manager outside a cluster: certificates, configuration, arguments.

It runs on loopback beside its API server, with leader election, metrics and visibility off, and
with certificates of our own for the webhooks that nobody calls (policies.yaml does their work). It
insists on certificates for its metrics in a fixed folder even when they are off. Facts of
reference: Kueue's documented Configuration, v0.19.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from berthmaster.lab.controlplane.certificates import Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.runtime.ports import free_ports

METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
LOOPBACK = "127.0.0.1"
NAMES = {
    "AllAtOnce": "kueue.x-k8s.io/multikueue-dispatcher-all-at-once",
    "Incremental": "kueue.x-k8s.io/multikueue-dispatcher-incremental",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How managers run."""

    dispatcher: str = "AllAtOnce"  # AllAtOnce, Incremental, or the name of somebody else's
    dispatch_step: int = 3
    policy: bool = True  # the API server clears nominations: deploy/policies/nominations.yaml
    merge_patch_gate: bool = False  # Kueue's other way, which preemption turns into a trap
    worker_lost_timeout_s: float = 900.0
    collect_s: float = 60.0
    elastic_jobs: bool = True  # it knows Jobs whose number of pods changes
    frameworks: tuple[str, ...] = ("batch/job",)  # what it manages
    # Resource -> DeviceClasses whose claimed devices count as it.
    device_classes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


def configuration(options: Options, ports: tuple[int, int], certificates: Path) -> str:
    """The configuration file of one manager."""
    webhook_port, health_port = ports
    dispatcher = options.dispatcher
    multikueue: dict[str, object] = {
        "gcInterval": f"{options.collect_s}s",
        "origin": "multikueue",
        "workerLostTimeout": f"{options.worker_lost_timeout_s}s",
        "dispatcherName": NAMES.get(dispatcher, dispatcher),
    }
    if dispatcher == "Incremental":
        multikueue["incrementalDispatcherConfig"] = {"stepSize": options.dispatch_step}
    classes = options.device_classes.items()
    mappings = [{"name": name, "deviceClassNames": list(each)} for name, each in classes]
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
            "integrations": {"frameworks": list(options.frameworks)},
            "multiKueue": multikueue,
            "resources": {"deviceClassMappings": mappings},
        }
    )
    return text


def manager(plane: Plane, options: Options) -> Process:
    """Return the manager of a plane, not started yet. Its log lies in the plane's folder."""
    folder = plane.folder / "kueue"
    certificates = folder / "certificates"
    if not (certificates / "tls.crt").exists():
        pair = Authority(certificates, f"kueue of {plane.name}").serving("tls")
        assert pair.certificate.name == "tls.crt"
    webhook_port, health_port = free_ports(2)
    file = folder / "configuration.yaml"
    file.write_text(configuration(options, (webhook_port, health_port), certificates))
    gates = {
        "VisibilityOnDemand": False,
        "ElasticJobsViaWorkloadSlices": options.elastic_jobs,
        "WorkloadRequestUseMergePatch": options.merge_patch_gate,
    }
    argv = [
        *_where_metrics_certificates_are(certificates),
        str(plane.programs.kueue),
        f"--config={file}",
        f"--kubeconfig={plane.kubeconfig_for('kueue-manager', ('system:masters',))}",
        f"--feature-gates={','.join(f'{name}={str(on).lower()}' for name, on in gates.items())}",
        "--zap-log-level=3",
    ]
    return Process(f"{plane.name}: kueue", argv, folder / "manager.log", environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a manager whose home is this folder."""
    return {
        "HOME": str(folder),
        "POD_NAMESPACE": "kueue-system",
        "PATH": os.environ.get("PATH", ""),
    }


def _where_metrics_certificates_are(certificates: Path) -> list[str]:
    """Return the command that runs a manager where it finds certificates for its metrics.

    Root puts them into the folder that a manager insists on. Another user gives each manager an
    /etc of its own, which needs a kernel that lets users make namespaces.
    """
    if (METRICS_CERTIFICATES / "tls.key").exists():
        return []
    if os.geteuid() != 0:
        script = (
            f"mount -t tmpfs none /etc && mkdir -p {METRICS_CERTIFICATES} "
            f'&& cp "$0"/tls.* {METRICS_CERTIFICATES} '
            '&& exec setpriv --pdeathsig KILL "$@"'  # which a new namespace has cleared
        )
        unshare = ["unshare", "--map-root-user", "--mount"]
        return [*unshare, "sh", "-c", script, str(certificates)]
    METRICS_CERTIFICATES.parent.mkdir(parents=True, exist_ok=True)
    unfinished = METRICS_CERTIFICATES.with_name(f".certs-{os.getpid()}")
    shutil.copytree(certificates, unfinished)
    try:
        unfinished.rename(METRICS_CERTIFICATES)
    except OSError:  # another process was faster: its certificates are as good
        shutil.rmtree(unfinished)
    return []
