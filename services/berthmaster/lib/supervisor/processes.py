"""Keeps a set of processes running: started together, watched, restarted, stopped together.

A slow start is no failure: the caller learns which processes are behind, and why, while the start
continues. A start waits only briefly for services of a cluster that does not answer, and then
continues without these services.

    the process                             the supervisor
    ends                                    restarts after a pause that grows with each failure
    exits: settings are wrong               gives up, since a retry would not help
    exits: cannot start, never was ready    gives up, or retries if a cluster's access may change
    reports a state that only a restart     terminates and restarts
    cures

``told`` is called at each change. All children end with the supervisor's process, however the
process ends. ``stop`` terminates the children, and kills them after a limit.
"""

import asyncio
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.errors import EXIT_CANNOT_START, EXIT_SETTINGS
from berthmaster.lib.runtime.process_setup import end_with_parent
from berthmaster.lib.supervisor.embedded import Server, ServerFailed

WATCH_INTERVAL_S: Final = 0.02
PROBE_TIMEOUT_S: Final = 1.0
# nats-server's report after a failed write of a stream, a consumer or a log. A replicating server
# then disables all of JetStream.
NEEDS_RESTART: Final = ("write error", "JetStream not enabled")
RESTARTS: Final = Backoff(first_s=0.2, most_s=10.0)
# retries of services whose kubeconfig may be invalid
AGAIN: Final = Backoff(first_s=2.0, most_s=60.0)
CLUSTER_S: Final = 15.0  # maximum wait of a start for the services of an answering cluster
SETTLED_S: Final = 30.0  # runtime after which earlier failures are forgotten
STOP_LIMIT_S: Final = 4.5  # services drain within 4; everything ends within 5
SERVER_STOP_LIMIT_S: Final = 2.0
MAX_LOG_BYTES: Final = 64 * 1024 * 1024
NO_LIMIT_S: Final = math.inf  # an absent API server or hub may take long to return
SLOW: Final = Backoff(first_s=30.0, most_s=300.0, jitter=0.0)  # between two reports of a slow start

Condition = Literal["waiting", "starting", "ready", "unready", "restarting", "stopped", "failed"]


class Child(Protocol):
    """A process that can be started repeatedly."""

    @property
    def name(self) -> str: ...
    @property
    def log_path(self) -> Path: ...
    @property
    def shown_url(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def stop_last(self) -> bool: ...  # stopped last, as the other processes need this one
    @property
    def our_exit_codes(self) -> bool: ...  # whether the exit codes are as in runtime.errors
    @property
    # cluster of the needed API server; "" = no cluster, and a start waits without limit
    def cluster(self) -> str: ...
    def start(self) -> None: ...
    def ended(self) -> int | None: ...  # exit code; None = running
    async def unready(self) -> str: ...  # "" = ready, else the reason
    async def wants_restart(self, why: str) -> bool: ...  # whether a restart cures the reason
    def signal(self, number: signal.Signals) -> None: ...


@dataclass(kw_only=True)
class ServiceChild:
    """A service of Berthmaster: `berth serve NAME` with health over HTTP."""

    name: str
    argv: Sequence[str]
    log_path: Path
    http_port: int
    stop_last: bool = False
    our_exit_codes: bool = True
    cluster: str = ""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def shown_url(self) -> str:
        """Return the URL of health and metrics."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """Return the process id; 0 before the first start."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the process, with the output appended to the log. Raises OSError."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C goes to the supervisor, for an ordered stop
                start_new_session=True,
                preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
            )

    def ended(self) -> int | None:
        """Return the exit code; None = running."""
        return self._process.poll() if self._process is not None else None

    async def unready(self) -> str:
        """Query /readyz."""
        return await probe("127.0.0.1", self.http_port, "/readyz")

    async def wants_restart(self, why: str) -> bool:
        """Return False: a running service recovers by itself."""
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


@dataclass(kw_only=True)
class ServerChild:
    server: Server
    name: str = "nats-server"
    stop_last: bool = True
    our_exit_codes: bool = False  # nats-server ends with 2 when Go panics or memory is exhausted
    cluster: str = ""

    @property
    def log_path(self) -> Path:
        return self.server.log_path

    @property
    def shown_url(self) -> str:
        """Return the URL for clients."""
        return self.server.url

    @property
    def pid(self) -> int:
        """Return the process id; 0 before the first start."""
        return self.server.pid

    def start(self) -> None:
        """Start the server on the ports of its first run."""
        self.server.launch()

    def ended(self) -> int | None:
        """Return the exit code; None = running or never started."""
        return self.server.returncode if self.server.pid else None

    async def unready(self) -> str:
        """Return why the server is not ready: first by the log, then by the health check."""
        try:
            if not self.server.ready():
                return "starting"
        except ServerFailed as error:
            return str(error)
        return await probe("127.0.0.1", self.server.config.monitor_port, "/healthz")

    async def wants_restart(self, why: str) -> bool:
        """Return whether a restart would help. After a failed write, as on a full disk, nats-server
        writes no more. While the disk is full it keeps running, since a single server can still be
        read.
        """
        stuck = any(words in why for words in NEEDS_RESTART)
        return stuck and await asyncio.to_thread(self.server.has_room)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the server runs."""
        if self.server.running:
            os.kill(self.server.pid, number)


async def probe(host: str, port: int, path: str) -> str:
    """GET over HTTP: "" for a 200, else the fault. Never longer than the time limit."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                answer = (await reader.read(64 * 1024)).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return str(error) or "no answer in time"
    head, _, body = answer.partition("\r\n\r\n")
    return "" if " 200 " in head.split("\r\n")[0] else body.strip()[:500] or "not ready"


@dataclass
class Supervised:
    """A child and its state."""

    child: Child
    condition: Condition = "waiting"
    note: str = ""
    starts: int = 0
    failures: int = 0  # consecutive failures
    was_ready: bool = False
    cure: str = ""  # reason of a termination by the supervisor, curable only by a restart
    cure_s: float = 0.0
    started_s: float = 0.0  # monotonic
    restart_s: float = 0.0

    @property
    def restarts(self) -> int:
        """Return the number of restarts."""
        return max(0, self.starts - 1)


class NotReady(Exception):
    """A process did not become ready in time, or never will."""


@dataclass(frozen=True)
class SlowStart:
    """Processes not ready after ``after_s``. The supervisor keeps trying."""

    after_s: float
    behind: Mapping[str, str]  # name -> reason

    def __str__(self) -> str:
        told = (f"{name} ({why})" for name, why in self.behind.items())
        return f"not ready after {self.after_s:.0f} s: {', '.join(told)}"


@dataclass(frozen=True)
class LeftOut:
    """A start continued without the services of these clusters. The supervisor keeps trying."""

    clusters: Mapping[str, str]  # name -> reason

    def __str__(self) -> str:
        told = (f"{name} ({why})" for name, why in self.clusters.items())
        return f"going on without {', '.join(told)}"


class Supervisor:
    """Runs children until stopped. ``told(watched)`` is called at each change, ``slow`` from time
    to time during a long start, and when a start continues without clusters.
    """

    def __init__(
        self,
        told: Callable[[Supervised], None] = lambda watched: None,
        *,
        slow: Callable[[SlowStart | LeftOut], None] = lambda slow: None,
        backoff: Backoff = RESTARTS,
        patience: Backoff = SLOW,
        cluster_s: float = CLUSTER_S,
    ) -> None:
        self._cluster_s = cluster_s
        self.watched: list[Supervised] = []
        self._told = told
        self._slow = slow
        self._backoff = backoff
        self._patience = patience
        self._chance = random.Random()
        self._task: asyncio.Task[None] | None = None
        self._probes: set[asyncio.Task[None]] = set()

    async def start(
        self, children: Sequence[Child], *, timeout_s: float, away: Container[str] = ()
    ) -> None:
        """Start more children and wait until each is ready, as long as possible.

        For services of a cluster the wait is ``cluster_s`` at most, and none if the cluster is
        ``away``. Raises NotReady when another one can never be ready, or at the time limit. Call
        ``stop`` then.
        """
        new = [Supervised(child) for child in children]
        self.watched += new
        for watched in new:
            self._start(watched)
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="supervisor")
        began_s = time.monotonic()
        told = 1
        say_s = self._patience.delay_s(told, self._chance)
        waited_s = 0.0

        def is_awaited(watched: Supervised) -> bool:
            cluster = watched.child.cluster
            return not cluster or (cluster not in away and waited_s < self._cluster_s)

        while behind := [w for w in new if w.condition != "ready" and is_awaited(w)]:
            for watched in new:
                if watched.condition == "failed":
                    raise NotReady(f"{watched.child.name} {watched.note}{_tail(watched.child)}")
            waited_s = time.monotonic() - began_s
            if waited_s > min(timeout_s, say_s):
                slow = SlowStart(waited_s, {w.child.name: w.note or w.condition for w in behind})
                if waited_s > timeout_s:
                    raise NotReady(f"{slow}{_tail(behind[0].child)}")
                self._slow(slow)
                told += 1
                say_s = waited_s + self._patience.delay_s(told, self._chance)
            if self._task.done():
                self._task.result()
            await asyncio.sleep(WATCH_INTERVAL_S)
        if late := {
            w.child.cluster: f"{w.child.name}: {w.note or w.condition}"
            for w in new
            if w.condition != "ready" and w.child.cluster not in away
        }:
            self._slow(LeftOut(late))

    async def stop(self) -> None:
        """Stop all: services together, then the servers, within the limits of both."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1)
        for probe_ in self._probes:
            probe_.cancel()
        await self._end([w for w in self.watched if not w.child.stop_last], STOP_LIMIT_S)
        await self._end([w for w in self.watched if w.child.stop_last], SERVER_STOP_LIMIT_S)

    async def _end(self, those: Sequence[Supervised], limit_s: float) -> None:
        for watched in those:
            # a suspended process cannot handle the next signal
            watched.child.signal(signal.SIGCONT)
            watched.child.signal(signal.SIGTERM)
        await _until_gone(those, limit_s)
        for watched in those:
            late = _runs(watched)
            watched.child.signal(signal.SIGKILL)
            note = f"killed after {limit_s:g} s" if late else ""
            self._set(watched, "stopped", note)
        await _until_gone(those, STOP_LIMIT_S)  # SIGKILL cannot be refused

    def _start(self, watched: Supervised) -> None:
        watched.starts += 1
        watched.started_s = time.monotonic()
        try:
            watched.child.start()
            # keeps the reason of the last end until ready
            self._set(watched, "starting", watched.note)
        except (OSError, ServerFailed) as error:
            why = f"cannot be started: {getattr(error, 'strerror', None) or error}"
            if watched.was_ready:  # it ran before: the disk is full, or memory is exhausted
                self._again(watched, why)
            else:
                self._set(watched, "failed", why)

    async def _watch(self) -> None:
        rounds = 0
        while True:
            rounds += 1
            for watched in self.watched:
                self._look(watched, probe_now=rounds % 50 == 0 or watched.condition == "starting")
            if rounds % 500 == 0:
                for watched in self.watched:
                    bound_log(watched.child.log_path)
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _look(self, watched: Supervised, *, probe_now: bool) -> None:
        """Check one child once: ended, due for a restart, or ready."""
        now_s = time.monotonic()
        if watched.condition in ("failed", "stopped", "waiting"):
            return
        if watched.condition == "restarting":
            if now_s >= watched.restart_s:
                self._start(watched)
            return
        code = watched.child.ended()
        if code is not None:
            ours = watched.child.our_exit_codes
            if ours and code == EXIT_SETTINGS:
                self._set(watched, "failed", f"says that its settings are wrong (exit code {code})")
                return
            if ours and code == EXIT_CANNOT_START and not watched.was_ready:
                why = f"cannot start (exit code {code})"
                if watched.child.cluster:  # the kubeconfig may be repaired
                    self._again(watched, why, AGAIN)
                else:
                    self._set(watched, "failed", why)
                return
            cure, watched.cure = watched.cure, ""
            why = f"told to: {cure}" if cure else f"ended with {describe_exit(code)}"
            self._again(watched, why)
        elif probe_now and len(self._probes) < 2 * len(self.watched):
            task = asyncio.create_task(self._probe(watched), name=f"probe {watched.child.name}")
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    def _again(self, watched: Supervised, why: str, backoff: Backoff | None = None) -> None:
        """Schedule a restart after a pause."""
        backoff = backoff or self._backoff
        now_s = time.monotonic()
        settled = now_s - watched.started_s > SETTLED_S
        watched.failures = 1 if settled else watched.failures + 1
        watched.restart_s = now_s + backoff.delay_s(watched.failures, self._chance)
        self._set(watched, "restarting", why)

    async def _probe(self, watched: Supervised) -> None:
        starts = watched.starts
        why = await watched.child.unready()
        if why and await watched.child.wants_restart(why) and watched.starts == starts:
            self._end_to_cure(watched, why)
        if watched.starts != starts or watched.condition not in ("starting", "ready", "unready"):
            return
        if not why:
            self._set(watched, "ready")
        elif watched.condition != "starting":
            self._set(watched, "unready", why)
        else:
            watched.note = why

    def _end_to_cure(self, watched: Supervised, why: str) -> None:
        now_s = time.monotonic()
        if not watched.cure:
            watched.cure, watched.cure_s = why, now_s
            watched.child.signal(signal.SIGTERM)
        elif now_s - watched.cure_s > STOP_LIMIT_S:
            watched.child.signal(signal.SIGKILL)

    def _set(self, watched: Supervised, condition: Condition, note: str = "") -> None:
        changed = condition != watched.condition
        watched.was_ready |= condition == "ready"
        watched.condition, watched.note = condition, note
        if changed:
            self._told(watched)


async def unless(stopping: asyncio.Event, work: Any) -> Any:
    """Return the result of the work, or None when ``stopping`` was set before."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task})  # wait for its cleanup
    return None if task.cancelled() else task.result()


async def _until_gone(those: Sequence[Supervised], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while any(_runs(watched) for watched in those) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(WATCH_INTERVAL_S)


def _runs(watched: Supervised) -> bool:
    return bool(watched.child.pid) and watched.child.ended() is None


def describe_exit(code: int) -> str:
    """Return an exit code as text: signals have names."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def bound_log(path: Path, most_bytes: int = MAX_LOG_BYTES) -> None:
    """Keep a log and one predecessor within bounds. The writer appends, so the file can be
    truncated.
    """
    try:
        if path.stat().st_size > most_bytes:
            path.with_suffix(".log.1").write_bytes(path.read_bytes()[-most_bytes:])
            os.truncate(path, 0)
    except OSError:
        pass  # a log that cannot be truncated is no reason to stop


def _tail(child: Child, lines: int = 5) -> str:
    """Return the end of a failed child's log."""
    try:
        text = child.log_path.read_bytes()[-8192:].decode(errors="replace").strip()
    except OSError:
        return ""
    shown = "\n  ".join(line[:300] for line in text.splitlines()[-lines:])
    return f"\n  {shown}\n  (all of it: {child.log_path})" if shown else ""
