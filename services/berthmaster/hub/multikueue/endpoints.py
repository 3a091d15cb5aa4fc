"""Answers of the hub's decider: why there, why not yet. Of other cells' workloads it is silent, and
so it is without an id: the resolver sums up."""

from collections.abc import Callable
from typing import Final

from berthmaster.lib.messages.api import Refusal, WhyReply
from berthmaster.lib.messages.families import UNREADABLE, WHY_REQUESTS, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, Endpoints, Fairness, serve
from berthmaster.lib.nats.fair_queue import Share

AT_ONCE: Final = 64  # questions in hand
SHARE: Final = Share(in_hand=AT_ONCE // 3, bytes_in_hand=4 * 1024 * 1024, per_s=500.0)


class WhyEndpoint:
    def __init__(self, conn: Connection, why: Callable[[str, str, float], WhyReply | None]) -> None:
        """``why``: answers about (tenant, id, now); None for unknown workloads."""
        self._conn = conn
        self._why = why

    async def serve(self) -> Endpoints:
        """Start answering."""
        return await serve(
            self._conn,
            "berth-multikueue",
            {"why": Endpoint(subjects.api_of_all_tenants("why"), self._answer)},
            version="1.0.0",
            description="Why there, why not yet, of what goes by way of the hub",
            overloaded=lambda beyond: encode(_busy(f"{beyond.why}; ask again", beyond.again_s)),
            failed=lambda _, error: encode(_busy(f"the question failed: {error}")),
            max_concurrent=AT_ONCE,
            fairness=Fairness(subjects.asker, SHARE),
        )

    async def _answer(self, subject: str, data: bytes) -> bytes | None:
        tenant, _ = subjects.parse_api(subject)
        try:
            request = WHY_REQUESTS.decode(data or b"{}")
        except UNREADABLE:
            return None  # the resolver gets the request too and reports it
        if request.id is None:
            return None
        reply = self._why(tenant, request.id, self._conn.now())
        return encode(reply) if reply is not None else None


def _busy(expected: str, again_s: float = 0.0) -> Refusal:
    return Refusal(
        code="unavailable",
        field="",
        value="",
        expected=expected,
        retry=True,
        retry_after_s=again_s,
    )
