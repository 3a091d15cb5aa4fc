"""The command line of each program, with reasons.

Source: Kubernetes' own command-line documentation. Limits that protect a cluster from its
components (queries per second) are raised, because here they only slow tests down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.build import Programs
from berthmaster.lab.controlplane.certificates import LOOPBACK, Pair, SigningKey

HERE: Final = Path(__file__).resolve().parent
ISSUER: Final = "https://kubernetes.default.svc"
SERVICE_RANGE: Final = "10.0.0.0/24"
# The controllers with visible behaviour: jobs, garbage, namespaces, service accounts, aggregated
# roles.
HUB_CONTROLLERS: Final = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "job-controller",
    "ttl-after-finished-controller",
)
# For clusters with pods: failing nodes, evicted pods, and other commonly used controllers.
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
# kwok renews a node's lease at a quarter of its duration: with a thousand nodes a constant load.
LEASE_S: Final = 1200
# The lifecycle controller drops a node without lease renewals after this time. Tests tell kwok to
# take a node down.
NODE_GRACE: Final = "1h"
STAGES: Final = HERE / "stages"


def etcd(programs: Programs, folder: Path, client_port: int, peer_port: int) -> list[str]:
    """Return etcd's command: plain HTTP on loopback, without fsync, because no power fails here."""
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
    """The files of an API server."""

    folder: Path
    ca: Path
    serving: Pair
    tokens: SigningKey
    audit_log: Path


def has_mutating_policies(kubernetes: str) -> bool:
    """Return whether a version serves MutatingAdmissionPolicies as v1; 1.35 has v1beta1, if
    asked."""
    return tuple(map(int, kubernetes.split("."))) >= (1, 36)


def kube_apiserver(
    programs: Programs, name: str, port: int, etcd_url: str, files: ApiServerFiles
) -> list[str]:
    """Return the API server's command.

    The server has RBAC, client certificates, service account tokens, and its own prefix in a shared
    etcd.
    """
    return [
        str(programs.kube_apiserver),
        f"--etcd-servers={etcd_url}",
        f"--etcd-prefix=/registry-{name}",
        "--etcd-compaction-interval=0",  # history is compacted when a test requests it
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
        "--allow-privileged=true",  # Berthmaster must refuse a privileged pod, not a default here
        f"--audit-policy-file={HERE / 'audit-policy.yaml'}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=100000",  # one file, so that marks in it stay valid
        "--delete-collection-workers=8",
        "--profiling=false",
        *(
            ()
            if has_mutating_policies(programs.kubernetes)
            else (  # for policies.yaml, which does what Kueue's webhooks do
                "--feature-gates=MutatingAdmissionPolicy=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
            )
        ),
    ]


def kube_controller_manager(
    programs: Programs, kubeconfig: Path, files: ApiServerFiles, controllers: tuple[str, ...]
) -> list[str]:
    """Return the controller manager's command, with only the controllers that tests depend on."""
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
    """Return the scheduler's command, by default or with a configuration
    (scheduler_configuration)."""
    if configuration is not None:  # flags cannot extend a configuration
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
    """Return a KubeSchedulerConfiguration with the settings, and else with the flags' values."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "enableProfiling": False,
        **settings,
    }


def kwok(programs: Programs, kubeconfig: Path, port: int) -> list[str]:
    """Return kwok's command. kwok runs every node, and stages/ defines nodes and pods."""
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
