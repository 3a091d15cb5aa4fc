"""A `berth up` that is made to suffer, a stream of jobs through it, and what must hold after all.

The emulated clusters fail nothing and hold nothing foreign here: every eviction or failure in the
log, and every GPU that is used twice, is then ours.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from berthmaster.cli.audit.core import AuditReport
from berthmaster.cli.audit.report import Unreadable, audit
from berthmaster.cli.demo.load import Load
from berthmaster.cli.demo.stats import WorkloadStats
from berthmaster.client import Client
from berthmaster.client.following import SeenDecision
from berthmaster.control.resolver.replay import read_inputs, replay
from berthmaster.lab.emulator import workloads
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.lifecycle.states import ENDED, State
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.process_setup import end_with_parent
from scripts.benchmarks.trace_files import TRACES
from tests.pipeline.running import alive, environment, run_berth
from tests.support.patience import Hung, Patience, hang_s, until

REQUEST_LIMIT_S = 120.0  # a submit is repeated for so long: longer than any absence here
MOST_OPEN = 150  # jobs of a stream; while there are more, one comes where SLOWED came
SLOWED = 10
SPEED = 50_000.0
LONGEST_S = 3.0  # of the stream's jobs, in real time
LASTING_S = 3e7  # ten minutes in real time: longer than any test
QUIET = {
    "BERTH_EMULATOR_FAILURE_SHARE": "0",
    "BERTH_EMULATOR_FOREIGN_SHARE": "0",
    "BERTH_EMULATOR_DISTURBANCE": "0",
}
# Limits are short enough to be passed by those who are stopped: that is what is tried.
IMPATIENT = {
    "BERTH_RESOLVER_CLAIM_TIMEOUT_S": "1.5",
    "BERTH_RESOLVER_STALE_AFTER_S": "3",
    "BERTH_SCORER_STALE_AFTER_S": "3",
    # Not so short: a watcher on a busy machine is late by seconds, and must find whole stories.
    "BERTH_ARCHIVIST_STORY_AFTER_S": "60",
}
FLEET = ("--clusters", "8", "--nodes", "160", "--sync", "default", "--speed", f"{SPEED:g}")
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Rig:
    """One `berth up` as a process of its own, and the names of what it runs."""

    process: subprocess.Popen[bytes]
    folder: Path
    said_path: Path
    view: dict[str, Any]
    prefixes: Iterator[str] = field(default_factory=lambda: (f"s{n}" for n in itertools.count(1)))
    submitted: int = 0
    lasting: tuple[str, ...] = ()
    sound: bool = True  # not from a stream's start on until all was found well after it

    def processes(self) -> dict[str, dict[str, Any]]:
        """Every process as `berth up` last told it."""
        found = {each["name"]: each for each in self.view["processes"]}
        for line in self.said_path.read_bytes().splitlines(keepends=True)[1:]:
            if line.endswith(b"\n"):
                changed = json.loads(line)["changed"]
                found[changed["name"]] = changed
        return found

    def restarts(self) -> dict[str, int]:
        """How often each had to be started again."""
        return {name: each["restarts"] for name, each in self.processes().items()}

    def names(self, service: str) -> list[str]:
        """The processes of a service, whether it has one or several."""
        return [name for name in self.processes() if name.rstrip("-0123456789") == service]

    def decider(self, said: str) -> str:
        """The process that signs its decisions like this."""
        pid = int(said.rpartition("/")[2])
        (name,) = [name for name, each in self.processes().items() if each["pid"] == pid]
        return name

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the present life of a process."""
        os.kill(self.processes()[name]["pid"], number)

    async def kill(self, *names: str) -> None:
        """kill -9, and wait until each is started again and ready."""
        dead = {name: self.processes()[name]["pid"] for name in names}
        for pid in dead.values():
            os.kill(pid, signal.SIGKILL)
        await self.back(dead)

    async def back(self, dead: Mapping[str, int]) -> None:
        """Until these processes have new lives that are ready."""
        async with asyncio.timeout(hang_s()):
            while True:
                now = self.processes()
                if all(
                    now[name]["pid"] != pid and now[name]["condition"] == "ready"
                    for name, pid in dead.items()
                ):
                    return
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def stopped(self, *names: str) -> AsyncIterator[None]:
        """These processes are stopped (SIGSTOP) within the block."""
        for name in names:
            self.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.signal(name, signal.SIGCONT)

    @asynccontextmanager
    async def away(self, *names: str) -> AsyncIterator[None]:
        """These processes are killed, and nobody starts them within the block."""
        dead = {name: self.processes()[name]["pid"] for name in names}
        self.process.send_signal(signal.SIGSTOP)  # whoever would start them
        try:
            for pid in dead.values():
                os.kill(pid, signal.SIGKILL)
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)
        await self.back(dead)

    def client(self, user: str = "operator", **options: Any) -> Client:
        """A connection as one of the users of the bus."""
        return Client.connect(
            self.view["url"],
            creds_file=self.folder / "keys" / f"{user}.creds",
            inbox_prefix=inbox_prefix(user),
            timeout_s=options.pop("timeout_s", REQUEST_LIMIT_S),
            **options,
        )

    def berth(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return run_berth(*argv, "--data", str(self.folder), home=self.folder)

    async def start_lasting(self, count: int = 16) -> None:
        """Jobs that run for as long as the rig does: nothing that happens to us may end them."""
        names = [f"lasting-{number}" for number in range(count)]
        pods = (PodSet(cpu_milli=500, memory_mib=256, gpus=1, gpu_milli=500),)
        async with self.client() as berth:
            for name in names:
                await berth.submit(
                    JobRequest(id=name, pod_sets=pods, expected_duration_s=LASTING_S)
                )
            async with asyncio.timeout(hang_s()):
                while (await berth.list(states=["running"])).counts != {"running": count}:
                    await asyncio.sleep(0.05)
        self.lasting = tuple(names)
        self.submitted += count


@contextmanager
def rig(folder: Path, *flags: str, env: Mapping[str, str] = IMPATIENT) -> Iterator[Rig]:
    """Everything up; at the end all of it is gone, and that is checked."""
    folder.mkdir(parents=True, exist_ok=True)
    said_path = folder / "said.jsonl"
    argv = [sys.executable, "-m", "berthmaster.cli.main", "up", "--json", "--data", str(folder)]
    with said_path.open("wb") as said, (folder / "errors.log").open("wb") as errors:
        process = subprocess.Popen(
            [*argv, *FLEET, *flags],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            env=environment(folder) | QUIET | dict(env),
            start_new_session=True,
            preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
        )
    made: Rig | None = None
    code = 0
    try:
        made = Rig(process, folder, said_path, _first_line(process, folder)["up"])
        yield made
    finally:
        pids = [each["pid"] for each in made.processes().values()] if made is not None else []
        for number in (signal.SIGCONT, signal.SIGINT):
            if process.poll() is None:
                process.send_signal(number)
        try:
            code = process.wait(hang_s())
        except subprocess.TimeoutExpired:
            process.kill()  # its children die with it
            code = process.wait(hang_s())
    assert code == 0, (folder / "errors.log").read_text()
    assert [pid for pid in pids if alive(pid)] == []


class Kept:
    """One rig at a time, which tests have one after the other for as long as they ask for the same
    and all is well with it. Whoever comes after a test that failed gets a new one: what that test
    left behind is not counted as theirs. One that nobody uses any more takes no processor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owned = ExitStack()
        self._rig: Rig | None = None
        self._flags: tuple[str, ...] = ()
        self._made = 0

    @contextmanager
    def lent(self, *flags: str) -> Iterator[Rig]:
        """For one test, with jobs that run all the time."""
        if self._rig is None or flags != self._flags:
            self.end()
            self._made += 1
            with ExitStack() as owned:
                made = owned.enter_context(rig(self._folder / str(self._made), *flags))
                asyncio.run(made.start_lasting())
                self._rig, self._flags, self._owned = made, flags, owned.pop_all()
        yield self._rig
        if not self._rig.sound:
            self.end()

    def end(self) -> None:
        """It goes; the next test would get a new one."""
        self._rig = None
        self._owned.close()


def _first_line(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """What `berth up` says once all is up."""
    patience = Patience("berth up is up")
    while not (said := (folder / "said.jsonl").read_bytes()).endswith(b"\n"):
        errors = (folder / "errors.log").read_text()
        patience.look(errors)
        assert process.poll() is None, errors
        time.sleep(0.02)
    first: dict[str, Any] = json.loads(said.splitlines()[0])
    return first


def openb_pods() -> Path | None:
    """The openb default pod list, where the traces are."""
    path = TRACES / workloads.OPENB_PODS["default"]
    return path if path.exists() else None


def requests(prefix: str, speed: float = SPEED) -> Iterator[JobRequest]:
    """Generated jobs, gangs among them, in turn with openb's pods where these are there. None runs
    for longer than LONGEST_S."""
    made = workloads.generated(seed=7, rate_per_s=1, prefix=f"{prefix}-gen", gang_share=0.2)
    streams: list[Iterator[workloads.Arrival]] = [made]
    if (path := openb_pods()) is not None:
        listed = workloads.parse_workloads(path.read_text(), prefix=f"{prefix}-openb")
        streams.append(iter(listed))
    for stream in itertools.cycle(streams):
        for _, request in itertools.islice(stream, 1):
            expected_s = min(request.expected_duration_s or 1.0, LONGEST_S * speed)
            yield msgspec.structs.replace(request, expected_duration_s=expected_s)


class Stream:
    """Jobs that come at a rate while something happens to the services."""

    def __init__(
        self, rig: Rig, berth: Client, rate: float, asked: Iterator[JobRequest], most_open: float
    ) -> None:
        self.rig = rig
        self.berth = berth
        self.stats = WorkloadStats()
        self.decisions: list[SeenDecision] = []
        self.offered = 0
        self._asked = asked
        self._rate = rate
        self._most_open = most_open
        self._over = False
        self._load = Load(berth, max_in_flight=2000)

    @property
    def under_way(self) -> int:
        """Jobs that came and were not seen to end: those whose news is late are among them."""
        return self.offered - sum(self.stats.states[state] for state in ENDED)

    @property
    def accepted(self) -> int:
        return self._load.result.accepted

    def _arrivals(self) -> Iterator[tuple[float, JobRequest]]:
        """At the rate, and far below it while there is a backlog: how many jobs a second a busy
        machine gets done is not what is tried here."""
        at_s = 0.0
        for request in self._asked:
            if self._over:
                return
            self.offered += 1
            at_s += (SLOWED if self.under_way > self._most_open else 1) / self._rate
            yield at_s, request

    async def _watch(self, since: int) -> None:
        async with aclosing(self.berth.watch(tenant="*", since=since)) as events:
            async for seen in events:
                self.stats.take(seen)

    async def _watch_decisions(self, since: int) -> None:
        async with aclosing(self.berth.decisions(since)) as decisions:
            async for seen in decisions:
                self.decisions.append(seen)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Stream"]:
        """Jobs come until the block ends; it is left when the last of them has succeeded."""
        self._began_at = await self.berth.last_sequence()
        tasks = [
            asyncio.create_task(self._watch(self._began_at)),
            asyncio.create_task(self._watch_decisions(self._began_at)),
            asyncio.create_task(self._load.run(self._arrivals(), 1.0)),
        ]
        try:
            await self.goes_on(10)
            yield self
            self._over = True
            patience = Patience(
                "every job has ended",
                moves=lambda: (self.stats.known, self.stats.states[State.SUCCEEDED]),
            )
            while not tasks[2].done() or self.stats.known < self.offered or self.stats.open:
                for task in tasks:
                    if task.done():
                        task.result()
                patience.look(self.stats.summary())
                await asyncio.sleep(0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        result = self._load.result
        assert (result.accepted, result.refused, result.unknown) == (self.offered, 0, 0), result
        self.rig.submitted += self.offered

    async def taken_over_s(self, decider: str) -> float:
        """How long nobody decided between this decider's last decision and the next one."""
        # Jobs that were placed before it may have been all that ended since.
        await until(lambda: self.decisions[-1].decision.decider != decider)
        seen = self.decisions
        last = max(n for n, each in enumerate(seen) if each.decision.decider == decider)
        return seen[last + 1].stored_at_s - seen[last].stored_at_s

    async def goes_on(self, endings: int) -> None:
        """Until so many jobs that were submitted from now on, or any others, have succeeded."""
        wanted = self.stats.states[State.SUCCEEDED] + endings
        try:
            await until(lambda: self.stats.states[State.SUCCEEDED] >= wanted, f"{endings} endings")
        except Hung as hung:
            raise AssertionError(f"{hung}: {self.stats.summary()}") from None


@asynccontextmanager
async def stream(
    rig: Rig,
    rate: float = 30.0,
    asked: Iterator[JobRequest] | None = None,
    *,
    most_open: float = MOST_OPEN,
    **options: Any,
) -> AsyncIterator[Stream]:
    """A stream of jobs through a rig; after it everything is looked at."""
    if asked is None:
        asked = requests(next(rig.prefixes))
    rig.sound = False
    async with rig.client(**options) as berth:
        async with Stream(rig, berth, rate, asked, most_open).running() as jobs:
            yield jobs
        await all_is_well(rig, berth)
    rig.sound = True


async def _audited(rig: Rig, berth: Client) -> tuple[AuditReport, list[Unreadable]]:
    """What the auditor says; under such a load a server that has just come back may be late."""
    async with asyncio.timeout(hang_s()):
        while True:
            unreadable: list[Unreadable] = []
            try:
                return await audit(berth.connection, unreadable=unreadable.append), unreadable
            except BusError:
                await asyncio.sleep(0.5)


async def so_far_so_good(rig: Rig, berth: Client) -> AuditReport:
    report, unreadable = await _audited(rig, berth)
    assert (unreadable, report.findings, report.accounted) == ([], (), True), report
    # The clusters fail and evict nothing here: whatever ended otherwise was ended by us.
    assert (report.failed, report.cancelled, report.evictions) == (0, 0, 0), report
    return report


async def all_is_well(rig: Rig, berth: Client) -> None:
    """What must hold when every job of the streams has ended."""
    report = await so_far_so_good(rig, berth)
    counts = (report.submitted, report.succeeded, report.running, report.waiting)
    lasting = len(rig.lasting)
    assert counts == (rig.submitted, rig.submitted - lasting, lasting, 0), report
    for name in rig.lasting:
        view = (await berth.get(name)).workload
        assert (view.state, view.attempt, view.evictions) == ("running", 1, 0), view
    assert await berth.dead() == []
    await repeats(berth)


async def repeats(berth: Client) -> None:
    """All decisions come out equal, once the log of facts has what they were made on."""
    patience = Patience("all decisions are equal")
    while True:
        report = replay(await read_inputs(berth.connection), "all")
        if report.equal == report.decisions:
            return
        patience.look(report)
        await asyncio.sleep(0.5)
