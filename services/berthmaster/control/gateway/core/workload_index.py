"""The gateway's memory of the log, so that queries cost no read.

Open workloads are whole, ended ones small records, both in the order of submission. The index folds
the stream in order and may lag behind the stream. A caller that needs certainty reads the log.

Records are dropped by age, when the log can no longer have the tombstone, and by number, oldest
ending first. The log and the archive answer for dropped ones.
"""

import functools
import heapq
import sys
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from operator import itemgetter
from typing import Final

import msgspec

from berthmaster.lib.lifecycle.fold import LOST, Verdict, offer
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.states import ENDED, Ending, State
from berthmaster.lib.lifecycle.trials import trial_ids
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import ListReply, ListRequest, WorkloadStateName, WorkloadView
from berthmaster.lib.messages.workload import Submitted, WorkloadEvent

REASON_CHARS: Final = 200  # of an ended workload. The history has the whole text
MAX_EXAMINED: Final = 20_000  # of one list: some milliseconds, then the page ends
VIEW_EFFORT: Final = 8  # cost of showing a workload, as a multiple of skipping one
STRETCH_EFFORT: Final = 800  # below half a millisecond of a list
MAX_PAGE_CHARS: Final = 400_000  # far below the server's 1 MiB with all the JSON around it
FORGOTTEN_AT_ONCE: Final = 2_000  # records: some milliseconds. Fewer end within a second
_ENTRY_CHARS: Final = 350
_NAMES: Final[dict[State, WorkloadStateName]] = {
    State.QUEUED: "queued",
    State.PLACED: "placed",
    State.CLAIMED: "claimed",
    State.ADMITTED: "admitted",
    State.RUNNING: "running",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


def state_name(state: State) -> WorkloadStateName:
    """Return the name of a state in replies. NEW has none, as replies show no new workload."""
    return _NAMES[state]


class Record(msgspec.Struct, kw_only=True, gc=False):
    """An ended workload in a few hundred bytes. No containers but tuples of strings: no GC."""

    id: str
    state: State
    order: int
    sequence: int
    submitted_at_s: float
    changed_at_s: float
    queue: str
    priority: int
    attempt: int
    evictions: int
    cluster: str
    gpus: float
    gpu_models: tuple[str, ...]
    pods: int
    reason: str
    set: str = ""
    array_index: int | None = None
    labels: tuple[str, ...] = ()  # key, value, key, value
    part_of: str = ""


def _amounts(work: Workload) -> tuple[float, tuple[str, ...], int]:
    """Return GPUs, GPU models and pods, as views and records show them."""
    request = work.request
    if request is None:
        return 0.0, (), 0
    models = tuple(dict.fromkeys(model for p in request.pod_sets for model in p.gpu_models))
    return gpu_milli_of(work) / 1000, _shared(models), sum(p.count for p in request.pod_sets)


@functools.lru_cache(maxsize=4096)
def _shared(models: tuple[str, ...]) -> tuple[str, ...]:
    """Return one shared tuple, because most workloads name the same few models."""
    return models


def view_of(work: Workload) -> WorkloadView:
    """Return a folded workload as replies show it."""
    gpus, models, pods = _amounts(work)
    return WorkloadView(
        tenant=work.tenant,
        id=work.id,
        state=state_name(work.shown),
        queue=work.request.queue if work.request else "",
        priority=work.priority,
        attempt=work.attempt,
        evictions=work.evictions,
        cluster=work.cluster,
        gpus=gpus,
        gpu_models=models,
        pods=pods,
        submitted_at_s=work.submitted_at_s,
        changed_at_s=work.changed_at_s,
        sequence=work.sequence,
        cancel_requested=work.cancel_requested,
        held_by=work.hold.who if work.hold is not None else "",
        trials=work.trials,
        checkpoint=work.checkpoint,
        progress=work.progress,
        progress_at_s=work.progress_at_s,
        reason=work.reason,
        set=work.request.set if work.request else "",
        array_index=work.request.array_index if work.request else None,
        labels=work.request.labels if work.request else {},
        waits_for=_waits_for(work),
        parts=work.parts,
        part_of=work.part_of,
    )


def _waits_for(work: Workload) -> tuple[str, ...]:
    if work.request is None or not work.depends:
        return ()
    if trials := trial_ids(work.request):
        return () if work.released else trials
    return tuple(other.id for other in work.request.depends_on)


def _view_of_record(tenant: str, record: Record) -> WorkloadView:
    return WorkloadView(
        tenant=tenant,
        id=record.id,
        state=state_name(record.state),
        queue=record.queue,
        priority=record.priority,
        attempt=record.attempt,
        evictions=record.evictions,
        cluster=record.cluster,
        gpus=record.gpus,
        gpu_models=record.gpu_models,
        pods=record.pods,
        submitted_at_s=record.submitted_at_s,
        changed_at_s=record.changed_at_s,
        sequence=record.sequence,
        reason=record.reason,
        set=record.set,
        array_index=record.array_index,
        labels=dict(zip(record.labels[::2], record.labels[1::2], strict=True)),
        part_of=record.part_of,
    )


def _record_of(work: Workload, order: int) -> Record:
    gpus, models, pods = _amounts(work)
    return Record(
        id=work.id,
        state=work.state,
        order=order,
        sequence=work.sequence,
        submitted_at_s=work.submitted_at_s,
        changed_at_s=work.changed_at_s,
        queue=sys.intern(work.request.queue) if work.request else "",
        priority=work.priority,
        attempt=work.attempt,
        evictions=work.evictions,
        cluster=sys.intern(work.cluster),
        gpus=gpus,
        gpu_models=models,
        pods=pods,
        reason=work.reason[:REASON_CHARS],
        set=sys.intern(work.request.set) if work.request else "",
        array_index=work.request.array_index if work.request else None,
        labels=_shared(tuple(t for pair in work.request.labels.items() for t in pair))
        if work.request
        else (),
        part_of=work.part_of,
    )


class _Shelf:
    """Ids in the order of submission. Removed ids are skipped, and swept out later."""

    def __init__(self) -> None:
        self._orders = array("Q")
        self._ids: list[str] = []
        self.gone = 0

    def add(self, order: int, workload_id: str) -> None:
        """Add an id. Orders are sequences and usually arrive in order. Unverified workloads come
        later.
        """
        at = bisect_left(self._orders, order) if self._orders and order < self._orders[-1] else None
        if at is None:
            self._orders.append(order)
            self._ids.append(workload_id)
        else:
            self._orders.insert(at, order)
            self._ids.insert(at, workload_id)

    def newest_first(self, before: int) -> Iterator[tuple[int, str]]:
        """Yield from the newest, or from the newest before ``before`` if not 0."""
        end = bisect_left(self._orders, before) if before else len(self._orders)
        for at in range(end - 1, -1, -1):
            yield self._orders[at], self._ids[at]

    def sweep(self, kept: "dict[str, int]") -> None:
        """Drop all ids that are not in ``kept``, which maps an id to its order."""
        pairs = [
            (order, name)
            for order, name in zip(self._orders, self._ids, strict=True)
            if kept.get(name) == order
        ]
        self._orders = array("Q", (order for order, _ in pairs))
        self._ids = [name for _, name in pairs]
        self.gone = 0

    @property
    def is_untidy(self) -> bool:
        """Return whether more than half of the ids are removed."""
        return self.gone > 1000 and 2 * self.gone > len(self._ids)


class _Tenant:
    def __init__(self, name: str) -> None:
        self.name = name
        self.open: dict[str, Workload] = {}
        self.open_parts = 0  # number of open parts of divided jobs
        self.orders: dict[str, int] = {}  # of the open workloads
        self.ended: dict[str, Record] = {}
        self.all_shelf = _Shelf()
        self.open_shelf = _Shelf()
        self.counts: dict[WorkloadStateName, int] = {}

    def count(self, state: State, change: int, part_of: str) -> None:
        """Count a workload under its state. Parts are counted with their job."""
        if part_of:
            return
        name = state_name(state)
        left = self.counts.get(name, 0) + change
        if left:
            self.counts[name] = left
        else:
            del self.counts[name]

    def matches(
        self, order: int, workload_id: str, wanted: frozenset[State], request: ListRequest
    ) -> bool:
        """Return whether the id still has this order, and the workload matches the request."""
        queue = request.queue
        work = self.open.get(workload_id)
        if work is not None:
            state, in_queue = work.shown, work.request.queue if work.request else ""
            same, part_of = self.orders[workload_id] == order, work.part_of
        else:
            record = self.ended.get(workload_id)
            if record is None:
                return False
            state, in_queue, same = record.state, record.queue, record.order == order
            part_of = record.part_of
        if part_of and not request.parts and (part_of in self.open or part_of in self.ended):
            return False  # a part without a known job is shown by itself
        if not same or (wanted and state not in wanted) or (queue and in_queue != queue):
            return False
        if not (request.set or request.labels or request.since_s):
            return True
        view = self.view(workload_id)
        return (
            (not request.set or view.set == request.set)
            and request.labels.items() <= view.labels.items()
            and view.changed_at_s >= request.since_s
        )

    def view(self, workload_id: str) -> WorkloadView:
        work = self.open.get(workload_id)
        if work is None:
            return _view_of_record(self.name, self.ended[workload_id])
        view = view_of(work)
        parts = [each.id for each in work.parts if each.id in self.open or each.id in self.ended]
        if not parts:
            return view
        return msgspec.structs.replace(view, gpus=sum(self.view(part).gpus for part in parts))

    def tidy(self) -> None:
        if self.open_shelf.is_untidy:
            self.open_shelf.sweep(self.orders)
        if self.all_shelf.is_untidy:
            ended = {name: record.order for name, record in self.ended.items()}
            self.all_shelf.sweep(ended | self.orders)


class WorkloadIndex:
    """All workloads of all tenants, up to the last sequence read."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._frozen: dict[Key, str] = {}
        self._last: dict[Key, int] = {}  # of the frozen: sequence of the last event
        self._endings: deque[tuple[float, str, Record]] = deque()  # oldest first
        self.waiting: Counter[str] = Counter()  # queue -> number of pending jobs
        self.open_count = 0
        self.ended_count = 0

    @property
    def frozen_count(self) -> int:
        """Return the number of frozen workloads."""
        return len(self._frozen)

    def offer(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> tuple[Verdict, Workload] | None:
        """Fold the stream's next event. Return None if the workload is frozen or has ended. For
        ``void`` see ``lifecycle.fold.offer``.
        """
        tenant = self._tenants.get(event.tenant)
        if tenant is None:
            name = sys.intern(event.tenant)
            tenant = self._tenants[name] = _Tenant(name)
        if self._frozen and key(event.tenant, event.id) in self._frozen:
            name = key(event.tenant, event.id)
            last, self._last[name] = self._last[name], sequence
            if void or not isinstance(event, Ending) or event.after < last:
                return None
        work = tenant.open.get(event.id)
        is_new = work is None
        if work is None:
            record = tenant.ended.get(event.id)
            if record is not None:
                if sequence <= record.sequence or not isinstance(event, Submitted) or event.after:
                    return None
                self._drop(tenant, record)  # its tombstone is gone, and the id has a new history
            work = Workload(tenant=tenant.name, id=event.id)
        before = work.shown
        verdict = offer(work, event, sequence, stored_at_s, void=void)
        if verdict is Verdict.AHEAD and not is_new:
            self.freeze(work.tenant, work.id, sequence, LOST)
        if work.state is State.NEW:  # events without the workload's first one
            return verdict, work
        if before is not work.shown and work.request is not None and not work.part_of:
            self.waiting[work.request.queue] += work.state is State.QUEUED
            self.waiting[work.request.queue] -= before is State.QUEUED
        if is_new:
            tenant.all_shelf.add(sequence, work.id)
            self._open(tenant, work, sequence)
        elif before is not work.shown:
            tenant.count(before, -1, work.part_of)
            tenant.count(work.shown, 1, work.part_of)
        if work.ended:
            self._end(tenant, work)
            if self._frozen:
                self._frozen.pop(work.key, None)
                self._last.pop(work.key, None)
        return verdict, work

    def _open(self, tenant: _Tenant, work: Workload, order: int) -> None:
        tenant.open[work.id] = work
        tenant.open_parts += bool(work.part_of)
        tenant.orders[work.id] = order
        tenant.count(work.shown, 1, work.part_of)
        self.open_count += 1
        if not work.ended:
            tenant.open_shelf.add(order, work.id)

    def _end(self, tenant: _Tenant, work: Workload) -> None:
        del tenant.open[work.id]
        tenant.open_parts -= bool(work.part_of)
        record = _record_of(work, tenant.orders.pop(work.id))
        tenant.ended[work.id] = record
        self._endings.append((record.changed_at_s, tenant.name, record))
        tenant.open_shelf.gone += 1
        self.open_count -= 1
        self.ended_count += 1
        tenant.tidy()

    def _drop(self, tenant: _Tenant, record: Record) -> None:
        del tenant.ended[record.id]
        tenant.count(record.state, -1, record.part_of)
        tenant.all_shelf.gone += 1
        self.ended_count -= 1
        tenant.tidy()

    def freeze(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze a workload from this event on: its known state is no longer right."""
        name = key(tenant, workload_id)
        self._frozen.setdefault(name, why)
        self._last[name] = max(sequence, self._last.get(name, 0))

    def frozen(self, tenant: str, workload_id: str) -> str:
        """Return why a workload is frozen, or ""."""
        return self._frozen.get(key(tenant, workload_id), "")

    @property
    def tenants(self) -> set[str]:
        """Return the tenants with a submitted workload."""
        return set(self._tenants)

    def open_of(self, tenant: str) -> int:
        """Return the number of a tenant's open jobs. A divided job counts once."""
        known = self._tenants.get(tenant)
        return len(known.open) - known.open_parts if known else 0

    def find(self, tenant: str, workload_id: str) -> Workload | None:
        """Return an open workload, or None."""
        known = self._tenants.get(tenant)
        return known.open.get(workload_id) if known else None

    def ended_state(self, tenant: str, workload_id: str) -> State | None:
        """Return the ending of a workload. None means: not ended, or not remembered."""
        known = self._tenants.get(tenant)
        record = known.ended.get(workload_id) if known is not None else None
        return record.state if record is not None else None

    def has_ended(self, tenant: str, workload_id: str) -> bool:
        known = self._tenants.get(tenant)
        return known is not None and workload_id in known.ended

    def open_workloads(self) -> Iterator[Workload]:
        """Yield all open workloads, tenant by tenant."""
        for tenant in self._tenants.values():
            yield from tenant.open.values()

    def forget(
        self, ended_before_s: float, *, most: int = sys.maxsize, limit: int = FORGOTTEN_AT_ONCE
    ) -> int:
        """Drop at most ``limit`` records and return their number: those ended before
        ``ended_before_s``, and the oldest beyond ``most``.
        """
        dropped = 0
        while self._endings and dropped < limit:
            if self._endings[0][0] >= ended_before_s and self.ended_count <= most:
                break
            _, name, record = self._endings.popleft()
            tenant = self._tenants[name]
            if tenant.ended.get(record.id) is record:
                self._drop(tenant, record)
                dropped += 1
        return dropped

    def listed(self, tenant: str | None, request: ListRequest) -> Generator[None, None, ListReply]:
        """Return one page of a tenant's workloads, newest first, or of all tenants if ``tenant`` is
        None. A long page takes some milliseconds, so the generator yields between slices of work
        and continues with the state at that time.
        """
        names = self._tenants if tenant is None else {tenant} & self._tenants.keys()
        asked = [self._tenants[name] for name in names]
        wanted = frozenset(State(name) for name in request.states)
        only_open = bool(wanted) and not wanted & ENDED
        looks_close = bool(request.set or request.labels or request.since_s)
        page: list[WorkloadView] = []
        chars = examined = 0
        last = request.before
        goes_on = True
        while goes_on:
            effort = 0
            goes_on = False
            for order, name, known in _newest_first(asked, last, only_open=only_open):
                if effort >= STRETCH_EFFORT:
                    goes_on = True
                    break
                is_full = len(page) >= request.limit or chars >= MAX_PAGE_CHARS
                if is_full or examined >= MAX_EXAMINED:
                    return ListReply(workloads=tuple(page), counts=_counts(asked), next_before=last)
                examined += 1
                effort += VIEW_EFFORT if looks_close else 1
                last = order
                if not known.matches(order, name, wanted, request):
                    continue
                effort += VIEW_EFFORT
                entry = self._entry(known, name)
                page.append(entry)
                chars += _chars(entry)
            if goes_on:
                yield
        return ListReply(workloads=tuple(page), counts=_counts(asked))

    def _entry(self, tenant: _Tenant, name: str) -> WorkloadView:
        entry = tenant.view(name)
        if frozen := self.frozen(tenant.name, name):
            entry = msgspec.structs.replace(entry, reason=frozen)
        return entry


def _counts(tenants: Sequence[_Tenant]) -> dict[WorkloadStateName, int]:
    counts: Counter[WorkloadStateName] = Counter()
    for tenant in tenants:
        counts.update(tenant.counts)
    return dict(counts)


def _chars(entry: WorkloadView) -> int:
    labels = sum(len(k) + len(v) + 8 for k, v in entry.labels.items())
    return labels + _ENTRY_CHARS + len(entry.reason) + sum(len(m) + 3 for m in entry.gpu_models)


def _newest_first(
    tenants: Sequence[_Tenant], before: int, *, only_open: bool
) -> Iterator[tuple[int, str, _Tenant]]:
    """Yield all workloads of the tenants in one order. Sequences of one stream are unique."""

    def of(tenant: _Tenant) -> Iterator[tuple[int, str, _Tenant]]:
        shelf = tenant.open_shelf if only_open else tenant.all_shelf
        for order, name in shelf.newest_first(before):
            yield order, name, tenant

    if len(tenants) == 1:
        return of(tenants[0])
    return heapq.merge(*map(of, tenants), key=itemgetter(0), reverse=True)
