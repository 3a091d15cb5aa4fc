"""A side's services in one pod: the same processes as ever, started and watched by one of them.

For those who do not want nine deployments. The pod is a service like any other (settings, log,
/healthz, /readyz, /metrics, an end within five seconds); what it serves is its children. A child
that dies is started again; one that says that it never can be ends the pod with the reason, since
Kubernetes is who shows that to people. What children say goes where the pod's own lines go.

The children's own health and metrics are on the ports that follow the pod's.
"""

import os
import shutil
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.periodic import beats
from berthmaster.runtime.ports import PortClaims
from berthmaster.runtime.service import Context
from berthmaster.runtime.settings import CommonSettings, setting
from berthmaster.supervisor.faults import FAULTS, fault_text
from berthmaster.supervisor.plan import Entry, keys_of
from berthmaster.supervisor.processes import (
    NO_LIMIT_S,
    LeftOut,
    ServiceChild,
    SlowStart,
    Supervised,
    Supervisor,
    unless,
)
from berthmaster.supervisor.rooms import Room, rooms
from berthmaster.supervisor.stack import command_lines

# Together below the four seconds in which a service of ours must drain.
STOP_LIMIT_S: Final = 2.5
SERVER_STOP_LIMIT_S: Final = 0.7
REPORT_S: Final = 0.5
LOCAL_HOSTS: Final = ("127.0.0.1", "0.0.0.0")


@dataclass(frozen=True, kw_only=True)
class PodSettings(CommonSettings):
    """What both sides can be told beside what every service can."""

    kubeconfig: Path | None = setting(
        None, help="kubeconfig of the side's cluster; none = the pod's own service account"
    )
    context: str = setting("", help="context in it; empty = its current one")


S = TypeVar("S", bound=PodSettings)


class Pod(Generic[S]):
    """The children of one pod and what is told of them."""

    def __init__(self, ctx: Context[S]) -> None:
        self.ctx = ctx
        self.supervisor = Supervisor(
            self._told,
            slow=self.slow,
            stop_limit_s=STOP_LIMIT_S,
            server_stop_limit_s=SERVER_STOP_LIMIT_S,
        )
        self._ready = ctx.metrics.gauge("child_ready", "1 = this child is ready", ["child"])
        self._restarts = ctx.metrics.gauge(
            "child_restarts", "How often this child was started again", ["child"]
        )
        self._started = False
        self._claims = PortClaims()
        self._rooms = Path(tempfile.gettempdir()) / f"berth-{ctx.name}-{os.getpid()}"
        ctx.health.ready("start", False, "the children are being started")

    def child(self, entry: Entry, argv: Sequence[str], port: int) -> ServiceChild:
        settings = self.ctx.settings
        host = settings.http_host if settings.http_host in LOCAL_HOSTS else LOCAL_HOSTS[0]
        return ServiceChild(
            name=entry.name,
            argv=argv,
            log_path=None,
            http_port=port,
            env={
                "BERTH_HTTP_HOST": host,
                "BERTH_LOG_FORMAT": settings.log_format,
                "BERTH_NATS_PLAINTEXT": str(settings.nats_plaintext).lower(),
            },
        )

    async def start(
        self,
        entries: Sequence[Entry],
        creds_files: Mapping[str, Path],
        *,
        keys: Path | None = None,
    ) -> None:
        """All of them, on the bus that the pod's settings name. Raises NotReady."""
        settings = self.ctx.settings
        made: dict[str, Room] = {}
        if keys is not None:
            made = rooms(self._rooms, creds_files, hidden=[keys])
            for entry in entries:
                made[entry.user].show(*keys_of(entry.service, keys))
            creds_files = {user: room.creds_file for user, room in made.items()}
        lines = command_lines(
            entries,
            url=settings.nats_url,
            creds_files=creds_files,
            log_level=settings.log_level,
            ca_file=settings.nats_ca_file,
            http_ports=self.ports(len(entries)),
            keys=keys,
        )
        children = [self.child(*line) for line in lines]
        for (entry, *_), child in zip(lines, children, strict=True):
            child.room = made.get(entry.user)
        await self.supervisor.start(children, timeout_s=NO_LIMIT_S)

    def ports(self, count: int) -> list[int]:
        """Where the children's health is: behind the pod's own port, or anywhere if that is."""
        first = self.ctx.settings.http_port + 1
        return list(range(first, first + count)) if first > 1 else self._claims.choose(count)

    async def live(self, starting: Awaitable[object]) -> None:
        """Start, report until told to stop, and end all. Raises CannotStart."""
        report = self.ctx.spawn(self._report(), name="report")
        try:
            await unless(self.ctx.stopping, starting)
            self._started = True
            self.ctx.health.ready("start", True)
            await self.ctx.stopping.wait()
        except FAULTS as error:
            raise CannotStart(fault_text(error)) from error
        finally:
            report.cancel()
            await self.supervisor.stop()
            self._claims.close()
            shutil.rmtree(self._rooms, ignore_errors=True)

    def _told(self, watched: Supervised) -> None:
        log = self.ctx.log
        say = log.info if watched.condition in ("starting", "ready", "stopped") else log.warning
        say(
            "child",
            child=watched.child.name,
            condition=watched.condition,
            pid=watched.child.pid,
            restarts=watched.restarts,
            **({"why": watched.note} if watched.note else {}),
        )

    def slow(self, slow: SlowStart | LeftOut) -> None:
        """A start takes long."""
        if isinstance(slow, LeftOut):
            return  # of a pod's children none is left out: its pod is one cluster's
        self.ctx.log.warning("not ready yet", after_s=round(slow.after_s), behind=dict(slow.behind))

    async def _report(self) -> None:
        """Health and figures of every child; ends the pod when one can never be."""
        async for _ in beats(REPORT_S, self.ctx.stopping):
            for watched in self.supervisor.watched:
                name = watched.child.name
                is_ready = watched.condition == "ready"
                self.ctx.health.ready(name, is_ready, watched.note or watched.condition)
                self._ready.labels(name).set(is_ready)
                self._restarts.labels(name).set(watched.restarts)
                if watched.condition == "failed" and self._started:  # before, starting says it
                    raise CannotStart(f"{name} {watched.note}")
