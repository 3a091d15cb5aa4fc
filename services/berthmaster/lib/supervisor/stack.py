"""All of Berthmaster as local processes, as a context: started, watched, stopped.

1. Lock the folder.
2. Create keys and, for a bus reached from other machines, certificates.
3. Start nats-server.
4. Create the streams as the user "setup". No other user may.
5. Start all services at once.
6. Write the connection file last: a client that finds the file can connect.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from berthmaster.lib.access.keys import (
    KeysError,
    creds_file,
    make_keys,
    removed_tenants,
    server_config,
)
from berthmaster.lib.access.permissions import PUSHER, SENTINEL, inbox_prefix
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer, NotConnected
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.nats.subjects import token
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.ports import PAGE_PORT, PortClaims, port_is_free
from berthmaster.lib.supervisor.embedded import (
    EVERYWHERE,
    Server,
    ServerCluster,
    ServerConfig,
    ServerFailed,
)
from berthmaster.lib.supervisor.folder import (
    KEYS_FOLDER,
    TLS_FOLDER,
    ConnectionFile,
    FolderLock,
    remove_connection,
    write_connection,
    write_external,
)
from berthmaster.lib.supervisor.plan import (
    DASHBOARD,
    USAGE_FOLDER,
    Entry,
    PlanError,
    UpOptions,
    entries,
    figures_from,
    planned,
    with_fleet,
)
from berthmaster.lib.supervisor.processes import (
    SLOW,
    LeftOut,
    ServerChild,
    ServiceChild,
    SlowStart,
    Supervised,
    Supervisor,
)

if TYPE_CHECKING:
    from berthmaster.lib.access.certificates import Certificates

START_LIMIT_S: Final = 120.0  # for programs; users interrupt a start that takes too long
AGAIN_S: Final = 0.2
OPERATOR: Final = "operator"
RESOLVER_FOLDER: Final = "accounts"  # a server's folder of accounts
RESTORER: Final = "restorer"
SETUP: Final = "setup"
MEMORY_FOLDER: Final = "memory"


class _Settings(msgspec.Struct, frozen=True):
    nats_url: str
    nats_creds_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None = None
    nats_plaintext: bool = False


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
    url: str
    page: str  # URL of the dashboard; "" = none
    folder: str
    tenant: str
    creds_file: str  # of the operator: only the path
    inbox_prefix: str
    ca_file: str  # "" = without TLS
    took_s: float
    processes: list[ProcessView]
    figures: list[str] = []  # sources of the workers' GPU usage metrics


class Stack:
    """All processes of `berth up`."""

    def __init__(
        self,
        options: UpOptions,
        told: Callable[[Supervised], None] = lambda watched: None,
        *,
        env: Mapping[str, str] = os.environ,
        announce: bool = True,
        start_limit_s: float = START_LIMIT_S,
        slow: Callable[[SlowStart | LeftOut], None] = lambda slow: None,
        away: Container[str] = (),
    ) -> None:
        """``away``: clusters that do not answer: the start does not wait for services of these.
        ``announce``: write a connection file for other commands. ``slow`` is called when a start
        takes long.
        """
        self._entries = entries(options)  # an invalid plan fails before anything is started
        self.options = options
        self.folder = options.folder.absolute()
        self.supervisor = Supervisor(told, slow=self._slow_start)
        self._claims = PortClaims()
        self._start_limit_s = start_limit_s
        self._slow = slow
        self._away = away
        self._is_answering = False  # the bus answers, and has its streams
        self._files: Certificates | None = None
        self.took_s = 0.0
        self._page_port = 0
        self._env = env
        self._announce = announce
        self._lock = FolderLock(self.folder)
        self._servers: list[Server] = []

    @property
    def url(self) -> str:
        """Return the URLs of all servers, separated by commas."""
        return ",".join(server.url for server in self._servers)

    @property
    def page(self) -> str:
        """Return the URL of the dashboard; "" = none."""
        return f"http://127.0.0.1:{self._page_port}/" if self._page_port else ""

    @property
    def keys(self) -> Path:
        """Return the folder of seeds."""
        return self.folder / KEYS_FOLDER

    @property
    def ca_file(self) -> Path | None:
        """Return the authority for clients; None without TLS."""
        return self._files.ca if self._files else None

    @property
    def connection(self) -> ConnectionFile:
        """Return the connection of users on this machine: as operator, acting for the first
        tenant.
        """
        return ConnectionFile(
            url=self.url,
            tenant=self.options.tenants[0],
            creds_file=str(creds_file(self.keys, OPERATOR)),
            inbox_prefix=inbox_prefix(OPERATOR),
            ca_file=str(self.ca_file or ""),
            pid=os.getpid(),
        )

    async def __aenter__(self) -> Self:
        """Start all. Raises one of faults.FAULTS, after stopping started processes."""
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
        users = {entry.user for entry in self._entries} | {OPERATOR, RESTORER, SETUP, PUSHER}
        tenants = {token(tenant) for tenant in self.options.tenants}
        # A start must not restore a tenant removed by `berth tenant remove`.
        users |= {f"tenant.{tenant}" for tenant in tenants - removed_tenants(self.keys)}
        if self.options.login_mapping is not None:
            users.add(SENTINEL)
        make_keys(self.keys, users)
        if self.options.external:
            self._files = self._ensure_certificates()
        self._servers = servers = self._make_servers()
        names_ = ["nats-server"]
        if len(servers) > 1:
            names_ = [f"nats-server-{number}" for number in range(1, len(servers) + 1)]
        await self.supervisor.start(
            [
                ServerChild(server=each, name=name)
                for each, name in zip(servers, names_, strict=True)
            ],
            timeout_s=self._start_limit_s,
        )
        write_external(self.folder, external_url(self.options.external, self.url))
        await self._make_streams()
        self._is_answering = True
        await self.supervisor.start(
            self._services(), timeout_s=self._start_limit_s, away=self._away
        )
        if self._announce:
            write_connection(self.folder, self.connection, self._env)

    def _slow_start(self, slow: SlowStart | LeftOut) -> None:
        """Write the connection file early: a service may wait for an operator, on a damaged log
        say, whose commands need the bus.
        """
        if self._announce and self._is_answering:
            write_connection(self.folder, self.connection, self._env)
        self._slow(slow)

    def _ensure_certificates(self) -> "Certificates":
        # A late import: most runs have no TLS and need not load the module.
        from berthmaster.lib.access.certificates import CertificatesError, ensure_certificates

        folder = self.folder / TLS_FOLDER
        try:
            return ensure_certificates(folder, self.options.external, now_s=time.time())
        except CertificatesError as error:
            raise KeysError(str(error)) from error

    def _make_servers(self) -> list[Server]:
        options = self.options
        if options.nats_port and not port_is_free(options.nats_port):
            raise ServerFailed(f"port {options.nats_port} is in use; give another with --port")
        config = ServerConfig(
            port=options.nats_port,
            host=EVERYWHERE if self._files else "127.0.0.1",
            tls=(self._files.certificate, self._files.key) if self._files else None,
            sync=options.sync,
            websocket_port=options.websocket_port,
            websocket_origins=options.websocket_origins,
        )
        if options.servers == 1:
            return [self._with_accounts(Server(self.folder, config, self._claims))]
        cluster = ServerCluster(self.folder, options.servers, config, self._claims)
        cluster.make()
        return [self._with_accounts(server) for server in cluster.servers]

    def _with_accounts(self, server: Server) -> Server:
        extra = server_config(self.keys, server.folder.absolute() / RESOLVER_FOLDER)
        server.config = replace(server.config, extra=extra)
        return server

    async def _make_streams(self) -> None:
        seed = creds_file(self.keys, SETUP)

        async def once() -> None:
            await make_streams(self.url, seed, self.ca_file, replicas=self.options.servers)

        await until_answered(once, limit_s=self._start_limit_s, slow=self._slow)

    def _services(self) -> list[ServiceChild]:
        if any(entry.service == DASHBOARD for entry in self._entries):
            self._page_port = self._choose_page_port()
        told = with_fleet(self._entries, self.options)
        folder = self.folder.absolute()
        memory = folder / MEMORY_FOLDER
        lines = command_lines(
            told,
            url=self.url,
            creds_files={entry.user: creds_file(self.keys, entry.user) for entry in told},
            http_ports=self._claims.choose(len(told)),
            log_level=self.options.log_level,
            ca_file=self.ca_file,
            memory=memory,
            keys=self.keys,
            usage=folder / USAGE_FOLDER,
            page_port=self._page_port,
        )
        return [self._logged(*line) for line in lines]

    def _choose_page_port(self) -> int:
        """Return the requested port, else the default port if free. Users remember the default."""
        asked = self.options.page_port
        if asked and not self._claims.take(asked):
            raise PlanError(f"port {asked} is in use; give another with --page-port")
        if asked:
            return asked
        return PAGE_PORT if self._claims.take(PAGE_PORT) else self._claims.choose(1)[0]

    def _logged(self, entry: Entry, argv: Sequence[str], port: int) -> ServiceChild:
        log = self.folder / "logs" / f"{entry.name}.log"
        return ServiceChild(
            name=entry.name, argv=argv, log_path=log, http_port=port, cluster=entry.cluster
        )

    def view(self) -> StackView:
        return StackView(
            url=self.url,
            page=self.page,
            folder=str(self.folder),
            tenant=self.options.tenants[0],
            creds_file=self.connection.creds_file,
            inbox_prefix=self.connection.inbox_prefix,
            ca_file=self.connection.ca_file,
            took_s=round(self.took_s, 3),
            processes=[process_view(watched) for watched in self.supervisor.watched],
            figures=figures_from(self.options),
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
            self._claims.close()
            self._lock.__exit__()


def command_lines(
    told: Sequence[Entry],
    *,
    url: str,
    creds_files: Mapping[str, Path],
    log_level: str,
    ca_file: Path | None,
    http_ports: Sequence[int],
    memory: Path | None = None,
    keys: Path | None = None,
    usage: Path | None = None,
    page_port: int = 0,
) -> list[tuple[Entry, Sequence[str], int]]:
    """Return each entry with the command line and the health port."""
    plan = planned(
        told,
        python=sys.executable,
        url=url,
        creds_files=creds_files,
        http_ports=http_ports,
        log_level=log_level,
        ca_file=ca_file,
        memory=memory,
        keys=keys,
        usage=usage,
        page_port=page_port,
    )
    return [
        (entry, each.argv, port) for entry, each, port in zip(told, plan, http_ports, strict=True)
    ]


async def make_streams(
    url: str,
    seed: Path,
    ca_file: Path | None,
    *,
    replicas: int = 1,
    timeout_s: float = 5,
) -> None:
    """Create the streams as the only permitted user. Raises BusError."""
    settings = _Settings(url, seed, inbox_prefix(SETUP), ca_file)
    log = Log("up", level="error", format="text")
    async with await Connection.open(settings, SETUP, log, timeout_s=timeout_s) as conn:
        await ensure_streams(conn, replicas=replicas)


async def until_answered(
    work: Callable[[], Awaitable[None]],
    *,
    limit_s: float,
    slow: Callable[[SlowStart], None],
    patience: Backoff = SLOW,
) -> None:
    """Repeat the work while the server gives no answer. A server may read large streams or restart.

    Raises NoAnswer and NotConnected at the time limit, and an error of the server at once.
    """
    began_s = time.monotonic()
    chance = random.Random()
    told = 1
    say_s = patience.delay_s(told, chance)
    while True:
        try:
            await work()
            return
        except (NoAnswer, NotConnected) as error:
            waited_s = time.monotonic() - began_s
            if waited_s > limit_s:
                raise
            if waited_s > say_s:
                slow(SlowStart(waited_s, {"nats-server": str(error)}))
                told += 1
                say_s = waited_s + patience.delay_s(told, chance)
        await asyncio.sleep(AGAIN_S)


def external_url(names: Sequence[str], url: str) -> str:
    """Return the URLs of the bus for agents elsewhere; "" = only local clients."""
    port = url.rpartition(":")[2]
    return ",".join(f"tls://{f'[{name}]' if ':' in name else name}:{port}" for name in names)


def process_view(watched: Supervised) -> ProcessView:
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
    """Return a folder that is deleted with the owner, in memory if possible."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="berth-", dir=place, ignore_cleanup_errors=True)
