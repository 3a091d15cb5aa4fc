"""How one cluster's logs are read between asks, with a source of the test's own."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.messages.door import LogAsk, LogChunk
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.logs import LogDesk, NoLog

FIRST = b"2026-11-24T10:00:00Z one\n"
SECOND = b"2026-11-24T10:00:01Z two\n"


class Breaking:
    """The first stream that follows breaks behind the first line; later ones have all."""

    def __init__(self) -> None:
        self.opened: list[tuple[float | None, bool]] = []

    async def pods(self, attempt: Attempt) -> Sequence[str]:
        return ["train-1-0"]

    async def open(
        self, attempt: Attempt, pod: str, *, since_s: float | None, tail: int | None, follow: bool
    ) -> "Stream":
        self.opened.append((since_s, follow))
        breaks = sum(followed for _, followed in self.opened) == 1 and follow
        return Stream([FIRST], breaks=True) if breaks else Stream([FIRST, SECOND, b""])


class Stream:
    def __init__(self, told: list[bytes], *, breaks: bool = False) -> None:
        self.told = told
        self.breaks = breaks

    async def read(self) -> bytes:
        if not self.told and self.breaks:
            raise NoLog("the connection broke")
        return self.told.pop(0)

    def close(self) -> None:
        pass


def test_a_stream_that_breaks_is_opened_anew_where_its_reader_was() -> None:
    asyncio.run(_a_stream_that_breaks())


async def _a_stream_that_breaks() -> None:
    source = Breaking()
    desk = LogDesk(cast(DoorClient, None), source, bytes_per_s=1e9)

    async def ask(after: str) -> LogChunk:
        fields: dict[str, Any] = {"tenant": "acme", "id": "train", "attempt": 1, "after": after}
        return await desk._chunk(LogAsk(ask="a", reader="gateway-1", **fields))

    behind = (await ask("")).cursor.replace("01000000000.1", "00000000000.1")
    with pytest.raises(NoLog, match="broke"):
        await ask(behind)
    chunk = await ask(behind)
    assert (chunk.data, chunk.ended) == (SECOND, True)
    assert [follow for _, follow in source.opened] == [False, True, True]
