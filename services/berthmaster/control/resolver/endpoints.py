"""Endpoints of a resolver: why, dry_run, whatif, gpus and cordons.

``Questions`` serves the endpoints of one replica. Example: ``why`` for a job placed by decision 12
needs that decision. The core keeps recent decisions only, so the endpoint first reads 12 from the
log or the archive, and then asks the core.

``whatif`` and ``gpus`` work in steps. Decisions run in between and get at least as much time.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Final, TypeVar

import msgspec

from berthmaster.control.resolver.core.answers import explain, gpus
from berthmaster.control.resolver.core.answers.leaving import cordons
from berthmaster.control.resolver.core.answers.whatif import Budget, whatif
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.api import (
    CordonsRequest,
    GpusRequest,
    Refusal,
    WhatifReply,
    WhatifRequest,
    WhyReply,
    WhyRequest,
)
from berthmaster.lib.messages.explain import decoded
from berthmaster.lib.messages.families import (
    CORDONS_REQUESTS,
    DECISIONS,
    GPUS_REQUESTS,
    UNREADABLE,
    WHATIF_REQUESTS,
    WHY_REQUESTS,
    encode,
)
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, Endpoints, Fairness, serve
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.fair_lock import FairLock
from berthmaster.lib.nats.fair_queue import PORTION, Share
from berthmaster.lib.nats.latest_figures import LatestFigures
from berthmaster.lib.nats.stream_connection import RequestConnections
from berthmaster.lib.nats.stream_reads import last_message, next_message
from berthmaster.lib.nats.streams import ARCHIVE, WORKLOADS
from berthmaster.lib.requests.queues import NO_QUEUES, taken
from berthmaster.lib.requests.validation import job_request

R = TypeVar("R")
AT_ONCE: Final = 64  # questions in hand
# A third of the total for one tenant, so that several tenants fit.
SHARE: Final = Share(in_hand=AT_ONCE // 3, bytes_in_hand=4 * 1024 * 1024, per_s=500.0)
WHATIF_LIMIT_S: Final = 2.0  # of work; the reply has the results so far
STRETCH_S: Final = 0.002  # of steps in one go
BATCH_HEADROOM: Final = 1000  # maximum distance of a decision before its events


class Questions:
    """Endpoints of one replica. Reads use the first connection, requests arrive on the others.
    ``ready`` returns whether the core has caught up.
    """

    def __init__(
        self,
        conn: Connection,
        heard_by: RequestConnections,
        core: Resolver,
        ready: Callable[[], bool],
    ) -> None:
        self._conn = conn
        self._heard_by = heard_by
        self._core = core
        self._ready = ready
        self._heard = LatestFigures(conn.now)
        self._counting = FairLock()  # one ``gpus`` request at a time
        self._supposing = FairLock()  # one copy of the knowledge at a time

    async def serve(self) -> Endpoints:
        await self._heard.listen(self._heard_by.observed)
        return await serve(
            self._heard_by.general,
            "berth-resolver",
            {
                "why": Endpoint(subjects.api_of_all_tenants("why"), self._answer_why, PORTION // 2),
                "dry_run": Endpoint(
                    subjects.api_of_all_tenants("dry_run"), self._answer_dry_run, PORTION // 2
                ),
                "whatif": Endpoint(
                    subjects.api_of_all_tenants("whatif"), self._answer_whatif, PORTION // 2
                ),
                "gpus": Endpoint(subjects.api_of_all_tenants("gpus"), self._answer_gpus, PORTION),
                "cordons": Endpoint(subjects.operator("cordons"), self._answer_cordons),
                "whatif_of_all": Endpoint(subjects.operator("whatif"), self._answer_whatif),
            },
            version="1.0.0",
            description="Why there, why not yet, and what if",
            overloaded=lambda beyond: encode(_busy(f"{beyond.why}; ask again", beyond.again_s)),
            failed=lambda _, error: encode(_busy(f"the question failed: {error}")),
            max_concurrent=AT_ONCE,
            fairness=Fairness(subjects.asker, SHARE),
        )

    async def _answer_why(self, subject: str, data: bytes) -> bytes | None:
        tenant, _ = subjects.parse_api(subject)
        request = decoded(WhyRequest, WHY_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        if not self._ready():
            return encode(_busy("still catching up with the log; ask again"))
        if request.id is not None:
            if key(tenant, request.id) in self._core.know.elsewhere:
                return None  # the resolver of the other cell gets the same request
            await self._have_decision(tenant, request.id)
        know, policy, now_s = self._core.know, self._core.policy, self._conn.now()
        if request.id is None:
            return encode(explain.why_all(know, policy, now_s, tenant))
        known, blind = self._core.decisions, self._core.blind
        reply = explain.why(know, policy, now_s, tenant, request.id, known, blind=blind)
        if isinstance(reply, WhyReply):
            figures = self._heard.of(tenant, request.id)
            reply = msgspec.structs.replace(reply, figures=figures) if figures else reply
        return encode(reply)

    async def _answer_dry_run(self, subject: str, data: bytes) -> bytes:
        tenant, _ = subjects.parse_api(subject)
        request = job_request(data)
        if isinstance(request, Refusal):
            return encode(request)
        if not self._ready():
            return encode(_busy("still catching up with the log; ask again"))
        know = self._core.know
        waiting = know.derived.lines.waiting(request.queue)
        queues = {**NO_QUEUES, **know.queues}
        filled = taken(queues, know.runtimes, tenant, request, {request.queue: waiting})
        if isinstance(filled, Refusal):
            return encode(filled)
        now_s = self._conn.now()
        return encode(explain.dry_run(know, self._core.policy, now_s, tenant, filled))

    async def _answer_gpus(self, subject: str, data: bytes) -> bytes:
        tenant, _ = subjects.parse_api(subject)
        request = decoded(GpusRequest, GPUS_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        async with self._counting.turn(subjects.asker(subject)):
            if not self._ready():
                return encode(_busy("still catching up with the log; ask again"))
            know, policy = self._core.know, self._core.policy
            steps = gpus.stock(know, policy, self._conn.now(), tenant, request)
            return encode(await _worked(steps))

    async def _answer_cordons(self, _: str, data: bytes) -> bytes:
        request = decoded(CordonsRequest, CORDONS_REQUESTS, data or b"{}")
        if isinstance(request, Refusal):
            return encode(request)
        if not self._ready():
            return encode(_busy("still catching up with the log; ask again"))
        know, policy = self._core.know, self._core.policy
        return encode(cordons(know, policy, self._conn.now(), request.cluster))

    async def _answer_whatif(self, subject: str, data: bytes) -> bytes:
        of_all = subject == subjects.operator("whatif")
        tenant = None if of_all else subjects.parse_api(subject)[0]
        request = decoded(WhatifRequest, WHATIF_REQUESTS, data)
        if isinstance(request, Refusal):
            return encode(request)
        async with self._supposing.turn(subjects.asker(subject)):
            if not self._ready():
                return encode(_busy("still catching up with the log; ask again"))
            return encode(await self._suppose(tenant, request))

    async def _suppose(self, tenant: str | None, request: WhatifRequest) -> WhatifReply | Refusal:
        """Run the steps; what is not looked at within the limit the reply says."""
        budget = Budget()
        know, policy = self._core.know, self._core.policy
        steps = whatif(know, policy, self._conn.now(), tenant, request, budget)

        def worked(work_s: float) -> None:
            budget.spent = work_s > WHATIF_LIMIT_S

        return await _worked(steps, worked)

    async def _have_decision(self, tenant: str, workload_id: str) -> None:
        """Read the decision that placed a workload, if the core no longer has it."""
        workload = self._core.know.open.get(key(tenant, workload_id))
        if workload is None or not workload.decision:
            return
        if workload.decision in self._core.decisions:
            return
        try:
            decision = await self._read_decision(tenant, workload_id, workload.decision)
        except (BusError, *UNREADABLE) as error:
            self._conn.log.warning("old decision unreadable", why=str(error))
            return
        if decision is not None:
            self._core.remember(decision)

    async def _read_decision(self, tenant: str, workload_id: str, number: int) -> Decision | None:
        chain = subjects.decision(self._core.cell)
        filter_ = subjects.aggregate_kind(tenant, workload_id, "placed")
        placed = await last_message(self._conn, WORKLOADS, filter_)
        at = max(1, placed.sequence - BATCH_HEADROOM) if placed is not None else 0
        while placed is not None and 0 < at < placed.sequence:
            found = await next_message(self._conn, WORKLOADS, chain, at)
            if found is None or found.sequence > placed.sequence:
                break
            decision = DECISIONS.decode(found.data)
            if decision.number == number:
                return decision
            at = found.sequence + 1
        bucket, at = subjects.archived_decision(self._core.cell, number), 1
        while (archived := await next_message(self._conn, ARCHIVE, bucket, at)) is not None:
            decision = DECISIONS.decode(archived.data)
            if decision.number == number:
                return decision
            at = archived.sequence + 1
        return None


async def _worked(
    steps: Generator[None, None, R], worked: Callable[[float], None] = lambda _: None
) -> R:
    """Run the steps, and pause after each for as long as it took. ``worked`` gets the
    total so far.
    """
    loop = asyncio.get_running_loop()
    worked_s = stretch_s = 0.0
    while True:
        began_s = loop.time()
        try:
            next(steps)
        except StopIteration as done:
            reply: R = done.value
            return reply
        took_s = loop.time() - began_s
        worked_s, stretch_s = worked_s + took_s, stretch_s + took_s
        worked(worked_s)
        if stretch_s > STRETCH_S:
            await asyncio.sleep(stretch_s)
            stretch_s = 0.0


def _busy(expected: str, again_s: float = 0.0) -> Refusal:
    return Refusal(
        code="unavailable",
        field="",
        value="",
        expected=expected,
        retry=True,
        retry_after_s=again_s,
    )
