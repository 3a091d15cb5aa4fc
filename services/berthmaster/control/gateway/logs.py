"""The verb ``logs``: find a job's log, request more from the cluster's agent and answer followers.

1. A tenant requests a log, and the gateway looks up the cluster of the job.
2. Only this cluster gets the request, under a random number known to no other party.
3. The door names the cluster of each answer. The gateway accepts only an answer of that cluster
   under that number.

At most one request is open for a log, for any number of followers.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.gateway.core.answers import overloaded, unavailable
from berthmaster.control.gateway.core.log_feeds import LogFeed, LogFeeds, LogKey, Read
from berthmaster.control.gateway.core.workload_index import WorkloadIndex, state_name
from berthmaster.lib.jobs.lines import START, Cursor, CursorError, beyond, parse_cursor
from berthmaster.lib.jobs.pace import Pace
from berthmaster.lib.lifecycle.states import HELD
from berthmaster.lib.messages.api import (
    GetReply,
    LogsReply,
    LogsRequest,
    Refusal,
    WorkloadStateName,
)
from berthmaster.lib.messages.door import MAX_LOG_ENDS, LogAsk, LogChunk
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.families import LOG_CHUNKS, UNREADABLE, encode
from berthmaster.lib.messages.families import LOG_ENDS as READ_END
from berthmaster.lib.messages.records import LogEnd
from berthmaster.lib.messages.workload import Placed
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import LOG_ENDS
from berthmaster.lib.requests import validation

ANSWER_LIMIT_S: Final = 3.0  # beyond the time that an agent is asked to wait
LOOK_S: Final = 0.25  # between two checks of whether the job has started
END_COMES_S: Final = 10.0  # after an ending, during which the end of the log may still arrive
START_KEPT_S: Final = 1.0  # in which followers that start in the same way share the answer

NOTHING: Final = Read(b"", START, False)

Reply = LogsReply | Refusal
Story = Callable[[str, str], Awaitable[GetReply | Refusal]]


class _Place(NamedTuple):
    state: WorkloadStateName
    attempt: int
    cluster: str
    is_live: bool
    changed_at_s: float


class _Starts(NamedTuple):
    at_s: float
    answer: "asyncio.Task[LogChunk | None]"


class LogReader:
    def __init__(
        self,
        conn: Connection,
        view: Callable[[], WorkloadIndex],
        story: Story,
        *,
        feeds: int,
        feed_bytes: int,
        tenant_bytes_per_s: float,
    ) -> None:
        self._conn = conn
        self._view = view
        self._story = story
        self._me = f"gateway-{secrets.token_hex(4)}"
        self._feeds = LogFeeds(feeds, feed_bytes)
        self._rate = tenant_bytes_per_s
        self._paces: dict[str, Pace] = {}
        self._asked: dict[str, tuple[str, asyncio.Future[LogChunk]]] = {}  # by request number
        self._asking: dict[LogKey, asyncio.Task[LogChunk | None]] = {}
        self._starts: dict[tuple[LogKey, int | None, float | None], _Starts] = {}
        self.asks = 0  # for metrics and tests

    async def listen(self, conn: Connection) -> None:
        """Receive the agents' answers by a connection of their own, because log chunks are
        large.
        """
        await conn.observe(subjects.log_chunks_for(self._me), self._on_chunk)

    def _on_chunk(self, subject: str, data: bytes) -> None:
        try:
            cluster, _ = subjects.parse_log_chunks(subject)
            chunk = LOG_CHUNKS.decode(data)
            parse_cursor(chunk.cursor)
        except (subjects.SubjectError, CursorError, *UNREADABLE):
            return
        asked, answer = self._asked.get(chunk.ask, ("", None))
        if answer is not None and asked == cluster and not answer.done():
            answer.set_result(chunk)

    # One request

    async def answer(self, tenant: str, data: bytes) -> Reply:
        """Answer one request within its time limit."""
        if wrong := validation.tenant_refusal(tenant):
            return wrong
        request = validation.logs_request(data)
        if isinstance(request, Refusal):
            return request
        attempt, _, text = request.after.rpartition("/")
        try:
            after = parse_cursor(text)
        except CursorError as error:
            return invalid(["after"], request.after, str(error))
        deadline_s = self._conn.now() + request.wait_s
        while True:
            place = await self._place(tenant, request)
            if isinstance(place, Refusal):
                return place
            if attempt and attempt != str(place.attempt):
                after = START  # another attempt is read from its beginning
            reply = await self._read(tenant, request, place, after, deadline_s)
            if reply is not None:
                return reply
            left_s = deadline_s - self._conn.now()
            if left_s <= 0:
                return self._empty(tenant, request, place, after)
            await asyncio.sleep(min(LOOK_S, left_s))

    async def _place(self, tenant: str, request: LogsRequest) -> _Place | Refusal:
        work = self._view().find(tenant, request.id)
        if work is not None and not request.previous:
            if work.parts:
                parts = ", ".join(part.id for part in work.parts)
                right = f"one of its parts, as it is divided over clusters: {parts}"
                return invalid(["id"], request.id, right)
            state = state_name(work.shown)
            live = work.state in HELD
            return _Place(state, work.attempt, work.cluster, live, work.changed_at_s)
        found = await self._story(tenant, request.id)
        if isinstance(found, Refusal):
            return found
        view = found.workload
        attempt = view.attempt - request.previous
        if request.previous and attempt < 1:
            return invalid(["previous"], True, f"false: it has had {view.attempt} attempts")
        placed = [one.event for one in found.story if isinstance(one.event, Placed)]
        clusters = [event.cluster for event in placed if event.attempt == attempt]
        cluster = clusters[-1] if clusters else view.cluster
        return _Place(view.state, attempt, cluster, False, view.changed_at_s)

    async def _read(
        self, tenant: str, request: LogsRequest, place: _Place, after: Cursor, deadline_s: float
    ) -> Reply | None:
        """Return the answer. None means: empty now, but more may come later."""
        if not place.attempt or not place.cluster:
            return (
                None if place.state in ("queued", "placed") else self._none(tenant, request, place)
            )
        key = LogKey(tenant, request.id, place.attempt, place.cluster, request.pod)
        if place.is_live:
            return await self._live(key, request, place, after, deadline_s)
        if place.state in ("queued", "placed") and not request.previous:
            return None
        return await self._kept(key, request, place, after)

    async def _live(
        self, key: LogKey, request: LogsRequest, place: _Place, after: Cursor, deadline_s: float
    ) -> Reply | None:
        now_s = self._conn.now()
        pace = self._paces.setdefault(key.tenant, Pace(self._rate))
        if (wait_s := pace.wait_s(now_s)) > 0:
            if now_s + wait_s > deadline_s:
                return overloaded(f"{self._rate / (1 << 20):g} MiB/s of logs of a tenant", wait_s)
            await asyncio.sleep(wait_s)
        feed = self._feeds.of(key, now_s)
        if feed is None:
            return overloaded("fewer logs that are followed at once; ask again", 1.0)
        wait_s = max(0.0, min(deadline_s - now_s, request.wait_s))
        if not after.lines:
            chunk = await self._start(key, request)
            if chunk is None or (chunk.why and not chunk.data):
                why = f"{key.cluster} does not answer" if chunk is None else chunk.why
                return self._reply(request, key, place, note=why) if wait_s <= LOOK_S else None
            if feed.cursor is None and chunk.data:
                feed.take(START, chunk)
            feed.pods = chunk.pods
            pace.read(len(chunk.data), now_s)
            cursor = parse_cursor(chunk.cursor)
            return self._reply(
                request, key, place, Read(chunk.data, cursor, False), pods=chunk.pods
            )
        found = feed.read(after)
        if found is None:
            await self._more(key, feed, after, wait_s)
            found = feed.read(after)
        if found is None:
            return None
        pace.read(len(found.data), now_s)
        return self._reply(request, key, place, found, pods=feed.pods)

    async def _start(self, key: LogKey, request: LogsRequest) -> LogChunk | None:
        """Return the first chunk of a follower. Followers that start in the same way at the same
        time share one chunk.
        """
        now_s = asyncio.get_running_loop().time()
        for name, old in list(self._starts.items()):
            if now_s - old.at_s > START_KEPT_S and old.answer.done():
                del self._starts[name]
        alike = key, request.tail, request.since_s
        begun = self._starts.get(alike)
        if begun is None or now_s - begun.at_s > START_KEPT_S:
            ask = self._ask(key, START, 0.0, tail=request.tail, since_s=request.since_s)
            begun = self._starts[alike] = _Starts(now_s, asyncio.create_task(ask))
        return await asyncio.shield(begun.answer)

    async def _more(self, key: LogKey, feed: LogFeed, after: Cursor, wait_s: float) -> None:
        """Wait until the one open request for this log is answered."""
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask_behind(key, feed, after, wait_s))
            self._asking[key] = asking
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        await asyncio.wait({asking}, timeout=wait_s + ANSWER_LIMIT_S)

    async def _ask_behind(
        self, key: LogKey, feed: LogFeed, after: Cursor, wait_s: float
    ) -> LogChunk | None:
        chunk = await self._ask(key, after, wait_s)
        if chunk is not None:
            feed.take(after, chunk)
        return chunk

    async def _ask(
        self,
        key: LogKey,
        after: Cursor,
        wait_s: float,
        *,
        tail: int | None = None,
        since_s: float | None = None,
    ) -> LogChunk | None:
        """Send one request to the cluster of the job and return the answer. None means no
        answer.
        """
        ask = secrets.token_hex(16)
        answer: asyncio.Future[LogChunk] = asyncio.get_running_loop().create_future()
        self._asked[ask] = (key.cluster, answer)
        self.asks += 1
        wanted = LogAsk(
            ask=ask,
            reader=self._me,
            tenant=key.tenant,
            id=key.id,
            attempt=key.attempt,
            pod=key.pod,
            after=str(after),
            tail=tail,
            since_s=since_s,
            wait_s=wait_s,
        )
        try:
            await self._conn.publish(subjects.assign_logs(key.cluster), encode(wanted))
            async with asyncio.timeout(wait_s + ANSWER_LIMIT_S):
                return await answer
        except (TimeoutError, BusError):
            return None
        finally:
            del self._asked[ask]

    # The stored ends of logs

    async def _kept(
        self, key: LogKey, request: LogsRequest, place: _Place, after: Cursor
    ) -> Reply | None:
        end = await self._end_of(key)
        if isinstance(end, Refusal):
            return end
        if end is None:
            fresh = self._conn.now() - place.changed_at_s < END_COMES_S
            if fresh and request.wait_s:
                return None
            note = await self._other_pods(key)
            return self._none(key.tenant, request, place, note, ended=not fresh)
        data = beyond(end.data, after)
        if not after.lines and request.tail is not None:
            data = (
                b"".join(data.splitlines(keepends=True)[-request.tail :]) if request.tail else b""
            )
        return LogsReply(
            tenant=key.tenant,
            id=key.id,
            state=place.state,
            attempt=key.attempt,
            cluster=key.cluster,
            pod=key.pod,
            pods=end.pods,
            data=data,
            cursor=request.after,
            cut=end.cut and not after.lines,
            kept=True,
            ended=True,
        )

    async def _end_of(self, key: LogKey) -> LogEnd | Refusal | None:
        """Return the stored end of one pod's log, or None."""
        subject = subjects.log_end(key.tenant, key.id, key.attempt, key.cluster, key.pod)
        try:
            message = await last_message(self._conn, LOG_ENDS, subject)
        except BusError as error:
            return unavailable(str(error))
        if message is None:
            return None
        try:
            end: LogEnd = READ_END.decode(message.data)
        except UNREADABLE as error:
            return unavailable(f"the end of its log cannot be read: {error}")
        return end

    async def _other_pods(self, key: LogKey) -> str:
        """Return a note about the pods with a stored log when this pod has none, or ""."""
        first = await self._end_of(key._replace(pod=0)) if key.pod else None
        if not isinstance(first, LogEnd):
            return ""
        if key.pod >= first.pods:
            return f"pod {key.pod}: it had pods 0 to {first.pods - 1}"
        return (
            f"nothing is kept of pod {key.pod}: it wrote nothing, "
            f"or is none of the first {MAX_LOG_ENDS} pods"
        )

    # Replies

    def _none(
        self,
        tenant: str,
        request: LogsRequest,
        place: _Place,
        note: str = "",
        *,
        ended: bool = True,
    ) -> LogsReply:
        note = note or "nothing is kept of its log: that is done for a day, where it can be read"
        if not place.attempt:
            note = "it never had a place, so it wrote nothing"
        return self._empty(tenant, request, place, START, note=note, ended=ended)

    def _empty(
        self,
        tenant: str,
        request: LogsRequest,
        place: _Place,
        after: Cursor,
        *,
        note: str = "",
        ended: bool = False,
    ) -> LogsReply:
        if not note and place.state in ("queued", "placed"):
            note = "it has not begun"
        return LogsReply(
            tenant=tenant,
            id=request.id,
            state=place.state,
            attempt=place.attempt,
            cluster=place.cluster,
            pod=request.pod,
            cursor=f"{place.attempt}/{after}" if after.lines else "",
            ended=ended,
            note=note,
        )

    def _reply(
        self,
        request: LogsRequest,
        key: LogKey,
        place: _Place,
        read: Read = NOTHING,
        *,
        pods: int = 0,
        note: str = "",
    ) -> LogsReply:
        return msgspec.structs.replace(
            self._empty(key.tenant, request, place, read.cursor, note=note),
            data=read.data,
            pods=pods,
            cut=read.cut,
        )
