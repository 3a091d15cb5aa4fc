"""One tenant's flood: what it costs another tenant's submits, against calm windows of the same run.

Everything of `berth up`, two tenants. One submits at a steady rate all the time; now and then the
other sends 9,000 messages at once (long lists, garbage, submits), from a process of its own. An
account has no rate on the bus: being fair is the gateway's work. A window begins with a flood's
first byte and lasts until the last of its 9,000 answers is there, 2.5 s at least. Calm windows and
flooded ones take turns, since what the disk and the machine's other users do changes from one
minute to the next: a calm before all floods is that of another minute. Each window has its own p99,
of 250 submits or more, and the ratio is of the medians of these: one window in which the disk stood
still says nothing of floods. Submits are sent on time however late answers are, so none is left out
for being slow.

In turn with them the same goes to a verb that nobody hears: what it costs then is the machine's and
the server's, whose cores the flood takes, and no service's. The sender has its bytes ready before a
window begins, as its own work would be done on another machine; what it takes of the cores all the
same is told.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from berthmaster.bus import subjects
from berthmaster.bus.keys import creds_file
from berthmaster.bus.permissions import inbox_prefix
from berthmaster.client.client import Client
from berthmaster.client.errors import BerthError
from berthmaster.messages.families import encode
from berthmaster.supervisor.plan import UpOptions
from berthmaster.supervisor.stack import Stack
from scripts.benchmarks.pipeline import percentile, request, usage

QUIET, LOUD = "acme", "evil"
MESSAGES = 9_000
LISTED_JOBS = 2_000  # of the loud tenant, so that its lists are long
SUBMITS_PER_S = 100.0
WINDOW_S = 2.5  # or until a flood has all its answers
BETWEEN_S = 1.0  # until what was taken of a flood is done
ROUNDS = 5
UNHEARD = "nobody"  # a verb
SENDER = "sender"
BUSY = ("nats-server", "gateway", "resolver", "door", SENDER)
SENDER_LIMIT_S = 60.0

BUDGETS = {"p99_ratio": ("<=", 2.0), "timed_out_count": ("<=", 0.0)}


def client(url: str, tenant: str, keys: Path) -> Client:
    """One tenant's."""
    user = f"tenant.{tenant}"
    creds = creds_file(keys, user)
    return Client.connect(
        url, tenant=tenant, creds_file=creds, inbox_prefix=inbox_prefix(user), timeout_s=10.0
    )


def commands(name: str, unheard: str, inbox: str) -> list[bytes]:
    """9,000 messages as they travel. ``unheard``: the verb to send them to instead, unanswered."""
    made = []
    for number in range(MESSAGES):
        verb, data = (
            ("list", b'{"limit": 1000}'),
            ("submit", b"\xff no request at all"),
            ("submit", encode(request(f"flood-{name}-{number}"))),
        )[number % 3]
        subject = subjects.api(LOUD, unheard or verb)
        reply = "" if unheard else f" {inbox}"
        made.append(b"PUB %b %d\r\n%b\r\n" % (f"{subject}{reply}".encode(), len(data), data))
    return made


async def send(url: str, keys: Path) -> None:
    """The sender: each line that it reads ("NAME VERB") is a flood; it answers once it is over."""
    loop = asyncio.get_running_loop()
    async with client(url, LOUD, keys) as loud:
        nc = loud.connection.nc
        inbox = nc.new_inbox()
        heard = await nc.subscribe(inbox)
        answered = 0
        all_answered = asyncio.Event()

        def take(_subject: bytes, _reply: bytes, _headers: bytes, _body: bytes) -> None:
            nonlocal answered
            answered += 1
            if answered == MESSAGES:
                all_answered.set()

        nc.reading.takers[b"%d" % heard._id] = take
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, _, unheard = line.strip().partition(" ")
            ready = commands(name, unheard, inbox)
            print("ready", flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            answered = 0
            all_answered.clear()
            await nc.send_raw(ready)
            await loud.connection.flush(timeout_s=SENDER_LIMIT_S)
            if not unheard:
                try:
                    async with asyncio.timeout(SENDER_LIMIT_S):
                        await all_answered.wait()
                except TimeoutError:
                    pass
            print(0 if unheard else MESSAGES - answered, flush=True)


class Sender:
    """The process that floods."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def say(self, line: str) -> str:
        """What it answers."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\n".encode())
        return (await stdout.readline()).decode().strip()


@asynccontextmanager
async def sender(url: str, keys: Path) -> AsyncIterator[Sender]:
    """It runs."""
    argv = [sys.executable, "-m", "scripts.benchmarks.flood", url, str(keys)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    try:
        yield Sender(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def submits_until(quiet: Client, prefix: str, is_over: Callable[[], bool]) -> list[float]:
    """Submit at a steady rate; how long each answer took, in milliseconds; inf where none came."""
    loop = asyncio.get_running_loop()

    async def one(name: str) -> float:
        began_s = time.perf_counter()
        try:
            await quiet.submit(request(name))
        except BerthError:
            return float("inf")
        return 1000 * (time.perf_counter() - began_s)

    began_s = loop.time()
    tasks = []
    for number in itertools.count():
        await asyncio.sleep(max(0.0, began_s + number / SUBMITS_PER_S - loop.time()))
        if is_over():
            break
        tasks.append(asyncio.create_task(one(f"{prefix}{number}")))
    return await asyncio.gather(*tasks)


class Window(NamedTuple):
    """What came of one."""

    took_ms: list[float]
    lasted_s: float
    cpu_s: dict[str, float]  # by process


class Floods:
    """Everything is up and both tenants are there."""

    def __init__(self, stack: Stack, quiet: Client, loud: Sender) -> None:
        self._quiet = quiet
        self._loud = loud
        self._pids = {view.name: view.pid for view in stack.view().processes}
        self._pids[SENDER] = loud.pid
        self._numbers = itertools.count()

    async def window(self, verb: str | None) -> Window:
        """Submits beside a flood of what has this verb ("": of lists, garbage and submits), or
        beside none."""
        name = f"window-{next(self._numbers)}"
        if verb is not None:
            await self._loud.say(f"{name} {verb}")
        before = self._cpu_s()
        began_s = time.monotonic()
        flood = asyncio.create_task(self._loud.say("go")) if verb is not None else None
        took_ms = await submits_until(
            self._quiet,
            f"{name}-",
            lambda: time.monotonic() >= began_s + WINDOW_S and (flood is None or flood.done()),
        )
        lasted_s = time.monotonic() - began_s
        if flood is not None and (unanswered := int(await flood)):
            print(f"{name}: {unanswered} messages of the flood had no answer")
        cpu_s = {who: s - before[who] for who, s in self._cpu_s().items()}
        return Window(took_ms, lasted_s, cpu_s)

    async def between(self) -> None:
        """Submits go on."""
        over_s = time.monotonic() + BETWEEN_S
        await submits_until(
            self._quiet, f"between-{next(self._numbers)}-", lambda: time.monotonic() >= over_s
        )

    def _cpu_s(self) -> dict[str, float]:
        return {name: usage(pid)[0] for name, pid in self._pids.items()}


async def run() -> dict[str, float]:
    """Windows of each kind in turn."""
    with tempfile.TemporaryDirectory() as folder:
        options = UpOptions(
            folder=Path(folder) / "up",
            nodes=160,
            speed=1e6,
            tenants=(QUIET, LOUD),
            log_level="warning",
        )
        async with Stack(options, announce=False) as stack:
            url = stack.connection.url
            async with client(url, LOUD, stack.keys) as loud:
                listed = (request(f"listed-{number}") for number in range(LISTED_JOBS))
                async for _ in loud.submit_many(listed):
                    pass
            kinds: dict[str, str | None] = {"calm": None, "unheard": UNHEARD, "flooded": ""}
            windows: dict[str, list[Window]] = {kind: [] for kind in kinds}
            async with (
                client(url, QUIET, stack.keys) as quiet,
                sender(url, stack.keys) as loud_sender,
            ):
                floods = Floods(stack, quiet, loud_sender)
                await floods.between()
                for _ in range(ROUNDS):
                    for kind, verb in kinds.items():
                        windows[kind].append(await floods.window(verb))
                        await floods.between()
    return figures(windows)


def figures(windows: dict[str, list[Window]]) -> dict[str, float]:
    """Of all windows."""
    told: dict[str, float] = {}
    for kind, ones in windows.items():
        for percent in (50, 90, 99):
            of_each = [percentile(one.took_ms, percent) for one in ones]
            told[f"{kind}_p{percent}_ms"] = median(of_each)
        told[f"{kind}_worst_p99_ms"] = max(percentile(one.took_ms, 99) for one in ones)
        told[f"{kind}_lasted_s"] = median(one.lasted_s for one in ones)
        told[f"{kind}_submits_count"] = float(sum(len(one.took_ms) for one in ones))
        for who in BUSY:
            told[f"{kind}_{who}_cpu_ms_a_s"] = median(
                1000 * one.cpu_s[who] / one.lasted_s for one in ones
            )
    calm, flooded = told["calm_p99_ms"], told["flooded_p99_ms"]
    told["unheard_p99_ratio"] = told["unheard_p99_ms"] / calm
    told["p99_ratio"] = flooded / calm
    told["p99_to_unheard_ratio"] = flooded / told["unheard_p99_ms"]
    told["timed_out_count"] = float(
        sum(ms == float("inf") for one in windows["flooded"] for ms in one.took_ms)
    )
    return told


def measure() -> dict[str, float]:
    """Calm and floods in turn."""
    return asyncio.run(run())


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1], Path(sys.argv[2])))
