"""Jobs through a whole `berth up` while processes are killed and stopped: none lost or twice.

Every few seconds a process is drawn from the seed: killed with SIGKILL, or stopped for longer than
its limits. The emulated clusters fail nothing, so each eviction or failure is ours. At the end the
audit is clean, every job succeeded once, the lasting jobs still run their first attempt, and every
decision of the log repeats. ``short`` has 5,000 jobs, ``whole`` 100,000.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.pipeline.chaos import Rig, requests, rig, stream

PARTS: Final = ("short", "whole")
TOLD_EVERY_S: Final = 30.0
JOBS: Final = {"short": 5_000, "whole": 100_000}
RATE_PER_S: Final = 250.0
MOST_OPEN: Final = 1_500.0  # jobs; beyond it they come slower, as on a machine that is busy
SEED: Final = 1
PAUSE_S: Final = (1.0, 6.0)  # between two misfortunes
STOPPED_S: Final = (1.0, 5.0)
KILLED: Final = (
    *("gateway", "resolver", "scorer", "archivist", "usage", "door", "emulator", "dashboard"),
    "nats-server",
)
FLAGS: Final = ("--resolvers", "2", "--scorers", "2")
BUDGETS = {"lost_or_twice_count": ("<=", 0.0)}
FAILURES: list[str] = []


def measure(part: str = "whole") -> dict[str, float]:
    """Run one part. What did not hold is in FAILURES."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Path(folder), JOBS[part]))


async def _run(folder: Path, jobs: int) -> dict[str, float]:
    with rig(folder / "up", *FLAGS) as up:
        await up.start_lasting()
        misfortunes: Counter[str] = Counter()
        began_s = time.monotonic()
        asked = itertools.islice(requests("chaos"), jobs)
        try:
            async with stream(up, RATE_PER_S, asked, most_open=MOST_OPEN) as running:
                dice = random.Random(SEED)
                told_s = began_s
                while running.offered < jobs:
                    await asyncio.sleep(dice.uniform(*PAUSE_S))
                    await _befall(up, dice, misfortunes)
                    if (now_s := time.monotonic()) >= told_s + TOLD_EVERY_S:
                        told_s = now_s
                        done = f"{running.offered:,} of {jobs:,} jobs submitted"
                        print(f"  {done}, {misfortunes.total()} kills and stops", flush=True)
        except AssertionError as error:
            FAILURES.append(f"chaos: {error}")
        took_s = time.monotonic() - began_s
    return {
        "jobs_count": float(jobs),
        "lost_or_twice_count": float(len(FAILURES)),
        "took_s": took_s,
        "lives_per_s": jobs / took_s,
        "kills_count": float(misfortunes.total() - misfortunes["stopped"]),
        "stops_count": float(misfortunes["stopped"]),
        **{f"kills_of_{name}_count": float(misfortunes[name]) for name in KILLED},
    }


async def _befall(up: Rig, dice: random.Random, misfortunes: Counter[str]) -> None:
    service = dice.choice(KILLED)
    name = dice.choice(up.names(service))
    if service != "nats-server" and dice.random() < 0.3:
        misfortunes["stopped"] += 1
        async with up.stopped(name):
            await asyncio.sleep(dice.uniform(*STOPPED_S))
        return
    misfortunes[service] += 1
    await up.kill(name)
