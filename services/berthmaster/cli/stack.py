"""All of Berthmaster as processes of this machine, as a context: started, watched, stopped.

Order: the folder is locked, keys are made, nats-server starts, the streams are made by the one user
who may, then every service at once. The connection file comes last: whoever finds it can connect.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import (
    Server,
    ServerCluster,
    ServerConfig,
    ServerFailed,
    free_ports,
    port_is_free,
)
from berthmaster.bus.keys import USERS_CONF, make_keys, seed_file
from berthmaster.bus.permissions import inbox_prefix
from berthmaster.bus.streams import ensure_streams
from berthmaster.bus.subjects import token
from berthmaster.cli.plan import PlanError, UpOptions, names, planned
from berthmaster.cli.processes import ServerChild, ServiceChild, Supervisor, Watched
from berthmaster.cli.target import (
    ConnectionFile,
    FolderLock,
    remove_connection,
    write_connection,
)
from berthmaster.runtime.log import Log

START_LIMIT_S: Final = 30.0
SERVER_LIMIT_S: Final = 30.0  # with many messages on disk it has to read before it is ready
OPERATOR: Final = "operator"
SETUP: Final = "setup"


class _Settings(msgspec.Struct, frozen=True):
    nats_url: str
    nats_seed_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None = None


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One process for the table of `berth up`."""

    name: str
    pid: int
    condition: str
    restarts: int
    url: str
    log: str
    note: str = ""


class StackView(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, once it is up."""

    url: str
    folder: str
    tenant: str
    seed_file: str  # of the operator: only its path
    inbox_prefix: str
    took_s: float
    processes: list[ProcessView]


class Stack:
    """Everything that `berth up` runs."""

    def __init__(
        self,
        options: UpOptions,
        told: Callable[[Watched], None] = lambda watched: None,
        *,
        env: Mapping[str, str] = os.environ,
        announce: bool = True,
    ) -> None:
        """``announce``: leave a connection file where other commands look for it."""
        names(options)  # a plan that cannot be is told before anything is started
        self.options = options
        self.folder = options.folder.absolute()
        self.supervisor = Supervisor(told)
        self.took_s = 0.0
        self._env = env
        self._announce = announce
        self._lock = FolderLock(self.folder)
        self._servers: list[Server] = []

    @property
    def url(self) -> str:
        """Where clients connect: every server, with commas between them."""
        return ",".join(server.url for server in self._servers)

    @property
    def keys(self) -> Path:
        """Where seeds are."""
        return self.folder / "keys"

    @property
    def connection(self) -> ConnectionFile:
        """How people on this machine connect: as operator, acting for the first tenant."""
        return ConnectionFile(
            url=self.url,
            tenant=self.options.tenants[0],
            seed_file=str(seed_file(self.keys, OPERATOR)),
            inbox_prefix=inbox_prefix(OPERATOR),
            pid=os.getpid(),
        )

    async def __aenter__(self) -> Self:
        """Bring it up. Raises AlreadyRunning, NotReady, ServerFailed, KeysError, BusError; what
        was started is stopped then."""
        began_s = time.monotonic()
        self._lock.__enter__()
        try:
            await self._start()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self.took_s = time.monotonic() - began_s
        return self

    async def _start(self) -> None:
        users = {service for _, service in names(self.options)} | {OPERATOR, SETUP}
        users |= {f"tenant.{token(tenant)}" for tenant in self.options.tenants}
        make_keys(self.keys, users)
        permissions = (self.keys / USERS_CONF).read_text()
        self._servers = servers = self._make_servers(permissions)
        names_ = ["nats-server"]
        if len(servers) > 1:
            names_ = [f"nats-server-{number}" for number in range(1, len(servers) + 1)]
        await self.supervisor.start(
            [
                ServerChild(server=each, name=name)
                for each, name in zip(servers, names_, strict=True)
            ],
            timeout_s=SERVER_LIMIT_S,
        )
        await self._make_streams()
        await self.supervisor.start(self._services(), timeout_s=START_LIMIT_S)
        if self._announce:
            write_connection(self.folder, self.connection, self._env)

    def _make_servers(self, permissions: str) -> list[Server]:
        options = self.options
        if options.nats_port and not port_is_free(options.nats_port):
            raise ServerFailed(f"port {options.nats_port} is in use; give another with --port")
        config = ServerConfig(port=options.nats_port, sync=options.sync, extra=permissions)
        if options.servers == 1:
            return [Server(self.folder, config)]
        cluster = ServerCluster(self.folder, options.servers, config)
        cluster.make()
        return cluster.servers

    async def _make_streams(self) -> None:
        settings = _Settings(self.url, seed_file(self.keys, SETUP), inbox_prefix(SETUP))
        log = Log("up", level="error", format="text")
        async with await Connection.open(settings, SETUP, log, timeout_s=5) as conn:
            await ensure_streams(conn, replicas=self.options.servers)

    def _services(self) -> list[ServiceChild]:
        processes = names(self.options)
        seeds = {service: seed_file(self.keys, service) for _, service in processes}
        ports = free_ports(len(processes))
        plan = planned(
            self.options,
            python=sys.executable,
            url=self.url,
            seed_files=seeds,
            http_ports=ports,
            cluster_names=self._cluster_names(),
        )
        return [
            ServiceChild(
                name=each.name,
                argv=each.argv,
                log_path=self.folder / "logs" / f"{each.name}.log",
                http_port=port,
            )
            for each, port in zip(plan, ports, strict=True)
        ]

    def _cluster_names(self) -> list[str]:
        """What the emulators share; asked only where there are several."""
        if self.options.replicas.get("emulator", 1) == 1:
            return []
        from berthmaster.emulator.fleets import FleetError, read_fleet

        options = self.options
        try:
            fleet = read_fleet(
                options.fleet, clusters=options.clusters, nodes=options.nodes or None
            )
        except FleetError as error:
            raise PlanError(str(error)) from error
        return [cluster.name for cluster in fleet]

    def view(self) -> StackView:
        """All of it as it stands."""
        return StackView(
            url=self.url,
            folder=str(self.folder),
            tenant=self.options.tenants[0],
            seed_file=self.connection.seed_file,
            inbox_prefix=self.connection.inbox_prefix,
            took_s=round(self.took_s, 3),
            processes=[process_view(watched) for watched in self.supervisor.watched],
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._announce:
            remove_connection(self.folder, self._env)
        try:
            await self.supervisor.stop()
        finally:
            self._lock.__exit__()


def process_view(watched: Watched) -> ProcessView:
    """One process as it stands."""
    return ProcessView(
        name=watched.child.name,
        pid=watched.child.pid,
        condition=watched.condition,
        restarts=watched.restarts,
        url=watched.child.shown_url,
        log=str(watched.child.log_path),
        note=watched.note,
    )


def ephemeral_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with its owner, in memory where that can be."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="berth-", dir=place, ignore_cleanup_errors=True)
