"""An executor's answer to `berth recover`: the attempts held in the cluster.

The answer is a listing in pages, each a request of the verb ``holdings``. Example: 450 attempts of
1 KB each make pages 0, 1 and 2, with 2 as the last. Each page is sent until it is answered.
"""

import asyncio
import random
import secrets
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from berthmaster.lib.door_client.client import DoorClient, DoorRefused
from berthmaster.lib.messages.door import MAX_RECEIPT_CHARS, MAX_TOLD, HeldAttempt, HoldingsRequest
from berthmaster.lib.messages.families import UNREADABLE, encode
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.backoff import Backoff

INQUIRY_S: Final = 60.0  # the inquirer has given up by then
PAGE_BYTES: Final = 400 * 1024
_PAUSES: Final = Backoff(first_s=0.1, most_s=2.0)


def pages(inquiry: str, listing: str, held: Iterable[HeldAttempt]) -> Iterator[HoldingsRequest]:
    """Yield the pages of one listing; a single empty page if there are no attempts. A receipt too
    long for a message is left out, as in the job object.
    """
    number, size = 0, 0
    page: list[HeldAttempt] = []
    for one in held:
        if len(one.receipt) > MAX_RECEIPT_CHARS:
            one = msgspec.structs.replace(one, receipt="")
        bytes_ = len(encode(one)) + 1
        if page and (len(page) == MAX_TOLD or size + bytes_ > PAGE_BYTES):
            yield HoldingsRequest(
                inquiry=inquiry, listing=listing, page=number, last=False, held=tuple(page)
            )
            number, size, page = number + 1, 0, []
        page.append(one)
        size += bytes_
    yield HoldingsRequest(
        inquiry=inquiry, listing=listing, page=number, last=True, held=tuple(page)
    )


async def report(door: DoorClient, inquiry: str, held: Iterable[HeldAttempt]) -> None:
    """Send one listing, page by page, until all are answered or the inquiry is too old."""
    chance = random.Random()
    try:
        async with asyncio.timeout(INQUIRY_S):
            for page in pages(inquiry, secrets.token_hex(8), held):
                failures = 0
                while not await _is_taken(door, page):
                    failures += 1
                    await asyncio.sleep(_PAUSES.delay_s(failures, chance))
    except TimeoutError:
        door.log.warning("holdings not reported in time", inquiry=inquiry)
    except DoorRefused as error:
        door.log.error("holdings refused", inquiry=inquiry, why=str(error))


async def _is_taken(door: DoorClient, page: HoldingsRequest) -> bool:
    """Return whether the door accepted a page. Raises DoorRefused if a repetition is pointless."""
    await door.connected()
    try:
        await door.ask("holdings", page)
    except (BusError, *UNREADABLE) as error:
        if isinstance(error, DoorRefused) and not error.refusal.retry:
            raise
        return False
    return True
