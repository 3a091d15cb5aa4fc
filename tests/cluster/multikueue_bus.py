"""A bus of its own beside a real hub: what workers say on it, by hand or not, and what it tells.

Everything blocks, as the Kueue of these tests does; the bus lives in a thread of its own.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from berthmaster.lab.controlplane.kueue.setup import Kueue
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.families import API_REPLIES, DECISIONS, EVENTS, encode
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    CopyReport,
    FlavorQuota,
    FleetFact,
    LocalQueueReport,
    NodeReport,
    QueueReport,
    QuotaAmount,
)
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import Held, HoldReleased, MoveRequested, WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror, FactWriter
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.tools import Lines, Settings
from tests.support.builders import node, profile
from tests.support.patience import ANSWER_S, Patience, hang_s

T = TypeVar("T")
LIMIT_S: Final = 60.0
FLEET: Final = [subjects.ALL_FLEET]


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
        self.facts: dict[str, Seen] = {}  # by subject, the newest

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def conn(self) -> Connection:
        """For work that runs in the thread of the bus."""
        assert self._conn is not None
        return self._conn

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
        self._thread.join(hang_s())
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
        conn = await Connection.open(Settings(self.url), "test", Lines(), timeout_s=ANSWER_S)
        await conn.__aenter__()
        self._conn = conn
        await ensure_streams(conn, replicas=1)
        self._writer = FactWriter(conn)
        await self._writer.begin(subjects.ALL_FLEET)
        log = Follower(conn, WORKLOADS, [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS])
        self._tasks = [
            asyncio.create_task(log.run(self._on_recorded)),
            asyncio.create_task(FactMirror(conn, "test", FLEET, on_fact=self._on_fact).run()),
            asyncio.create_task(self._live()),
        ]

    async def _end(self) -> None:
        for one in self._tasks:
            one.cancel()
        await asyncio.wait(self._tasks, timeout=hang_s())
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

    def _on_fact(self, seen: Seen) -> None:
        self.facts[seen.subject] = seen

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

    def tell(self, report: NodeReport | ClusterProfile) -> None:
        """A fact of a worker's, as it is given but for its stamp."""

        async def say() -> None:
            assert self._writer is not None
            cluster = report.cluster
            subject = subjects.profile(cluster)
            if isinstance(report, NodeReport):
                subject = subjects.node(cluster, report.node)
            stamped = msgspec.structs.replace(report, stamp=self._writer.stamp())
            await self._writer.put(subject, stamped)

        self.do(say())

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

    def cordon(self, fact: Cordon) -> None:
        """An operator cordons a cluster, or drains it."""

        async def store() -> None:
            assert self._conn is not None
            await self._conn.request(subjects.cordon(fact.cluster, fact.node), encode(fact))

        self.do(store())

    def ask_to_go(self, name: Key, how: Literal["evict", "move"], to: str = "") -> None:
        """The gateway writes what an operator wants of one that runs."""
        work = self.folds[name]
        self.append(
            MoveRequested(
                tenant=work.tenant,
                id=work.id,
                after=work.sequence,
                at_s=time.time(),
                by="gateway/test",
                cluster=work.cluster,
                attempt=work.attempt,
                how=how,
                who="operator ann",
                to=to,
            )
        )

    def hold(self, name: Key) -> None:
        """The gateway writes that somebody holds one."""
        work = self.folds[name]
        at = time.time()
        tenant, id_, after = work.tenant, work.id, work.sequence
        self.append(Held(tenant=tenant, id=id_, after=after, at_s=at, by="gateway/test", who="ann"))

    def release(self, name: Key) -> None:
        """... and that it may go on."""
        work = self.folds[name]
        at = time.time()
        tenant, id_, after = work.tenant, work.id, work.sequence
        self.append(
            HoldReleased(tenant=tenant, id=id_, after=after, at_s=at, by="gateway/test", who="ann")
        )

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
        """What `berth why` would be told by the hub's decider, which is silent of what it does not
        know yet."""
        tenant, _, workload = name.partition("/")

        async def ask() -> WhyReply:
            assert self._conn is not None
            subject = subjects.api(tenant, "why")
            body, patience = b'{"id":"%s"}' % workload.encode(), Patience(f"why {name}")
            while True:
                try:
                    answer = API_REPLIES.decode((await self._conn.request(subject, body)).data)
                except NoAnswer as error:
                    patience.look(error)
                    continue
                assert isinstance(answer, WhyReply), answer
                return answer

        return self.do(ask())
