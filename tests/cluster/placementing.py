"""The Placement evaluator as its own process on a real hub, with the rights of deploy/ alone.

Everything blocks. Each test has a namespace, a set and names of clusters of its own, so that
several may share one hub; what they leave is taken away at the end.
"""

import copy
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from berthmaster.lab.controlplane.api import Api, ApiError, Object
from berthmaster.lab.controlplane.planes import Planes
from tests.support import warm
from tests.support.chart import render
from tests.support.patience import hang_s, wait_until
from tests.support.warm import Child

T = TypeVar("T")
SERVICE: Final = "berthmaster.hub.placement.service"
GROUP: Final = "cluster.open-cluster-management.io"
OURS: Final = {f"{GROUP}/experimental-scheduling-disable": "true"}
CLUSTERS: Final = f"/apis/{GROUP}/v1/managedclusters"
INVENTORY: Final = "/apis/multicluster.x-k8s.io/v1alpha1"
SETS: Final = f"/apis/{GROUP}/v1beta2/managedclustersets"
LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/berthmaster-placement"


class Rig:
    """A hub with a set of clusters that the namespace is bound to, and evaluators."""

    def __init__(self, planes: Planes, namespace: str, folder: Path) -> None:
        self.planes, self.namespace, self.folder = planes, namespace, folder
        self.hub = planes.hub
        for document in self._deployed():
            self.hub.api.apply(document)
        self._token = self.hub.token_for(namespace, "berth-placement")
        self.kubeconfig = self.hub.kubeconfig_with_token(self._token)
        self.processes: list[Child] = []
        self._clusters: list[str] = []
        self._cleanup: list[str] = []
        self._in_namespace = f"/apis/{GROUP}/{{}}/namespaces/{namespace}"
        self.make_set()

    def _deployed(self) -> Iterator[dict[str, Any]]:
        kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        for document in render("hub", {"placement": {"enabled": True}}):
            if document["kind"] not in kinds or "placement" not in document["metadata"]["name"]:
                continue
            found = copy.deepcopy(document)
            meta = found["metadata"]
            if "namespace" in meta:
                meta["namespace"] = self.namespace
            elif found["kind"] in ("ClusterRole", "ClusterRoleBinding"):
                meta["name"] += f"-{self.namespace}"
            for subject in found.get("subjects", ()):
                subject["namespace"] = self.namespace
            if found.get("roleRef", {}).get("kind") == "ClusterRole":
                found["roleRef"]["name"] += f"-{self.namespace}"
            yield found

    # ---- processes

    def as_evaluator(self) -> Api:
        """The API with the evaluator's own token."""
        return Api(self.hub.url, self.hub.ca, token=self._token)

    def log(self, number: int = 0) -> Path:
        return self.folder / f"placement-{number}.log"

    def start(self, *flags: str, pause_s: float = 0.02) -> Child:
        """One more evaluator."""
        argv = ["serve", "placement"]
        argv += ["--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]
        argv += ["--http-port", "-1", "--log-format", "text"]
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        with self.log(len(self.processes)).open("ab") as log:
            process = warm.berth(
                *argv,
                *flags,
                output=log,
                env=env,
                constants={f"{SERVICE}:LEASE_S": 2.0, f"{SERVICE}:PAUSE_S": pause_s},
            )
        self.processes.append(process)
        return process

    def kill(self, process: Child) -> None:
        """kill -9."""
        process.send_signal(signal.SIGKILL)
        process.wait(hang_s())

    def stop(self, process: Child) -> int:
        """SIGTERM; the exit code."""
        process.terminate()
        return process.wait(hang_s())

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)
        for path in [*self._cleanup, *(f"{CLUSTERS}/{name}" for name in self._clusters)]:
            try:
                self.hub.api.delete(path)
            except ApiError:
                pass

    # ---- what people and addons do

    def make_set(self) -> None:
        body = {"apiVersion": f"{GROUP}/v1beta2", "kind": "ManagedClusterSet"}
        self.hub.api.create(SETS, {**body, "metadata": {"name": self.namespace}})
        self._cleanup.append(f"{SETS}/{self.namespace}")
        self.bind()

    def bind(self) -> None:
        """The namespace to the set."""
        self.hub.api.create(
            self._in_namespace.format("v1beta2") + "/managedclustersetbindings",
            {
                "apiVersion": f"{GROUP}/v1beta2",
                "kind": "ManagedClusterSetBinding",
                "metadata": {"name": self.namespace},
                "spec": {"clusterSet": self.namespace},
            },
        )

    def unbind(self) -> None:
        """The binding is deleted."""
        bindings = self._in_namespace.format("v1beta2") + "/managedclustersetbindings"
        self.hub.api.delete(f"{bindings}/{self.namespace}")

    def take(self, name: str = "p") -> None:
        """It is ours from now on."""
        path = f"{self._in_namespace.format('v1beta1')}/placements/{name}"
        self.hub.api.merge(path, {"metadata": {"annotations": OURS}})

    def give_back(self, name: str = "p") -> None:
        """It is Open Cluster Management's."""
        path = f"{self._in_namespace.format('v1beta1')}/placements/{name}"
        annotations = dict.fromkeys(OURS)
        self.hub.api.merge(path, {"metadata": {"annotations": annotations}})

    def named(self, short: str) -> str:
        """A cluster's name that no other test has."""
        return f"{short}-{self.namespace}"

    def cluster(self, short: str, *, scored: bool = False, **labels: str) -> None:
        """A ManagedCluster in the set; with a namespace for its scores if there will be any."""
        name = self.named(short)
        self._clusters.append(name)
        told = {f"{GROUP}/clusterset": self.namespace, **labels}
        self.hub.api.create(
            CLUSTERS,
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "ManagedCluster",
                "metadata": {"name": name, "labels": told},
                "spec": {"hubAcceptsClient": True},
            },
        )
        if scored:
            self.hub.make_namespace(name)
            self._cleanup.append(f"/api/v1/namespaces/{name}")

    def profile(self, short: str) -> None:
        """The cluster's ClusterProfile, as OCM makes it in a bound namespace."""
        self.hub.api.create(
            f"{INVENTORY}/namespaces/{self.namespace}/clusterprofiles",
            {
                "apiVersion": "multicluster.x-k8s.io/v1alpha1",
                "kind": "ClusterProfile",
                "metadata": {"name": self.named(short)},
                "spec": {"clusterManager": {"name": "open-cluster-management"}},
            },
        )

    def referred(self, name: str = "p") -> list[str] | None:
        """The short names in its slice of sig-multicluster; None before there is one."""
        path = f"{INVENTORY}/namespaces/{self.namespace}/placementdecisions/{name}-profiles-1"
        if (found := self.hub.api.find(path)) is None:
            return None
        references = [one["clusterProfileRef"] for one in found["decisions"]]
        assert {one["namespace"] for one in references} <= {self.namespace}
        return [one["name"].removesuffix(f"-{self.namespace}") for one in references]

    def taint(self, short: str, *taints: Mapping[str, str]) -> None:
        path = f"{CLUSTERS}/{self.named(short)}"
        self.hub.api.merge(path, {"spec": {"taints": list(taints)}})

    def score(self, short: str, value: int, valid_until: str | None = None) -> None:
        """gpu of the resource ``gpus``, made or changed."""
        namespace = self.named(short)
        path = f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/addonplacementscores"
        if self.hub.api.find(f"{path}/gpus") is None:
            body = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "AddOnPlacementScore"}
            self.hub.api.create(path, {**body, "metadata": {"name": "gpus"}})
        status = {"scores": [{"name": "gpu", "value": value}], "validUntil": valid_until}
        self.hub.api.merge(f"{path}/gpus/status", {"status": status})

    def place(self, name: str = "p", *, ours: bool = True, **spec: Any) -> None:
        self.hub.api.create(
            self._in_namespace.format("v1beta1") + "/placements",
            {
                "apiVersion": f"{GROUP}/v1beta1",
                "kind": "Placement",
                "metadata": {"name": name, "annotations": OURS if ours else {}},
                "spec": spec,
            },
        )

    def edit(self, name: str = "p", **spec: Any) -> int:
        """Fields of the spec; the generation that it now has."""
        path = f"{self._in_namespace.format('v1beta1')}/placements/{name}"
        found = self.hub.api.merge(path, {"spec": spec})
        return int(found["metadata"]["generation"])

    # ---- what there is to see

    def pages(self, name: str = "p") -> list[Object]:
        """Its PlacementDecisions, in order."""
        path = self._in_namespace.format("v1beta1") + "/placementdecisions"
        found = self.hub.api.items(path, labelSelector=f"{GROUP}/placement={name}")
        return sorted(found, key=lambda one: int(one["metadata"]["name"].rpartition("-")[2]))

    def decided(self, name: str = "p") -> list[str] | None:
        """The short names on all pages; None before there is a page that was written."""
        pages = self.pages(name)
        if not pages or any("status" not in page for page in pages):
            return None
        return [
            one["clusterName"].removesuffix(f"-{self.namespace}")
            for page in pages
            for one in page["status"]["decisions"]
        ]

    def status(self, name: str = "p") -> Object:
        path = f"{self._in_namespace.format('v1beta1')}/placements/{name}"
        found: Object = self.hub.api.get(path).get("status", {})
        return found

    def condition(self, kind: str, name: str = "p") -> tuple[str, str, int]:
        """(status, reason, generation) of a condition; empty before there is one."""
        for one in self.status(name).get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"], one.get("observedGeneration", 0)
        return "", "", 0

    def until(self, ask: Callable[[], T | None], what: str) -> T:
        """Wait; in vain, the evaluators' last words are in the error."""
        try:
            return wait_until(ask, what, poll_s=0.05)
        except Exception as error:
            logs = [self.log(n) for n in range(len(self.processes))]
            words = "\n".join(log.read_text()[-3000:] for log in logs if log.exists())
            raise AssertionError(f"{error}\n{words}") from error

    def until_decided(self, *wanted: str, name: str = "p") -> None:
        self.until(
            lambda: self.decided(name) == list(wanted),
            f"{name} decides {wanted}, last {self.decided(name)}",
        )

    def writes(self, since: int) -> int:
        """Writes of the evaluators to decisions and Placements."""
        user = f"system:serviceaccount:{self.namespace}:berth-placement"
        counted = self.hub.audit.count(since=since, user=user)
        return sum(
            count
            for (_, verb, resource), count in counted.items()
            if verb in ("create", "patch", "delete", "update") and "placement" in resource
        )


@contextmanager
def rig(planes: Planes, namespace: str, folder: Path) -> Iterator[Rig]:
    """A rig, taken away at the end."""
    found = Rig(planes, namespace, folder)
    try:
        yield found
    finally:
        planes.mend()
        found.end()
