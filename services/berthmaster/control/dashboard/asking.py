"""Asks the services that know: where a request would go, why a job waits. Answers of waiting jobs
are kept for some seconds, so that many who look at one list cost as much as one."""

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
AT_ONCE: Final = 8  # questions about waiting jobs on their way
KEPT_S: Final = 5.0
MAX_KEPT: Final = 2_000


class NotAnswered(Exception):
    """Nobody answered in time; the text is for people."""


class Reason(msgspec.Struct):
    """What of a `why` a list shows."""

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
        """The raw reply to a verb of the API. Raises NotAnswered, subjects.SubjectError."""
        return await self.ask_at(subjects.api(tenant, verb), body)

    async def ask_at(self, subject: str, body: Any) -> bytes:
        """The same for any subject. Raises NotAnswered."""
        try:
            reply = await self._conn.request(subject, orjson.dumps(body), timeout_s=LIMIT_S)
        except BusError as error:
            raise NotAnswered(f"nobody answered: {error}") from error
        return reply.data

    async def reasons(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reason]:
        """Why these wait, as far as it could be learned."""
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
                return  # somebody else asked meanwhile
            reason = None
            try:
                reason = _REASON.decode(await self.ask(name[0], "why", {"id": name[1]}))
            except (NotAnswered, subjects.SubjectError, msgspec.DecodeError):
                pass  # the list shows none
            self._kept[name] = _Kept(now_s, reason)
            self._kept.move_to_end(name)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
