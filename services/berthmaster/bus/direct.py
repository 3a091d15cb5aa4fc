"""Reads a stream in order without a consumer, for users who may make none.

A consumer delivers to whatever subject its maker names, so only services that decide may make them.
Dashboards and watchers ask the stream for batches instead, every POLL_S: first the last value of
each subject where the follower wants those, then all that came behind.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from berthmaster.bus.errors import NoAnswer
from berthmaster.bus.log import message_of
from berthmaster.bus.nats_py import Msg, Subscription
from berthmaster.bus.nats_py import errors as nats_errors
from berthmaster.bus.recorded import Recorded
from berthmaster.bus.subjects import covers

if TYPE_CHECKING:
    from berthmaster.bus.follow import Follower

POLL_S: Final = 0.2
BATCH: Final = 512  # messages of one answer; a server takes at most 1,024 subjects at once
NOTHING: Final = "404"  # the stream has no such message
PAGE: Final = 100_000  # subjects in one answer of the server's


class _State(msgspec.Struct):
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Subjects(msgspec.Struct):
    state: _State


_SUBJECTS: Final = msgspec.json.Decoder(_Subjects)


class DirectSession:
    """One connection's time of reading; the sibling of follow.py's session with a consumer."""

    def __init__(
        self,
        follower: "Follower",
        handle: Callable[[Recorded], None],
        caught_up: Callable[[], None] | None,
    ) -> None:
        self._follower = follower
        self._conn = follower._conn
        self._handle = handle
        self._caught_up = caught_up
        self._inbox = self._conn.nc.new_inbox()
        self._subscription: Subscription | None = None
        self._batch: list[Recorded] = []
        self._ended: asyncio.Future[int] | None = None  # how many are left behind the batch
        self.told = False
        self.failure: Exception | None = None

    async def open(self, *, relist: bool) -> None:
        """List the last values, if wanted. Raises BusError."""
        self._subscription = await self._conn.subscribe_raw(self._inbox, self._each)
        if relist:
            last, names = await self._subjects()
            found = [each async for each in self._last_of(names) if each.sequence <= last]
            for each in sorted(found, key=lambda recorded: recorded.sequence):
                self._take(each)
            self._follower.sequence = max(self._follower.sequence, last)
        await self._read_on()

    async def watch(self, relist_s: float | None) -> bool:
        """Read on until the handler failed (False) or it is time to list anew (True). Raises
        BusError."""
        loop = asyncio.get_running_loop()
        relist_at = None if relist_s is None else loop.time() + relist_s
        while self.failure is None:
            if relist_at is not None and loop.time() >= relist_at:
                return True
            await asyncio.sleep(POLL_S)
            if self._conn.connected:
                await self._read_on()
        return False

    async def close(self) -> None:
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except (nats_errors.Error, OSError):
                pass  # the connection is gone, and the subscription with it

    async def _read_on(self) -> None:
        """Handle all that is behind the last message that was handled."""
        follower = self._follower
        filters = follower._filters
        only = filters[0] if len(filters) == 1 else ">"
        left = 1
        while left and self.failure is None:
            asked = {"seq": follower.sequence + 1, "batch": BATCH, "next_by_subj": only}
            batch, left = await self._ask(asked)
            for each in batch:
                if not filters or any(covers(one, each.subject) for one in filters):
                    self._take(each)
                follower.sequence = max(follower.sequence, each.sequence)
        if self.failure is None and not self.told:
            self.told = follower.caught_up = True
            if self._caught_up is not None:
                self._call(self._caught_up)

    async def _subjects(self) -> tuple[int, list[str]]:
        """The stream's last sequence, and its subjects that the follower wants."""
        names: set[str] = set()
        last = None
        for only in self._follower._filters or [">"]:
            offset = 0
            while True:
                asked = {"subjects_filter": only, "offset": offset}
                stream = f"STREAM.INFO.{self._follower._stream}"
                state = _SUBJECTS.decode(
                    await self._conn.api(stream, asked, timeout_s=self._follower._answer_s)
                ).state
                last = state.last_seq if last is None else last
                page = state.subjects or {}
                names |= set(page)
                offset += len(page)
                if len(page) < PAGE:
                    break
        return last or 0, sorted(names)

    async def _last_of(self, names: list[str]) -> AsyncIterator[Recorded]:
        for at in range(0, len(names), BATCH):
            part = names[at : at + BATCH]
            batch, _ = await self._ask({"multi_last": part, "batch": len(part)})
            for each in batch:
                yield each

    async def _ask(self, asked: dict[str, Any]) -> tuple[Iterable[Recorded], int]:
        """The messages of one answer, and how many are left. Raises BusError."""
        self._batch, self._ended = [], asyncio.get_running_loop().create_future()
        try:
            subject = self._conn.api_subject(f"DIRECT.GET.{self._follower._stream}")
            await self._conn.publish(subject, msgspec.json.encode(asked), reply=self._inbox)
            async with asyncio.timeout(self._follower._answer_s):
                left = await self._ended
        except TimeoutError as error:
            raise NoAnswer(f"no batch of stream {self._follower._stream} came in time") from error
        finally:
            self._ended = None
        self._follower.last_heard_s = asyncio.get_running_loop().time()
        return self._batch, left

    async def _each(self, msg: Msg) -> None:
        ended = self._ended
        if ended is None or ended.done():
            return  # of a batch that nobody waits for
        headers = msg.headers or {}
        if "Nats-Subject" in headers:
            self._batch.append(_recorded(headers, msg.data))
        elif headers.get("Status") == NOTHING or "Nats-Num-Pending" in headers:
            ended.set_result(int(headers.get("Nats-Num-Pending", 0)))
        else:
            why = headers.get("Description", "") or headers.get("Status", "no status")
            ended.set_exception(NoAnswer(f"no batch of {self._follower._stream}: {why}"))

    def _take(self, recorded: Recorded) -> None:
        if self.failure is None:
            self._call(lambda: self._handle(recorded))

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 # the owner's fault: it must hear of it
            self.failure = error


def _recorded(headers: dict[str, str], data: bytes) -> Recorded:
    found = message_of(headers, data)
    pending = int(headers.get("Nats-Num-Pending", 0))
    return Recorded(found.subject, found.sequence, found.stored_at_s, found.data, pending)
