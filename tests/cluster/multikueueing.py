"""A reconciler as its own process between a bus and a real hub, and what workers say, by hand.

Everything blocks, as the Kueue of these tests does. Workers' facts are said by the test: free GPUs
are what a story is about.
"""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from berthmaster.cli.doctor.rights import DISPATCHING_ROLE
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, Kueue
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.workload import Key, key
from tests.cluster.deploying import bind_in
from tests.cluster.multikueue_bus import Bus
from tests.support import warm
from tests.support.chart import Manifest, rights
from tests.support.patience import hang_s, wait_until
from tests.support.warm import Child

__all__ = ["USER", "Bus", "Rig", "running_in"]

USER: Final = "berthmaster-multikueue"
SETTINGS: Final = "berthmaster.hub.multikueue.service:MultiKueueSettings"


def _roles(mode: str) -> list[Manifest]:
    """What the chart makes for a mode."""
    names = [mode, *(("dispatching", "parameters") if mode == "dispatch" else ())]
    values = {"hub": {"mode": mode}}
    return rights(*(f"berthmaster-multikueue-{name}" for name in names), values=values)


class Rig:
    """The bus, Kueue, and the reconciler."""

    def __init__(self, k: Kueue, bus: Bus, folder: Path) -> None:
        self.k = k
        self.bus = bus
        self.folder = folder
        self.flags: tuple[str, ...] = ("--patience-s", "4")
        self.limits = {"silent_s": 3.0, "trap_s": 3.0}  # of HubPolicy, which are no settings
        self.process: Child | None = None
        self.starts = 0
        self.kubeconfig = k.planes.hub.kubeconfig_for(USER)
        self._port = 0

    def start(self, mode: str = "dispatch") -> None:
        """Start it with the rights of its mode and no others."""
        self.bind(mode)
        self.starts += 1
        argv = ["serve", "multikueue"]
        argv += ["--mode", mode, "--nats-url", self.bus.url, "--kubeconfig", str(self.kubeconfig)]
        argv += ["--namespace", self.k.namespace, "--http-port", "-1", "--log-format", "text"]
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        with self.log.open("ab") as log:
            limits = {f"{SETTINGS}.{name}": value for name, value in self.limits.items()}
            self.process = warm.berth(*argv, *self.flags, output=log, env=env, constants=limits)

    def ready(self) -> None:
        """Wait until this life acts: what ends before is none of its business."""
        self.until(
            lambda: self.log.read_text().count("lease gained") >= self.starts, "the lease is held"
        )

    @property
    def log(self) -> Path:
        return self.folder / "multikueue.log"

    def bind(self, mode: str) -> None:
        """Exactly the ClusterRole of this mode; what dispatching writes in our namespace only."""
        api = self.k.planes.hub.api
        for document in _roles(mode):
            api.apply(document)
        bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        subject = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
        wanted = [f"berthmaster-multikueue-{mode}"]
        if mode == "dispatch":
            wanted.append("berthmaster-multikueue-parameters")
            bind_in(self.k.planes.hub, self.k.namespace, DISPATCHING_ROLE, subject)
        for one in api.items(bindings):
            name = one["metadata"]["name"]
            if name.startswith("berthmaster-multikueue-") and name not in wanted:
                api.delete(f"{bindings}/{name}")
        if mode != "dispatch":
            inside = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.k.namespace}"
            if api.find(path := f"{inside}/rolebindings/{DISPATCHING_ROLE}") is not None:
                api.delete(path)
        for name in wanted:
            api.apply(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRoleBinding",
                    "metadata": {"name": name},
                    "subjects": [subject],
                    "roleRef": {
                        "kind": "ClusterRole",
                        "name": name,
                        "apiGroup": "rbac.authorization.k8s.io",
                    },
                }
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

    def restart(self, mode: str = "dispatch") -> None:
        """kill -9 and a new life."""
        self.kill()
        self.start(mode)

    # Stories

    def name(self, job: str) -> Key:
        """What a job made with kubectl is called on the bus."""
        workload = self.k.workload(job)
        assert workload is not None, f"{job} has no Workload"
        meta = workload["metadata"]
        return key(self.k.namespace, workload_id(meta["name"], meta["uid"]))

    def submit(self, job: str, **how: Any) -> Key:
        """A Job with kubectl, as soon as it has its Workload."""
        how.setdefault("requests", {"cpu": "1", "nvidia.com/gpu": "1"})
        self.k.submit(job, **how)
        self.until(lambda: self.k.workload(job) is not None, f"{job} has a Workload")
        return self.name(job)

    def story(self, job: str) -> list[str]:
        """Its story on the bus."""
        return self.bus.kinds(self.name(job))

    def until(self, ask: Callable[[], object], what: str) -> None:
        """Wait; if in vain, the reconciler's last words are in the error."""
        try:
            wait_until(lambda: bool(ask()), what, poll_s=0.05)
        except Exception as error:
            words = self.log.read_text()[-3000:] if self.log.exists() else ""
            stories = "\n".join(
                f"{name}: {self.bus.kinds(name)} {fold.reason}"
                for name, fold in self.bus.folds.items()
            )
            raise AssertionError(f"{error}\n{stories}\n{words}\n{self._managers()}") from error

    def _managers(self) -> str:
        """The ends of the managers' logs: whoever waits in vain may wait for one of them."""
        names = [plane.name for plane in self.k.planes]
        return "\n".join(f"{name}: …{self.k.manager_said(name)[-800:]}" for name in names)

    def until_told(self, job: str, *tail: str) -> None:
        """Until a job's story ends like this."""
        wanted = list(tail)
        name = self.name(job)
        self.until(
            lambda: self.bus.kinds(name)[-len(wanted) :] == wanted,
            f"{job} tells {wanted}, not {self.bus.kinds(name)}",
        )

    def events(self, job: str, reason: str) -> list[str]:
        """Notes of Kubernetes events on a job's Workload."""
        workload = self.k.workload(job)
        assert workload is not None
        path = f"/api/v1/namespaces/{self.k.namespace}/events"
        return [
            event["message"]
            for event in self.k.planes.hub.api.items(path)
            if event["reason"] == reason
            and event["involvedObject"]["name"] == workload["metadata"]["name"]
        ]

    def add_our_check(self, selector: str) -> str:
        """The queue asks for a check of ours from now on; nothing is evicted by that. Its name."""
        api, check = self.k.planes.hub.api, f"{self.k.namespace}-placement"
        parameters = {"apiGroup": "core", "kind": "ConfigMap", "name": "where"}
        made = builders.own_check(check, "berthmaster.io/placement")
        api.apply({**made, "spec": {**made["spec"], "parameters": parameters}})
        queue = f"{API}/clusterqueues/{self.k.cluster_queue}"
        wanted = [{"name": self.k.check}, {"name": check}]
        api.merge(queue, {"spec": {"admissionChecksStrategy": {"admissionChecks": wanted}}})
        if selector:
            self.choose_by(selector)
        return check

    def choose_by(self, selector: str) -> None:
        """What the parameters of that check say."""
        meta = {"name": "where", "namespace": self.k.namespace}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        self.k.planes.hub.api.apply({**document, "data": {"selector": selector}})

    def nothing_wrong(self) -> None:
        """Every event that was stored counted; no job runs in two workers."""
        assert set(self.bus.verdicts) <= {Verdict.COUNTED}


def running_in(k: Kueue, job: str, workers: Sequence[str]) -> list[str]:
    """The workers in which a Job of this name is not suspended."""
    found = []
    for worker in workers:
        there = k.job(job, worker)
        if there is not None and not there["spec"].get("suspend"):
            found.append(worker)
    return found
