"""One Kueue for tests: a hub with MultiKueue, its workers, and methods to use and break them.

    with Kueue(planes, namespace) as k:              # or: async with kueue(planes, namespace) as k:
        k.submit("train")                            # a Job on the hub
        k.until(lambda: k.cluster_of("train"), "a cluster")

Each test has its own namespace, the same in every plane. Objects without a namespace are named
after it, so tests do not collide. Every method blocks, so inside an event loop use
asyncio.to_thread. Every wait has a limit, and the error has the last observed state.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import http
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from berthmaster.lab.controlplane.api import ApiError, documents
from berthmaster.lab.controlplane.components import has_mutating_policies
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.cleaning import patiently, remove_all
from berthmaster.lab.controlplane.kueue.clearing import Clearing
from berthmaster.lab.controlplane.kueue.managers import Options, manager
from berthmaster.lab.controlplane.kueue.objects import GROUP, Obj, condition_of, is_true
from berthmaster.lab.controlplane.patience import Hung, wait_until
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.processes import Process

__all__ = ["Kueue", "Options", "kueue"]

HERE = Path(__file__).resolve().parent
ELASTIC_POLICY = HERE / "elastic.yaml"
POLICY = HERE / "nominations.yaml"
API = f"/apis/{GROUP}/v1beta2"
SYSTEM = "kueue-system"
QUOTAS = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": "100"}}
START_TRIES = 3  # another process may take a free port before the program binds it
PORT_TAKEN = "address already in use"
USER = "multikueue"  # the hub's user in the workers: rights.yaml


class Kueue:
    """Managers on the hub and on every worker, and one queue to MultiKueue."""

    def __init__(
        self,
        planes: Planes,
        namespace: str,
        *,
        options: Options | None = None,
        clusters: Sequence[str] | None = None,
        quotas: Mapping[str, Mapping[str, str | int]] | None = None,
        worker_quotas: Mapping[str, Mapping[str, Mapping[str, str | int]]] | None = None,
        checks: Sequence[str] = (),
        queue: str = "main",
    ) -> None:
        """Configure a Kueue.

        `clusters`: the order of the MultiKueueConfig, by default all workers. `worker_quotas`:
        differing quotas by worker. `checks`: admission checks of other controllers, beside
        MultiKueue's.
        """
        self.planes = planes
        self.namespace = namespace
        self.options = options or Options()
        self.clusters = list(clusters or [plane.name for plane in planes.workers])
        self.queue = queue  # the LocalQueue, the same everywhere
        self.cluster_queue = f"{namespace}-queue"
        self.check = f"{namespace}-multikueue"
        self.config = f"{namespace}-config"
        self.own_checks = [f"{namespace}-{each}" for each in checks]
        self._quotas = quotas or QUOTAS
        self._worker_quotas = worker_quotas or {}
        self._managers: dict[str, Process] = {}
        # the webhook that clears nominations; None = the policy does
        self.clearing: Clearing | None = None

    # ------------------------------------------------------------ start and stop

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Create objects, start managers, and wait until everything is active."""
        with ThreadPoolExecutor(len(self.planes.workers) + 1) as threads:
            list(threads.map(self._prepare, self.planes))
        for plane in self.planes:
            self.start_manager(plane.name)
        self.wait_active()

    def stop(self) -> None:
        """Kill the managers, and delete every object of this Kueue in all planes."""
        for process in self._managers.values():
            process.kill()
        self.planes.mend()
        with ThreadPoolExecutor(len(self.planes.workers) + 1) as threads:
            list(threads.map(lambda plane: patiently(lambda: self._clean(plane)), self.planes))

    def _policies(self) -> list[Obj]:
        elastic = documents(ELASTIC_POLICY) if self.options.elastic_jobs else []
        found = documents(HERE / "policies.yaml") + elastic
        if self.serves_policies:
            return found
        older = {"apiVersion": "admissionregistration.k8s.io/v1beta1"}
        return [each | (older if "Mutating" in each["kind"] else {}) for each in found]

    @property
    def serves_policies(self) -> bool:
        """Return whether the API servers serve MutatingAdmissionPolicies (Kubernetes 1.36)."""
        return has_mutating_policies(self.planes.programs.kubernetes)

    def _prepare(self, plane: Plane) -> None:
        hub = plane.role == "hub"
        for document in self._policies():
            plane.api.apply(document)
        if hub and self.options.policy:
            self.apply_policy()
        plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        plane.api.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        )
        quotas = self._quotas if hub else self._worker_quotas.get(plane.name, self._quotas)
        for flavor in quotas:
            plane.api.apply(builders.flavor(flavor))
        if hub:
            self._prepare_multikueue(plane)
        else:
            for document in documents(HERE / "rights.yaml"):
                plane.api.apply(document)
        checks = [self.check, *self.own_checks] if hub else []
        plane.api.apply(builders.cluster_queue(self.cluster_queue, quotas, checks=checks))
        plane.api.apply(builders.local_queue(self.namespace, self.queue, self.cluster_queue))

    def _prepare_multikueue(self, hub: Plane) -> None:
        for worker in self.planes.workers:
            self.give_kubeconfig(worker.name, worker.kubeconfig_for(USER).read_bytes())
            hub.api.apply(builders.cluster(worker.name, f"{worker.name}-kubeconfig"))
        hub.api.apply(builders.config(self.config, self.clusters))
        hub.api.apply(builders.multikueue_check(self.check, self.config))
        for name in self.own_checks:
            hub.api.apply(builders.own_check(name))
            self.activate_check(name)

    def _clean(self, plane: Plane) -> None:
        """Remove finalizers first, because no manager is left to remove them."""
        api, inside = plane.api, f"/namespaces/{self.namespace}"
        jobs = f"/apis/batch/v1{inside}/jobs"
        api.delete(jobs)
        for plural in ("workloads", "localqueues"):
            remove_all(api, f"{API}{inside}/{plural}", "")
        kinds = ["clusterqueues"]
        if plane.role == "hub":
            kinds += ["admissionchecks", "multikueueconfigs"]
        for plural in kinds:
            remove_all(api, f"{API}/{plural}", self.namespace)
        # An apply without labels cannot remove labels of an existing flavor: 422.
        remove_all(api, f"{API}/resourceflavors", "")
        if plane.role == "hub":
            remove_all(api, f"{API}/multikueueclusters", "")
            self.remove_policy()
        for document in self._policies():
            with contextlib.suppress(ApiError):  # missing after a failed start
                api.delete(api.path_of(document))

    def apply_policy(self) -> None:
        """Let the hub's API server clear nominations: by the policy, or by the webhook before
        Kubernetes 1.36.
        """
        if self.serves_policies:
            for document in documents(POLICY):
                self.planes.hub.api.apply(document)
            return
        if self.clearing is None:
            self.clearing = Clearing(self.planes.hub, documents(POLICY)[0]["spec"])
        self.clearing.start()

    def remove_policy(self) -> None:
        """Delete the policy or webhook, if it exists."""
        if self.clearing is not None:
            self.clearing.remove()
        if not self.serves_policies:
            return
        for document in reversed(documents(POLICY)):
            with contextlib.suppress(ApiError):
                self.planes.hub.api.delete(self.planes.hub.api.path_of(document))

    # ------------------------------------------------------------ managers

    def start_manager(self, name: str, options: Options | None = None) -> None:
        """Start the manager of a plane, with other options if given."""
        if options is not None:
            self.options = options
        self._forget_active(self.planes[name])
        self._managers[name] = manager(self.planes[name], self.options)
        self._managers[name].launch()

    def _forget_active(self, plane: Plane) -> None:
        """Clear the Active conditions of an earlier manager, so that the next one sets them
        again."""
        paths = [f"{API}/clusterqueues/{self.cluster_queue}"]
        if plane.role == "hub":
            paths += [f"{API}/multikueueclusters/{worker.name}" for worker in self.planes.workers]
            paths.append(f"{API}/admissionchecks/{self.check}")
        for path in paths:
            plane.api.merge(f"{path}/status", {"status": {"conditions": []}})

    def kill_manager(self, name: str) -> None:
        """Kill the manager with SIGKILL."""
        self._managers[name].kill()

    def restart_manager(self, name: str, **changes: Any) -> None:
        """Kill and restart the manager with some options changed; return when all is active
        again."""
        self.kill_manager(name)
        self.start_manager(name, dataclasses.replace(self.options, **changes))
        self.wait_active()

    def runs(self, name: str) -> bool:
        """Return whether a plane's manager still runs."""
        return self._managers[name].running

    def manager_said(self, name: str) -> str:
        """Return the end of a manager's log."""
        return self._managers[name].said()

    def wait_active(self) -> None:
        """Wait until clusters, checks and queues are active: a manager's /readyz is not enough."""

        tries_left = START_TRIES

        def active() -> bool:
            nonlocal tries_left
            for name, process in list(self._managers.items()):
                if not process.running:
                    words = process.last_words()
                    if PORT_TAKEN not in words or not tries_left:
                        raise AssertionError(f"{name}: the manager ended: {words}")
                    tries_left -= 1
                    self.start_manager(name)
            return not self.inactive()

        try:
            wait_until(active, "everything is active", poll_s=0.1)
        except Hung as late:
            raise AssertionError(f"{late}; still not: {self.inactive()}") from late

    def inactive(self) -> list[str]:
        """Return the inactive objects, with reasons as text."""
        found: list[str] = []
        hub = self.planes.hub.api
        wanted = [(hub, f"{API}/multikueueclusters/{name}") for name in self.clusters]
        wanted.append((hub, f"{API}/admissionchecks/{self.check}"))
        for plane in self.planes:
            queue = f"{API}/namespaces/{self.namespace}/localqueues/{self.queue}"
            wanted.append((plane.api, f"{API}/clusterqueues/{self.cluster_queue}"))
            wanted.append((plane.api, queue))
        for api, path in wanted:
            obj = api.find(path)
            if obj is None or not is_true(obj, "Active"):
                condition = condition_of(obj, "Active") if obj else None
                found.append(
                    f"{path.rpartition('v1beta2/')[2]}: {condition and condition['message']}"
                )
        return found

    # ------------------------------------------------------------ use

    def submit(self, name: str, **how: Any) -> Obj:
        """Create a Job on the hub, from builders.job."""
        body = builders.job(self.namespace, name, how.pop("queue", self.queue), **how)
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        return self.planes.hub.api.create(path, body)

    def job(self, name: str, plane: str = "hub") -> Obj | None:
        """Return a Job, on the hub or its copy on a worker."""
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"
        return self.planes[plane].api.find(path)

    def workload(self, job: str, plane: str = "hub") -> Obj | None:
        """Return the Workload of a Job on the hub, or its same-named copy on a worker."""
        for each in self.planes.hub.api.items(f"{API}/namespaces/{self.namespace}/workloads"):
            owners = each["metadata"].get("ownerReferences") or ()
            if any(owner["kind"] == "Job" and owner["name"] == job for owner in owners):
                if plane == "hub":
                    return each
                return self.planes[plane].api.find(self.path(each["metadata"]["name"]))
        return None

    def status(self, job: str, plane: str = "hub") -> Obj:
        """Return the status of a Job's Workload; empty without a Workload."""
        status: Obj = (self.workload(job, plane) or {}).get("status") or {}
        return status

    def path(self, workload: str) -> str:
        """Return the path of a Workload, the same in every plane."""
        return f"{API}/namespaces/{self.namespace}/workloads/{workload}"

    def cluster_of(self, job: str) -> str:
        """Return the cluster chosen by MultiKueue; empty before the choice."""
        return str(self.status(job).get("clusterName", ""))

    def nominated(self, job: str) -> list[str]:
        """Return the present nominated clusters."""
        return list(self.status(job).get("nominatedClusterNames") or ())

    def copies(self, job: str) -> list[str]:
        """Return the workers with a copy of the Workload."""
        workload = self.workload(job)
        if workload is None:
            return []
        path = self.path(workload["metadata"]["name"])
        return [plane.name for plane in self.planes.workers if plane.api.find(path)]

    def state_of(self, job: str, check: str = "") -> str:
        """Return the state of an admission check, by default MultiKueue's; empty if missing."""
        for each in self.status(job).get("admissionChecks") or ():
            if each["name"] == (check or self.check):
                return str(each["state"])
        return ""

    def has(self, job: str, condition: str, plane: str = "hub") -> bool:
        """Return whether a condition of the Workload is True."""
        workload = self.workload(job, plane)
        return workload is not None and is_true(workload, condition)

    def nominate(self, job: str, clusters: Sequence[str]) -> Obj:
        """Nominate as a dispatcher does: a merge patch with the resource version, retried on
        conflict."""
        for _ in range(20):
            workload = self.workload(job)
            assert workload is not None, f"{job} has no Workload"
            meta = {"resourceVersion": workload["metadata"]["resourceVersion"]}
            body = {"metadata": meta, "status": {"nominatedClusterNames": list(clusters)}}
            path = f"{self.path(workload['metadata']['name'])}/status"
            try:
                return self.planes.hub.api.merge(path, body)
            except ApiError as error:
                if error.status != http.HTTPStatus.CONFLICT:
                    raise
        raise AssertionError(f"{job}: twenty conflicts")

    def patch_status(self, job: str, status: Mapping[str, object], plane: str = "hub") -> Obj:
        """Patch a Workload's status with a merge patch, without a precondition."""
        workload = self.workload(job, plane)
        assert workload is not None, f"{job} has no Workload in {plane}"
        path = f"{self.path(workload['metadata']['name'])}/status"
        return self.planes[plane].api.merge(path, {"status": dict(status)})

    def set_check(self, job: str, check: str, state: str, message: str = "") -> Obj:
        """Set a check as its controller does: server-side apply of its own list item alone."""
        workload = self.workload(job)
        assert workload is not None, f"{job} has no Workload"
        name = workload["metadata"]["name"]
        item = {
            "name": check,
            "state": state,
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {
            "apiVersion": f"{GROUP}/v1beta2",
            "kind": "Workload",
            "metadata": {"name": name, "namespace": self.namespace},
            "status": {"admissionChecks": [item]},
        }
        return self.planes.hub.api.call(
            "PATCH",
            f"{self.path(name)}/status",
            body,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": f"check-{check}", "force": "true"},
        )

    def until(self, ask: Callable[[], object], what: str) -> None:
        """Wait until the condition is true. Raises Hung."""
        wait_until(lambda: bool(ask()), what, poll_s=0.05)

    # ------------------------------------------------------------ changes

    def activate_check(self, name: str) -> None:
        """Set the Active condition of a test's check."""
        condition = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "a test's",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"{API}/admissionchecks/{name}/status"
        self.planes.hub.api.merge(path, {"status": {"conditions": [condition]}})

    def give_kubeconfig(self, cluster: str, kubeconfig: bytes) -> None:
        """Apply the Secret that a MultiKueueCluster names."""
        data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
        meta = {"name": f"{cluster}-kubeconfig", "namespace": SYSTEM}
        self.planes.hub.api.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
        )

    def set_clusters(self, clusters: Sequence[str]) -> None:
        """Change the MultiKueueConfig: membership and order."""
        path = f"{API}/multikueueconfigs/{self.config}"
        self.planes.hub.api.merge(path, {"spec": {"clusters": list(clusters)}})

    def stop_queue(self, plane: str, policy: str) -> None:
        """Set stopPolicy of the ClusterQueue: None, Hold or HoldAndDrain."""
        path = f"{API}/clusterqueues/{self.cluster_queue}"
        self.planes[plane].api.merge(path, {"spec": {"stopPolicy": policy}})

    def set_active(self, job: str, active: bool, plane: str = "hub") -> None:
        """Set spec.active of a Workload: false evicts the Workload."""
        workload = self.workload(job, plane)
        assert workload is not None, f"{job} has no Workload in {plane}"
        path = self.path(workload["metadata"]["name"])
        self.planes[plane].api.merge(path, {"spec": {"active": active}})


@contextlib.asynccontextmanager
async def kueue(planes: Planes, namespace: str, **how: Any) -> AsyncIterator[Kueue]:
    """Run a `Kueue` in tests with an event loop, without blocking the loop."""
    made = Kueue(planes, namespace, **how)
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)
