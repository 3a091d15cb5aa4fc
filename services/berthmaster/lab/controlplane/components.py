"""How each program is started: its arguments, and why those.

Facts of reference: Kubernetes' own command-line documentation. Limits that exist to protect a
cluster from its components (queries a second) are raised, since here they only make tests slow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.build import Programs
from berthmaster.lab.controlplane.certificates import Pair, SigningKey

HERE: Final = Path(__file__).resolve().parent
LOOPBACK: Final = "127.0.0.1"
ISSUER: Final = "https://kubernetes.default.svc"
SERVICE_RANGE: Final = "10.0.0.0/24"
# What gives a cluster its behaviour: jobs, garbage, namespaces, service accounts, aggregated roles.
HUB_CONTROLLERS: Final = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "job-controller",
    "ttl-after-finished-controller",
)
# Where pods run: nodes that fail, pods that are taken from them, and what other people use.
WORKER_CONTROLLERS: Final = (
    *HUB_CONTROLLERS,
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
    "disruption-controller",
    "resourcequota-controller",
    "resourceclaim-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
)
# kwok renews a node's lease at a quarter of its duration, with a thousand nodes a constant load.
LEASE_S: Final = 1200
# A node whose lease is not renewed is given up after this. Tests tell kwok to take a node down.
NODE_GRACE: Final = "1h"
STAGES: Final = HERE / "stages"


def etcd(programs: Programs, folder: Path, client_port: int, peer_port: int) -> list[str]:
    """Plain HTTP on loopback, nothing synced: nobody pulls the plug here."""
    client, peer = f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
    return [
        str(programs.etcd),
        f"--data-dir={folder / 'data'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


@dataclass(frozen=True, kw_only=True)
class ApiServerFiles:
    """What an API server reads and writes."""

    folder: Path
    ca: Path
    serving: Pair
    tokens: SigningKey
    audit_log: Path


def kube_apiserver(
    programs: Programs, name: str, port: int, etcd_url: str, files: ApiServerFiles
) -> list[str]:
    """RBAC, client certificates, service account tokens; its own prefix in a shared etcd."""
    return [
        str(programs.kube_apiserver),
        f"--etcd-servers={etcd_url}",
        f"--etcd-prefix=/registry-{name}",
        "--etcd-compaction-interval=0",  # history goes when a test says so
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={files.folder}",
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
        f"--client-ca-file={files.ca}",
        "--authorization-mode=RBAC",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-signing-key-file={files.tokens.private}",
        f"--service-account-key-file={files.tokens.public}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",  # a privileged pod must be refused by us, not by a default here
        f"--audit-policy-file={HERE / 'audit-policy.yaml'}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=100000",  # one file: marks in it must stay valid
        "--delete-collection-workers=8",
        "--profiling=false",
    ]


def kube_controller_manager(
    programs: Programs, kubeconfig: Path, files: ApiServerFiles, controllers: tuple[str, ...]
) -> list[str]:
    """Only the controllers that something here depends on."""
    return [
        str(programs.kube_controller_manager),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--controllers={','.join(controllers)}",
        f"--root-ca-file={files.ca}",
        f"--service-account-private-key-file={files.tokens.private}",
        f"--node-monitor-grace-period={NODE_GRACE}",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]


def kube_scheduler(
    programs: Programs, kubeconfig: Path, configuration: Path | None = None
) -> list[str]:
    """The scheduler as it is, or as a KubeSchedulerConfiguration says (scheduler_configuration)."""
    if configuration is not None:  # which flags do not add to
        return [str(programs.kube_scheduler), f"--config={configuration}", "--secure-port=0"]
    return [
        str(programs.kube_scheduler),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]


def scheduler_configuration(kubeconfig: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A KubeSchedulerConfiguration: the settings, and otherwise what the flags above say."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "enableProfiling": False,
        **settings,
    }


def kwok(programs: Programs, kubeconfig: Path, port: int) -> list[str]:
    """Every node is one of kwok's; what nodes and pods do is in stages/."""
    stages = [f"--config={stage}" for stage in sorted(STAGES.glob("*.yaml"))]
    return [
        str(programs.kwok),
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=true",
        f"--node-ip={LOOPBACK}",
        f"--node-lease-duration-seconds={LEASE_S}",
        f"--server-address={LOOPBACK}:{port}",
        *stages,
    ]
