"""What can happen to the files of a log, and services that notice it."""

import asyncio
import io
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from berthmaster.control.door.service import SERVICE as DOOR
from berthmaster.control.door.settings import DoorSettings
from berthmaster.control.gateway.service import SERVICE as GATEWAY
from berthmaster.control.gateway.settings import GatewaySettings
from berthmaster.control.resolver.service import SERVICE as RESOLVER
from berthmaster.control.resolver.service import ResolverSettings
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import MAKING, REPLACES, WORKLOADS, making_of, new_making
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.lib.runtime.settings import CommonSettings
from berthmaster.lib.supervisor.embedded import Server
from tests.support.patience import hang_s, patient

S = TypeVar("S", bound=CommonSettings)
Damage = Callable[[Server], None]


class Side:
    """Services on one bus, ready or not."""

    def __init__(self) -> None:
        self.contexts: dict[str, Context[Any]] = {}
        self.said = io.BytesIO()
        self.log = Log("services", level="warning", stream=self.said)
        self._tasks: list[asyncio.Future[None]] = []

    def start(self, service: Service[S], settings: S) -> None:
        ctx = Context(
            service.name, settings, log=self.log, metrics=Metrics(service.name), health=Health()
        )
        self.contexts[service.name] = ctx
        self._tasks.append(asyncio.ensure_future(service.main(ctx)))

    def why(self, service: str) -> str:
        """Why a service trusts no log; "" = it does."""
        _, told = self.contexts[service].health.readiness()
        part = told["parts"].get("logs")  # type: ignore[attr-defined]
        return "not compared yet" if part is None else "" if part["ok"] else str(part["why"])

    @property
    def ready(self) -> bool:
        return all(ctx.health.readiness()[0] for ctx in self.contexts.values())

    @property
    def damaged(self) -> bool:
        """Whether each service says that the log is damaged."""
        return all("nothing is decided" in self.why(name) for name in self.contexts)

    async def stop(self) -> None:
        for ctx in self.contexts.values():
            ctx.stopping.set()
        await asyncio.wait(self._tasks, timeout=hang_s())
        for ctx in self.contexts.values():
            for left in ctx.tasks:
                left.cancel()
            await asyncio.gather(*ctx.tasks, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def services(
    url: str,
    memory: Path | None = None,
    also: Sequence[tuple[Service[Any], CommonSettings]] = (),
    **resolver: Any,
) -> AsyncIterator[Side]:
    """Gateway, resolver, door, and ``also`` others, until the block ends. ``resolver``: settings
    of that service."""
    side = Side()
    given: dict[str, Any] = {"nats_url": url, "http_port": -1}
    given["memory_dir"] = str(memory) if memory is not None else ""
    side.start(GATEWAY, patient(GatewaySettings, "gateway", **given))
    side.start(RESOLVER, patient(ResolverSettings, "resolver", **given, **resolver))
    side.start(DOOR, patient(DoorSettings, "door", **given))
    for service, settings in also:
        side.start(service, settings)
    try:
        yield side
    finally:
        await side.stop()


async def replace_log(conn: Connection) -> None:
    """Put an empty log in the place of the one that there is, as `berth recover` does."""
    info = msgspec.json.decode(await conn.api(f"STREAM.INFO.{WORKLOADS}"))
    config = info["config"]
    old = making_of(info["created"], config.get("metadata"))
    config["metadata"] = {MAKING: new_making(), REPLACES: old}
    await conn.api(f"STREAM.DELETE.{WORKLOADS}")
    config["first_seq"] = info["state"]["last_seq"] + 1000
    await conn.api(f"STREAM.CREATE.{WORKLOADS}", config)


def block(server: Server) -> Path:
    """The file that most of WORKLOADS is in."""
    found = server.folder.rglob(f"{WORKLOADS}/msgs/*.blk")
    return max(found, key=lambda file: file.stat().st_size)


def flip_bytes(server: Server, what: bytes, *, last: bool = False) -> None:
    """16 bytes of the first message that holds this, or of the last one."""
    data = bytearray(block(server).read_bytes())
    at = data.rindex(what) if last else data.index(what)
    data[at : at + 16] = bytes(255 - byte for byte in data[at : at + 16])
    block(server).write_bytes(data)


def flip(server: Server) -> None:
    server.kill()
    flip_bytes(server, b'"id":"job-5"')


def flip_after_stop(server: Server) -> None:
    """After a clean end the server may trust its index, and count what it can no longer read."""
    server.stop()
    flip_bytes(server, b'"id":"job-5"')


def flip_last(server: Server) -> None:
    """After a clean end, and the message that each reader remembers."""
    server.stop()
    flip_bytes(server, b'"id":"', last=True)


def cut(server: Server) -> None:
    server.kill()
    data = block(server).read_bytes()
    block(server).write_bytes(data[: len(data) * 2 // 3])


def cut_in_a_batch(server: Server) -> None:
    """A decision is there, and not all of its placements."""
    server.kill()
    data = block(server).read_bytes()
    first = data.index(b".placed.", data.rindex(b"berth.decision.all", 0, len(data) * 2 // 3))
    block(server).write_bytes(data[:first])


def zero_tail(server: Server) -> None:
    server.stop()
    data = block(server).read_bytes()
    kept = len(data) * 2 // 3
    block(server).write_bytes(data[:kept] + bytes(len(data) - kept))


def lose_index(server: Server) -> None:
    server.kill()
    for file in block(server).parent.glob("*.db"):
        file.unlink()
    flip_bytes(server, b'"id":"job-5"')


def lose_folder(server: Server) -> None:
    server.stop()
    shutil.rmtree(block(server).parent.parent)


def lose_everything(server: Server) -> None:
    server.stop()
    shutil.rmtree(server.config.store_dir)


ALL: Final[dict[str, Damage]] = {
    "flipped": flip,
    "flipped after a clean end": flip_after_stop,
    "last message flipped": flip_last,
    "cut": cut,
    "cut in a batch": cut_in_a_batch,
    "zeroed": zero_tail,
    "index lost": lose_index,
    "stream lost": lose_folder,
    "all lost": lose_everything,
}
