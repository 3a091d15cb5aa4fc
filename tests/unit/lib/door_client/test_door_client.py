"""Whether a service hears of the door, in virtual time and with a door made up."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from berthmaster.lib.door_client.client import GREET_AFTER_S, SILENT_S, DoorClient
from berthmaster.lib.messages.door import GreetReply
from berthmaster.lib.messages.families import encode
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer
from tests.support.virtual import in_virtual_time

MINUTE_S = 60.0


class Bus:
    """A connection behind which a door answers, or none does."""

    def __init__(self) -> None:
        self.door_answers = True
        self.requests: list[str] = []

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> Any:
        self.requests.append(subject.rpartition(".")[2])
        if not self.door_answers:
            await asyncio.sleep(timeout_s)
            raise NoAnswer("nobody answers")
        return SimpleNamespace(data=encode(GreetReply(now_s=1.0)))

    async def publish(self, subject: str, data: bytes) -> None: ...


def at_the_door(bus: Bus) -> tuple[DoorClient, asyncio.Event, asyncio.Task[None]]:
    door = DoorClient(cast(Connection, bus), "east")
    stopping = asyncio.Event()
    return door, stopping, asyncio.create_task(door.keep_greeting(stopping))


def test_a_service_with_nothing_to_say_still_hears_the_door() -> None:
    async def story() -> None:
        bus = Bus()
        door, stopping, greeting = at_the_door(bus)
        for _ in range(60):
            await asyncio.sleep(MINUTE_S)
            assert door.silent == ""
        # One that only publishes is in the same case.
        for _ in range(600):
            await door.figures(b"{}")
            await asyncio.sleep(1.0)
            assert door.silent == ""
        assert set(bus.requests) == {"hello"}
        assert len(bus.requests) <= 70 * MINUTE_S / GREET_AFTER_S + 1
        stopping.set()
        await greeting

    in_virtual_time(story())


def test_a_door_that_does_not_answer_is_silent_until_it_does() -> None:
    async def story() -> None:
        bus = Bus()
        door, stopping, greeting = at_the_door(bus)
        bus.door_answers = False
        await asyncio.sleep(SILENT_S)
        assert door.silent == ""
        await asyncio.sleep(MINUTE_S)
        assert door.silent.startswith("the door has not answered for ")
        bus.door_answers = True
        await asyncio.sleep(2 * GREET_AFTER_S)
        assert door.silent == ""
        stopping.set()
        await greeting

    in_virtual_time(story())


def test_a_service_that_asks_for_something_greets_nobody() -> None:
    async def story() -> None:
        bus = Bus()
        door, stopping, greeting = at_the_door(bus)
        for _ in range(100):
            await door.ask("facts", b"{}")
            await asyncio.sleep(GREET_AFTER_S / 3)
        assert set(bus.requests) == {"facts"}
        stopping.set()
        await greeting

    in_virtual_time(story())
