"""Requests to other services: reasons of waits, dry runs and event histories.

Reasons of pending jobs are cached for some seconds, so that many users of one list cost as much as
one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from berthmaster.lib.messages.api import Expectation
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError

LIMIT_S: Final = 5.0
AT_ONCE: Final = 8  # open requests about pending jobs
KEPT_S: Final = 5.0
MAX_KEPT: Final = 2_000


class NotAnswered(Exception):
    """No service answered in time. The text is for users."""


class Reason(msgspec.Struct):
    """The part of a `why` reply that a list shows."""

    summary: str = ""
    position: int | None = None
    queue_position: int | None = None
    first_free_s: float | None = None
    expected: Expectation | None = None
    reasons: dict[str, int] = {}
    hints: tuple[str, ...] = ()


class _Kept(NamedTuple):
    at_s: float
    reason: Reason | None


_REASON: Final = msgspec.json.Decoder(Reason)


class Asker:
    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def ask(self, tenant: str, verb: str, body: Any) -> bytes:
        """Return the raw reply to a verb of the API. Raises NotAnswered, subjects.SubjectError."""
        return await self.ask_at(subjects.api(tenant, verb), body)

    async def ask_at(self, subject: str, body: Any) -> bytes:
        """Return the raw reply of any subject. Raises NotAnswered."""
        try:
            reply = await self._conn.request(subject, orjson.dumps(body), timeout_s=LIMIT_S)
        except BusError as error:
            raise NotAnswered(f"nobody answered: {error}") from error
        return reply.data

    async def reasons(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reason]:
        """Return the reasons of the waits, as far as services answered."""
        wanted = list(dict.fromkeys(names))
        await asyncio.gather(*(self._learn(name) for name in wanted))
        found = ((name, self._kept.get(name)) for name in wanted)
        return {name: kept.reason for name, kept in found if kept is not None and kept.reason}

    async def _learn(self, name: tuple[str, str]) -> None:
        kept = self._kept.get(name)
        now_s = asyncio.get_running_loop().time()
        if kept is not None and now_s - kept.at_s < KEPT_S:
            return
        async with self._at_once:
            kept = self._kept.get(name)
            if kept is not None and now_s - kept.at_s < KEPT_S:
                return  # another request has filled the cache
            reason = None
            try:
                reason = _REASON.decode(await self.ask(name[0], "why", {"id": name[1]}))
            except (NotAnswered, subjects.SubjectError, msgspec.DecodeError):
                pass  # the list shows no reason
            self._kept[name] = _Kept(now_s, reason)
            self._kept.move_to_end(name)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
