"""Client of the door (agent API) for services in a worker cluster, which use no other part of the
bus.

Example: ``follow`` lists all open placements at cursor 930, then polls from 930 on. After a lost
connection, and every 30 s, ``follow`` lists again, so that a missed placement is found.

- A request without an answer is repeated, with growing pauses. Another or a restarted replica then
  answers.
- An event is repeated with the same bytes and the same guard, and so stored only once.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from berthmaster.lib.door_client.raw_replies import RawHint, RawTake
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.door import (
    MAX_AGENT_BYTES,
    MAX_POLL_S,
    MAX_TOLD,
    DeadRequest,
    GreetReply,
    GreetRequest,
    HintEvent,
    LeaseName,
    LeaseReply,
    LeaseRequest,
    OwnWorkload,
    StoryReply,
    StoryRequest,
    TakeRequest,
    TellOutcome,
    TellReply,
)
from berthmaster.lib.messages.families import NUDGES, UNREADABLE, encode
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotConnected, TooLarge
from berthmaster.lib.runtime import lease
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.candidacy import Record
from berthmaster.lib.runtime.lease import ANSWER_SHARE, Outdated, StoreAway
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.periodic import stopped_within
from berthmaster.lib.runtime.redact import excerpt, redact, redact_bytes

ASK_TIMEOUT_S: Final = 4.0
REPORT_LIMIT_S: Final = 10.0
POLL_GRACE_S: Final = 2.0  # for the answer at the end of a poll
SILENT_S: Final = 3 * MAX_POLL_S  # a follower gets an answer within the time of a poll
GREET_AFTER_S: Final = MAX_POLL_S  # after this time without an answer, since nothing was requested
NUDGE_GRACE_S: Final = 0.25  # the poll's own answer is usually on its way
LIST_EVERY_S: Final = 30.0
REQUESTS_IN_FLIGHT: Final = 8  # concurrent reports; events that arrive meanwhile are batched
REPORT_BYTES: Final = MAX_AGENT_BYTES // 2
LONGEST_TOLD_S: Final = 5.0  # maximum wait that the door may impose before a repetition
RECONNECT_POLL_S: Final = 1.0
FORGET_AFTER: Final = 20  # failed reads of event histories: the log was truncated or restored
MAX_LETTER_BYTES: Final = 64 * 1024
_PAUSES: Final = Backoff(first_s=0.05, most_s=5.0)
_REPORT_PAUSES: Final = Backoff(first_s=0.02, most_s=1.0)
T = TypeVar("T")

_OTHERS: Final = msgspec.json.Decoder(GreetReply | TellReply | StoryReply | LeaseReply | Refusal)
_HINT_EVENTS: Final = msgspec.json.Decoder(HintEvent)


class DoorRefused(BusError):
    """The door refused. ``refusal`` says whether a repetition may help."""

    def __init__(self, refusal: Refusal) -> None:
        where = f"{refusal.field}: " if refusal.field else ""
        super().__init__(f"{where}{refusal.expected}")
        self.refusal = refusal


class Taken(NamedTuple):
    event: HintEvent
    sequence: int
    held: bool  # in a list: an executor has claimed it
    receipt: str = ""  # of a placement


class Heard(NamedTuple):
    """Hints in order. ``listed``: all open hints of the cluster."""

    hints: Sequence[Taken]
    listed: bool
    cursor: int
    renewed: bool = False  # the log was replaced, or an accepted loss changed its state


class Story(NamedTuple):
    workload: Workload | None  # None unless open in this cluster
    failed: str = ""  # why its events cannot be decoded
    receipt: str = ""  # of its placement
    why: str = ""  # why the caller's receipt does not match the log
    now_s: float = 0.0  # the server's time of the reply, 0 = unknown


class _Tale:
    def __init__(self, event: WorkloadEvent) -> None:
        self.event = event
        self.data = encode(event)
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class DoorClient:
    """One cluster's client of the door."""

    def __init__(self, conn: Connection, cluster: str) -> None:
        self.conn = conn
        self.cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._received_s = self._loop.time()
        # highest sequence read; a workload is never read from an older state of the log
        self._seen = 0
        self._log_name = ""
        self._unreported: deque[_Tale] = deque()
        self._reports = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._chance = random.Random()
        # verb -> earliest time of the next request, set by the door
        self._not_before_s: dict[str, float] = {}

    @property
    def log(self) -> LogLike:
        return self.conn.log

    def now(self) -> float:
        """Return the server's time."""
        return self.conn.now()

    @property
    def seen(self) -> int:
        """Return the highest log sequence in the door's answers."""
        return self._seen

    @property
    def silent(self) -> str:
        """Return an error after a long time without an answer, for services that send requests
        constantly; "" = none.
        """
        silent_s = self._loop.time() - self._received_s
        return f"the door has not answered for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    async def ask(
        self, verb: str, request: msgspec.Struct | bytes, *, timeout_s: float = ASK_TIMEOUT_S
    ) -> bytes:
        """Send one request and return the raw answer, unless a refusal. Raises BusError.

        Waits first as long as the door's last refusal of this verb demanded.
        """
        data = request if isinstance(request, bytes) else encode(request)
        pause_s = self._not_before_s.get(verb, 0.0) - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        reply = await self.conn.request(
            subjects.agent(self.cluster, verb), data, timeout_s=timeout_s
        )
        self._received_s = self._loop.time()
        if reply.data.startswith(b'{"type":"api.refusal.'):
            refusal = _OTHERS.decode(reply.data)
            if isinstance(refusal, Refusal):
                wait_s = min(refusal.retry_after_s, LONGEST_TOLD_S)
                self._not_before_s[verb] = self._loop.time() + wait_s
                raise DoorRefused(refusal)
        return reply.data

    async def _request_reply(
        self, verb: str, request: msgspec.Struct | bytes, *, timeout_s: float = ASK_TIMEOUT_S
    ) -> GreetReply | TellReply | StoryReply | LeaseReply:
        reply: GreetReply | TellReply | StoryReply | LeaseReply | Refusal
        try:
            reply = _OTHERS.decode(await self.ask(verb, request, timeout_s=timeout_s))
        except UNREADABLE as error:
            raise NoAnswer(f"an answer of the door cannot be read: {error}") from error
        if isinstance(reply, Refusal):
            raise DoorRefused(reply)
        return reply

    async def hello(self) -> GreetReply:
        """Greet the door, which proves that the door answers. Raises BusError."""
        return _of(GreetReply, await self._request_reply("hello", GreetRequest()))

    async def keep_greeting(self, stopping: asyncio.Event) -> None:
        """Greet the door after each poll's time without an answer, until the service stops.

        A service that only publishes, or has nothing to publish, sends no other request. ``silent``
        must depend on the door, not on how little the service sends.
        """
        while not stopping.is_set():
            wait_s = self._received_s + GREET_AFTER_S - self._loop.time()
            if wait_s <= 0:
                try:
                    await self.hello()
                except BusError:
                    wait_s = GREET_AFTER_S  # ``silent`` reports the duration
            await stopped_within(wait_s, stopping)

    async def connected(self) -> None:
        """Wait for the server to be connected, instead of sending requests to an absent one."""
        back = asyncio.Event()
        forget = self.conn.when_reconnected(back.set)
        try:
            while not self.conn.connected:
                back.clear()
                try:
                    async with asyncio.timeout(RECONNECT_POLL_S):
                        await back.wait()
                except TimeoutError:
                    pass
        finally:
            forget()

    # Reporting

    async def append(self, event: WorkloadEvent) -> Outcome:
        """Store an event if the workload is still at ``event.after``. Returns Unknown only after a
        time limit. Raises TooLarge.
        """
        tale = _Tale(event)
        if len(tale.data) > REPORT_BYTES:
            raise TooLarge(f"{len(tale.data)} bytes; an event has at most {REPORT_BYTES}")
        self._unreported.append(tale)
        self._report_more()
        return await tale.outcome

    def _report_more(self) -> None:
        """Send waiting events in batches, as soon as a request may be sent."""
        while self._unreported and self._reports < REQUESTS_IN_FLIGHT:
            tales: list[_Tale] = []
            size = 0
            while self._unreported and len(tales) < MAX_TOLD:
                size += len(self._unreported[0].data)
                if tales and size > REPORT_BYTES:
                    break
                tale = self._unreported.popleft()
                if not tale.outcome.cancelled():
                    tales.append(tale)
            if tales:
                self._reports += 1
                task = self._loop.create_task(self._report(tales))
                self._tasks.add(task)
                task.add_done_callback(self._on_report_done)

    def _on_report_done(self, task: asyncio.Task[None]) -> None:
        self._reports -= 1
        self._tasks.discard(task)
        self._report_more()

    async def _report(self, tales: list[_Tale]) -> None:
        """Send until each event has its outcome, or the time limit passes."""
        deadline = self._loop.time() + REPORT_LIMIT_S
        again = False
        failures = 0
        while tales:
            why = ""
            body = b",".join(tale.data for tale in tales)
            flag = b',"again":true' if again else b""
            try:
                reply = await self._request_reply(
                    "tell", b'{"events":[' + body + b"]" + flag + b"}"
                )
                tell_reply = _of(TellReply, reply)
                self._seen = max(self._seen, tell_reply.position)
                for tale, outcome in zip(tales, tell_reply.outcomes, strict=True):
                    again |= outcome.result == "unknown"
                    why = outcome.why or outcome.result
                    self._settle(tale, outcome)
            except DoorRefused as error:
                why = str(error)
                if not error.refusal.retry:
                    failures = -1
            except (NoAnswer, NotConnected) as error:
                again, why = True, str(error)
            except (BusError, ValueError) as error:
                failures, why = -1, str(error)
            tales = [tale for tale in tales if not tale.outcome.done()]
            if failures < 0 or self._loop.time() >= deadline:
                for tale in tales:
                    tale.outcome.set_result(Unknown(why))
                return
            if tales:
                failures += 1
                await asyncio.sleep(_REPORT_PAUSES.delay_s(failures, self._chance))

    def _settle(self, tale: _Tale, outcome: TellOutcome) -> None:
        if tale.outcome.done():
            return
        match outcome.result:
            case "stored":
                self._seen = max(self._seen, outcome.sequence)
                tale.outcome.set_result(Stored(outcome.sequence))
            case "refused":
                tale.outcome.set_result(Refused())
            case _:
                pass  # unknown outcome, or nothing was done: report again

    # Reading

    async def story(
        self,
        tenant: str,
        workload_id: str,
        *,
        receipt: str = "",
        executor: str = "",
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> Story:
        """Return a workload's current state. Raises BusError.

        ``receipt``: of the placement whose pods ``executor`` holds. If the log has lost the
        placement, the door restores it first.
        """
        request = StoryRequest(
            tenant=tenant, id=workload_id, after=self._seen, receipt=receipt, executor=executor
        )
        reply = _of(StoryReply, await self._request_reply("story", request, timeout_s=timeout_s))
        workload = _folded(reply.workload) if reply.workload is not None else None
        return Story(workload, reply.failed, reply.receipt, reply.why, reply.now_s)

    def forget(self) -> None:
        """Reset the highest sequence, since the log may have been restored."""
        self._seen = 0

    async def follow(
        self, heard: Callable[[Heard], None], *, inquired: Callable[[str], None] = lambda _: None
    ) -> None:
        """Pass on new hints, and at first and repeatedly all open ones, until cancelled.

        ``inquired``: called with an inquiry of `berth recover`, also without new hints.
        """
        wake: asyncio.Event = asyncio.Event()
        lost: asyncio.Event = asyncio.Event()
        newest = 0

        def nudged(_subject: str, data: bytes) -> None:
            nonlocal newest
            try:
                nudge = NUDGES.decode(data)
            except UNREADABLE:
                return
            if nudge.inquiry:
                inquired(nudge.inquiry)
                return
            newest = nudge.sequence
            wake.set()

        subscription = await self.conn.subscribe(subjects.assign(self.cluster), nudged)
        forget = self.conn.when_reconnected(lost.set)
        cursor = 0
        list_at_s = 0.0
        failures = 0
        try:
            while True:
                await self.connected()
                if lost.is_set() or self._loop.time() >= list_at_s:
                    lost.clear()
                    cursor = 0
                wake.clear()
                try:
                    if not cursor:
                        cursor = await self._list(heard)
                        list_at_s = self._loop.time() + LIST_EVERY_S
                    else:
                        left_s = max(0.1, list_at_s - self._loop.time())
                        cursor = await self._take(
                            cursor, min(MAX_POLL_S, left_s), heard, wake, lambda: newest
                        )
                    failures = 0
                except BusError as error:
                    failures += 1
                    if failures == 1:
                        self.log.warning("door does not answer", why=str(error))
                    await asyncio.sleep(_PAUSES.delay_s(failures, self._chance))
        finally:
            forget()
            await subscription.unsubscribe()

    async def _list(self, heard: Callable[[Heard], None]) -> int:
        """Read all open hints, page by page. Raises BusError."""
        first = await self._took(TakeRequest())
        hints = list(first.hints)
        page = first
        while page.next:
            page = await self._took(
                TakeRequest(
                    after=first.cursor, log=first.log, page=page.next, wait_s=ASK_TIMEOUT_S / 2
                )
            )
            if page.log != first.log:
                raise NoAnswer("the log was replaced while it was listed")
            hints += page.hints
        is_renewed = self._log_name not in ("", first.log)
        self._log_name = first.log
        if is_renewed:  # not at the first list: an earlier report may be newer than the list
            self._seen = 0
        self._seen = max(self._seen, first.cursor)
        heard(Heard(self._read(hints), True, first.cursor, is_renewed))
        return first.cursor

    async def _take(
        self,
        cursor: int,
        wait_s: float,
        heard: Callable[[Heard], None],
        wake: asyncio.Event,
        newest: Callable[[], int],
    ) -> int:
        """Send one poll. A wake-up message ends a poll lost with a door. Raises BusError."""
        request = TakeRequest(after=cursor, log=self._log_name, wait_s=wait_s)
        polling = asyncio.ensure_future(self._took(request, wait_s + POLL_GRACE_S))
        try:
            while not polling.done():
                nudge = asyncio.ensure_future(wake.wait())
                try:
                    await asyncio.wait({polling, nudge}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    nudge.cancel()
                if wake.is_set() and not polling.done():
                    wake.clear()
                    await asyncio.wait({polling}, timeout=NUDGE_GRACE_S)
                    if not polling.done() and newest() > cursor:
                        return cursor  # nothing is lost: the next poll begins there
            reply = polling.result()
        finally:
            polling.cancel()
        if reply.reset:
            return 0
        self._seen = max(self._seen, reply.cursor)
        if reply.hints:
            heard(Heard(self._read(reply.hints), False, reply.cursor))
        return reply.cursor

    async def _took(self, request: TakeRequest, timeout_s: float = ASK_TIMEOUT_S) -> RawTake:
        raw = await self.ask("take", request, timeout_s=timeout_s)
        try:
            return msgspec.json.decode(raw, type=RawTake)
        except UNREADABLE as error:
            raise NoAnswer(f"an answer of the door cannot be read: {error}") from error

    def _read(self, hints: Sequence[RawHint]) -> list[Taken]:
        """Return the hints that this version can decode. The door freezes the workload of an event
        undecodable to the door.
        """
        found: list[Taken] = []
        for hint in hints:
            try:
                event = _HINT_EVENTS.decode(hint.event)
            except UNREADABLE as error:
                self.log.error("hint unreadable", sequence=hint.sequence, why=str(error))
                continue
            found.append(Taken(event, hint.sequence, hint.held, hint.receipt))
        return found

    # Other requests

    async def observe(self, data: bytes) -> None:
        """Publish one node's telemetry, unacknowledged. Raises TooLarge, NotConnected."""
        await self.conn.publish(subjects.agent(self.cluster, "telemetry"), data)

    async def figures(self, data: bytes) -> None:
        """Publish one job's usage metrics, unacknowledged. Raises TooLarge, NotConnected."""
        await self.conn.publish(subjects.agent(self.cluster, "figures"), data)

    async def hear_nodes(self, heard: Callable[[str, bytes], None]) -> None:
        """Subscribe to the telemetry of the cluster's nodes, on the way to the door."""
        await self.conn.subscribe(subjects.agent(self.cluster, "telemetry"), heard)

    async def store_dead_letter(
        self, service: str, *, subject: str, reason: str, body: bytes = b"", workload: str = ""
    ) -> bool:
        """Store a dead letter with the reason. Return False on failure: only the log line remains
        then.
        """
        subject, reason = redact(subject)[:2000], excerpt(reason, 2000)
        self.log.error("dead letter", subject=subject, reason=reason, workload=workload)
        try:
            letter = msgspec.convert(
                {
                    "service": service,
                    "subject": subject,
                    "reason": reason,
                    "workload": workload,
                    "body": redact_bytes(body, MAX_LETTER_BYTES),
                },
                DeadRequest,
            )
            await self.ask("dead", letter)
        except (BusError, msgspec.ValidationError) as error:
            self.log.error("dead letter not stored", why=str(error))
            return False
        return True


class DoorLease(lease.Lease):
    """Tries to hold a lease of the cluster as long as ``run`` runs."""

    def __init__(
        self,
        door: DoorClient,
        name: LeaseName,
        holder: str,
        *,
        ttl_s: float,
        on_gained: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            _LeaseStore(door, name, ttl_s * ANSWER_SHARE),
            f"{name}.{subjects.token(door.cluster)}",
            holder,
            ttl_s=ttl_s,
            log=door.log,
            on_gained=on_gained,
            on_lost=on_lost,
        )


class _LeaseStore:
    """A lease's record, read and written through the door."""

    def __init__(self, door: DoorClient, name: LeaseName, timeout_s: float) -> None:
        self._door = door
        self._name: LeaseName = name
        self._timeout_s = timeout_s

    async def read(self) -> Record | None:
        return await self._ask(LeaseRequest(name=self._name))

    async def write(self, over: Record | None, holder: str, ttl_s: float, *, taken: bool) -> Record:
        del taken
        version = int(over.version) if over is not None else 0
        request = LeaseRequest(
            name=self._name, act="write", version=version, holder=holder, ttl_s=ttl_s
        )
        found = await self._ask(request)
        if found is None:
            raise StoreAway("the door did not say what was written")
        return found

    async def release(self, over: Record) -> None:
        await self._ask(
            LeaseRequest(
                name=self._name,
                act="release",
                version=int(over.version),
                holder=over.holder,
                ttl_s=over.ttl_s,
            )
        )

    async def _ask(self, request: LeaseRequest) -> Record | None:
        try:
            reply = _of(
                LeaseReply,
                await self._door._request_reply("lease", request, timeout_s=self._timeout_s),
            )
        except BusError as error:
            raise StoreAway(str(error)) from error
        if reply.outdated:
            raise Outdated("somebody else has written since")
        if not reply.version:
            return None
        return Record(str(reply.version), reply.holder, reply.ttl_s, reply.epoch)


def _of(kind: type[T], reply: object) -> T:
    if not isinstance(reply, kind):
        raise NoAnswer(f"the door answered with a {type(reply).__name__}")
    return reply


def _folded(own: OwnWorkload) -> Workload:
    fields = {name: getattr(own, name) for name in OwnWorkload.__struct_fields__}
    return Workload(**fields | {"state": State(own.state)})
