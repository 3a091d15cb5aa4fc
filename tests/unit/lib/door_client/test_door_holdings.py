"""What an executor reports as held: pages of bounded size, each until it is answered."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.door_client.holdings import INQUIRY_S, PAGE_BYTES, pages, report
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.door import (
    MAX_AGENT_BYTES,
    MAX_RECEIPT_CHARS,
    MAX_TOLD,
    HeldAttempt,
    HoldingsReply,
    HoldingsRequest,
)
from berthmaster.lib.messages.families import HOLDINGS_REQUESTS, encode
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer
from tests.support.virtual import in_virtual_time
from tests.unit.lib.kube.stage import Lines


def held(count: int, receipt: str = "") -> list[HeldAttempt]:
    return [
        HeldAttempt(tenant="team", id=f"job-{number}", attempt=1, receipt=receipt)
        for number in range(count)
    ]


def listed(many: Sequence[HeldAttempt]) -> list[HoldingsRequest]:
    return list(pages("asked", "list", many))


def test_pages_of_nothing_is_one_last_page() -> None:
    assert listed([]) == [HoldingsRequest(inquiry="asked", listing="list", page=0, last=True)]


def test_pages_hold_each_attempt_once_in_order() -> None:
    found = listed(held(450))
    assert [len(page.held) for page in found] == [MAX_TOLD, MAX_TOLD, 50]
    assert [page.page for page in found] == [0, 1, 2]
    assert [page.last for page in found] == [False, False, True]
    assert [one for page in found for one in page.held] == held(450)


def test_pages_of_large_receipts_stay_within_a_request() -> None:
    many = held(40, "r" * 60_000)
    found = listed(many)
    sizes = [len(encode(page)) for page in found]
    assert max(sizes) <= PAGE_BYTES + 1000 < MAX_AGENT_BYTES
    assert len(found) == 7
    largest = listed(held(2, "r" * MAX_RECEIPT_CHARS))
    assert [len(page.held) for page in largest] == [1, 1]
    for page in largest:
        assert HOLDINGS_REQUESTS.decode(encode(page)) == page


def test_pages_leave_out_a_receipt_that_no_message_takes() -> None:
    (page,) = listed(held(1, "r" * (MAX_RECEIPT_CHARS + 1)))
    assert page.held == tuple(held(1))


class Bus:
    """A connection behind which a door refuses or leaves unanswered what comes first."""

    connected = True

    def __init__(self, *replies: Refusal | bytes | None) -> None:
        self.log = Lines()
        self.replies = list(replies)
        self.requests: list[HoldingsRequest] = []

    def when_reconnected(self, _: object) -> Any:
        return lambda: None

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> Any:
        assert subject == "berth.agent.east.holdings"
        self.requests.append(HOLDINGS_REQUESTS.decode(data))
        if not self.replies:
            return SimpleNamespace(data=encode(HoldingsReply()))
        reply = self.replies.pop(0)
        if reply is None:
            await asyncio.sleep(timeout_s)
            raise NoAnswer("nobody answers")
        return SimpleNamespace(data=reply if isinstance(reply, bytes) else encode(reply))


def refusal(*, retry: bool) -> Refusal:
    return Refusal(
        code="overloaded" if retry else "invalid", field="", value="", expected="", retry=retry
    )


def reported(bus: Bus, count: int) -> float:
    """Report so many attempts; how long that takes."""

    async def story() -> float:
        door = DoorClient(cast(Connection, bus), "east")
        began_s = asyncio.get_running_loop().time()
        await report(door, "asked", held(count))
        return asyncio.get_running_loop().time() - began_s

    return in_virtual_time(story())


def test_report_repeats_a_page_until_it_is_answered() -> None:
    bus = Bus(None, refusal(retry=True))
    reported(bus, 300)
    assert [page.page for page in bus.requests] == [0, 0, 0, 1]
    assert len({page.listing for page in bus.requests}) == 1
    assert bus.log.lines == []


def test_report_repeats_a_page_whose_answer_is_unreadable() -> None:
    bus = Bus(b'{"type":"api.refusal.v1","code":"of a version to come"}')
    reported(bus, 1)
    assert len(bus.requests) == 2


def test_report_gives_up_when_the_inquiry_is_old() -> None:
    bus = Bus(*[None] * 1000)
    assert INQUIRY_S <= reported(bus, 1) < INQUIRY_S + 1
    assert [event for _, event, _ in bus.log.lines] == ["holdings not reported in time"]


def test_report_gives_up_when_repeating_is_pointless() -> None:
    bus = Bus(refusal(retry=False))
    reported(bus, 300)
    assert len(bus.requests) == 1
    assert [event for _, event, _ in bus.log.lines] == ["holdings refused"]


def test_reports_of_one_inquiry_are_different_listings() -> None:
    bus = Bus()
    reported(bus, 1)
    reported(bus, 1)
    first, second = bus.requests
    assert first.listing != second.listing
