"""One tenant's flood: what it costs another tenant's submits, against the same run without it.

Everything of `berth up`, two tenants. One submits at a steady rate; then the other sends 9,000
messages as fast as its connection takes them (long lists, garbage, submits), from a process of its
own, while the first goes on. An account has no rate on the bus: being fair is the gateway's work.
Before each flood the same goes to a verb that nobody hears: what it costs then is the machine's and
the server's, whose cores the flood takes, and no service's. Several rounds of both, since one flood
is over in a second.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from berthmaster.bus import subjects
from berthmaster.bus.keys import creds_file
from berthmaster.bus.permissions import inbox_prefix
from berthmaster.client.client import Client
from berthmaster.messages.families import encode
from berthmaster.supervisor.plan import UpOptions
from berthmaster.supervisor.stack import Stack
from scripts.benchmarks.pipeline import paced, percentile, request

QUIET, LOUD = "acme", "evil"
MESSAGES = 9_000
LISTED_JOBS = 2_000  # of the loud tenant, so that its lists are long
SUBMITS_PER_S = 50.0
CALM_SUBMITS = 500
ROUNDS = 3
UNHEARD = "nobody"  # a verb
SENDER_LIMIT_S = 120.0

BUDGETS = {"p99_ratio": ("<=", 2.0), "timed_out_count": ("<=", 0.0)}


def client(url: str, tenant: str, keys: Path) -> Client:
    """One tenant's."""
    user = f"tenant.{tenant}"
    creds = creds_file(keys, user)
    return Client.connect(
        url, tenant=tenant, creds_file=creds, inbox_prefix=inbox_prefix(user), timeout_s=10.0
    )


async def send(url: str, keys: Path, name: str, unheard: str) -> None:
    """The flood; nobody waits for its answers. ``unheard``: the verb to send it to instead."""
    async with client(url, LOUD, keys) as loud:
        conn = loud.connection
        inbox = conn.nc.new_inbox()
        await conn.nc.subscribe(inbox)
        for number in range(MESSAGES):
            verb, data = (
                ("list", b'{"limit": 1000}'),
                ("submit", b"\xff no request at all"),
                ("submit", encode(request(f"flood-{name}-{number}"))),
            )[number % 3]
            to, reply = (unheard, "") if unheard else (verb, inbox)
            await conn.publish(subjects.api(LOUD, to), data, reply=reply)
        await conn.flush(timeout_s=SENDER_LIMIT_S)


async def under_flood(
    url: str, keys: Path, quiet: Client, name: str, unheard: str
) -> tuple[list[float], float, float]:
    """The quiet tenant's answers while the flood is sent, how many got none, and its seconds."""
    argv = [sys.executable, "-m", "scripts.benchmarks.flood", url, str(keys), name, unheard]
    began_s = time.perf_counter()
    flood = await asyncio.create_subprocess_exec(*argv)
    took_ms: list[float] = []
    part = 0
    while flood.returncode is None:
        took_ms += await paced(quiet, f"under-{unheard}-{name}-{part}-", 25, SUBMITS_PER_S)
        part += 1
    return took_ms, 25.0 * part - len(took_ms), time.perf_counter() - began_s


async def run() -> dict[str, float]:
    """Both halves."""
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
                gate = asyncio.Semaphore(64)

                async def one(number: int) -> None:
                    async with gate:
                        await loud.submit(request(f"listed-{number}"))

                await asyncio.gather(*map(one, range(LISTED_JOBS)))
            unheard_ms, under_ms, lost, took_s = list[float](), list[float](), 0.0, 0.0
            async with client(url, QUIET, stack.keys) as quiet:
                await paced(quiet, "warm-", 100, SUBMITS_PER_S)
                calm_ms = await paced(quiet, "calm-", CALM_SUBMITS, SUBMITS_PER_S)
                for number in range(ROUNDS):
                    name = str(number)
                    unheard, _, _ = await under_flood(url, stack.keys, quiet, name, UNHEARD)
                    await paced(quiet, f"between-{name}-", 50, SUBMITS_PER_S)
                    under, lost_now, s = await under_flood(url, stack.keys, quiet, name, "")
                    # Until what was taken of this flood is done.
                    await paced(quiet, f"behind-{name}-", 150, SUBMITS_PER_S)
                    unheard_ms, under_ms = unheard_ms + unheard, under_ms + under
                    lost, took_s = lost + lost_now, took_s + s / ROUNDS
    return {
        "calm_p50_ms": percentile(calm_ms, 50),
        "calm_p99_ms": percentile(calm_ms, 99),
        "unheard_flood_p50_ms": percentile(unheard_ms, 50),
        "unheard_flood_p99_ms": percentile(unheard_ms, 99),
        "unheard_flood_p99_ratio": percentile(unheard_ms, 99) / percentile(calm_ms, 99),
        "flooded_p50_ms": percentile(under_ms, 50),
        "flooded_p99_ms": percentile(under_ms, 99),
        "p99_ratio": percentile(under_ms, 99) / percentile(calm_ms, 99),
        "p99_to_unheard_ratio": percentile(under_ms, 99) / percentile(unheard_ms, 99),
        "timed_out_count": lost,
        "flood_s": took_s,
    }


def measure() -> dict[str, float]:
    """Against the calm of the same run."""
    return asyncio.run(run())


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
