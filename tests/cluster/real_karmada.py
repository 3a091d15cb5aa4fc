"""Karmada's own controller manager, scheduler and admission, a plane being its control plane.

lab/controlplane/projects.py has its programs and definitions: of the version of its go.mod, or
those that KARMADA_BIN (a folder with karmada-controller-manager, karmada-scheduler and
karmada-webhook) and KARMADA_CRDS (charts/karmada/_crds/bases of its source) name.
The plane stands for Karmada's API server: Clusters are a definition of ours where Karmada's
aggregated server would be, and no controller of Kubernetes' that would run Jobs there itself runs,
as in Karmada. Facts of reference: Karmada 1.18, artifacts/deploy.
"""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lab.controlplane.projects import KARMADA, find_project
from berthmaster.lib.runtime.ports import free_ports
from tests.cluster.real_admission import Admission, configuration
from tests.support.patience import wait_until

CLUSTERS: Final = "/apis/cluster.karmada.io/v1alpha1/clusters"
DEFINED_BY_US: Final = Path(__file__).parent / "crds" / "karmada.yaml"
SYSTEM: Final = "karmada-system"
MEMBERS: Final = "karmada-cluster"  # the namespace of members' keys
# As Karmada runs kube-controller-manager, less what signs certificates.
CONTROLLERS: Final = (
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "ttl-after-finished-controller",
    "clusterrole-aggregation-controller",
)
_POLICY: Final = "policy.karmada.io/v1alpha1"
_BINDINGS: Final = "work.karmada.io/v1alpha2/resourcebindings"
_ADMISSION: Final = (
    Admission("/mutate-propagationpolicy", True, f"{_POLICY}/propagationpolicies"),
    Admission("/mutate-overridepolicy", True, f"{_POLICY}/overridepolicies"),
    Admission("/mutate-resourcebinding", True, _BINDINGS, ("CREATE",)),
    Admission("/mutate-work", True, "work.karmada.io/v1alpha1/works"),
    Admission("/validate-propagationpolicy", False, f"{_POLICY}/propagationpolicies"),
    Admission("/validate-overridepolicy", False, f"{_POLICY}/overridepolicies"),
    Admission("/validate-resourcebinding", False, _BINDINGS),
)


class Karmada:
    """Its processes beside one plane."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.folder = plane.folder / "karmada"
        self.folder.mkdir(exist_ok=True)
        self._members: list[str] = []
        found = find_project(KARMADA)
        assert found.definitions is not None
        folders = sorted(found.definitions.iterdir())
        self._definitions = documents(*folders, DEFINED_BY_US)
        Authority(self.folder, "karmada").serving("tls")
        ports = free_ports(7)
        self._url = f"https://{LOOPBACK}:{ports[0]}"
        common = [f"--kubeconfig={plane.kubeconfig_for('karmada', ('system:masters',))}", "--v=4"]
        arguments = {
            "karmada-webhook": [
                f"--bind-address={LOOPBACK}",
                f"--secure-port={ports[0]}",
                f"--cert-dir={self.folder}",
            ],
            "karmada-controller-manager": [
                "--leader-elect=false",
                "--cluster-status-update-frequency=2s",
                "--feature-gates=Failover=true",
                "--enable-no-execute-taint-eviction=true",
                "--skipped-propagating-namespaces=kube-.*,berth-.*",
            ],
            "karmada-scheduler": ["--leader-elect=false"],
        }
        self.parts = {
            name: Process(
                f"{plane.name}: {name}",
                [
                    str(found.program(name)),
                    *common,
                    f"--metrics-bind-address={LOOPBACK}:{ports[1 + 2 * number]}",
                    f"--health-probe-bind-address={LOOPBACK}:{ports[2 + 2 * number]}",
                    *arguments[name],
                ],
                self.folder / f"{name}.log",
                {"HOME": str(self.folder)},
            )
            for number, name in enumerate(arguments)
        }

    def start(self) -> None:
        """All of it."""
        for name in (SYSTEM, MEMBERS):
            if self.plane.api.find(f"/api/v1/namespaces/{name}") is None:
                self.plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.plane.apply([*self._definitions, *self._registered()])
        for part in self.parts.values():
            part.launch()

    def join(self, name: str, member: Plane) -> None:
        """A member cluster that Karmada writes to by itself, once it is ready."""
        member.api.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "karmada", "namespace": "kube-system"},
            }
        )
        member.api.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "karmada"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "cluster-admin",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": "karmada", "namespace": "kube-system"}
                ],
            }
        )
        token = member.token_for("kube-system", "karmada")
        secrets = f"/api/v1/namespaces/{MEMBERS}/secrets"
        data = {"token": token.encode(), "caBundle": member.ca_pem}
        encoded = {key: base64.b64encode(text).decode() for key, text in data.items()}
        self.plane.api.create(secrets, {"metadata": {"name": name}, "data": encoded})
        reference = {"namespace": MEMBERS, "name": name}
        self.plane.api.create(
            CLUSTERS,
            {
                "apiVersion": "cluster.karmada.io/v1alpha1",
                "kind": "Cluster",
                "metadata": {"name": name},
                "spec": {
                    "id": name,
                    "syncMode": "Push",
                    "apiEndpoint": member.url,
                    "secretRef": reference,
                },
            },
        )
        self._members.append(name)
        wait_until(lambda: self._is_ready(name), f"Karmada's cluster {name} is ready")

    def _is_ready(self, name: str) -> bool:
        for part in self.parts.values():
            assert part.running, part.last_words()
        status = self.plane.api.get(f"{CLUSTERS}/{name}").get("status") or {}
        ready = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
        return bool(ready and ready[0]["status"] == "True" and status.get("apiEnablements"))

    def stop(self) -> None:
        """None of it runs, and nothing is asked of it any more."""
        for part in self.parts.values():
            part.kill()
        for each in self._registered():
            self.plane.api.delete(self.plane.api.path_of(each))
        for name in self._members:  # by hand: Karmada would take their namespaces, in its own time
            self.plane.api.delete(f"/api/v1/namespaces/{MEMBERS}/secrets/{name}")
            self.plane.api.merge(f"{CLUSTERS}/{name}", {"metadata": {"finalizers": None}})
            self.plane.api.delete(f"{CLUSTERS}/{name}")

    def _registered(self) -> list[dict[str, Any]]:
        ca = self.folder / "ca.crt"
        return [
            configuration(f"karmada{of.path.replace('/', '-')}", self._url, ca, of)
            for of in _ADMISSION
        ]


@contextlib.contextmanager
def karmada(plane: Plane) -> Iterator[Karmada]:
    """A plane as Karmada's control plane, until the end."""
    manager = plane.parts.controller_manager
    usual = manager.argv
    kept = [each for each in usual if not each.startswith("--controllers=")]
    manager.argv = (*kept, f"--controllers={','.join(CONTROLLERS)}")
    manager.kill()
    manager.launch()
    made = Karmada(plane)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        manager.argv = usual
        manager.kill()
        manager.launch()
