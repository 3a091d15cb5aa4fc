"""A service as small as can be, that misbehaves on request; run as a process by its tests."""

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Literal

from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.service import Context, Service, run
from berthmaster.lib.runtime.settings import CommonSettings, setting

Behaviour = Literal[
    "good",
    "deaf",
    "very-deaf",
    "task-dies",
    "task-dies-awaited",
    "task-gives-up",
    "main-dies",
    "blocks",
    "no-driver",
    "tells-secrets",
]


@dataclass(frozen=True, kw_only=True)
class TinySettings(CommonSettings):
    behaviour: Behaviour = setting("good", help="what goes wrong")
    limit: int = setting(3, least=1, most=9, help="a number, so that one can be wrong")


async def _die() -> None:
    raise ValueError("out of cheese")


async def _give_up() -> None:
    raise CannotStart("no NVIDIA driver on this machine")


async def _ignore_cancel() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def main(context: Context[TinySettings]) -> None:
    jobs = context.metrics.counter("jobs", "Jobs seen")
    jobs.inc(2)
    context.health.ready("bus", False, "connecting")
    context.spawn(asyncio.sleep(3600), name="pump")
    context.health.ready("bus", True)
    context.log.info("up")
    match context.settings.behaviour:
        case "good":
            await context.stopping.wait()
            context.log.info("drained", at_s=context.now())
        case "deaf":
            await asyncio.sleep(3600)
        case "very-deaf":
            await _ignore_cancel()
        case "task-dies":
            context.spawn(_die(), name="kitchen")
            await context.stopping.wait()
        case "task-dies-awaited":
            await context.spawn(_die(), name="kitchen")
        case "task-gives-up":
            context.spawn(_give_up(), name="reader")
            await context.stopping.wait()
        case "main-dies":
            await _die()
        case "blocks":
            context.health.stall_limit_s = 0.5
            time.sleep(3600)
        case "no-driver":
            await _give_up()
        case "tells-secrets":
            seed = "SUAM" + "A" * 54
            context.log.info("oops", text=f"seed {seed}", password="hunter2", url="nats://a:b@h:1")
            raise RuntimeError(f"cannot use {seed} of nats://a:b@h:1")


SERVICE = Service("tiny", TinySettings, main)

if __name__ == "__main__":
    run(SERVICE, sys.argv[1:])
