"""The newest usage metrics of each job, stored undecoded: few of thousands a minute are read.

Metrics are observations, and expire `KEEP_S` after the job's last message. Each cluster has its own
table, bounded in bytes. Example: an agent sends metrics of 56,000 jobs. The oldest metrics of the
agent's cluster are dropped, and no metrics of another cluster.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from berthmaster.lib.messages.families import JOB_FIGURES, UNREADABLE
from berthmaster.lib.messages.telemetry import FIGURES_S, JobFigures
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection

KEEP_S: Final = 4 * FIGURES_S
MAX_OF_CLUSTER: Final = 32 * 1024 * 1024  # bytes; some 25,000 jobs
BESIDE: Final = 512  # bytes of overhead for one message
MAX_CLUSTERS: Final = 8  # clusters that report a job: the previous cluster may still report
_Job = tuple[str, str]  # tenant and id, as tokens


class _Message(NamedTuple):
    received_s: float
    data: bytes


class _Table:
    """The messages of one cluster, oldest first."""

    def __init__(self) -> None:
        self.messages: OrderedDict[_Job, _Message] = OrderedDict()
        self.size = 0

    def put(self, job: _Job, message: _Message) -> bool:
        """Store the newest message about a job. Return whether the job is new here."""
        before = self.messages.pop(job, None)
        self.messages[job] = message
        self.size += len(message.data) - (len(before.data) if before is not None else -BESIDE)
        return before is None

    def drop(self, job: _Job) -> None:
        self.size -= len(self.messages.pop(job).data) + BESIDE

    def is_over(self, now_s: float) -> bool:
        """Return whether the table is too large, or the oldest message too old."""
        if not self.messages:
            return False
        oldest = next(iter(self.messages.values()))
        return self.size > MAX_OF_CLUSTER or now_s - oldest.received_s > KEEP_S


class LatestFigures:
    """Usage metrics of Berthmaster's jobs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tables: OrderedDict[str, _Table] = OrderedDict()  # by cluster; silent ones first
        self._clusters: dict[_Job, list[str]] = {}

    async def listen(self, conn: Connection) -> None:
        await conn.observe(subjects.job_figures_of(), self.take)

    def take(self, subject: str, data: bytes) -> None:
        parts = subject.split(".")
        if len(parts) != 5 or parts[2] == subjects.NONE:
            return
        job, cluster = (parts[2], parts[4]), parts[3]
        now_s = self._now()
        table = self._tables.get(cluster)
        if table is None:
            table = self._tables[cluster] = _Table()
        if table.put(job, _Message(now_s, data)):
            known = self._clusters.setdefault(job, [])
            known.append(cluster)
            if len(known) > MAX_CLUSTERS:  # the job left the first cluster long ago
                self._forget(known[0], job)
        self._tables.move_to_end(cluster)
        self._tidy(cluster, now_s)
        silent = next(iter(self._tables))
        if silent != cluster:
            self._tidy(silent, now_s)

    def _tidy(self, cluster: str, now_s: float) -> None:
        table = self._tables[cluster]
        while table.is_over(now_s):
            self._forget(cluster, next(iter(table.messages)))

    def _forget(self, cluster: str, job: _Job) -> None:
        table = self._tables[cluster]
        table.drop(job)
        if not table.messages:
            del self._tables[cluster]
        known = self._clusters[job]
        known.remove(cluster)
        if not known:
            del self._clusters[job]

    def of(self, tenant: str, workload: str) -> tuple[JobFigures, ...]:
        """Return the known metrics of one job, by cluster."""
        job = (subjects.token(tenant), subjects.token(workload))
        found: list[JobFigures] = []
        for cluster in sorted(self._clusters.get(job, ())):
            message = self._tables[cluster].messages[job]
            if self._now() - message.received_s > KEEP_S:
                continue
            try:
                figures = JOB_FIGURES.decode(message.data)
            except UNREADABLE:
                continue
            if not figures.ended and (figures.tenant, figures.id) == (tenant, workload):
                found.append(figures)
        return tuple(found)
