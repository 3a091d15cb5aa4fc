"""A reconciler as its own process between a bus and a real hub, and what workers say, by hand.

Everything blocks, as the Kueue of these tests does; the bus lives in a thread of its own. Workers'
facts are said by the test: free GPUs are what a story is about.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import yaml

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import Server, ServerConfig
from berthmaster.bus.errors import BusError
from berthmaster.bus.facts import FactWriter
from berthmaster.bus.follow import Follower, Recorded
from berthmaster.bus.log import EventLog
from berthmaster.bus.streams import WORKLOADS, ensure_streams
from berthmaster.lifecycle.fold import Key, Verdict, Workload, key, offer
from berthmaster.messages.api import WhyReply
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.families import API_REPLIES, DECISIONS, EVENTS, encode
from berthmaster.messages.fleet import (
    ClusterAlive,
    CopyReport,
    FlavorQuota,
    FleetFact,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
)
from berthmaster.messages.placement import Decision
from berthmaster.messages.workload import WorkloadEvent
from berthmaster.multikueue.reading import workload_id
from tests.bus.tools import Lines, Settings
from tests.controlplane.kueue.setup import Kueue
from tests.controlplane.processes import until
from tests.support.builders import node, profile

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parents[2]
RBAC: Final = ROOT / "deploy" / "kubernetes" / "hub" / "multikueue-rbac.yaml"
LIMIT_S: Final = 60.0
USER: Final = "berthmaster-multikueue"


class Bus:
    """A NATS server, and in a thread: the workers' voices and a reader of the log."""

    def __init__(self, folder: Path) -> None:
        self._server = Server(folder / "nats", ServerConfig(sync="default"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._conn: Connection | None = None
        self._writer: FactWriter | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.living: set[str] = set()
        self.events: list[WorkloadEvent] = []
        self.decisions: list[Decision] = []
        self.verdicts: list[Verdict] = []
        self.folds: dict[Key, Workload] = {}

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._thread.start()
        self.do(self._begin())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._server.__exit__(kind, error, trace)

    def pause(self) -> None:
        """The server stands still: nobody hears of it."""
        self._server.pause()

    def resume(self) -> None:
        """It goes on."""
        self._server.resume()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """In the thread of the bus."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _begin(self) -> None:
        conn = await Connection.open(Settings(self.url), "test", Lines(), timeout_s=20.0)
        await conn.__aenter__()
        self._conn = conn
        await ensure_streams(conn, replicas=1)
        self._writer = FactWriter(conn)
        await self._writer.begin(subjects.ALL_FLEET)
        log = Follower(conn, WORKLOADS, [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS])
        self._tasks = [
            asyncio.create_task(log.run(self._on_recorded)),
            asyncio.create_task(self._live()),
        ]

    async def _end(self) -> None:
        for one in self._tasks:
            one.cancel()
        await asyncio.wait(self._tasks, timeout=5)
        assert self._conn is not None
        await self._conn.__aexit__(None, None, None)

    def _on_recorded(self, recorded: Recorded) -> None:
        if subjects.is_decision(recorded.subject):
            self.decisions.append(DECISIONS.decode(recorded.data))
            return
        event = EVENTS.decode(recorded.data)
        self.events.append(event)
        name = key(event.tenant, event.id)
        fold = self.folds.setdefault(name, Workload(tenant=event.tenant, id=event.id))
        self.verdicts.append(offer(fold, event, recorded.sequence, recorded.stored_at_s))

    async def _live(self) -> None:
        while True:
            for name in sorted(self.living):
                with contextlib.suppress(BusError):
                    await self._put(
                        subjects.alive(name), ClusterAlive, cluster=name, interval_s=1.0
                    )
            await asyncio.sleep(0.5)

    async def _put(self, subject: str, kind: type[Any], **fields: Any) -> None:
        assert self._writer is not None
        fact: FleetFact = kind(stamp=self._writer.stamp(), observed_at_s=0.0, **fields)
        await self._writer.put(subject, fact)

    # What workers say

    def worker(
        self, name: str, *, gpus: int = 8, free: int = 8, labels: dict[str, str] | None = None
    ) -> None:
        """It lives, and has one node with so many GPUs, so many of them free."""

        async def say() -> None:
            assert self._writer is not None
            made = node(name, "n1", gpus=gpus, foreign_milli=(1000,) * (gpus - free))
            stamped = made.__class__(
                **{f: getattr(made, f) for f in made.__struct_fields__}
                | {"stamp": self._writer.stamp()}
            )
            await self._writer.put(subjects.node(name, "n1"), stamped)
            if labels is not None:
                told = profile(name, labels=labels)
                fields = {"cluster": name, "labels": told.labels}
                await self._put(subjects.profile(name), type(told), **fields)
            await self._put(subjects.alive(name), ClusterAlive, cluster=name, interval_s=1.0)

        self.do(say())
        self.living.add(name)

    def queue(self, name: str, k: Kueue, *, gpus: int = 100, **how: Any) -> None:
        """Its ClusterQueue, which the LocalQueue of the test's namespace leads to."""
        amounts = {
            "cpu": QuotaAmount(nominal=100_000_000),
            "memory": QuotaAmount(nominal=100_000_000),
            "nvidia.com/gpu": QuotaAmount(nominal=gpus),
        }
        locals_ = how.pop("local_queues", ((k.namespace, k.queue),))
        self.do(
            self._put(
                subjects.queue_report(name, k.cluster_queue),
                QueueReport,
                cluster=name,
                queue=k.cluster_queue,
                flavors=(FlavorQuota(flavor="default", resources=amounts),),
                local_queues=tuple(
                    LocalQueueReport(namespace=each, name=queue) for each, queue in locals_
                ),
                **how,
            )
        )

    def copy(self, name: str, k: Kueue, job: str, **how: Any) -> None:
        """How a job's copy stands there."""
        workload = k.workload(job)
        assert workload is not None
        where = workload["metadata"]["name"]
        self.do(
            self._put(
                subjects.copy_report(name, k.namespace, where),
                CopyReport,
                cluster=name,
                namespace=k.namespace,
                workload=where,
                **how,
            )
        )

    def append(self, event: WorkloadEvent) -> None:
        """Somebody else's event."""

        async def store() -> None:
            assert self._conn is not None
            await EventLog(self._conn).append(event)

        self.do(store())

    def set_queue(self, setting: QueueSetting) -> None:
        """An operator sets a queue."""

        async def store() -> None:
            assert self._conn is not None
            await self._conn.request(subjects.queue_setting(setting.queue), encode(setting))

        self.do(store())

    # What the log says

    def kinds(self, name: Key) -> list[str]:
        """A workload's story in short."""
        out = []
        for event in list(self.events):
            if key(event.tenant, event.id) == name:
                where = getattr(event, "cluster", "")
                out.append(f"{type(event).__name__.lower()} {where}".strip())
        return out

    def why(self, name: Key) -> WhyReply:
        """What `berth why` would be told by the hub's decider."""
        tenant, _, workload = name.partition("/")

        async def ask() -> WhyReply:
            assert self._conn is not None
            subject = subjects.api(tenant, "why")
            reply = await self._conn.request(subject, b'{"id":"%s"}' % workload.encode())
            answer = API_REPLIES.decode(reply.data)
            assert isinstance(answer, WhyReply), answer
            return answer

        return self.do(ask())


class Rig:
    """The bus, Kueue, and the reconciler."""

    def __init__(self, k: Kueue, bus: Bus, folder: Path) -> None:
        self.k = k
        self.bus = bus
        self.folder = folder
        self.flags: tuple[str, ...] = ("--patience-s", "4", "--silent-s", "3", "--trap-s", "3")
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.kubeconfig = k.planes.hub.kubeconfig_for(USER)
        self._port = 0

    def start(self, mode: str = "dispatch") -> None:
        """Start it with the rights of its mode and no others."""
        self.bind(mode)
        self.starts += 1
        argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "multikueue"]
        argv += ["--mode", mode, "--nats-url", self.bus.url, "--kubeconfig", str(self.kubeconfig)]
        argv += ["--namespace", self.k.namespace, "--http-port", "-1", "--log-format", "text"]
        env = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*argv, *self.flags], stdout=log, stderr=subprocess.STDOUT, env=env, cwd=ROOT
            )

    def ready(self) -> None:
        """Wait until this life acts: what ends before is none of its business."""
        self.until(
            lambda: self.log.read_text().count("lease gained") >= self.starts, "the lease is held"
        )

    @property
    def log(self) -> Path:
        return self.folder / "multikueue.log"

    def bind(self, mode: str) -> None:
        """Exactly the ClusterRole of this mode."""
        api = self.k.planes.hub.api
        for document in yaml.safe_load_all(RBAC.read_text()):
            api.apply(document)
        bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        subject = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
        wanted = [f"berthmaster-multikueue-{mode}"]
        if mode == "dispatch":
            wanted.append("berthmaster-multikueue-parameters")
        for one in api.items(bindings):
            name = one["metadata"]["name"]
            if name.startswith("berthmaster-multikueue-") and name not in wanted:
                api.delete(f"{bindings}/{name}")
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
            self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(15)

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

    def until(self, ask: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait; if in vain, the reconciler's last words are in the error."""
        try:
            until(lambda: bool(ask()), what, limit_s, poll_s=0.05)
        except Exception as error:
            words = self.log.read_text()[-3000:] if self.log.exists() else ""
            stories = "\n".join(
                f"{name}: {self.bus.kinds(name)} {fold.reason}"
                for name, fold in self.bus.folds.items()
            )
            raise AssertionError(f"{error}\n{stories}\n{words}") from error

    def until_told(self, job: str, *tail: str, limit_s: float = LIMIT_S) -> None:
        """Until a job's story ends like this."""
        wanted = list(tail)
        name = self.name(job)
        self.until(
            lambda: self.bus.kinds(name)[-len(wanted) :] == wanted,
            f"{job} tells {wanted}, not {self.bus.kinds(name)}",
            limit_s,
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
