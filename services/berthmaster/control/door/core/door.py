"""The door's answers. Pure: the log, the facts, requests and the time are passed in.

- A cluster gets data about itself only, and reports about itself only. The subject of a request
  names the cluster, and NATS permissions tie the subject to the cluster's key. The door compares
  each message with the subject.
- A cursor is a sequence of a named log. Example: the log is X, and hints are kept from 900 on. A
  cursor 950 of X gets the hints after 950. A cursor 800 of X, or any cursor of log Y, gets a list
  of all open workloads.
- A request that names a later sequence than the door has read waits. No answer is older than the
  agent's view.
"""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from berthmaster.control.door.core.bounds import Buckets, FleetView, InHand, Limits, StoredFact
from berthmaster.control.door.core.log_view import Frozen, LogView, StoredHint
from berthmaster.control.door.core.receipts import Receipts
from berthmaster.lib.door_client.raw_replies import RawFact, RawFacts, RawHint, RawTake
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.door import (
    MAX_AGENT_BYTES,
    MAX_REPORTED,
    FactsRequest,
    PlacementReceipt,
    PodLogEnd,
    ReportedFact,
    ReportOutcome,
    ReportRequest,
    StoryReply,
    StoryRequest,
    TakeRequest,
)
from berthmaster.lib.messages.explain import explain_malformed, explain_validation
from berthmaster.lib.messages.families import (
    JOB_FIGURES,
    REPORT_REQUESTS,
    REPORTED_FACTS,
    UNREADABLE,
    Reader,
    encode,
)
from berthmaster.lib.messages.fleet import ClusterProfile
from berthmaster.lib.messages.telemetry import job_key
from berthmaster.lib.messages.terms import Interval, Moment, Number
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.message_subjects import fact_subject
from berthmaster.lib.profiles.metrics import plausible

PAGE_BYTES: Final = 256 * 1024  # of an answer. The largest event or fact still fits behind
LETTERS_AT_ONCE: Final = 20
FIGURES_BURST_S: Final = 8.0  # jobs that start together report together
AGAIN_S: Final = 0.25  # time in which a cluster's full share of requests is mostly served
T = TypeVar("T", bound=msgspec.Struct)


class _Head(msgspec.Struct):
    """Fields of a node's telemetry for its subject and order. Readers decode the rest."""

    cluster: str
    node: str
    epoch: Number = 0
    counter: Number = 0
    observed_at_s: Moment = 0.0
    interval_s: Interval = 0.0


class _Reader(msgspec.Struct):
    """Field of a log chunk for its recipient."""

    reader: str


_READER: Final = msgspec.json.Decoder(_Reader)
_HEAD: Final = msgspec.json.Decoder(_Head)


def decoded(kind: type[T], decoder: Reader[T], data: bytes) -> T | Refusal:
    """Return a request, or a refusal of a malformed one."""
    if len(data) > MAX_AGENT_BYTES:
        return Refusal(
            code="too_large",
            field="",
            value=f"{len(data)} bytes",
            expected=f"at most {MAX_AGENT_BYTES} bytes",
        )
    try:
        return decoder.decode(data or b"{}")
    except msgspec.ValidationError as error:
        return explain_validation(kind, data, error)
    except UNREADABLE as error:
        return explain_malformed(data, error)


class _RawReport(msgspec.Struct):
    """A ReportRequest with a malformed fact."""

    facts: Annotated[tuple[msgspec.Raw, ...], Meta(min_length=1, max_length=MAX_REPORTED)]


_RAW_REPORTS: Final = msgspec.json.Decoder(_RawReport)


def reported(data: bytes) -> Sequence[ReportedFact | ReportOutcome] | Refusal:
    """Return the facts of a report, or a refusal of the report. A malformed fact is replaced by its
    outcome, so that the others are stored.
    """
    request = decoded(ReportRequest, REPORT_REQUESTS, data)
    if isinstance(request, ReportRequest):
        return request.facts
    try:
        each = _RAW_REPORTS.decode(data)
    except UNREADABLE:
        return request
    return [_fact_or_fault(bytes(raw)) for raw in each.facts]


def _fact_or_fault(data: bytes) -> ReportedFact | ReportOutcome:
    fact = decoded(ReportedFact, REPORTED_FACTS, data)
    if isinstance(fact, ReportedFact):
        return fact
    why = f"{fact.field} is {fact.value}; right is {fact.expected}"
    return ReportOutcome(result="forbidden", why=why)


class PassedFigures(NamedTuple):
    """A job's usage metrics as the door forwards them."""

    subject: str  # "" = dropped
    data: bytes
    refused: int  # number of values left out


class Door:
    def __init__(self, limits: Limits, key: bytes = b"") -> None:
        """``key`` signs receipts."""
        self._limits = limits
        self.receipts = Receipts(key)
        self.log = LogView()
        self.log_name = ""
        self.fleet = FleetView(limits.max_facts, limits.max_facts_bytes)
        self.fleet_name = ""
        self.in_hand = InHand(limits.max_requests, limits.max_items)
        rate = limits.requests_bytes_per_s
        self._asked = Buckets(rate, limits.requests_burst_bytes)
        self._fact_bytes = Buckets(limits.facts_bytes_per_s, limits.facts_burst_bytes)
        self._readings = Buckets(limits.telemetry_per_s, limits.telemetry_per_s)
        rate = limits.telemetry_bytes_per_s
        self._reading_bytes = Buckets(rate, 2 * rate)
        rate = limits.figures_bytes_per_s
        self._figures_bytes = Buckets(rate, FIGURES_BURST_S * rate)
        rate = limits.logs_bytes_per_s
        self._logged = Buckets(rate, 2 * rate)
        self._letters = Buckets(limits.letters_per_minute / 60, LETTERS_AT_ONCE)
        self._reads = Buckets(limits.read_bytes_per_s, limits.read_burst_bytes)

    def log_replaced(self) -> None:
        """Drop the view of the log, which is read again from its beginning."""
        self.log = LogView()
        self.log_name = ""

    # Open workloads and their events

    def take(self, cluster: str, request: TakeRequest) -> RawTake | None:
        """Return the answer, or None if there is nothing yet."""
        log, after = self.log, request.after
        same = request.log == self.log_name
        if request.page and same:
            if log.position < after:
                return None
            return self._list(cluster, request.page, after)
        if not same or not after or (after <= log.position and not log.follows(cluster, after)):
            # Never 0, because 0 would request the list again.
            return self._list(cluster, "", max(1, log.position))
        hints = log.since(cluster, after, PAGE_BYTES)
        if not hints:
            return None
        return RawTake(cursor=hints[-1].sequence, log=self.log_name, hints=self._raw(hints))

    def nothing(self, request: TakeRequest) -> RawTake:
        """Return the empty answer after the full wait."""
        page = request.page  # of a list that this replica has not read far enough to continue
        cursor = request.after if page else max(request.after, self.log.position)
        return RawTake(cursor=cursor, log=self.log_name, reset=bool(page), next=page)

    def _list(self, cluster: str, page: str, cursor: int) -> RawTake:
        hints, next_page = self.log.listed(cluster, page, PAGE_BYTES)
        return RawTake(
            cursor=cursor, log=self.log_name, reset=True, next=next_page, hints=self._raw(hints)
        )

    def _raw(self, hints: list[StoredHint]) -> tuple[RawHint, ...]:
        return tuple(
            RawHint(
                sequence=hint.sequence,
                event=msgspec.Raw(hint.event),
                held=hint.held,
                # A claimed attempt's executor has the receipt, or reads one with the story.
                receipt=self._signed(None if hint.held else hint.receipt),
            )
            for hint in hints
        )

    def _signed(self, receipt: PlacementReceipt | None) -> str:
        return self.receipts.signed(receipt) if receipt is not None else ""

    def story(self, cluster: str, request: StoryRequest) -> StoryReply | None:
        """Return the state of a workload. None means: the log has not been read that far."""
        if request.after > max(1, self.log.position):  # 1: the cursor of an empty list
            return None
        name = request.tenant, request.id
        found = self.log.story(cluster, *name)
        if isinstance(found, Frozen):
            return StoryReply(failed=found.why)
        held = self.receipts.opened(request.receipt) if request.receipt else None
        if found and held and held.attempt == found.attempt and held.digest != found.digest:
            return StoryReply(why="what is held there is of another job that had its id before")
        return StoryReply(workload=found, receipt=self._signed(self.log.receipt(cluster, *name)))

    # Facts

    def facts(self, cluster: str, request: FactsRequest) -> RawFacts | None:
        """Return the answer, or None if there is nothing new yet."""
        same = request.log == self.fleet_name
        after = request.after if same else 0
        found, more = self.fleet.since(cluster, request.kinds, after, PAGE_BYTES)
        if not found and after:
            return None
        return RawFacts(
            cursor=found[-1].sequence if found else after,
            log=self.fleet_name,
            reset=not after,
            more=more,
            epoch=self.fleet.epoch(cluster),
            facts=tuple(map(_raw_fact, found)),
        )

    def no_facts(self, cluster: str, request: FactsRequest) -> RawFacts:
        """Return the empty answer after the full wait."""
        epoch = self.fleet.epoch(cluster)
        return RawFacts(cursor=request.after, log=self.fleet_name, epoch=epoch)

    def admit(
        self, cluster: str, told: ReportedFact, now_s: float
    ) -> tuple[str, bytes] | ReportOutcome:
        """Return subject and body of a fact to store, or the reason of a refusal."""
        fact = told.fact
        if fact.cluster != cluster:
            return ReportOutcome(result="forbidden", why="cluster: it is another cluster's fact")
        try:
            subject = fact_subject(fact)
        except subjects.SubjectError as error:
            return ReportOutcome(result="forbidden", why=str(error))
        if isinstance(fact, ClusterProfile):
            fact = self._dated(fact, now_s)
        data = encode(fact)
        most = self._limits.max_fact_bytes
        if len(data) > most:
            why = f"{len(data)} bytes; a fact has at most {most}"
            return ReportOutcome(result="too_large", why=why)
        if why := self.fleet.room(cluster, subject, len(data)):
            return ReportOutcome(result="too_many", why=why)
        if not self._fact_bytes.take(cluster, len(data), now_s):
            return ReportOutcome(result="unavailable", why="too many bytes of facts; come again")
        return subject, data

    def _dated(self, profile: ClusterProfile, now_s: float) -> ClusterProfile:
        """Return the profile with the time at which its uid was first stored. The agent's own time
        does not count: an earlier time would give the agent's cluster precedence over another.
        """
        before = self.fleet.profile(profile.cluster)
        since_s = now_s if before is None or before.uid != profile.uid else before.uid_since_s
        return msgspec.structs.replace(profile, uid_since_s=since_s if profile.uid else 0.0)

    # Forwarding

    def telemetry(self, cluster: str, data: bytes, now_s: float) -> str:
        """Return the subject to forward a node's telemetry to, or "" to drop the message."""
        size = len(data)
        if size > self._limits.max_telemetry_bytes:
            return ""
        if not self._readings.take(cluster, 1, now_s):
            return ""
        if not self._reading_bytes.take(cluster, size, now_s):
            return ""
        try:
            head = _HEAD.decode(data)
            subject = subjects.telemetry(head.cluster, head.node)
        except (subjects.SubjectError, *UNREADABLE):
            return ""
        return subject if head.cluster == cluster else ""

    def figures(self, cluster: str, data: bytes, now_s: float) -> PassedFigures:
        """Return a job's usage metrics with their subject, "" to drop them. Only the cluster with
        this attempt may report a tenant's job. The attempt's former cluster may send the last
        message. Impossible values are left out.
        """
        dropped = PassedFigures("", b"", 0)
        size = len(data)
        if size > self._limits.max_figures_bytes:
            return dropped
        if not self._figures_bytes.take(cluster, size, now_s):
            return dropped
        try:
            job = JOB_FIGURES.decode(data)
            subject = subjects.job_figures(job.tenant or None, job.cluster, job_key(job))
        except (subjects.SubjectError, *UNREADABLE):
            return dropped
        if job.cluster != cluster:
            return dropped
        if job.tenant:
            is_theirs = self.log.had if job.ended else self.log.has
            if not is_theirs(cluster, key(job.tenant, job.id), job.attempt):
                return dropped
        right, refused = plausible(job)
        return PassedFigures(subject, encode(right) if refused else data, refused)

    def log_chunk(self, cluster: str, data: bytes, now_s: float) -> str:
        """Return the subject to forward a log chunk to, or "" to drop the chunk. Only the gateway
        knows whether the chunk was requested.
        """
        if not self.may_log(cluster, len(data), now_s):
            return ""
        try:
            return subjects.log_chunks(cluster, _READER.decode(data).reader)
        except (subjects.SubjectError, *UNREADABLE):
            return ""

    def may_log(self, cluster: str, size: int, now_s: float) -> bool:
        """Return whether the cluster may send this number of log bytes now."""
        return self._logged.take(cluster, size, now_s)

    def may_ask(self, cluster: str, size: int, now_s: float) -> bool:
        """Return whether the cluster may send requests of this number of bytes now."""
        return self._asked.take(cluster, size, now_s)

    def may_keep_end(self, cluster: str, end: PodLogEnd) -> bool:
        """Return whether the pod's attempt is or was in this cluster."""
        return self.log.had(cluster, key(end.tenant, end.id), end.attempt)

    def may_read(self, cluster: str, now_s: float) -> bool:
        """Return whether the cluster may read, after its latest reads."""
        return self._reads.take(cluster, 0, now_s)

    def reads_again_s(self, cluster: str) -> float:
        """Return the seconds until the cluster may read again, from the last check."""
        return self._reads.of(cluster).again_s()

    def was_read(self, cluster: str, size: int) -> None:
        self._reads.of(cluster).owe(size)

    @property
    def letter_again_s(self) -> float:
        """Return the seconds until one more dead letter may be stored."""
        per_minute = self._limits.letters_per_minute
        return 60 / per_minute if per_minute else 60.0

    def may_bury(self, cluster: str, now_s: float) -> bool:
        """Return whether one more dead letter of this cluster's agent may be stored."""
        return self._letters.take(cluster, 1, now_s)


def unavailable(expected: str) -> Refusal:
    """Return a temporary refusal. Another replica, or this one a little later, can answer."""
    return Refusal(code="unavailable", field="", value="", expected=expected, retry=True)


def overloaded(expected: str, again_s: float = AGAIN_S) -> Refusal:
    """Return a refusal of too much load of one cluster. ``again_s``: seconds before a retry."""
    return Refusal(
        code="overloaded",
        field="",
        value="",
        expected=expected,
        retry=True,
        retry_after_s=round(max(again_s, AGAIN_S), 3),
    )


def _raw_fact(fact: StoredFact) -> RawFact:
    return RawFact(
        sequence=fact.sequence, stored_at_s=fact.stored_at_s, fact=msgspec.Raw(fact.data)
    )
