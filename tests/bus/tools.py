"""What the tests of the bus share: a log that remembers, a connection, conditions, messages."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from berthmaster.lib.access.keys import make_keys, server_config
from berthmaster.lib.messages.fleet import ClusterAlive, Stamp
from berthmaster.lib.messages.placement import Decision, PodBinding, Saw
from berthmaster.lib.messages.workload import (
    Cancelled,
    JobRequest,
    Placed,
    Reprioritized,
    Submitted,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams
from berthmaster.lib.supervisor.embedded import Server, ServerCluster
from tests.support import patience
from tests.support.patience import ANSWER_S, hang_s

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    nats_url: str
    nats_creds_file: Path | None = None
    inbox_prefix: str = "_INBOX"
    nats_ca_file: Path | None = None
    nats_plaintext: bool = False


@dataclass
class Lines:
    seen: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)

    def info(self, event: str, /, **fields: object) -> None:
        self.seen.append(("info", event, fields))

    def warning(self, event: str, /, **fields: object) -> None:
        self.seen.append(("warning", event, fields))

    def error(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        self.seen.append(("error", event, fields | ({"error": error} if error else {})))

    def count(self, event: str) -> int:
        """How many lines there are of an event."""
        return sum(one == event for _, one, _ in self.seen)

    def fields(self, event: str) -> list[dict[str, object]]:
        return [fields for _, one, fields in self.seen if one == event]


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def accounts_of(keys: Path, users: Iterable[str]) -> str:
    """What a server is told that shall know these users, whose keys are made in a folder."""
    make_keys(keys, users)
    return server_config(keys, keys.parent / "accounts")


@asynccontextmanager
async def connected(
    url: str, name: str = "test", *, log: Lines | None = None, replicas: int = 0
) -> AsyncIterator[Connection]:
    """A connection; ``replicas``: make the streams too, with so many."""
    lines = log or Lines()
    async with await Connection.open(Settings(url), name, lines, timeout_s=ANSWER_S) as conn:
        if replicas:
            await ensure_streams(conn, replicas=replicas)
        yield conn


async def remove(conn: Connection, *sequences: int) -> None:
    """Take messages out of the log, as the archivist does."""
    for sequence in sequences:
        await conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": sequence, "no_erase": True})


@asynccontextmanager
async def task(work: Coroutine[Any, Any, Any]) -> AsyncIterator["asyncio.Task[Any]"]:
    """Something that runs beside the block and is ended with it; its failure is raised."""
    running = asyncio.create_task(work)
    try:
        yield running
    finally:
        done = running.done()
        running.cancel()
        await asyncio.wait({running}, timeout=hang_s())
        assert running.done(), "it does not end"
        if done and not running.cancelled() and running.exception() is not None:
            raise running.exception() or AssertionError


async def eventually(true: Callable[[], Awaitable[object]], what: object = "") -> None:
    """Wait for a condition that must be asked for, over a bus that may be away."""
    await patience.eventually(true, what or true, away=BusError)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a bus that may be away for a while: a server restarts, replicas elect."""

    async def answered() -> tuple[T]:
        return (await ask(),)

    (answer,) = await patience.eventually(answered, ask, away=BusError)
    return answer


async def leader(conn: Connection, cluster: ServerCluster, stream: str) -> Server:
    raw = await conn.api(f"STREAM.INFO.{stream}")
    name = msgspec.json.decode(raw)["cluster"]["leader"]
    return next(server for server in cluster.servers if server.config.name == name)


def submitted(name: str, *, after: int = 0, tenant: str = "acme", by: str = "gw-1") -> Submitted:
    return Submitted(
        tenant=tenant,
        id=name,
        after=after,
        at_s=1.0,
        by=by,
        request=JobRequest(id=name),
        digest="d1",
    )


def placed(name: str, after: int, *, cluster: str = "c1", by: str = "r-1") -> Placed:
    return Placed(
        tenant="acme",
        id=name,
        after=after,
        at_s=2.0,
        by=by,
        cluster=cluster,
        attempt=1,
        pods=(PodBinding(pod="main-0", node="n1", gpus=(0,)),),
        request=JobRequest(id=name),
        decision=1,
    )


def cancelled(name: str, after: int, *, by: str = "gw-1") -> Cancelled:
    return Cancelled(
        tenant="acme", id=name, after=after, at_s=3.0, by=by, digest="d1", submitted_at_s=1.0
    )


def reprioritized(name: str, after: int, priority: int) -> Reprioritized:
    return Reprioritized(
        tenant="acme", id=name, after=after, at_s=4.0, by="gw-1", priority=priority
    )


def decision(number: int, after: int, *, decider: str = "r-1", cell: str = "all") -> Decision:
    return Decision(
        cell=cell,
        number=number,
        after=after,
        decider=decider,
        engine="test",
        now_s=5.0,
        settings={},
        saw=Saw(workloads=0, fleet=0, control=0),
    )


def alive(cluster: str, counter: int, *, epoch: int = 1, interval_s: float = 1.0) -> ClusterAlive:
    return ClusterAlive(
        cluster=cluster,
        stamp=Stamp(epoch=epoch, counter=counter),
        observed_at_s=0.0,
        interval_s=interval_s,
    )


def alive_subject(cluster: str) -> str:
    return subjects.alive(cluster)
