"""The log as the executors need it: the open workloads of each cluster, and recent events.

- Only open workloads are kept. An unknown workload is open nowhere, because the log was read from
  its beginning. The newest endings are remembered, so that a late event opens no workload again.
- A cluster gets hints about: placements, cancel requests, evictions, changes of the number of pods,
  and endings from other writers than its executor.
- For jobs by way of a hub's Kueue the cluster gets no hints. Its agent may ask which job the pods
  belong to, and may report progress and checkpoints.
- Hints are kept for a window, for followers. Later requests get the list of open workloads. The
  list is the full state, so no missed event stays unknown.
- A cluster's events of one workload are bounded in number and size, because all share the log.
- A cluster's agent reports usage and ends of logs of the cluster's current and former attempts.
  Example: attempt 1 of acme/train left red, attempt 2 runs on blue. Red may send the last usage
  message and the end of the log of attempt 1, and nothing of attempt 2.
- A workload is frozen after an unreadable event, or an event behind missing events. Nothing is done
  about a frozen workload until its ending.
"""

from collections import OrderedDict, deque
from copy import copy
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.lib.kueue.jobs import job_name
from berthmaster.lib.lifecycle.attempts import OWN, is_tried_again, may_give_way, sent_by_hub
from berthmaster.lib.lifecycle.fold import OpenWorkloads, Verdict, offer
from berthmaster.lib.lifecycle.pods import as_placed
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.door import (
    ExecutorEvent,
    HubPods,
    HubWork,
    OwnWorkload,
    PlacementReceipt,
)
from berthmaster.lib.messages.families import UNREADABLE, encode, event_kind
from berthmaster.lib.messages.placement import HUB_CELL
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    CarriedWorkload,
    Checkpointed,
    Committed,
    Event,
    Evicted,
    EvictionRequested,
    Failed,
    Placed,
    Progressed,
    Resized,
    ResizeRequested,
    Running,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.lib.nats.message_subjects import decode_event
from berthmaster.lib.nats.subjects import SubjectError, aggregate, is_decision, parse_workload_event
from berthmaster.lib.requests.validation import uri_fault

WINDOW: Final = 20_000  # hints of all clusters, each 1 or 2 kB
ENDINGS: Final = 100_000  # remembered endings: a stale writer is late by seconds
LEFT: Final = 100_000  # remembered former attempts: pods outlive them by minutes
MAX_RUNNING: Final = 200  # events of one attempt with its pods' nodes
MAX_HEARD: Final = 3000  # of an attempt: progress and checkpoints, about 1,100 in a year
EVENT_BYTES: Final = 8 * 1024
POD_BYTES: Final = 1024  # for each pod of the request
_SAME: Final = tuple(set(OwnWorkload.__struct_fields__) & set(Workload.__struct_fields__))
_OF_RECEIPT: Final = tuple(
    (set(PlacementReceipt.__struct_fields__) & set(Workload.__struct_fields__)) - {"sequence"}
)
_OF_PLACED: Final = tuple(
    (set(Placed.__struct_fields__) & set(CarriedWorkload.__struct_fields__)) - {"request"}
)


class StoredHint(NamedTuple):
    sequence: int
    event: bytes
    held: bool = False
    receipt: PlacementReceipt | None = None  # of a placement


class _Here(msgspec.Struct):
    """A workload in its cluster."""

    workload: Workload
    placed: StoredHint
    wish: StoredHint | None = None
    order: StoredHint | None = None  # to make room by an eviction
    commit: StoredHint | None = None  # of a part of a gang: its pods may start
    resize: StoredHint | None = None  # new number of pods, until confirmed
    running: int = 0  # number of events with the pods' nodes
    heard: int = 0  # number of progress and checkpoint events


class HubName(NamedTuple):
    """Names by which the pods of a worker identify a hub's workload."""

    namespace: str
    workload: str  # of Kueue, the same name on the hub. "" if we created the Job there
    job: str = ""  # name of this Job


class _Lately:
    def __init__(self, floor: int) -> None:
        self.floor = floor  # a cursor below has missed hints
        self.hints: deque[StoredHint] = deque()


class Refuse(NamedTuple):
    why: str


class Store(NamedTuple):
    """The event may follow by the log: append with the guard."""


class Settle(NamedTuple):
    """The guard has advanced, and the event is repeated: perhaps this event is stored."""


class Behind(NamedTuple):
    """The log has not been read that far."""


class Frozen(NamedTuple):
    """The workload is frozen."""

    why: str


Check = Refuse | Store | Settle | Behind | Frozen


class LogView:
    """All open workloads, by cluster."""

    def __init__(self, window: int = WINDOW) -> None:
        self.position = 0  # sequence of the last event taken
        self.born = 0  # position from which hints are kept
        self.frozen_in: dict[Key, str] = {}  # cluster of each frozen workload
        self._window = window
        self._workloads = OpenWorkloads()
        self._open = self._workloads.open
        self.frozen = self._workloads.frozen
        self._ended: OrderedDict[Key, int] = OrderedDict()
        self._left: OrderedDict[tuple[Key, int], str] = OrderedDict()  # attempt -> former cluster
        self._here: dict[str, dict[Key, _Here]] = {}
        self._by_hub: dict[str, dict[HubName, _Here]] = {}
        self._hub_names: dict[Key, HubName] = {}  # of the workloads in ``_by_hub``
        self._lately: dict[str, _Lately] = {}
        self._order: deque[str] = deque()  # clusters, by the age of their hints
        self._live = False

    @property
    def open(self) -> int:
        """Return the number of open workloads."""
        return len(self._open)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return the clusters with open workloads."""
        return tuple(self._here)

    def caught_up(self) -> None:
        """Keep hints from now on: all stored events have been taken."""
        if not self._live:
            self._live = True
            self.born = self.position

    # Events of the log

    def take(self, subject: str, sequence: int, stored_at_s: float, data: bytes) -> str:
        """Take one stored event, in order. Return the cluster with a new hint, or "". Raises
        Unreadable for a message to store as a dead letter.
        """
        self.position = sequence
        if is_decision(subject):
            return ""
        try:
            place = parse_workload_event(subject)
        except SubjectError as error:
            raise Unreadable(str(error)) from error
        name = key(place.tenant, place.id)
        try:
            event, is_astray = decode_event(subject, data)
        except UNREADABLE as error:
            self._workloads.freeze(place.tenant, place.id, sequence, str(error))
            self._leave_frozen(name)
            raise Unreadable(str(error), name) from error
        return self._fold(name, event, sequence, stored_at_s, data, void=is_astray)

    def _fold(
        self,
        name: Key,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        data: bytes,
        *,
        void: bool,
    ) -> str:
        if name in self._ended:
            self._ended[name] = sequence
            return ""
        known = self._open.get(name)
        was, attempt, claimant = "", 0, ""
        if known is not None:
            was, attempt = (known.cluster, known.attempt) if known.live else ("", 0)
            claimant = known.executor
        applied = self._workloads.apply(event, sequence, stored_at_s, void=void)
        if applied is None:
            return ""
        verdict, workload, _ = applied
        if verdict is Verdict.AHEAD:
            self._leave_frozen(name)
        if verdict is not Verdict.COUNTED:
            return ""
        if workload.ended:
            self.frozen_in.pop(name, None)
            self._remember(name, sequence)
        now = workload.cluster if workload.live else ""
        if was and (was != now or attempt != workload.attempt):
            self._keep_left(name, attempt, was)
        elif workload.ended and workload.cluster:  # only its tombstone is stored
            self._keep_left(name, workload.attempt, workload.cluster)
        if was and was != now:
            self._leave(was, name)
            self._leave_hub(was, name)
        return self._hint(name, workload, event, StoredHint(sequence, data), claimant)

    def _hint(
        self, name: Key, workload: Workload, event: WorkloadEvent, hint: StoredHint, claimant: str
    ) -> str:
        match event:
            case Placed() | Carried() if not workload.live:  # carried, without a placement
                return ""
            case Placed() | Carried() if HUB_CELL in (getattr(event, "cell", ""), workload.cell):
                self._hub_names[name] = by = _hub_name(workload)
                known_here = _Here(workload, StoredHint(hint.sequence, b""))
                self._by_hub.setdefault(workload.cluster, {})[by] = known_here
                return ""
            case Carried() if workload.target.via == "hub":
                return ""
            case Placed() if sent_by_hub(event):
                return ""  # by Karmada: the service beside Karmada reports its jobs
            case Placed():
                hint = hint._replace(receipt=_receipt(workload, hint.sequence))
                self._here.setdefault(event.cluster, {})[name] = _Here(workload, hint)
            case Carried():
                placed = encode(_as_placed(event))
                held = workload.claimed_at_s > 0
                hint = StoredHint(hint.sequence, placed, held, _receipt(workload, hint.sequence))
                self._here.setdefault(event.cluster, {})[name] = _Here(workload, hint)
            case Running():
                if (here := self._here.get(event.cluster, {}).get(name)) is not None:
                    here.running += 1
                return ""
            case Checkpointed() | Progressed():
                if (place := self._place(event.cluster, name)) is not None:
                    place.heard += 1
                return ""
            case CancelRequested():
                here = self._here.get(event.cluster, {}).get(name)
                if here is None:
                    return ""
                here.wish = hint
            case EvictionRequested():
                here = self._here.get(event.cluster, {}).get(name)
                if here is None:
                    return ""
                here.order = hint
            case ResizeRequested():
                here = self._here.get(event.cluster, {}).get(name)
                if here is None:
                    return ""
                here.resize = hint
            case Committed():
                here = self._here.get(event.cluster, {}).get(name)
                if here is None:
                    return ""
                here.commit = hint
            case Resized():
                if (here := self._here.get(event.cluster, {}).get(name)) is not None:
                    here.resize = None
                return ""
            case Evicted() | Failed() if event.cluster and event.by != claimant:
                pass
            case _:
                return ""
        return self._keep(event.cluster, hint)

    def _lately_of(self, cluster: str) -> _Lately:
        lately = self._lately.get(cluster)
        if lately is None:
            lately = self._lately[cluster] = _Lately(self.born)
        return lately

    def _keep(self, cluster: str, hint: StoredHint) -> str:
        if not self._live:
            return ""
        lately = self._lately_of(cluster)
        lately.hints.append(hint)
        self._order.append(cluster)
        if len(self._order) > self._window:
            oldest = self._lately[self._order.popleft()]
            oldest.floor = max(oldest.floor, oldest.hints.popleft().sequence)
        return cluster

    def _remember(self, name: Key, sequence: int) -> None:
        self._ended[name] = sequence
        if len(self._ended) > ENDINGS:
            self._ended.popitem(last=False)

    def _keep_left(self, name: Key, attempt: int, cluster: str) -> None:
        self._left[name, attempt] = cluster
        if len(self._left) > LEFT:
            self._left.popitem(last=False)

    def _leave_frozen(self, name: Key) -> None:
        workload = self._open.get(name)
        cluster = workload.cluster if workload is not None and workload.live else ""
        if cluster:
            self.frozen_in.setdefault(name, cluster)
            self._leave(cluster, name)
            self._leave_hub(cluster, name)

    def _leave(self, cluster: str, name: Key) -> None:
        here = self._here.get(cluster, {})
        here.pop(name, None)
        if not here:
            self._here.pop(cluster, None)

    def _leave_hub(self, cluster: str, name: Key) -> None:
        by = self._hub_names.pop(name, None)
        here = self._by_hub.get(cluster, {})
        if by is not None and by in here and here[by].workload.key == name:
            del here[by]
            if not here:
                del self._by_hub[cluster]

    def _place(self, cluster: str, name: Key) -> _Here | None:
        """Return a workload's entry in the cluster, by an executor or by way of a hub."""
        here = self._here.get(cluster, {}).get(name)
        by = self._hub_names.get(name)
        if here is None and by is not None:
            here = self._by_hub.get(cluster, {}).get(by)
        return here if here is not None and here.workload.key == name else None

    # Queries of clusters

    def hub_work(self, cluster: str, asked: HubPods) -> HubWork | None:
        """Return the workload of these pods, if in this cluster by way of a hub."""
        here = self._by_hub.get(cluster, {})
        space, job = asked.namespace, asked.job
        names = HubName(space, asked.workload), HubName(space, "", job)
        found = next((here[name] for name in names if any(name[1:]) and name in here), None)
        if found is None:
            return None
        work = found.workload
        sets = work.request.pod_sets if work.request is not None else ()
        return HubWork(
            tenant=work.tenant,
            id=work.id,
            attempt=work.attempt,
            sequence=work.sequence,
            pod_sets=tuple(each.name for each in sets),
        )

    def follows(self, cluster: str, after: int) -> bool:
        """Return whether all hints after this cursor are kept."""
        lately = self._lately.get(cluster)
        return after >= (lately.floor if lately is not None else self.born)

    def since(self, cluster: str, after: int, most_bytes: int) -> list[StoredHint]:
        """Return hints after a cursor, oldest first, as many as fit and at least one."""
        lately = self._lately.get(cluster)
        if lately is None or not lately.hints or lately.hints[-1].sequence <= after:
            return []
        found: list[StoredHint] = []
        for hint in reversed(lately.hints):
            if hint.sequence <= after:
                break
            found.append(hint)
        found.reverse()
        taken: list[StoredHint] = []
        size = 0
        for hint in found:
            size += len(hint.event)
            if taken and size > most_bytes:
                break
            taken.append(hint)
        return taken

    def listed(self, cluster: str, page: str, most_bytes: int) -> tuple[list[StoredHint], str]:
        """Return the open workloads of a cluster after a page's mark, and the next page's mark."""
        here = self._here.get(cluster, {})
        taken: list[StoredHint] = []
        size = 0
        last = ""
        for name in sorted(name for name in here if name > page):
            one = here[name]
            if taken and size + len(one.placed.event) > most_bytes:
                return taken, last
            held = one.workload.claimed_at_s > 0
            taken.append(one.placed._replace(held=held))
            size += len(one.placed.event)
            for more in (one.commit, one.wish, one.order, one.resize):
                if more is not None:
                    taken.append(more)
                    size += len(more.event)
            last = name
        return taken, ""

    def story(self, cluster: str, tenant: str, workload_id: str) -> OwnWorkload | Frozen | None:
        """Return an open workload of this cluster."""
        name = key(tenant, workload_id)
        if self.frozen_in.get(name) == cluster:
            return Frozen(self.frozen[name])
        here = self._here.get(cluster, {}).get(name)
        if here is None:
            return None
        workload = here.workload
        told = {field: getattr(workload, field) for field in _SAME}
        return OwnWorkload(**told | {"state": workload.state.value})

    def receipt(self, cluster: str, tenant: str, workload_id: str) -> PlacementReceipt | None:
        """Return the receipt of an open workload of this cluster."""
        here = self._here.get(cluster, {}).get(key(tenant, workload_id))
        return here.placed.receipt if here is not None else None

    def check(self, cluster: str, event: ExecutorEvent, *, again: bool) -> Check:
        """Check whether an executor's event may follow, as of ``event.after``."""
        if event.cluster != cluster:
            return Refuse("cluster: it is about another cluster than the one that tells it")
        try:
            aggregate(event.tenant, event.id)
        except SubjectError as error:
            return Refuse(f"tenant, id: {error}")
        if event.after > self.position:
            return Behind()
        name = key(event.tenant, event.id)
        if name in self.frozen:
            if self.frozen_in.get(name) == cluster:
                return Frozen(self.frozen[name])
            return Refuse("not placed in this cluster")
        workload = self._open.get(name)
        last = workload.sequence if workload is not None else 0
        if workload is None or event.after < last:
            return Settle() if again else Refuse("after: something else has happened")
        here = self._place(cluster, name)
        if event.after > last or here is None:
            return Refuse("not placed in this cluster")
        if name not in self._here.get(cluster, {}) and not isinstance(
            event, Checkpointed | Progressed
        ):
            return Refuse("it goes by way of a hub, whose reconciler tells what becomes of it")
        if why := _too_much(here, event):
            return Refuse(why)
        trial = copy(workload)
        if offer(trial, event, self.position + 1, 0.0) is not Verdict.COUNTED:
            why = f"attempt {event.attempt} of a workload that is {workload.state}"
            return Refuse(f"{why} cannot take {event_kind(event)}")
        return Store()

    def has(self, cluster: str, name: str, attempt: int) -> bool:
        """Return whether this attempt is in this cluster now, also by way of a hub. ``name`` is as
        ``key`` returns it. For a frozen workload any attempt matches.
        """
        workload = self._open.get(Key(name))
        if workload is not None and Key(name) not in self.frozen:
            return workload.live and (workload.cluster, workload.attempt) == (cluster, attempt)
        return self.frozen_in.get(Key(name)) == cluster

    def had(self, cluster: str, name: str, attempt: int) -> bool:
        """Return whether this attempt is in this cluster, or was there lately."""
        workload = self._open.get(Key(name))
        is_open = workload is not None and workload.live and workload.attempt == attempt
        if not is_open and self._left.get((Key(name), attempt)) == cluster:
            return True
        return self.has(cluster, name, attempt)

    def concerns(self, cluster: str, name: str) -> bool:
        """Return whether a workload is open or frozen in this cluster, by its ``key``."""
        known = Key(name)
        return known in self._here.get(cluster, {}) or self.frozen_in.get(known) == cluster


def _hub_name(workload: Workload) -> HubName:
    if (origin := workload.origin) is not None:
        return HubName(origin.namespace, origin.name)
    return HubName(workload.target.namespace, "", job_name(workload.tenant, workload.id))


def _receipt(workload: Workload, sequence: int) -> PlacementReceipt | None:
    """Return the receipt of a placement stored under this sequence."""
    if workload.request is None:
        return None
    told = {field: getattr(workload, field) for field in _OF_RECEIPT}
    told["request"] = as_placed(workload)
    return PlacementReceipt(**told, sequence=sequence)


def _as_placed(event: Carried) -> Placed:
    """Return the placement that executors receive for a carried workload."""
    work = event.workload
    fields: dict[str, Any] = {field: getattr(work, field) for field in _OF_PLACED}
    fields["request"] = as_placed(work)
    fields |= {field: getattr(event, field) for field in Event.__struct_fields__}
    return Placed(**fields)


def _too_much(here: _Here, event: ExecutorEvent) -> str:
    """Return why no honest executor sends this event, or ""."""
    workload = here.workload
    request = workload.request
    pods = sum(one.count for one in request.pod_sets) if request is not None else 0
    if len(encode(event)) > EVENT_BYTES + pods * POD_BYTES:
        return f"more than {EVENT_BYTES} bytes and {POD_BYTES} for each pod"
    match event:
        case Running() if here.running >= MAX_RUNNING:
            return f"pods: told {MAX_RUNNING} times in one attempt"
        case Checkpointed() | Progressed() if here.heard >= 2 * MAX_HEARD:
            return f"checkpoints and progress: told {2 * MAX_HEARD} times in one attempt"
        case Checkpointed() if uri_fault(event.checkpoint.uri) is not None:
            return "checkpoint.uri: it names a user and a password, or is not one line"
        case Evicted(blameless=True) if not (
            workload.leaving or may_give_way(request, workload.state, workload.attempt)
        ):
            return "blameless: of attempts that make room, or of gangs that start and not for ever"
        case Evicted(blameless=True):
            return ""
        case Evicted() if request is not None and event.fault in OWN:
            if is_tried_again(request, workload.failures, event.exit_code):
                return ""
            return f"failed {workload.failures} times before: it is not to be tried again"
        case Evicted() if request is not None and workload.evictions >= request.max_evictions:
            return f"evicted {workload.evictions} times before: one more is a failure"
        case Succeeded() | Failed() | Cancelled() if event.digest != workload.digest:
            return "digest: not that of its request"
        case _:
            return ""


class Unreadable(Exception):
    """A message of the log that this version cannot use. ``workload``: its name, "" = none."""

    def __init__(self, why: str, workload: str = "") -> None:
        super().__init__(why)
        self.workload = workload
