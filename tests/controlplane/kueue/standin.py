"""A stand-in for Kueue's manager, as a process of its own; the same program on hub and worker.

    python -m tests.controlplane.kueue.standin --kubeconfig FILE [--role hub|worker] ...

It follows the contract of Kueue 0.19 as far as Berthmaster meets it, traps included. What it leaves
out: borrowing within cohorts and fair sharing, partial admission, elastic jobs, topology, time
limits on PodsReady, kinds of jobs other than batch/v1 Job, checks for single flavors, kubeconfigs
by path, ClusterProfiles, its own metrics and events. Its webhooks are replaced by admission
policies that the harness applies (policies.yaml). Rules of this package: what the API server can
enforce is left to it; what is decided is decided from what is true now, so that a kill at any point
loses nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
from pathlib import Path

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.config import from_kubeconfig
from berthmaster.kubernetes.errors import KubernetesError, NotFound
from berthmaster.kubernetes.resources import Resource
from tests.controlplane.kueue import lifecycle
from tests.controlplane.kueue.clusters import Cluster, Quiet
from tests.controlplane.kueue.dispatchers import ALL_AT_ONCE, INCREMENTAL, Incremental
from tests.controlplane.kueue.jobs import PRIORITY_CLASSES, Jobs
from tests.controlplane.kueue.multikueue import MultiKueue
from tests.controlplane.kueue.objects import (
    QUEUE_LABEL,
    Key,
    Obj,
    controller_of,
    key_of,
    labels_of,
    prebuilt_of,
)
from tests.controlplane.kueue.queues import QueueStatus
from tests.controlplane.kueue.remotes import Remotes
from tests.controlplane.kueue.scheduler import Scheduler
from tests.controlplane.kueue.workloads import Workloads
from tests.controlplane.kueue.workqueue import WorkQueue, log
from tests.controlplane.kueue.writing import Writer, now_text

CYCLE: Key = ("", "cycle")
SHORT_NAMES = {"AllAtOnce": ALL_AT_ONCE, "Incremental": INCREMENTAL}
FOLLOWED = (
    resources.NAMESPACES,
    resources.RESOURCE_FLAVORS,
    PRIORITY_CLASSES,
    resources.CLUSTER_QUEUES,
    resources.COHORTS,
    resources.LOCAL_QUEUES,
    resources.ADMISSION_CHECKS,
    resources.WORKLOADS,
    resources.JOBS,
)
FOLLOWED_ON_HUB = (resources.MULTIKUEUE_CONFIGS, resources.MULTIKUEUE_CLUSTERS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a manager's configuration file would say, and its constants where tests want them
    short."""

    kubeconfig: Path
    role: str = "hub"
    namespace: str = "kueue-system"
    dispatcher: str = ALL_AT_ONCE
    dispatch_step: int = 3
    dispatch_round_s: float = 300.0
    merge_patch_gate: bool = False
    origin: str = "multikueue"
    worker_lost_timeout_s: float = 900.0
    batch_s: float = 1.0
    collect_s: float = 60.0


class Manager:
    """Caches, controllers, and which event wakes which."""

    def __init__(self, settings: Settings, local: Cluster) -> None:
        self._settings = settings
        self._local = local
        writer = Writer(local, merge_patch=settings.merge_patch_gate)
        self._scheduler = Scheduler(local, writer)
        self._status = QueueStatus(local, now_text)
        workloads = Workloads(local, writer)
        jobs = Jobs(local, writer, workloads)
        self._workloads = WorkQueue("workload", workloads.look)
        self._jobs = WorkQueue("job", jobs.look)
        self._cycles = WorkQueue("scheduler", self._cycle, pause_s=0.02)
        self._statuses = WorkQueue("queue status", self._sync_status, pause_s=0.1)
        self._remotes = Remotes(
            local,
            origin=settings.origin,
            namespace=settings.namespace,
            on_remote=self._on_remote,
            on_connection=self._on_connection,
        )
        self._group = MultiKueue(
            local,
            writer,
            self._remotes,
            dispatcher=settings.dispatcher,
            origin=settings.origin,
            worker_lost_s=settings.worker_lost_timeout_s,
            merge_patch=settings.merge_patch_gate,
        )
        self._incremental = Incremental(
            local, writer, step=settings.dispatch_step, round_s=settings.dispatch_round_s
        )
        self._groups = WorkQueue("multikueue", self._group.look)
        self._connections = WorkQueue("cluster", self._remotes.look)
        self._dispatches = WorkQueue("dispatcher", self._incremental.look)

    async def run(self) -> None:
        """Until cancelled. The API server may come and go."""
        hub = self._settings.role == "hub"
        followed = dict.fromkeys((*FOLLOWED, *(FOLLOWED_ON_HUB if hub else ())), "")
        if hub:
            followed[resources.SECRETS] = self._settings.namespace
        listed = {resource: asyncio.Event() for resource in followed}
        async with asyncio.TaskGroup() as group:
            for resource, namespace in followed.items():
                group.create_task(self._follow(resource, namespace, listed[resource]))
            for event in listed.values():
                await event.wait()
            self._end_if_poisoned()
            self._local.listen(self._on_change)
            self._wake_all()
            queues = [self._workloads, self._jobs, self._cycles, self._statuses]
            if hub:
                queues += [self._groups, self._connections]
                group.create_task(self._collect())
                if self._settings.dispatcher == INCREMENTAL:
                    queues.append(self._dispatches)
            for queue in queues:
                group.create_task(queue.run())
            log.info(
                "manager runs (%s, dispatcher %s)", self._settings.role, self._settings.dispatcher
            )

    async def _follow(self, resource: Resource, namespace: str, listed: asyncio.Event) -> None:
        while True:
            try:
                await self._local.follow(resource, namespace=namespace, listed=listed.set)
            except KubernetesError as error:
                log.warning("%s: %s", resource.plural, error)
                await asyncio.sleep(0.5)

    def _end_if_poisoned(self) -> None:
        """The real manager reads the admission of whatever has quota, and panics without one."""
        for workload in self._local.all(resources.WORKLOADS):
            if lifecycle.is_poisoned(workload):
                raise RuntimeError(f"{key_of(workload)} has quota, is evicted, and no admission")

    async def _cycle(self, _key: Key) -> None:
        await self._scheduler.cycle()

    async def _sync_status(self, _key: Key) -> None:
        await self._status.sync()

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(self._settings.collect_s)
            try:
                await self._group.collect()
            except (KubernetesError, NotFound) as error:
                log.warning("collecting copies: %s", error)

    # ------------------------------------------------------------ which event wakes which

    def _wake_all(self) -> None:
        for resource in (*FOLLOWED, *FOLLOWED_ON_HUB):
            for obj in self._local.all(resource):
                meta = obj["metadata"]
                self._on_change(resource, (meta.get("namespace", ""), meta["name"]), None, obj)

    def _on_change(self, resource: Resource, key: Key, old: Obj | None, new: Obj | None) -> None:
        if resource == resources.WORKLOADS:
            self._on_workload(key, old, new)
        elif resource == resources.JOBS:
            self._on_job(key, old, new)
        elif resource == resources.MULTIKUEUE_CLUSTERS:
            if old is None or new is None or old.get("spec") != new.get("spec"):
                self._connections.add(key)
            self._statuses.add(CYCLE)
        elif resource == resources.SECRETS:
            for cluster in self._local.all(resources.MULTIKUEUE_CLUSTERS):
                self._connections.add(("", cluster["metadata"]["name"]))
        elif resource == resources.MULTIKUEUE_CONFIGS:
            self._statuses.add(CYCLE)
            for obj in self._local.all(resources.WORKLOADS):
                meta = obj["metadata"]
                self._groups.add_after((meta["namespace"], meta["name"]), self._settings.batch_s)
        elif old is None or new is None or _matters(old) != _matters(new):
            self._on_queue(resource)

    def _on_workload(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        self._workloads.add(key)
        self._cycles.add(CYCLE)
        self._statuses.add(CYCLE)
        if new is None and old is not None:
            self._group.deleted(key, old)
        self._groups.add(key)
        self._dispatches.add(key)
        described = new or old or {"metadata": {}}
        owner = controller_of(described)
        if owner is not None and owner["kind"] == "Job":
            self._jobs.add((key[0], owner["name"]))
        elif new is not None:
            self._wake_prebuilt(key)

    def _wake_prebuilt(self, key: Key) -> None:
        for job in self._local.all(resources.JOBS):
            if prebuilt_of(job) == key[1]:
                self._jobs.add((key[0], job["metadata"]["name"]))

    def _on_job(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        job = new or old
        if job is None or QUEUE_LABEL not in labels_of(job):
            return
        self._jobs.add(key)

    def _on_queue(self, resource: Resource) -> None:
        """A queue, a flavor, a check or a namespace: rare, so everybody looks again."""
        self._cycles.add(CYCLE)
        self._statuses.add(CYCLE)
        for obj in self._local.all(resources.WORKLOADS):
            meta = obj["metadata"]
            key: Key = meta["namespace"], meta["name"]
            self._workloads.add(key)
            self._groups.add(key)
            self._dispatches.add(key)
        if resource == PRIORITY_CLASSES:
            for job in self._local.all(resources.JOBS):
                self._jobs.add((job["metadata"]["namespace"], job["metadata"]["name"]))

    def _on_remote(self, _cluster: str, key: Key) -> None:
        self._groups.add_after(key, self._settings.batch_s)

    def _on_connection(self, cluster: str) -> None:
        self._connections.add(("", cluster))
        for obj in self._local.all(resources.WORKLOADS):
            meta = obj["metadata"]
            self._groups.add((meta["namespace"], meta["name"]))


def _matters(obj: Obj) -> object:
    """What of a queue, check or namespace can change a decision: all but counts."""
    conditions = [
        (one["type"], one["status"]) for one in (obj.get("status") or {}).get("conditions") or ()
    ]
    meta = obj["metadata"]
    return (
        obj.get("spec"),
        obj.get("value"),
        meta.get("labels"),
        meta.get("deletionTimestamp"),
        conditions,
    )


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    access = await from_kubeconfig(settings.kubeconfig)
    async with await Client.open(
        access, user_agent=f"kueue-standin/{settings.role}", log=Quiet(), timeout_s=30.0
    ) as client:
        manager = asyncio.create_task(Manager(settings, Cluster(client)).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, manager.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await manager


def settings_from(arguments: list[str]) -> Settings:
    """The command line."""
    known = Settings(kubeconfig=Path())
    parser = argparse.ArgumentParser(prog="standin", description="A stand-in for Kueue's manager")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--role", choices=("hub", "worker"), default=known.role)
    parser.add_argument("--namespace", default=known.namespace, help="where kubeconfig Secrets lie")
    parser.add_argument(
        "--dispatcher", default="AllAtOnce", help="AllAtOnce, Incremental or any name"
    )
    parser.add_argument("--dispatch-step", type=int, default=known.dispatch_step)
    parser.add_argument("--dispatch-round-s", type=float, default=known.dispatch_round_s)
    parser.add_argument("--merge-patch-gate", action="store_true")
    parser.add_argument("--origin", default=known.origin)
    parser.add_argument("--worker-lost-timeout-s", type=float, default=known.worker_lost_timeout_s)
    parser.add_argument("--batch-s", type=float, default=known.batch_s)
    parser.add_argument("--collect-s", type=float, default=known.collect_s)
    given = parser.parse_args(arguments)
    return Settings(
        kubeconfig=given.kubeconfig,
        role=given.role,
        namespace=given.namespace,
        dispatcher=SHORT_NAMES.get(given.dispatcher, given.dispatcher),
        dispatch_step=given.dispatch_step,
        dispatch_round_s=given.dispatch_round_s,
        merge_patch_gate=given.merge_patch_gate,
        origin=given.origin,
        worker_lost_timeout_s=given.worker_lost_timeout_s,
        batch_s=given.batch_s,
        collect_s=given.collect_s,
    )


def main() -> None:
    """The door for `python -m`."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    asyncio.run(serve(settings_from(sys.argv[1:])))


if __name__ == "__main__":
    main()
