"""Answer the verbs ``report``, ``trends``, ``profile`` and ``suggest``, each from one read of the
store.

A separate thread reads reports, one after another. Reports thus cost the writes little, and no more
requests wait than can be answered in time.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from berthmaster.control.usage.core.load import PAST_S, load_report
from berthmaster.control.usage.core.prices import Prices
from berthmaster.control.usage.core.profiles import ProfileRecord, no_profile, profile_reply
from berthmaster.control.usage.core.report import (
    About,
    Asked,
    Beside,
    asked,
    report_of,
    trends_of,
    whose,
    window_of,
)
from berthmaster.control.usage.core.similar import Likeness, jobs_report
from berthmaster.control.usage.core.suggest import Own, Ran, measured, not_known, suggestions
from berthmaster.control.usage.core.usage import OpenJobs, Usage
from berthmaster.control.usage.metrics import UsageMetrics
from berthmaster.control.usage.store import reading
from berthmaster.control.usage.store.database import Database, StoreError
from berthmaster.control.usage.store.reading import Found, TrendRow
from berthmaster.control.usage.store.thread import DatabaseThread
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import decoded
from berthmaster.lib.messages.families import (
    PROFILE_REQUESTS,
    SUGGEST_REQUESTS,
    TRENDS_REQUESTS,
    USAGE_REPORT_REQUESTS,
    encode,
)
from berthmaster.lib.messages.profile import Profile, ProfileRequest
from berthmaster.lib.messages.suggest import Suggestions, SuggestRequest
from berthmaster.lib.messages.usage import Trends, TrendsRequest, UsageReport, UsageReportRequest
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, Endpoints, Fairness, serve
from berthmaster.lib.nats.fair_lock import FairLock
from berthmaster.lib.nats.fair_queue import Beyond, Share

T = TypeVar("T")
Likes = list[ProfileRecord]
NAME: Final = "berth-usage"
AT_ONCE: Final = 16
SHARE: Final = Share(in_hand=6, bytes_in_hand=1024 * 1024, per_s=50.0)
ANSWER_LIMIT_S: Final = 12.0  # a tenant's request lives for 15
READ_LIMIT_S: Final = 10.0
MARGIN_BYTES: Final = 4096
_TO_ASK_LESS_OF: Final[dict[type, str]] = {UsageReport: "limit", Trends: "names"}


class Answers:
    """The endpoints of one replica. ``asked_by`` is a separate connection for requests."""

    def __init__(
        self,
        conn: Connection,
        asked_by: Connection,
        store: DatabaseThread,
        figures: UsageMetrics,
        *,
        prices: Callable[[], Prices | None],
        filled: Callable[[], tuple[float, bool]],
        opened: Callable[[], bool],
        core: Usage,
    ) -> None:
        """``core`` has the state of open jobs."""
        self._conn = conn
        self._asked_by = asked_by
        self._reading = FairLock()  # the thread runs one call at a time
        self._store = store
        self._figures = figures
        self._prices = prices
        self._filled = filled
        self._opened = opened
        self._core = core

    async def serve(self, version: str) -> Endpoints:
        """Start to answer. Raises NotConnected."""
        return await serve(
            self._asked_by,
            NAME,
            {
                "report": Endpoint(subjects.api_of_all_tenants("report"), self._report),
                "trends": Endpoint(subjects.api_of_all_tenants("trends"), self._trends),
                "report_of_all": Endpoint(subjects.operator("report"), self._report),
                "profile": Endpoint(subjects.api_of_all_tenants("profile"), self._profile),
                "profile_of_all": Endpoint(subjects.operator("profile"), self._profile),
                "suggest": Endpoint(subjects.api_of_all_tenants("suggest"), self._suggest),
                "suggest_of_all": Endpoint(subjects.operator("suggest"), self._suggest),
                "trends_of_all": Endpoint(subjects.operator("trends"), self._trends),
            },
            version=version,
            description="What ended jobs used, how figures went, profiles of jobs, suggestions",
            overloaded=_overloaded,
            failed=lambda _, __: encode(_unavailable("the report failed; asking again is safe")),
            max_concurrent=AT_ONCE,
            fairness=Fairness(subjects.asker, SHARE),
            answer_limit_s=ANSWER_LIMIT_S,
        )

    async def _report(self, subject: str, data: bytes) -> bytes:
        request = decoded(UsageReportRequest, USAGE_REPORT_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        ask = asked(_tenant(subject), request, self._conn.now())
        if isinstance(ask, Refusal):
            return encode(ask)
        began_s = asyncio.get_running_loop().time()
        arrivals = ask.request.kind == "load"
        open_ = self._core.open_for(ask.query.filters, ask.request.like, arrivals=arrivals)
        try:
            found, beside, kept_since_ms = await self._read(
                subject, lambda database: _read(database, ask, open_)
            )
        except StoreError as error:
            return encode(_no_store(subject, error))
        if isinstance(beside, Refusal):
            return encode(beside)
        filled_until_s, is_behind = self._filled()
        about = About(self._prices(), filled_until_s, kept_since_ms / 1000, is_behind)
        took_s = asyncio.get_running_loop().time() - began_s
        self._figures.report_s.labels(request.kind).observe(took_s)
        return self._fitted(report_of(ask, found, beside, about))

    async def _trends(self, subject: str, data: bytes) -> bytes:
        request = decoded(TrendsRequest, TRENDS_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        tenant, now_s = _tenant(subject), self._conn.now()
        window = window_of(request, now_s)

        def read(database: Database) -> tuple[list[TrendRow], list[TrendRow]]:
            of_all = reading.trends(database, *window, "")
            return of_all, reading.trends(database, *window, tenant) if tenant else []

        try:
            of_all, own = await self._read(subject, read)
        except StoreError as error:
            return encode(_no_store(subject, error))
        return self._fitted(trends_of(tenant, request, window, of_all, own, now_s))

    async def _profile(self, subject: str, data: bytes) -> bytes:
        request = decoded(ProfileRequest, PROFILE_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        tenant = whose(_tenant(subject), request)
        if isinstance(tenant, Refusal):
            return encode(tenant)
        present = self._core.profiles.of(tenant, request.id)
        likeness = self._core.likeness(tenant, request.id)

        def read(database: Database) -> tuple[list[ProfileRecord], tuple[str, Likes]]:
            stored = reading.profiles(database, tenant, request.id)
            like = likeness or next((one.likeness for one in reversed(stored)), None)
            if not request.like or like is None:
                return stored, ("shape", [])
            return stored, reading.likes(database, tenant, like)

        try:
            stored, (by, likes) = await self._read(subject, read)
        except StoreError as error:
            return encode(_no_store(subject, error))
        if likeness is None and not present and not stored:
            return encode(no_profile(tenant, request.id))
        return self._fitted(profile_reply(tenant, request, stored, present, by, likes))

    async def _suggest(self, subject: str, data: bytes) -> bytes:
        request = decoded(SuggestRequest, SUGGEST_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        tenant = whose(_tenant(subject), request)
        if isinstance(tenant, Refusal):
            return encode(tenant)
        core = self._core
        present = core.profiles.of(tenant, request.id)
        open_own, open_like = core.own(tenant, request.id), core.likeness(tenant, request.id)

        def read(database: Database) -> tuple[Own, str, list[Ran], Likes] | None:
            own = open_own or reading.own(database, tenant, request.id)
            like = open_like or reading.likeness(database, tenant, request.id)
            if own is None or like is None:
                return None
            by, rans = reading.rans(database, tenant, like, own.form.tags)
            stored = [] if present else reading.profiles(database, tenant, request.id)
            return own, by, rans, stored or reading.likes(database, tenant, like)[1]

        try:
            found = await self._read(subject, read)
        except StoreError as error:
            return encode(_no_store(subject, error))
        if found is None:
            return encode(not_known(tenant, request.id))
        own, by, rans, records = found
        use = measured((one.measured_s, one.sketches) for one in present or records)
        slices = core.catalogue.slices()
        return self._fitted(
            suggestions(tenant, request.id, own, by, rans, use, slices, self._prices())
        )

    async def _read(self, subject: str, work: Callable[[Database], T]) -> T:
        if not self._opened():
            raise StoreError("it has not been opened yet")
        async with self._reading.turn(subjects.asker(subject)):
            return await self._store.call(work, limit_s=READ_LIMIT_S)

    def _fitted(self, reply: UsageReport | Trends | Profile | Suggestions) -> bytes:
        data = encode(reply)
        most = self._conn.nc.max_payload - MARGIN_BYTES
        if len(data) <= most:
            return data
        return encode(
            Refusal(
                code="too_large",
                field=_TO_ASK_LESS_OF.get(type(reply), ""),
                value=f"a reply of {len(data)} bytes",
                expected=f"to ask for less: a reply holds at most {most} bytes",
            )
        )


def _read(database: Database, ask: Asked, open_: OpenJobs) -> tuple[Found, Beside | Refusal, int]:
    query = ask.query
    beside: Beside | Refusal = Beside()
    if ask.jobs is not None:
        beside = Beside(jobs=reading.jobs(database, ask.jobs))
    elif ask.request.kind == "jobs":
        beside = _summary(database, ask, open_.like)
    elif ask.request.kind == "load":
        since_ms = min(query.since_ms, query.until_ms - PAST_S * 1000)
        rows = reading.arrivals(database, msgspec.structs.replace(query, since_ms=since_ms))
        rows += open_.arrivals
        beside = Beside(load=load_report(rows, since_ms / 1000, query.until_ms / 1000))
    return reading.report(database, query), beside, reading.kept_since_ms(database)


def _summary(database: Database, ask: Asked, open_: Likeness | None) -> Beside | Refusal:
    query, workload_id = ask.query, ask.request.like
    like = None
    if workload_id:
        tenant = query.filters.get("tenant", "")
        alike = open_ or reading.likeness(database, tenant, workload_id)
        if alike is None:
            return Refusal(
                code="not_found",
                field="like",
                value=workload_id,
                expected=f"an open job of the tenant {tenant!r}, or one that this service stored",
            )
        like = tenant, alike
    by, outcomes = reading.outcomes(database, query, like)
    capped = len(outcomes) > reading.MOST_OUTCOMES
    return Beside(summary=jobs_report(by, outcomes[: reading.MOST_OUTCOMES], capped=capped))


def _tenant(subject: str) -> str | None:
    """Return the tenant of a request, or None for an operator's."""
    return subjects.parse_api(subject)[0] if subjects.asker(subject) else None


def _no_store(subject: str, error: StoreError) -> Refusal:
    """Return a refusal. Tenants do not see the store's address and fault."""
    why = "" if _tenant(subject) is not None else f": {error}"
    return _unavailable(f"the store cannot be read now{why}")


def _unavailable(why: str) -> Refusal:
    return Refusal(code="unavailable", field="", value="", expected=why, retry=True)


def _overloaded(beyond: Beyond) -> bytes:
    return encode(
        Refusal(
            code="overloaded",
            field="",
            value="",
            expected=f"{beyond.why}; ask again",
            retry=True,
            retry_after_s=beyond.again_s,
        )
    )
