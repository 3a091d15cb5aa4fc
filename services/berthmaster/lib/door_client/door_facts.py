"""A cluster's own facts through the door (agent API): reported in batches, mirrored by polls."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from berthmaster.lib.door_client.client import DoorClient, DoorRefused
from berthmaster.lib.door_client.raw_replies import RawFacts
from berthmaster.lib.messages.door import (
    MAX_AGENT_BYTES,
    MAX_REPORTED,
    FactKind,
    FactsRequest,
    ReportedFact,
    ReportOutcome,
    ReportReply,
)
from berthmaster.lib.messages.families import FLEET_FACTS, UNREADABLE, encode
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    CopyReport,
    FleetFact,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotPermitted, TooLarge
from berthmaster.lib.nats.fact_stamps import Seen, Stamps
from berthmaster.lib.nats.message_subjects import fact_subject
from berthmaster.lib.runtime.backoff import Backoff

REPORT_BYTES: Final = MAX_AGENT_BYTES // 2
BETWEEN_POLLS_S: Final = 0.5  # facts change often, and each answer contains all changes
POLL_S: Final = 5.0  # each answer also proves that the door is up
RELIST_S: Final = 600.0
_PAUSES: Final = Backoff(first_s=0.1, most_s=10.0)
_REPORTS: Final = msgspec.json.Decoder(ReportReply)
_FACTS: Final = msgspec.json.Decoder(RawFacts)


async def _read(
    door: DoorClient, kinds: Sequence[FactKind], after: int, log: str, wait_s: float = 0.0
) -> RawFacts:
    request = FactsRequest(kinds=tuple(kinds), after=after, log=log, wait_s=wait_s)
    try:
        return _FACTS.decode(await door.ask("facts", request, timeout_s=wait_s + 4.0))
    except UNREADABLE as error:
        raise NoAnswer(f"an answer of the door cannot be read: {error}") from error


class DoorFacts(Stamps):
    """Writes a cluster's facts, as the Writer of lib/nats/reporting.py."""

    def __init__(self, door: DoorClient) -> None:
        super().__init__()
        self._door = door
        self._waiting: list[tuple[bytes, asyncio.Future[ReportOutcome]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> list[FleetFact]:
        """Begin an incarnation. Return the facts of earlier ones. Raises BusError."""
        found: list[FleetFact] = []
        page = await _read(self._door, (), 0, "")
        epoch = page.epoch
        while True:
            found += [seen.fact for seen in _seen(self._door, page)]
            if not page.more:
                break
            page = await _read(self._door, (), page.cursor, page.log)
            epoch = max(epoch, page.epoch)
        self.new_life(epoch, self._door.now())
        return found

    async def put(self, subject: str, fact: FleetFact, *, keep_s: float | None = None) -> int:
        """Store a fact and return its sequence. Facts put in one pass of the event loop are sent
        together. Raises BusError.
        """
        del subject  # derived from the fact by the door
        if not isinstance(
            fact,
            ClusterAlive | ClusterProfile | NodeReport | NodeGone | QueueReport | CopyReport,
        ):
            raise NotPermitted(f"a {type(fact).__name__} is no agent's to tell")
        data = encode(ReportedFact(fact=fact, keep_s=keep_s))
        if len(data) > REPORT_BYTES:
            raise TooLarge(f"{len(data)} bytes; a fact has at most {REPORT_BYTES}")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[ReportOutcome] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((data, outcome))
        report_outcome = await outcome
        match report_outcome.result:
            case "stored":
                return report_outcome.sequence
            case "unavailable":
                raise NoAnswer(report_outcome.why)
            case "forbidden":
                raise NotPermitted(report_outcome.why)
            case _:
                raise TooLarge(report_outcome.why)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        while waiting:
            size = count = 0
            for data, _ in waiting[:MAX_REPORTED]:
                size += len(data)
                if count and size > REPORT_BYTES:
                    break
                count += 1
            part, waiting = waiting[:count], waiting[count:]
            task = asyncio.get_running_loop().create_task(self._report(part))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _report(self, part: list[tuple[bytes, asyncio.Future[ReportOutcome]]]) -> None:
        body = b'{"facts":[' + b",".join(data for data, _ in part) + b"]}"
        try:
            reply = _REPORTS.decode(await self._door.ask("report", body))
            outcomes = reply.outcomes
        except UNREADABLE as error:
            outcomes = (ReportOutcome(result="unavailable", why=str(error)),) * len(part)
        except DoorRefused as error:
            result = "unavailable" if error.refusal.retry else "too_large"
            outcomes = (msgspec.convert({"result": result, "why": str(error)}, ReportOutcome),)
            outcomes *= len(part)
        except BusError as error:
            outcomes = (ReportOutcome(result="unavailable", why=str(error)),) * len(part)
        for (_, future), outcome in zip(part, outcomes, strict=False):
            if not future.done():
                future.set_result(outcome)


def _seen(door: DoorClient, page: RawFacts) -> list[Seen]:
    found: list[Seen] = []
    for one in page.facts:
        try:
            fact = FLEET_FACTS.decode(one.fact)
        except UNREADABLE as error:
            door.log.warning("fact unreadable", sequence=one.sequence, why=str(error))
            continue
        found.append(Seen(fact_subject(fact), one.sequence, one.stored_at_s, fact))
    return found


class DoorMirror:
    """This cluster's facts of some kinds, kept up to date. Callbacks as FactMirror's."""

    def __init__(
        self,
        door: DoorClient,
        kinds: Sequence[FactKind],
        *,
        on_fact: Callable[[Seen], None],
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        self._door = door
        self._kinds = kinds
        self._on_fact = on_fact
        self._on_gone = on_gone
        self._known: dict[str, int] = {}
        self._chance = random.Random()
        self.last_heard_s = 0.0  # event loop time

    async def run(self, *, caught_up: Callable[[], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        failures = cursor = 0
        log = ""
        list_at_s = 0.0
        listed: set[str] | None = None
        while True:
            await self._door.connected()
            if loop.time() >= list_at_s:
                list_at_s = loop.time() + RELIST_S
                cursor, log = 0, ""
            wait_s = POLL_S if cursor else 0.0
            try:
                page = await _read(self._door, self._kinds, cursor, log, wait_s)
            except BusError as error:
                failures += 1
                if failures == 1:
                    self._door.log.warning("cluster facts unreadable", why=str(error))
                await asyncio.sleep(_PAUSES.delay_s(failures, self._chance))
                continue
            failures = 0
            self.last_heard_s = loop.time()
            if page.reset:
                listed = set()
            if page.log != log:
                # sequences of the previous log are invalid
                self._known = dict.fromkeys(self._known, 0)
            cursor, log = page.cursor, page.log
            for seen in _seen(self._door, page):
                if listed is not None:
                    listed.add(seen.subject)
                if self._known.get(seen.subject, 0) < seen.sequence:
                    self._known[seen.subject] = seen.sequence
                    self._on_fact(seen)
            if page.more:
                continue
            if listed is not None:
                self._forget_unlisted(listed)
                listed = None
                if caught_up is not None:
                    caught_up()
            await asyncio.sleep(BETWEEN_POLLS_S)

    def _forget_unlisted(self, listed: set[str]) -> None:
        for subject in sorted(set(self._known) - listed):
            del self._known[subject]
            if self._on_gone is not None:
                self._on_gone(subject)
