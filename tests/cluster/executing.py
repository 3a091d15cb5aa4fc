"""An executor as its own process, between a NATS server and a worker's API server, and the log."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.proxy import Proxy
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.kinds.table import KINDS
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.lifecycle.fold import offer
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import (
    CancelRequested,
    EvictionRequested,
    JobRequest,
    Placed,
    PodSet,
    ResizeRequested,
    RunSpec,
    Submitted,
    Withdrawn,
    WorkloadEvent,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.facts import FactWriter
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.core.manifest import object_name
from tests.bus.doors import with_door
from tests.bus.tools import eventually
from tests.support import warm
from tests.support.patience import hang_s
from tests.support.warm import Child

CLUSTER: Final = "berlin"
TENANT: Final = "acme"
WRITES: Final = 5  # of one event, while others write too
ENDINGS: Final = ("Succeeded", "Failed", "Cancelled", "Evicted")


def job(
    name: str = "train",
    *,
    count: int = 1,
    gpus: int = 1,
    run_s: str = "0.3",
    exit_code: int = 0,
    deadline_s: float | None = None,
    pod_sets: tuple[PodSet, ...] | None = None,
    max_evictions: int = 10,
    **pods: Any,
) -> JobRequest:
    """A request; its pods run as kwok's stages understand their environment."""
    env = {"BERTH_TEST_RUN_S": run_s, "BERTH_TEST_EXIT_CODE": str(exit_code)}
    return JobRequest(
        id=name,
        pod_sets=pod_sets or (PodSet(count=count, gpus=gpus, **pods),),
        run=RunSpec(image="example.org/train:1", command=("train",), env=env),
        deadline_s=deadline_s,
        max_evictions=max_evictions,
    )


@dataclass
class Site:
    """One worker cluster, its executor, and the log as the rest of the system writes it."""

    plane: Plane
    namespace: str
    url: str
    conn: Connection
    folder: Path
    proxy: Proxy
    kubeconfig: Path
    flags: tuple[str, ...] = ()
    process: Child | None = None
    starts: int = 0
    target: Target = field(default_factory=Target)

    # The executor

    def start(self) -> None:
        """Start it; it need not be ready yet."""
        self.starts += 1
        argv = ["serve", "executor"]
        argv += ["--cluster", CLUSTER, "--namespaces", self.namespace, "--nats-url", self.url]
        argv += ["--kubeconfig", str(self.kubeconfig), "--log-format", "text", *self.flags]
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        with (self.folder / f"executor-{self.starts}.log").open("wb") as log:
            self.process = warm.berth(*argv, output=log, env=env)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(hang_s())

    def restart(self) -> None:
        """kill -9 and a new life."""
        self.kill()
        self.start()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(hang_s())

    def words(self) -> str:
        """All that its lives have logged."""
        files = sorted(self.folder.glob("executor-*.log"))
        return "\n".join(file.read_text() for file in files)

    # The log

    async def append(self, event: WorkloadEvent) -> int:
        outcome = await EventLog(self.conn).append(event)
        assert isinstance(outcome, Stored), outcome
        return outcome.sequence

    async def place(
        self,
        request: JobRequest,
        *nodes: str,
        tenant: str = TENANT,
        target: Target | None = None,
    ) -> Attempt:
        """Submitted and placed, its pods on these nodes in turn."""
        submitted = await self.append(
            Submitted(
                tenant=tenant,
                id=request.id,
                after=0,
                at_s=1.0,
                by="gw",
                request=request,
                digest=request_digest(request),
            )
        )
        names = [f"{p.name}-{n}" for p in request.pod_sets for n in range(p.count)]
        await self.append(
            Placed(
                tenant=tenant,
                id=request.id,
                after=submitted,
                at_s=2.0,
                by="resolver",
                cluster=CLUSTER,
                attempt=1,
                pods=tuple(
                    PodBinding(pod=name, node=nodes[n % len(nodes)] if nodes else "nowhere")
                    for n, name in enumerate(names)
                ),
                request=request,
                decision=1,
                submitted_at_s=1.5,
                target=target or Target(namespace=self.namespace),
            )
        )
        return Attempt(tenant, request.id, 1)

    async def place_again(self, name: str, node: str) -> None:
        """Its next attempt, of one pod, as the resolver says it."""
        work = await self.read(name)
        assert work.request is not None
        await self.append(
            Placed(
                tenant=TENANT,
                id=name,
                after=work.sequence,
                at_s=3.0,
                by="resolver",
                cluster=CLUSTER,
                attempt=work.attempt + 1,
                pods=(PodBinding(pod="main-0", node=node),),
                request=work.request,
                decision=2,
                target=Target(namespace=self.namespace),
                checkpoint=work.checkpoint,
            )
        )

    async def withdraw(self, name: str) -> None:
        """As the resolver does with what nobody claims."""
        event = Withdrawn(
            tenant=TENANT,
            id=name,
            after=(await self.read(name)).sequence,
            at_s=3.0,
            by="resolver",
            cluster=CLUSTER,
            attempt=1,
            reason="not claimed in time",
            decision=2,
        )
        await self.append(event)

    async def resize(self, name: str, pods: tuple[PodBinding, ...]) -> None:
        """As the resolver decides that it shall have these."""
        event = ResizeRequested(
            tenant=TENANT,
            id=name,
            after=(await self.read(name)).sequence,
            at_s=4.0,
            by="resolver",
            cluster=CLUSTER,
            attempt=1,
            pods=pods,
            reason="room for another",
            decision=3,
        )
        await self.append(event)

    async def make_room(self, name: str) -> None:
        """As the resolver decides that it goes."""
        event = EvictionRequested(
            tenant=TENANT,
            id=name,
            after=(await self.read(name)).sequence,
            at_s=4.0,
            by="resolver",
            cluster=CLUSTER,
            attempt=1,
            reason="room for another",
            decision=3,
        )
        await self.append(event)

    async def cancel(self, name: str, reason: str = "not needed") -> None:
        """As the gateway would: again, if the executor told something in between."""
        for _ in range(WRITES):
            after = (await self.read(name)).sequence
            wish = CancelRequested(
                tenant=TENANT, id=name, after=after, at_s=0, by="gw", cluster=CLUSTER, reason=reason
            )
            outcome = await EventLog(self.conn).append(wish)
            if isinstance(outcome, Stored):
                return
            assert isinstance(outcome, Refused), outcome
        raise AssertionError(f"{name}: somebody else wrote first, {WRITES} times")

    async def events(self, name: str, tenant: str = TENANT) -> list[WorkloadEvent]:
        story = await EventLog(self.conn).story(tenant, name)
        return [one.event for one in decode_story(story)]

    async def kinds(self, name: str, tenant: str = TENANT) -> list[str]:
        """What has happened since it was placed."""
        return [type(event).__name__ for event in await self.events(name, tenant)][2:]

    async def read(self, name: str) -> Workload:
        workload = Workload(tenant=TENANT, id=name)
        for one in decode_story(await EventLog(self.conn).story(TENANT, name)):
            offer(workload, one.event, one.sequence, one.stored_at_s)
        return workload

    async def until(self, name: str, kind: str, *, times: int = 1) -> WorkloadEvent:
        """The first event of this kind, or a later one, once it is there."""

        async def there() -> bool:
            kinds = await self.kinds(name)
            assert kind in kinds or not set(kinds) & set(ENDINGS), (kinds, await self.events(name))
            return kinds.count(kind) >= times

        try:
            await eventually(there)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.words()}") from error
        return [e for e in await self.events(name) if type(e).__name__ == kind][times - 1]

    async def tell(self, *reports: NodeReport) -> None:
        """What its inventory would say of nodes."""
        writer = FactWriter(self.conn)
        await writer.begin(f"berth.fleet.{CLUSTER}.>")
        for report in reports:
            subject = f"berth.fleet.{CLUSTER}.node.{subjects.token(report.node)}"
            await writer.put(subject, report)

    # The cluster

    def objects(self, kind: Resource = JOB.resource) -> list[dict[str, Any]]:
        return self.plane.api.items(kind.path(namespace=self.namespace))

    def pods(self) -> list[dict[str, Any]]:
        return self.plane.api.items(f"/api/v1/namespaces/{self.namespace}/pods")

    async def job_of(self, attempt: Attempt, kind: JobKind = JOB) -> dict[str, Any]:
        """Its object, once it is there."""
        path = kind.resource.path(namespace=self.namespace, name=object_name(attempt, kind))

        async def there() -> bool:
            return await asyncio.to_thread(self.plane.api.find, path) is not None

        await eventually(there)
        return self.plane.api.get(path)

    def release(self) -> None:
        """Remove our finalizer from all objects, as docs/operators/remove-agent.md says: then
        nothing of ours keeps an object, a namespace or a definition."""
        for kind in (each.resource for each in KINDS):
            found = self.plane.api.find(kind.path(namespace=self.namespace))
            for each in found["items"] if found is not None else ():
                if labels.FINALIZER in each["metadata"].get("finalizers", ()):
                    path = kind.path(namespace=self.namespace, name=each["metadata"]["name"])
                    self.plane.api.merge(path, {"metadata": {"finalizers": None}})

    async def clean(self) -> None:
        """Until nothing of ours is left in the namespace."""

        async def gone() -> bool:
            return not await asyncio.to_thread(self.objects) and not await asyncio.to_thread(
                self.pods
            )

        await eventually(gone)


@asynccontextmanager
async def site(
    plane: Plane,
    namespace: str,
    folder: Path,
    *flags: str,
    kubeconfig: Path | None = None,
    started: bool = True,
) -> AsyncIterator[Site]:
    """A bus, an executor of the plane's namespace behind a door of its own, and the log."""
    with Server(folder / "nats", ServerConfig(sync="default")) as server:
        async with with_door(server.url) as conn:
            proxy = await asyncio.to_thread(plane.proxy)
            file = kubeconfig or plane.kubeconfig_for("admin", ("system:masters",), via=proxy)
            made = Site(plane, namespace, server.url, conn, folder, proxy, file, flags)
            if started:
                made.start()
            try:
                yield made
            finally:
                if made.process is not None and made.process.poll() is None:
                    made.kill()
                await asyncio.to_thread(made.release)
