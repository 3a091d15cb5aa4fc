"""Fold the bus's messages into the page's state. Pure: times are passed in.

Two kinds of state exist. Data that changes by itself is on the board, which all browsers read.
Details of one job or node are made on request (details.py).

- Nothing here is the truth. A lost sample, a late fact or an unreadable event makes a page older,
  but never silently wrong: ages are shown.
- Every document has an audience (board.py). Documents with the jobs of several tenants, or their
  placements, are for users with access to all tenants.
- All state that depends on others' messages is bounded.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from berthmaster.control.dashboard.core.board import ALL, WATCHERS, Board, Scope, tenant_alone
from berthmaster.control.dashboard.core.figures import (
    decider_document,
    fleet_document,
    queue_documents,
)
from berthmaster.control.dashboard.core.grid import BUSY, MEMORY, Grid
from berthmaster.control.dashboard.core.jobs import Jobs
from berthmaster.control.dashboard.core.known import Known, Stored
from berthmaster.control.dashboard.core.problems import problems
from berthmaster.control.dashboard.core.series import measured
from berthmaster.lib.engine.fleetview.rows import ClusterRow
from berthmaster.lib.lifecycle.states import BEGUN, LIVE, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import (
    ClusterLost,
    ControlFact,
    Cordon,
    GpuCordon,
    QueueSetting,
)
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    FleetFact,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.telemetry import NodeTelemetry
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects

SAMPLE_S: Final = 2.0  # between two samples of the jobs' GPUs
SECOND_S: Final = 1.0
MAX_CLUSTERS: Final = 10_000
MAX_KUEUE: Final = 20_000  # ClusterQueues of all clusters


class Dashboard(Known):
    """The known state, and the board that shows the state."""

    def __init__(self, life: str) -> None:
        super().__init__()
        self.board = Board(life)
        self.board.parts = self._grid_changes
        self._control: dict[str, ControlFact] = {}
        self._changed_clusters: set[str] = set()
        self._next_second_s = 0.0
        self._next_sample_s = 0.0
        self._told_jobs = -1

    @property
    def _next(self) -> int:
        """Return the version of the next update, for changes from now on."""
        return self.board.version + 1

    # Messages

    def on_fact(self, fact: FleetFact, stored_at_s: float) -> None:
        self.fleet.take(Stored(fact, stored_at_s))
        match fact:
            case NodeReport():
                if (grid := self._grid(fact.cluster)) is not None:
                    grid.take_report(fact, self._next)
                    self.board.stir()
            case NodeGone():
                if fact.cluster in self.grids:
                    self.grids[fact.cluster].forget(fact.node)
            case ClusterAlive():
                self.alive[fact.cluster] = fact
            case ClusterScore():
                self.scores[fact.cluster] = (fact, stored_at_s)
            case ClusterProfile():
                self._grid(fact.cluster)
            case QueueReport():
                self._take_queue(fact)
            case _:
                return
        self._changed_clusters.add(fact.cluster)

    def on_gone(self, subject: str) -> None:
        """Forget a fact that was removed from the stream."""
        cluster, kind, names = subjects.parse_fact(subject)
        if kind == "node" and names and cluster in self.grids:
            self.grids[cluster].forget(names[0])
        elif kind == "alive":
            self.alive.pop(cluster, None)
        elif kind == "profile":
            self.fleet.forget(cluster)
            self.grids.pop(cluster, None)
            self.scores.pop(cluster, None)
            self.board.drop(f"cluster/{cluster}")
            self.board.drop(f"layout/{cluster}")
        elif kind == "queue" and names:
            self.kueue.pop((cluster, names[0]), None)
        self._changed_clusters.add(cluster)

    def on_reading(self, reading: NodeTelemetry, now_s: float) -> None:
        grid = self.grids.get(reading.cluster)
        if grid is None or not grid.take_reading(reading, now_s, self._next):
            self.unknown_readings += 1
            return
        self.board.stir()

    def on_event(
        self, event: WorkloadEvent, sequence: int, stored_at_s: float, *, is_astray: bool
    ) -> None:
        self.jobs.take(event, sequence, stored_at_s, is_astray=is_astray)

    def on_log_replaced(self) -> None:
        """Forget all jobs, because another log is read from its beginning."""
        self.jobs = Jobs()
        self._told_jobs = -1
        for key in list(self.board.keys("jobs/")) + list(self.board.keys("recent/")):
            self.board.drop(key)

    def on_control(self, subject: str, fact: ControlFact) -> None:
        self._control[subject] = fact
        if isinstance(fact, QueueSetting):
            self.queues[fact.queue] = fact
            return
        if not isinstance(fact, Cordon | GpuCordon | ClusterLost):
            return
        self.fleet.set_control(self._control.values())
        self._changed_clusters.add(fact.cluster)
        if fact.cluster in self.grids:
            self.grids[fact.cluster].close(self._cordoned(fact.cluster), self._next)
            self.board.stir()

    def on_quality(self, report: QualityReport, now_s: float) -> None:
        self.quality[report.cell] = (report, now_s)

    # Time

    def tick(self, now_s: float) -> bool:
        """Put changes on the board, and return whether there is an update. Call this some times a
        second.
        """
        for name, grid in self.grids.items():
            if grid.lay_out(self._next):
                self.board.put(f"layout/{name}", grid.layout_document(), WATCHERS)
                grid.close(self._cordoned(name), self._next)
        if now_s >= self._next_second_s:
            self._next_second_s = now_s + SECOND_S
            self._second(now_s)
        if now_s >= self._next_sample_s:
            self._next_sample_s = now_s + SAMPLE_S
            self._sample(now_s)
        return self.board.turn()

    def _second(self, now_s: float) -> None:
        for grid in self.grids.values():
            if grid.age(now_s, self._next):
                self.board.stir()
            grid.remember()
        self._changed_clusters.clear()
        rows = self.fleet.rows(now_s)
        totals = fleet_document(rows, self.grids)
        for row in rows:
            document = cluster_document(row, self)
            self.board.put(f"cluster/{row.cluster}", document, ALL)
        self.board.put("fleet", totals, ALL)
        self.board.put("seen", self._seen(rows), ALL)
        told = self.services.document(now_s)
        self.board.put("services", told, WATCHERS)
        self.board.put("problems", problems(rows, self, told, now_s), ALL)
        self._put_jobs(now_s)
        for name, (document, audience) in queue_documents(self).items():
            self.board.put(name, document, audience)
        reports = {cell: report for cell, (report, _) in self.quality.items()}
        self.board.put("deciders", decider_document(reports), ALL)
        counts = self._counts(None)
        if self.pulse.due(now_s):
            live = sum(counts[state] for state in LIVE | BEGUN)
            self.board.put("pulse", self.pulse.add(now_s, totals, counts["queued"], live), ALL)

    def _seen(self, rows: Sequence[ClusterRow]) -> dict[str, list[float | None]]:
        """Return the last heartbeat of each cluster, and the time of its score. They are a document
        of their own because they change all the time.
        """
        found: dict[str, list[float | None]] = {}
        for row in rows:
            at_s, score = self.fleet.alive_at_s(row.cluster), self.scores.get(row.cluster)
            found[row.cluster] = [
                None if at_s is None else round(at_s, 1),
                None if score is None else round(score[1], 1),
            ]
        return found

    def _put_jobs(self, now_s: float) -> None:
        jobs = self.jobs
        if jobs.changes == self._told_jobs:
            return
        self._told_jobs = jobs.changes
        self.board.put("jobs", self._jobs_document(None), WATCHERS)
        self.board.put("recent", list(jobs.recent), WATCHERS)
        for tenant in jobs.touched:
            own = tenant_alone(tenant)
            self.board.put(f"jobs/{tenant}", self._jobs_document(tenant), own)
            self.board.put(f"recent/{tenant}", list(jobs.recent_of.get(tenant, ())), own)
        jobs.touched.clear()

    def _jobs_document(self, tenant: str | None) -> dict[str, Any]:
        waiting = [w for w in self.jobs.waiting() if tenant is None or w.tenant == tenant]
        first = min((work.submitted_at_s for work in waiting), default=None)
        return {
            "changes": self.jobs.changes,
            "counts": {name: count for name, count in self._counts(tenant).items() if count},
            "oldest_at_s": first,
            "unreadable": len(self.jobs.unreadable) if tenant is None else 0,
        }

    def _counts(self, tenant: str | None) -> Counter[str]:
        if tenant is not None:
            return self.jobs.counts.get(tenant, Counter())
        return sum(self.jobs.counts.values(), Counter())

    def _sample(self, now_s: float) -> None:
        for name, work in self.jobs.open.items():
            if work.state is not State.RUNNING:
                continue
            grid, rows = self.rows_of(work)
            if grid is None or not rows:
                continue
            taken = grid.rows[rows]
            series = self.series.of(name, work.attempt)
            series.add(now_s, measured(taken[:, BUSY]), measured(taken[:, MEMORY]))

    def rows_of(self, work: Workload) -> tuple[Grid | None, list[int]]:
        """Return the GPUs of a job, by its nodes' reports or else by its placement."""
        grid = self.grids.get(work.cluster)
        if grid is None:
            return None, []
        rows: list[int] = []
        for binding in dict.fromkeys(pod.node for pod in work.pods):
            node = grid.nodes.get(binding)
            if node is None or node.number < 0:
                continue
            told = [
                gpu
                for use in node.report.pods
                if (use.workload, use.tenant, use.attempt) == (work.id, work.tenant, work.attempt)
                for gpu in use.gpus
            ]
            found = told or [gpu for pod in work.pods if pod.node == binding for gpu in pod.gpus]
            rows += [node.first + node.rank[gpu] for gpu in found if gpu in node.rank]
        return grid, sorted(set(rows))

    # Grids

    def _grid(self, cluster: str) -> Grid | None:
        grid = self.grids.get(cluster)
        if grid is None and len(self.grids) < MAX_CLUSTERS:
            grid = self.grids[cluster] = Grid(cluster)
        return grid

    def drains(self, cluster: str, node: str | None) -> bool:
        """Return whether a drain moves jobs away from a cluster or a node."""
        return any(
            isinstance(fact, Cordon) and fact.drain and (fact.cluster, fact.node) == (cluster, node)
            for fact in self._control.values()
        )

    def _cordoned(self, cluster: str) -> frozenset[str]:
        names = (
            fact.node
            for fact in self._control.values()
            if isinstance(fact, Cordon) and fact.cordoned and fact.cluster == cluster
        )
        return frozenset(name for name in names if name is not None)

    def _grid_changes(self, since: int, scope: Scope) -> Mapping[str, Any]:
        if not scope.everything:
            return {}
        found = {}
        for name, grid in self.grids.items():
            if (changes := grid.changes(since)) is not None:
                found[name] = changes
        return {"gpus": found} if found else {}

    def _take_queue(self, report: QueueReport) -> None:
        name = (report.cluster, report.queue)
        if report.gone:
            self.kueue.pop(name, None)
        elif name in self.kueue or len(self.kueue) < MAX_KUEUE:
            self.kueue[name] = report


def cluster_document(row: ClusterRow, known: Dashboard) -> dict[str, Any]:
    grid, alive = known.grids.get(row.cluster), known.alive.get(row.cluster)
    rows = grid.rows if grid is not None else np.zeros((0, 5), np.uint8)
    return {
        "cluster": row.cluster,
        "freshness": row.freshness,
        "interval_s": alive.interval_s if alive is not None else None,
        "nodes": row.nodes,
        "gpus": row.gpus,
        "models": row.models,
        "free_gpus": row.free_gpus,
        "idle_gpu_percent": row.idle_gpu_percent,
        "fragmentation_percent": row.fragmentation_percent,
        "largest_gang": row.largest_gang,
        "scores": row.scores,
        "cordoned": row.cordoned,
        "cordoned_nodes": row.cordoned_nodes,
        "draining": known.drains(row.cluster, None),
        "lost": row.lost,
        "note": row.note,
        "busy_percent": _mean(rows[:, BUSY]),
        "memory_percent": _mean(rows[:, MEMORY]),
    }


def _mean(values: Any) -> float | None:
    known = measured(values)
    return round(float(known.mean()), 1) if len(known) else None
