"""Store scores, one at a time for each cluster, while the lease is held.

A newer score of the same cluster replaces a waiting one. Waiting scores are thus bounded by the
number of clusters, and a slow write for one cluster delays no other.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from berthmaster.control.scorer.core.instructions import PutScore
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.facts import FactWriter


class Publisher:
    """Performs PutScore."""

    def __init__(
        self,
        writer: FactWriter,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        *,
        may_write: Callable[[], bool],
        on_stored: Callable[[PutScore], None],
        on_failed: Callable[[PutScore, str], None],
    ) -> None:
        self._writer = writer
        self._spawn = spawn
        self._may_write = may_write
        self._on_stored = on_stored
        self._on_failed = on_failed
        self._waiting: dict[str, PutScore] = {}
        self._busy: set[str] = set()

    def put(self, score: PutScore) -> None:
        """Store a score soon, and replace the waiting score of the same cluster."""
        cluster = score.fact.cluster
        self._waiting[cluster] = score
        if cluster not in self._busy:
            self._busy.add(cluster)
            self._spawn(self._drain(cluster), f"score of {cluster}")

    async def _drain(self, cluster: str) -> None:
        try:
            while (score := self._waiting.pop(cluster, None)) is not None:
                await self._store(score)
        finally:
            self._busy.discard(cluster)

    async def _store(self, score: PutScore) -> None:
        if not self._may_write():
            # Another replica publishes now, or the renewal is late and the core repeats the score.
            return self._on_failed(score, "the lease is not held")
        try:
            await self._writer.put(subjects.score(score.fact.cluster), score.fact)
        except BusError as error:
            self._on_failed(score, str(error))
        else:
            self._on_stored(score)
        return None
