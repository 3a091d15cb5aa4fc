"""The admission check controller as its own process on a real hub, beside the reconciler that
dispatches, and Open Cluster Management's part played by the test: Placements and their decisions as
its controller writes them.

Everything blocks. What has no namespace is named after the test's own, so that tests do not meet.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import Api, ApiError
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.objects import condition_of, is_true
from berthmaster.lab.controlplane.kueue.setup import API, SYSTEM, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.lifecycle.workload import Key
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import JOB_LABEL
from tests.cluster.multikueueing import Rig
from tests.support import warm
from tests.support.chart import render
from tests.support.patience import hang_s
from tests.support.warm import Child

USER: Final = "berthmaster-admission"
CONTROLLER: Final = "berthmaster.io/placement"
OCM: Final = "cluster.open-cluster-management.io"
OCM_CONTROLLER: Final = "open-cluster-management.io/placement"
OURS: Final = "berthmaster.io/dispatcher"
IN_NAMESPACE: Final = f"/apis/{OCM}/v1beta1/namespaces/{SYSTEM}"
SETTLE_S: Final = 1.0
GPUS: Final = {"cpu": "1", "nvidia.com/gpu": "1"}


class Ocm:
    """Placements in Kueue's namespace, and their decisions."""

    def __init__(self, api: Api, prefix: str) -> None:
        self._api = api
        self.prefix = prefix
        self._made: list[str] = []

    def name(self, short: str) -> str:
        return f"{self.prefix}-{short}"

    def place(self, short: str, *pages: Sequence[str], **spec: Any) -> str:
        """A Placement that selects these clusters, a page each; its name."""
        name = self.name(short)
        meta = {"name": name, "namespace": SYSTEM}
        self._apply({"kind": "Placement", "metadata": meta, "spec": spec})
        self.decide(short, *pages)
        return name

    def decide(self, short: str, *pages: Sequence[str]) -> None:
        """What it selects from now on."""
        name = self.name(short)
        for number, clusters in enumerate(pages, 1):
            labels = {
                f"{OCM}/placement": name,
                f"{OCM}/decision-group-index": "0",
                f"{OCM}/decision-group-name": "",
            }
            where = f"{name}-decision-{number}"
            meta = {"name": where, "namespace": SYSTEM, "labels": labels}
            self._apply({"kind": "PlacementDecision", "metadata": meta})
            decisions = [{"clusterName": one, "reason": ""} for one in clusters]
            path = f"{IN_NAMESPACE}/placementdecisions/{where}/status"
            self._api.merge(path, {"status": {"decisions": decisions}})

    def say(self, short: str, kind: str, true: bool, reason: str, message: str) -> None:
        """A condition of the Placement."""
        told = {
            "type": kind,
            "status": str(true),
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"{IN_NAMESPACE}/placements/{self.name(short)}/status"
        self._api.merge(path, {"status": {"conditions": [told]}})

    def delete(self, short: str) -> None:
        """The Placement itself."""
        self._api.delete(f"{IN_NAMESPACE}/placements/{self.name(short)}")

    def _apply(self, document: dict[str, Any]) -> None:
        found = {"apiVersion": f"{OCM}/v1beta1", **document}
        self._api.apply(found)
        self._made.append(self._api.path_of(found))

    def clean(self) -> None:
        for path in self._made:
            with suppress(ApiError):
                self._api.delete(path)


class Desk:
    """Controllers of one hub, with the rights of deploy/ and no others."""

    def __init__(self, api: Api, kubeconfig: Path, bus_url: str, folder: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self._bus_url = bus_url
        self._folder = folder
        self.flags: tuple[str, ...] = ()
        self.processes: dict[int, Child] = {}

    def log(self, number: int = 0) -> Path:
        return self._folder / f"admission-{number}.log"

    def start(self, number: int = 0) -> None:
        """One replica."""
        argv = ["serve", "admission"]
        argv += ["--nats-url", self._bus_url, "--kubeconfig", str(self.kubeconfig)]
        argv += ["--http-port", "-1", "--log-format", "text"]
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        with self.log(number).open("ab") as log:
            self.processes[number] = warm.berth(
                *argv,
                *self.flags,
                output=log,
                env=env,
                constants={"berthmaster.hub.admission.service:SETTLE_S": SETTLE_S},
            )

    def kill(self, number: int = 0) -> None:
        """kill -9."""
        process = self.processes.pop(number, None)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(hang_s())

    def kill_all(self) -> None:
        for number in list(self.processes):
            self.kill(number)

    def stop(self, number: int = 0) -> int:
        """SIGTERM; the exit code."""
        process = self.processes.pop(number)
        process.terminate()
        return process.wait(hang_s())

    def said(self) -> str:
        """The last words of all."""
        logs = sorted(self._folder.glob("admission-*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2500:]}" for log in logs)

    # What it made

    def active(self, check: str, kind: str = "Active") -> tuple[str, str, str]:
        """(status, reason, message) of a condition of a check."""
        found = condition_of(self.api.get(f"{API}/admissionchecks/{check}"), kind) or {}
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def listed(self, config: str) -> str:
        """A configuration in short: draining ones in brackets."""
        found = self.api.find(f"{API}/multikueueconfigs/{config}")
        if found is None:
            return "none"
        marked = found["metadata"].get("annotations", {}).get("berthmaster.io/draining", "")
        draining = marked.split(",")
        names = found["spec"]["clusters"]
        return " ".join(f"({name})" if name in draining else name for name in names)

    def events(self, about: str) -> list[tuple[str, str]]:
        """(reason, note) of events on what has no namespace."""
        found = self.api.items("/api/v1/namespaces/default/events")
        mine = [event for event in found if event["involvedObject"]["name"] == about]
        return [(event["reason"], event["message"]) for event in mine]


def bind(api: Api, namespace: str = SYSTEM) -> None:
    """Exactly the rights of deploy/, for a user instead of a service account. ``namespace``: of
    Placements."""
    subject = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    secrets = [f"multikueue-worker-{number}" for number in (1, 2, 3)]
    values = {"hub": {"services": ["admission"], "kubeconfigSecrets": secrets}}
    for document in render("hub", values):
        if document["metadata"]["name"] != USER:
            continue
        if "subjects" in document:
            document["subjects"] = [subject]
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = namespace
        api.apply(document)


def may_look_at(api: Api, secret: str) -> None:
    """Add a Secret to those that the Role names, as an operator does for a new cluster."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/roles/{USER}"
    rules = api.get(path)["rules"]
    [about_secrets] = [rule for rule in rules if rule["resources"] == ["secrets"]]
    about_secrets["resourceNames"].append(secret)
    api.merge(path, {"rules": rules})


def our_check(name: str, parameters: dict[str, str] | None) -> dict[str, Any]:
    """An AdmissionCheck of our controller."""
    made = builders.own_check(name, CONTROLLER)
    if parameters is not None:
        made["spec"]["parameters"] = parameters
    return made


def by_placement(name: str) -> dict[str, str]:
    """Parameters that name a Placement."""
    return {"apiGroup": OCM, "kind": "Placement", "name": name}


class Hall(Rig):
    """A hub whose queue leads through a check of ours: Kueue, the reconciler that dispatches, the
    admission check controller, three workers."""

    def __init__(self, k: Kueue, bus: Bus, folder: Path) -> None:
        super().__init__(k, bus, folder)
        self.api = k.planes.hub.api
        bind(self.api)
        self.ocm = Ocm(self.api, k.namespace)
        user = k.planes.hub.kubeconfig_for(USER)
        self.desk = Desk(self.api, user, bus.url, folder)
        self.gate = f"{k.namespace}-gpus"  # our check, and its configuration

    def submit(self, job: str, **how: Any) -> Key:
        """A Job with kubectl, as soon as its story has begun."""
        name = super().submit(job, **how)
        if self.process is not None:
            self.until(lambda: self.bus.kinds(name), f"{job} is known on the bus")
        return name

    def open(self, *clusters: str) -> None:
        """The check over a Placement of these, in the queue."""
        placement = self.ocm.place("t4", clusters)
        self.api.apply(our_check(self.gate, by_placement(placement)))
        self.until(lambda: self.desk.listed(self.gate) == " ".join(clusters), "its configuration")
        self.lead(self.k.check, self.gate)
        self.use(self.gate, self.k.check)

    def lead(self, check: str, config: str) -> None:
        """Which configuration a check of MultiKueue sends by."""
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": config}
        self.api.merge(f"{API}/admissionchecks/{check}", {"spec": {"parameters": parameters}})

    def use(self, *checks: str) -> None:
        """The checks of the queue; until all of them are active."""
        wanted = {"admissionChecks": [{"name": name} for name in checks]}
        path = f"{API}/clusterqueues/{self.k.cluster_queue}"
        self.api.merge(path, {"spec": {"admissionChecksStrategy": wanted}})
        self.until(
            lambda: not self.k.inactive() and is_true(self.api.get(path), "Active"), "active"
        )
        for name in checks:
            self.until(lambda n=name: self.desk.active(n)[0] == "True", f"{name} is active")  # type: ignore[misc]

    def runs(self, job: str, where: str) -> None:
        """Until it runs there."""
        self.until(lambda: self.k.cluster_of(job) == where, f"{job} runs in {where}")

    def end(self, job: str, worker: str) -> None:
        """A job that runs for ever has done its work."""
        api = self.k.planes[worker].api
        path = f"/api/v1/namespaces/{self.k.namespace}/pods"
        for pod in api.items(path, labelSelector=f"{JOB_LABEL}={job}"):
            soon = {"metadata": {"annotations": {"berth.test/run-s": "0.1"}}}
            api.merge(f"{path}/{pod['metadata']['name']}", soon)

    def listed(self, wanted: str) -> None:
        """Until the configuration is so."""

        def so() -> bool:
            return self.desk.listed(self.gate) == wanted

        try:
            self.until(so, f"the configuration is {wanted}")
        except AssertionError as error:
            words = f"it is {self.desk.listed(self.gate)}, {self.desk.active(self.gate)}"
            raise AssertionError(f"{words}\n{error}\n{self.desk.said()}") from error


@contextmanager
def hall(
    planes: Planes, namespace: str, folder: Path, *, dispatcher: str = OURS, **how: Any
) -> Iterator[Hall]:
    """All of it, with 8 GPUs in each worker; all of the first are free, then 6, then 4."""
    for worker in planes.workers:
        make_nodes(worker, [gpu_node("a", model="NVIDIA-Tesla-T4", gpus=8)])
    options = how.pop("options", None) or Options(dispatcher=dispatcher)
    with Bus(folder) as bus, Kueue(planes, namespace, options=options, **how) as k:
        made = Hall(k, bus, folder)
        for worker, free in zip(planes.workers, (8, 6, 4), strict=False):
            bus.worker(worker.name, free=free)
            bus.queue(worker.name, k)
        try:
            yield made
        finally:
            made.kill()
            made.desk.kill_all()
            made.ocm.clean()
