"""The jobs on the page: all open ones, and the last ended ones. Pure.

Jobs are folded from the log as everywhere (lib/lifecycle/fold.py). A query returns one page of
rows.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from berthmaster.control.dashboard.core.board import Scope
from berthmaster.lib.lifecycle.fold import LOST, Verdict, offer
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.states import ENDED, LIVE, State
from berthmaster.lib.lifecycle.workload import Key, Workload, ends_as_told_s, key
from berthmaster.lib.messages.families import event_cluster, event_kind
from berthmaster.lib.messages.workload import (
    Cancelled,
    Evicted,
    Failed,
    Placed,
    Resized,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

MAX_ENDED: Final = 5_000
MAX_RECENT: Final = 30  # events of the ticker
MAX_TICKERS: Final = 500  # tenants with their own ticker
MAX_REASON: Final = 400
MAX_LABELS: Final = 16  # shown of a job
MAX_LABEL: Final = 100
_TOLD: Final = (Submitted, Placed, Running, Resized, Evicted, Succeeded, Failed, Cancelled)

Sort = Literal["", "waited", "gpus", "priority", "changed"]
WAITING: Final = "waiting"  # filter word of users for pending jobs
_STATES: Final = {WAITING: (State.QUEUED,), "live": tuple(LIVE), "ended": tuple(ENDED)}


class Query(NamedTuple):
    states: frozenset[str] = frozenset()  # of the lifecycle, or waiting, live, ended. Empty: all
    tenant: str = ""
    queue: str = ""
    cluster: str = ""
    text: str = ""  # in the id, the owner or a label
    sort: Sort = ""
    limit: int = 100
    offset: int = 0


class Found(NamedTuple):
    jobs: list[Workload]
    total: int


class Jobs:
    """All open workloads and the last ended ones."""

    def __init__(self, most_ended: int = MAX_ENDED) -> None:
        self.open: dict[Key, Workload] = {}
        self.ended: OrderedDict[Key, Workload] = OrderedDict()
        self.unreadable: dict[Key, str] = {}  # frozen workloads, with the reason
        self.changes = 0  # rises with each applied event
        # Tenant -> state -> number of known jobs. A divided job counts once, and its parts do not
        # count.
        self.counts: dict[str, Counter[str]] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=MAX_RECENT)
        self.recent_of: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()
        self.touched: set[str] = set()  # tenants with changes since the last read
        self._most_ended = most_ended

    def take(
        self, event: WorkloadEvent, sequence: int, stored_at_s: float, *, is_astray: bool = False
    ) -> Verdict:
        """Take one event, in the order of the log."""
        name = key(event.tenant, event.id)
        work = self.open.get(name) or self.ended.get(name)
        known = work is not None
        if work is None:
            work = Workload(tenant=event.tenant, id=event.id)
        before = work.shown
        verdict = offer(work, event, sequence, stored_at_s, void=is_astray)
        if verdict is Verdict.AHEAD and known:
            self.freeze(event.tenant, event.id, LOST)
        if verdict is not Verdict.COUNTED:
            return verdict
        self.changes += 1
        self.touched.add(event.tenant)
        if not work.part_of:
            counts = self.counts.setdefault(event.tenant, Counter())
            if known:
                counts[before] -= 1
            counts[work.shown] += 1
        if work.ended:
            self.open.pop(name, None)
            self.unreadable.pop(name, None)
            self.ended[name] = work
            self._forget_oldest()
        else:
            self.open[name] = work
        if isinstance(event, _TOLD):
            self._tell(event, stored_at_s)
        return verdict

    def freeze(self, tenant: str, workload_id: str, why: str) -> None:
        """Freeze a workload with an unreadable event. The page shows the last state and the
        reason.
        """
        self.changes += 1
        self.unreadable[key(tenant, workload_id)] = why[:MAX_REASON]
        while len(self.unreadable) > MAX_ENDED:
            del self.unreadable[next(iter(self.unreadable))]

    def find(self, tenant: str, workload_id: str) -> Workload | None:
        name = key(tenant, workload_id)
        return self.open.get(name) or self.ended.get(name)

    def waiting(self) -> Iterator[Workload]:
        """Yield jobs without a placement. Parts of divided jobs are left out."""
        return (
            work for work in self.open.values() if work.state is State.QUEUED and not work.part_of
        )

    def select(self, query: Query, scope: Scope) -> Found:
        """Return one page of the query's result, within the user's scope."""
        states = frozenset(s for name in query.states for s in _STATES.get(name, (name,)))
        found = [
            work
            for work in (*self.open.values(), *self.ended.values())
            if not self._is_told_with_its_job(work)
            and (not states or work.shown in states)
            and (not query.tenant or work.tenant == query.tenant)
            and scope.sees_tenant(work.tenant)
            and (not query.queue or queue_of(work) == query.queue)
            and (not query.cluster or query.cluster in _clusters(work))
            and (not query.text or _speaks_of(work, query.text.casefold()))
        ]
        most = query.offset + query.limit
        page = heapq.nsmallest(most, found, key=lambda work: _order(work, query.sort))
        return Found(page[query.offset :], len(found))

    def _is_told_with_its_job(self, work: Workload) -> bool:
        job = work.part_of
        return bool(job) and self.find(work.tenant, job) is not None

    def _tell(self, event: WorkloadEvent, stored_at_s: float) -> None:
        line = {
            "at_s": round(stored_at_s, 3),
            "tenant": event.tenant,
            "id": event.id,
            "kind": event_kind(event),
            "cluster": event_cluster(event) or "",
            "reason": getattr(event, "reason", "")[:MAX_REASON],
        }
        self.recent.append(line)
        own = self.recent_of.setdefault(event.tenant, deque(maxlen=MAX_RECENT))
        self.recent_of.move_to_end(event.tenant)
        own.append(line)
        if len(self.recent_of) > MAX_TICKERS:
            self.recent_of.popitem(last=False)

    def _forget_oldest(self) -> None:
        while len(self.ended) > self._most_ended:
            _, work = self.ended.popitem(last=False)
            if not work.part_of:
                self.counts[work.tenant][work.state] -= 1


def _clusters(work: Workload) -> tuple[str, ...]:
    return tuple(part.cluster for part in work.parts) or (work.cluster,)


def queue_of(work: Workload) -> str:
    """Return the queue of a job, or "" if only the tombstone is known."""
    return work.request.queue if work.request is not None else ""


def gpus_of(work: Workload) -> float:
    """Return the number of requested GPUs."""
    return gpu_milli_of(work) / 1000


def row_of(work: Workload) -> dict[str, Any]:
    """Return one job as a row of a table."""
    request, origin = work.request, work.origin
    models: Iterable[str] = ()
    if request is not None:
        models = dict.fromkeys(model for pods in request.pod_sets for model in pods.gpu_models)
    return {
        "tenant": work.tenant,
        "id": work.id,
        "state": str(work.shown),
        "queue": queue_of(work),
        "priority": work.priority,
        "gpus": gpus_of(work),
        "models": list(models),
        "pods": sum(pods.count for pods in request.pod_sets) if request is not None else 0,
        "cluster": work.cluster,
        "parts": [{"id": p.id, "cluster": p.cluster, "pods": p.pods} for p in work.parts],
        "part_of": work.part_of,
        "attempt": work.attempt,
        "evictions": work.evictions,
        "submitted_at_s": work.submitted_at_s,
        "placed_at_s": work.placed_at_s,
        "running_at_s": work.running_at_s,
        "changed_at_s": work.changed_at_s,
        "expected_s": request.expected_duration_s if request is not None else None,
        "progress": _progress(work),
        "checkpoint": None
        if work.checkpoint is None
        else {"step": work.checkpoint.step, "uri": work.checkpoint.uri},
        "cancelling": work.cancel_requested and not work.ended,
        "held": work.hold is not None and not work.ended,
        "reason": work.reason[:MAX_REASON],
        "origin": "" if origin is None else origin.owner or f"Workload/{origin.name}",
        "namespace": "" if origin is None else origin.namespace,
        "labels": _labels(work),
    }


def _progress(work: Workload) -> dict[str, Any] | None:
    """Return the last reported progress, with its expected end by the server's clock."""
    if work.progress is None:
        return None
    told = {"step": work.progress.step, "loss": work.progress.loss, "at_s": work.progress_at_s}
    return told | {"ends_at_s": ends_as_told_s(work)}


def _labels(work: Workload) -> dict[str, str]:
    labels = work.request.labels if work.request is not None else {}
    return {name[:MAX_LABEL]: labels[name][:MAX_LABEL] for name in list(labels)[:MAX_LABELS]}


def _speaks_of(work: Workload, text: str) -> bool:
    ids = (work.id, *(part.id for part in work.parts))
    if any(text in each for each in ids) or text in work.tenant.casefold():
        return True
    if work.origin is not None and text in work.origin.owner.casefold():
        return True
    labels = work.request.labels if work.request is not None else {}
    return any(text in f"{name}={value}".casefold() for name, value in labels.items())


_RANK: Final = {State.QUEUED: 0, State.SUCCEEDED: 2, State.FAILED: 2, State.CANCELLED: 2}


def _order(work: Workload, sort: Sort) -> tuple[float, ...]:
    match sort:
        case "waited":
            return (work.submitted_at_s,)
        case "gpus":
            return (-gpus_of(work), -work.changed_at_s)
        case "priority":
            return (-work.priority, work.submitted_at_s)
        case "changed":
            return (-work.changed_at_s,)
        case "":
            rank = _RANK.get(work.state, 1)
            first = work.submitted_at_s if rank == 0 else -work.changed_at_s
            return (rank, -work.priority if rank == 0 else 0, first)
