"""Credentials as its own process between a real hub and real workers, with the rights of deploy/.

Everything blocks. Each test has namespaces and names of clusters of its own, so that several may
share one hub; what they leave is taken away at the end.
"""

import base64
import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, rules
from berthmaster.hub.credentials.core.way_in import documents
from berthmaster.lab.controlplane.api import Api, ApiError, Object, kubeconfig
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.proxy import Proxy
from berthmaster.lib.runtime.ports import free_ports
from tests.support import warm
from tests.support.chart import render
from tests.support.patience import hang_s, wait_until
from tests.support.warm import Child

ROOT: Final = Path(__file__).resolve().parents[2]
QUICK: Final = ("--grace-s", "2")
QUICK_CONSTANTS: Final = {
    "berthmaster.hub.credentials.service:LEASE_S": 1.0,
    "berthmaster.hub.credentials.service:ABSENT_S": 0.5,
    "berthmaster.hub.credentials.settings:CHECK_S": 2.0,
}
PROFILES: Final = "/apis/multicluster.x-k8s.io/v1alpha1"
MULTIKUEUE_CLUSTERS: Final = "/apis/kueue.x-k8s.io/v1beta2/multikueueclusters"
MULTIKUEUE_CONFIGS: Final = "/apis/kueue.x-k8s.io/v1beta2/multikueueconfigs"
MANAGED: Final = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
WORKLOADS: Final = "/apis/kueue.x-k8s.io/v1beta2/workloads"


class Rig:
    """One hub, its credentials, and workers that people gave it a way into."""

    def __init__(self, planes: Planes, namespace: str, folder: Path, *, kueue: str = "") -> None:
        """``kueue``: Kueue's namespace, where a Kueue runs; else one of the test's own."""
        self.planes, self.namespace, self.folder = planes, namespace, folder
        self.kueue = kueue or f"{namespace}-kueue"
        self.hub = planes.hub
        if not kueue:
            self.hub.make_namespace(self.kueue)
        for document in self._deployed():
            self.hub.api.apply(document)
        token = self.hub.token_for(namespace, "berth-credentials")
        self.kubeconfig = self.hub.kubeconfig_with_token(token)
        self.flags: tuple[str, ...] = QUICK
        self.process: Child | None = None
        self.starts = 0
        self.port = free_ports(1)[0]
        self.log = folder / "credentials.log"
        self._clusters: set[str] = set()

    def _deployed(self) -> Iterator[dict[str, Any]]:
        """Account and rights of the chart, in the namespaces of this test."""
        kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        places = {
            "berth-credentials": self.namespace,
            "kueue-system": self.kueue,
            "fleet": self.namespace,
        }
        values = {"credentials": {"enabled": True}, "hub": {"profileNamespaces": ["fleet"]}}
        for document in render("hub", values):
            if document["kind"] not in kinds or "credentials" not in document["metadata"]["name"]:
                continue
            found = copy.deepcopy(document)
            meta = found["metadata"]
            if "namespace" in meta:
                meta["namespace"] = places[meta["namespace"]]
            elif found["kind"] in ("ClusterRole", "ClusterRoleBinding"):
                meta["name"] += f"-{self.namespace}"
            for subject in found.get("subjects", ()):
                subject["namespace"] = places[subject["namespace"]]
            if found.get("roleRef", {}).get("kind") == "ClusterRole":
                found["roleRef"]["name"] += f"-{self.namespace}"
            yield found

    # ---- the process

    def start(self, *flags: str, answer_limit_s: float = 10.0) -> None:
        """Start it."""
        self.starts += 1
        argv = ["serve", "credentials"]
        argv += ["--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]
        argv += ["--kueue-namespace", self.kueue, "--worker-namespace", self.namespace]
        argv += ["--selector", f"berth.test/of={self.namespace}"]
        argv += ["--http-port", str(self.port), "--log-format", "text"]
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        with self.log.open("ab") as log:
            self.process = warm.berth(
                *argv,
                *self.flags,
                *flags,
                output=log,
                env=env,
                constants=QUICK_CONSTANTS
                | {
                    "berthmaster.lib.kube.service_client:ANSWER_LIMIT_S": answer_limit_s,
                    "berthmaster.hub.credentials.service:ANSWER_LIMIT_S": answer_limit_s,
                },
            )

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(hang_s())

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(hang_s())

    def until(self, true: Any, what: str) -> Any:
        """Wait; the log's end tells why it did not come."""

        def looked() -> Any:
            assert self.process is None or self.process.poll() is None, self.words()
            return true()

        try:
            return wait_until(looked, what)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.words()}") from error

    def words(self) -> str:
        """The end of what it said."""
        return self.log.read_text()[-6000:] if self.log.exists() else ""

    # ---- what people do

    def cluster(self, short: str) -> str:
        """A cluster's name that no other test has."""
        return self.named(f"{short}-{self.namespace}")

    def named(self, name: str) -> str:
        """A cluster of this very name."""
        self._clusters.add(name)
        return name

    def profile(
        self, cluster: str, *, namespace: str = "", manager: str = "tests", **status: Any
    ) -> None:
        """A ClusterProfile that the selector takes."""
        path = f"{PROFILES}/namespaces/{namespace or self.namespace}/clusterprofiles"
        labels = {"berth.test/of": self.namespace, "x-k8s.io/cluster-manager": manager}
        meta = {"name": cluster, "labels": labels}
        spec = {"clusterManager": {"name": manager}, "displayName": "x"}
        self.hub.api.create(
            path,
            {
                **_kind("multicluster.x-k8s.io/v1alpha1", "ClusterProfile"),
                "metadata": meta,
                "spec": spec,
            },
        )
        if status:
            self.told(cluster, namespace=namespace, **status)

    def told(self, cluster: str, *, namespace: str = "", **status: Any) -> None:
        """What its manager says of it."""
        where = namespace or self.namespace
        path = f"{PROFILES}/namespaces/{where}/clusterprofiles/{cluster}/status"
        self.hub.api.merge(path, {"status": status})

    def forget(self, cluster: str, *, namespace: str = "") -> None:
        """The ClusterProfile goes."""
        path = f"{PROFILES}/namespaces/{namespace or self.namespace}/clusterprofiles/{cluster}"
        self.hub.api.delete(path)

    def providers(self, cluster: str) -> list[dict[str, Any]]:
        """The access providers in the test's own ClusterProfile."""
        path = f"{PROFILES}/namespaces/{self.namespace}/clusterprofiles/{cluster}"
        found: list[dict[str, Any]] = (
            self.hub.api.get(path).get("status", {}).get("accessProviders", [])
        )
        return found

    def account(self, worker: Plane, name: str) -> str:
        """The token of an account with MultiKueue's rights, by somebody else than us."""
        unique = f"{name}-{self.namespace}"
        rbac = "rbac.authorization.k8s.io"
        role = {"apiGroup": rbac, "kind": "ClusterRole", "name": unique}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        account = {"metadata": {"name": name, "namespace": self.namespace}}
        worker.api.apply({**_kind("v1", "ServiceAccount"), **account})
        granted = {"metadata": {"name": unique}, "rules": rules(DEFAULT_FRAMEWORKS)}
        worker.api.apply({**_kind(f"{rbac}/v1", "ClusterRole"), **granted})
        binding = {"metadata": {"name": unique}, "roleRef": role, "subjects": [subject]}
        worker.api.apply({**_kind(f"{rbac}/v1", "ClusterRoleBinding"), **binding})
        return worker.token_for(self.namespace, name)

    def way_in(self, worker: Plane, cluster: str) -> str:
        """A token of the bootstrap account, with the rights that people give it and no others."""
        for document in documents(
            self.hub_id, cluster, namespace=self.namespace, frameworks=DEFAULT_FRAMEWORKS
        ):
            if document["kind"] != "Namespace":
                worker.api.apply(document)
        return worker.token_for(self.namespace, names.bootstrap(self.hub_id, cluster))

    @property
    def hub_id(self) -> str:
        """As the service has it."""
        return str(self.hub.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"])

    def way_in_token(self, cluster: str) -> str:
        """The token that the bootstrap Secret holds now."""
        name = names.cut(f"boot-{cluster}", 200)
        found = self.hub.api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
        text = yaml.safe_load(base64.b64decode(found["data"]["kubeconfig"]))
        return str(text["users"][0]["user"]["token"])

    def bootstrap(
        self, cluster: str, worker: Plane, *, via: Proxy | None = None, text: str = ""
    ) -> None:
        """A person's Secret for it."""
        if not text:
            url = worker.url if via is None else via.url
            text = kubeconfig(server=url, ca_pem=worker.ca_pem, token=self.way_in(worker, cluster))
        self.write_bootstrap(cluster, text)

    def write_bootstrap(self, cluster: str, text: str) -> None:
        """The same, with whatever stands in it."""
        self.hub.api.apply(
            {
                **_kind("v1", "Secret"),
                "metadata": {
                    "name": names.cut(f"boot-{cluster}", 200),
                    "namespace": self.namespace,
                    "labels": {names.BOOTSTRAP: "worker"},
                    "annotations": {names.CLUSTER: cluster},
                },
                "data": {"kubeconfig": base64.b64encode(text.encode()).decode()},
            }
        )

    def take_bootstrap(self, cluster: str) -> None:
        """The person takes it back."""
        name = names.cut(f"boot-{cluster}", 200)
        self.hub.api.delete(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")

    def config(self, *clusters: str) -> str:
        """A MultiKueueConfig that lists them."""
        kind = _kind("kueue.x-k8s.io/v1beta2", "MultiKueueConfig")
        meta = {"name": f"config-{self.namespace}"}
        self.hub.api.apply({**kind, "metadata": meta, "spec": {"clusters": list(clusters)}})
        return meta["name"]

    # ---- what is to be seen

    def secret(self, cluster: str) -> Object | None:
        """What Kueue reads."""
        name = names.hub_secret(cluster)
        return self.hub.api.find(f"/api/v1/namespaces/{self.kueue}/secrets/{name}")

    def registered(self, cluster: str) -> Object | None:
        """The MultiKueueCluster."""
        return self.hub.api.find(f"{MULTIKUEUE_CLUSTERS}/{cluster}")

    def held(self, cluster: str) -> bool:
        """Whether Kueue has all that it needs."""
        return self.serial(cluster) != "" and self.registered(cluster) is not None

    def serial(self, cluster: str) -> str:
        """Of the token that Kueue has."""
        found = self.secret(cluster)
        if found is None or not found.get("data"):
            return ""
        return str(found["metadata"].get("annotations", {}).get(names.SERIAL, ""))

    def token(self, cluster: str) -> str:
        """The token that Kueue has."""
        found = self.secret(cluster)
        assert found is not None
        text = json.loads(base64.b64decode(found["data"]["kubeconfig"]))
        return str(text["users"][0]["user"]["token"])

    def bound(self, worker: Plane) -> list[str]:
        """Serials of bound Secrets in a worker."""
        path = f"/api/v1/namespaces/{self.namespace}/secrets"
        found = worker.api.items(path, labelSelector=names.OURS)
        return sorted(one["metadata"]["annotations"][names.SERIAL] for one in found)

    def left(self, worker: Plane) -> list[str]:
        """All of ours in a worker."""
        query = {"labelSelector": f"{names.OURS}"}
        paths = {
            f"/api/v1/namespaces/{self.namespace}/secrets": "Secret",
            f"/api/v1/namespaces/{self.namespace}/serviceaccounts": "ServiceAccount",
            f"{RBAC}/clusterroles": "ClusterRole",
            f"{RBAC}/clusterrolebindings": "ClusterRoleBinding",
        }
        return [
            f"{kind} {one['metadata']['name']}"
            for path, kind in paths.items()
            for one in worker.api.items(path, **query)
            if one["metadata"]["annotations"][names.CLUSTER] in self._clusters
        ]

    def status(self, cluster: str) -> dict[str, Any]:
        """What people are shown."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/berthmaster-credentials"
        found = self.hub.api.find(path) or {}
        text = (found.get("data") or {}).get(cluster)
        return dict(json.loads(text)) if text else {}

    def events(self, cluster: str) -> dict[str, str]:
        """Reasons and notes of what was told about it."""
        found = self.hub.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        found += self.hub.api.items("/api/v1/namespaces/default/events")
        return {
            one["reason"]: one["message"]
            for one in found
            if one["involvedObject"].get("name") == cluster
        }

    def metric(self, name: str) -> float:
        """A figure without labels, as Prometheus would read it."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/metrics", timeout=hang_s()
        ) as reply:
            lines = reply.read().decode().splitlines()
        [text] = [line for line in lines if line.startswith(f"berth_credentials_{name} ")]
        return float(text.split()[-1])

    def readiness(self) -> dict[str, Any]:
        """What a probe is told of each part."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/readyz", timeout=hang_s()
            ) as reply:
                return dict(json.load(reply)["parts"])
        except urllib.error.HTTPError as error:
            return dict(json.load(error)["parts"])

    def berth(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command of a person who may read the hub."""
        argv = [sys.executable, "-m", "berthmaster.cli.main", *words]
        hub = f"hub={self.hub.kubeconfig}"
        env = {**os.environ, "COLUMNS": "200"}
        return subprocess.run(
            [*argv, "--hub", hub],
            capture_output=True,
            text=True,
            check=False,
            timeout=hang_s(),
            env=env,
            cwd=ROOT,
        )

    def clean(self) -> None:
        """Take away what a namespace does not take with it."""
        self.kill()
        api = self.hub.api
        _delete(api, f"{MULTIKUEUE_CONFIGS}/config-{self.namespace}")
        for cluster in self._clusters:
            _delete(api, f"{MULTIKUEUE_CLUSTERS}/{cluster}")
            _delete(api, f"{MANAGED}/{cluster}")
            _delete(api, f"/api/v1/namespaces/{self.kueue}/secrets/{names.hub_secret(cluster)}")
        if self.kueue != "kueue-system":
            _delete(api, f"/api/v1/namespaces/{self.kueue}")
        for plane in self.planes:
            for plural in ("clusterrolebindings", "clusterroles"):
                for one in plane.api.items(f"{RBAC}/{plural}"):
                    name = one["metadata"]["name"]
                    notes = one["metadata"].get("annotations", {})
                    mine = notes.get(names.CLUSTER) in self._clusters
                    if mine or name.endswith(self.namespace):
                        _delete(plane.api, f"{RBAC}/{plural}/{name}")


class Caller(threading.Thread):
    """Reads the Secret as Kueue does, again and again, and uses it at once."""

    def __init__(self, rig: Rig, cluster: str, worker: Plane) -> None:
        super().__init__(name=f"caller of {cluster}", daemon=True)
        self._rig, self._cluster, self._worker = rig, cluster, worker
        self._over = threading.Event()
        self.calls = 0
        self.failures: list[str] = []
        self.serials: list[str] = []

    def run(self) -> None:
        """Until told that it is over."""
        while not self._over.is_set():
            try:
                serial, token = self._rig.serial(self._cluster), self._rig.token(self._cluster)
                if serial not in self.serials:
                    self.serials.append(serial)
                api = self._worker.api_for(token=token)
                api.items(WORKLOADS, limit=1)
                api.close()
            except Exception as error:  # noqa: BLE001 # whatever it is, it is a failed call
                self.failures.append(f"{time.strftime('%H:%M:%S')} {error!r}"[:300])
            self.calls += 1
            self._over.wait(0.05)

    def end(self) -> None:
        """Stop calling; what was wrong."""
        self._over.set()
        self.join(hang_s())


@contextmanager
def calling(rig: Rig, cluster: str, worker: Plane) -> Iterator[Caller]:
    """Somebody who uses what Kueue has, all the while."""
    caller = Caller(rig, cluster, worker)
    caller.start()
    try:
        yield caller
    finally:
        caller.end()


def works(worker: Plane, token: str) -> bool:
    """Whether a worker lets a token in: 401 where it is not known, 403 without its rights."""
    api = worker.api_for(token=token)
    try:
        api.items(WORKLOADS, limit=1)
        return True
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return False
    finally:
        api.close()


def _kind(version: str, kind: str) -> dict[str, str]:
    return {"apiVersion": version, "kind": kind}


def _delete(api: Api, path: str) -> None:
    try:
        api.delete(path)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
