"""Kueue's manager outside a cluster: certificates, configuration, arguments.

The manager runs on loopback beside its API server, without leader election, metrics and visibility.
Its webhooks, which no client calls, have certificates from this module (policies.yaml replaces the
webhooks). Kueue requires certificates for its metrics in a fixed folder even without metrics.
Source: Kueue's documented Configuration, v0.19.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.runtime.ports import free_ports

METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
NAMES = {
    "AllAtOnce": "kueue.x-k8s.io/multikueue-dispatcher-all-at-once",
    "Incremental": "kueue.x-k8s.io/multikueue-dispatcher-incremental",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of managers."""

    dispatcher: str = "AllAtOnce"  # AllAtOnce, Incremental, or another controller's name
    dispatch_step: int = 3
    policy: bool = True  # the API server clears nominations: deploy/chart/nominations.yaml
    merge_patch_gate: bool = False  # Kueue's other way, dangerous together with preemption
    worker_lost_timeout_s: float = 900.0
    collect_s: float = 60.0
    elastic_jobs: bool = True  # supports Jobs with a changing number of pods
    frameworks: tuple[str, ...] = ("batch/job",)  # managed kinds of jobs
    # Resource -> DeviceClasses whose claimed devices count as that resource.
    device_classes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    # Access provider of ClusterProfiles -> program. Any switches the gate on.
    plugins: Mapping[str, str] = dataclasses.field(default_factory=dict)


def configuration(options: Options, ports: tuple[int, int], certificates: Path) -> str:
    """Return the configuration file of one manager."""
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
    if options.plugins:
        version = "client.authentication.k8s.io/v1"
        listed = [
            {
                "name": name,
                "execConfig": {
                    "apiVersion": version,
                    "command": command,
                    "provideClusterInfo": True,
                    "interactiveMode": "Never",
                },
            }
            for name, command in options.plugins.items()
        ]
        # accessProviders from 0.19 on, which takes the former name, too
        multikueue["clusterProfile"] = {"credentialsProviders": listed}
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
    """Return the manager of a plane, not yet started, with its log in the plane's folder."""
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
        "MultiKueueClusterProfile": bool(options.plugins),
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
    """Return the environment of a manager with this home folder."""
    return {
        "HOME": str(folder),
        "POD_NAMESPACE": "kueue-system",
        "PATH": os.environ.get("PATH", ""),
    }


def _where_metrics_certificates_are(certificates: Path) -> list[str]:
    """Return the command that runs a manager with certificates for its metrics.

    Root writes the certificates into the required folder. Another user gives each manager its own
    /etc, which requires a kernel with user namespaces.
    """
    if (METRICS_CERTIFICATES / "tls.key").exists():
        return []
    if os.geteuid() != 0:
        script = (
            f"mount -t tmpfs none /etc && mkdir -p {METRICS_CERTIFICATES} "
            f'&& cp "$0"/tls.* {METRICS_CERTIFICATES} '
            '&& exec setpriv --pdeathsig KILL "$@"'  # because a new namespace clears the setting
        )
        unshare = ["unshare", "--map-root-user", "--mount"]
        return [*unshare, "sh", "-c", script, str(certificates)]
    METRICS_CERTIFICATES.parent.mkdir(parents=True, exist_ok=True)
    unfinished = METRICS_CERTIFICATES.with_name(f".certs-{os.getpid()}")
    shutil.copytree(certificates, unfinished)
    try:
        unfinished.rename(METRICS_CERTIFICATES)
    except OSError:  # another process was faster, and its certificates are equally good
        shutil.rmtree(unfinished)
    return []
