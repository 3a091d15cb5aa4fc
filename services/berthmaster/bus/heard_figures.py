"""The newest figures of each job, for whoever is asked about one. Kept as they came: of thousands
of messages a minute only those are read that somebody asks for.

Figures are observations: after `KEEP_S` without a new message nothing is known of a job any more.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.messages.families import JOB_FIGURES, UNREADABLE
from berthmaster.messages.telemetry import FIGURES_S, JobFigures

KEEP_S: Final = 4 * FIGURES_S
MAX_KEPT: Final = 50_000
MAX_CLUSTERS: Final = 8  # that tell of one job: the one that it was in before may still do


class HeardFigures:
    """Figures of jobs that came through us."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # by subject
        self._clusters: dict[tuple[str, str], list[str]] = {}  # tenant, job -> subjects

    async def listen(self, conn: Connection) -> None:
        """From now on hear all."""
        await conn.subscribe(subjects.job_figures_of(), self.take)

    def take(self, subject: str, data: bytes) -> None:
        """One message."""
        parts = subject.split(".")
        if len(parts) != 5 or parts[2] == subjects.NONE:
            return
        key = (parts[2], parts[4])
        now_s = self._now()
        if subject not in self._kept:
            known = self._clusters.setdefault(key, [])
            if len(known) >= MAX_CLUSTERS:
                return
            known.append(subject)
        self._kept[subject] = (now_s, data)
        self._kept.move_to_end(subject)
        while self._kept:
            oldest, (heard_s, _) = next(iter(self._kept.items()))
            if len(self._kept) <= MAX_KEPT and now_s - heard_s <= KEEP_S:
                return
            self._drop(oldest)

    def _drop(self, subject: str) -> None:
        del self._kept[subject]
        _, _, tenant, _, job = subject.split(".")
        left = [one for one in self._clusters[tenant, job] if one != subject]
        if left:
            self._clusters[tenant, job] = left
        else:
            del self._clusters[tenant, job]

    def of(self, tenant: str, workload: str) -> tuple[JobFigures, ...]:
        """What is known of one job, by cluster."""
        key = (subjects.token(tenant), subjects.token(workload))
        found: list[JobFigures] = []
        for subject in sorted(self._clusters.get(key, ())):
            heard_s, data = self._kept[subject]
            if self._now() - heard_s > KEEP_S:
                continue
            try:
                figures = JOB_FIGURES.decode(data)
            except UNREADABLE:
                continue
            if not figures.ended and (figures.tenant, figures.id) == (tenant, workload):
                found.append(figures)
        return tuple(found)
