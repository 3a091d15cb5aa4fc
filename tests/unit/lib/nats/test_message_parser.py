"""What is read is what the library reads, however the bytes are cut, and takers come before it."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.nats import message_parser as module
from berthmaster.lib.nats.message_parser import FULL_READ, SLICE, MessageParser
from berthmaster.lib.nats.nats_py import errors

# isort: split
from nats.protocol.parser import Parser

STREAM = (
    b"PING\r\n"
    b"MSG a.b 1 5\r\nhello\r\n"
    b"MSG a.b 2 _INBOX.x 13\r\nMSG a 1 0\r\n\r\n\r\n"
    b"HMSG a.c 1 12 15\r\nNATS/1.0\r\n\r\nabc\r\n"
    b"+OK\r\n"
    b"HMSG a.c 2 _INBOX.y 12 14\r\nNATS/1.0\r\n\r\nde\r\n"
    b"-ERR 'Permissions Violation'\r\nPONG\r\n"
    b"MSG a.d 1 0\r\n\r\n"
)


class Told:
    """Stands for the client: what the parser tells it, in order."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._transport: Any = None

    async def _process_msg(self, *message: object) -> None:
        self.all.append(message)

    async def _process_ping(self) -> None:
        self.all.append("ping")

    async def _process_pong(self) -> None:
        self.all.append("pong")

    async def _process_err(self, text: str) -> None:
        self.all.append(text)


def heard(parser: Parser, cuts: list[int]) -> None:
    async def run() -> None:
        bounds = [0, *sorted(cuts), len(STREAM)]
        for begin, end in pairwise(bounds):
            await parser.parse(STREAM[begin:end])

    asyncio.run(run())


def test_rest_is_bounded_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    many = b"MSG a.b 2 1\r\nx\r\n" * (3 * SLICE)

    async def run(pause_s: float, rests_s: float) -> int:
        monkeypatch.setattr(module, "PAUSES_S", rests_s)
        reading, taken = MessageParser(Told()), []
        reading.takers[b"2"] = lambda *message: taken.append(message)
        reading.pause_s = pause_s
        work = asyncio.create_task(reading.parse(many))
        await asyncio.wait({work}, timeout=0.05 if rests_s > pause_s else 5)
        work.cancel()
        return len(taken)

    assert asyncio.run(run(600.0, 1000.0)) == SLICE
    assert asyncio.run(run(600.0, 1.0)) == 3 * SLICE  # it has rested enough, and reads on
    assert asyncio.run(run(0.0, 1000.0)) == 3 * SLICE


class Transport:
    """Stands for a socket: how often it was left alone."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def test_parse_in_rounds_pauses_the_transport_until_an_answer_is_awaited() -> None:
    async def run() -> list[list[str]]:
        client, transport = Told(), Transport()
        client._transport = SimpleNamespace(_io_writer=SimpleNamespace(transport=transport))
        reading = MessageParser(client)
        reading.round_s = 600.0
        seen = []
        work = asyncio.create_task(reading.parse(b"PING\r\n"))
        await asyncio.sleep(0)
        seen.append(list(transport.calls))
        reading.await_answer()
        await work
        await reading.parse(b"PING\r\n")  # an answer is awaited: no pause
        seen.append(list(transport.calls))
        reading.end_answer()
        await reading.parse(b"PING\r\n" * (FULL_READ // 6 + 1))  # a full read: there is more
        seen.append(list(transport.calls))
        return seen

    assert asyncio.run(run()) == [["pause"], ["pause", "resume"], ["pause", "resume"]]


CUTS = st.lists(st.integers(0, len(STREAM)), max_size=8)


@given(CUTS)
def test_it_tells_what_the_librarys_parser_tells(cuts: list[int]) -> None:
    ours, theirs = Told(), Told()
    heard(MessageParser(ours), cuts)
    heard(Parser(theirs), [])
    assert len(ours.all) == 8
    assert ours.all == theirs.all


@given(CUTS)
def test_taker_receives_own_subscription_only(cuts: list[int]) -> None:
    client, taken = Told(), []
    reading = MessageParser(client)
    reading.takers[b"2"] = lambda *message: taken.append(message)
    heard(reading, cuts)
    assert taken == [
        (b"a.b", b"_INBOX.x", b"", b"MSG a 1 0\r\n\r\n"),
        (b"a.c", b"_INBOX.y", b"NATS/1.0\r\n\r\n", b"de"),
    ]
    assert [each[0] for each in client.all if isinstance(each, tuple)] == [1, 1, 1]


@pytest.mark.parametrize(
    "line", [b"MSG a b\r\n", b"MSG a 1 x\r\n", b"HMSG 5\r\n", b"\r\n", b"HI\r\n"]
)
def test_what_is_no_protocol_is_an_error(line: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        asyncio.run(MessageParser(Told()).parse(line))


def test_what_was_read_of_one_connection_is_no_part_of_the_next() -> None:
    async def run() -> list[Any]:
        client = Told()
        reading = MessageParser(client)
        await reading.parse(b"MSG a 1 50\r\nhalf")
        reading.reset()
        await reading.parse(b"PING\r\n")
        return client.all

    assert asyncio.run(run()) == ["ping"]
