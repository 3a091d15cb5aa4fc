"""One workload, as log, hub and workers show it now, with notes of this process run.

**Contest.** Another writer of a Workload's nomination: a second dispatcher, or one of Kueue's own.

Kueue removes a nomination only with its own attempt: when it chooses a cluster or releases the
quota. Any other change during the attempt comes from another writer. Two writers would overwrite
each other forever, and Kueue would create and remove copies each time. So this service backs off
for 2 s, 4 s, … up to a minute, and asks the API server for the other writer. Events of that time
are no evidence about any cluster.

**Rooms.** Capacity and quota of Workloads, by cluster and ClusterQueue, kept up to date.

A search for victims reads this index in place of tens of thousands of open Workloads. A Workload
with news from the log or the hub is recomputed at the next query. Its copy and time change too, and
are not part of the index.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, Rules
from berthmaster.lib.kueue.asks import devices_asked
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import CopyReport
from berthmaster.lib.messages.workload import JobRequest

FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0


class Contest:
    """The contest about one Workload during one Kueue attempt."""

    __slots__ = ("_attempt", "_version", "_wrote", "by", "times", "until_s")

    def __init__(self) -> None:
        self.times = 0  # number of observed foreign writes
        self.until_s = 0.0  # left alone until then
        self.by: tuple[str, ...] = ()  # field managers; () = not known
        self._wrote: tuple[str, ...] | None = None  # this service's last write that still stands
        self._version = 0
        self._attempt = ""

    def over(self) -> None:
        """End the contest: Kueue's attempt ended, or Kueue chose a cluster."""
        self.times, self.until_s, self.by, self._wrote = 0, 0.0, (), None

    def wrote(self, workload: KueueWorkload) -> None:
        """Our word stands, as the server answered."""
        self._wrote = workload.nominated
        self._version = _version(workload)
        self._attempt = _attempt(workload)

    def look(self, workload: KueueWorkload, now_s: float) -> bool:
        """Whether somebody else has written since our last word. To be asked only while the
        contract allows a nomination."""
        mine, version = self._wrote, _version(workload)
        if mine is None or version <= self._version:
            return False  # the mirror may be behind this service's write
        if _attempt(workload) != self._attempt:
            self.over()
            return False
        if workload.nominated == mine:
            return False
        self._wrote = None
        self.times += 1
        self.until_s = now_s + min(FIRST_S * 2.0 ** min(self.times - 1, 16), LONGEST_S)
        return True

    @property
    def words(self) -> str:
        """Describe the contest; "" without another writer."""
        if not self.times:
            return ""
        who = ", ".join(self.by) if self.by else "somebody whom managedFields do not name"
        often = "once" if self.times == 1 else f"{self.times} times"
        return (
            f"{who} has written its nomination as well, {often}: only one dispatcher may do so "
            "(dispatcherName in the configuration of the hub's Kueue says which)"
        )


def _version(workload: KueueWorkload) -> int:
    version = workload.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _attempt(workload: KueueWorkload) -> str:
    reserved = workload.condition(QUOTA_RESERVED)
    return (reserved.last_transition_time or "") if reserved is not None else ""


class WorkloadView(NamedTuple):
    """One workload in log, hub and its worker."""

    name: Key
    bus: Workload | None  # open on the bus
    ended: State | None  # over on the bus
    hub: KueueWorkload | None
    job: HubJob | None
    rules: Rules | None
    ours: bool  # its Job is made by us: the request came over the bus
    job_was_seen: bool
    copies: Mapping[str, CopyReport]  # by cluster: reported copies that still exist
    alive_at_s: Mapping[str, float]  # last heartbeat of these clusters and the attempt's
    elsewhere: str = ""  # id of another hub that has the workload
    is_unwritten: bool = False  # over, and missing in the log
    ended_job: HubJob | None = None  # had ended when it was deleted; the log lacks the end
    # Start of uninterrupted updates from hub and Kueue; infinite without
    heard_since_s: float = float("-inf")

    @property
    def nominated(self) -> frozenset[str]:
        """Return the fleet's names of the nominated clusters."""
        if self.hub is None or self.rules is None:
            return frozenset()
        return frozenset(r.name for r in self.rules.clusters if r.hub_name in self.hub.nominated)

    @property
    def copy(self) -> CopyReport | None:
        """In the cluster of the open attempt."""
        return self.copies.get(self.bus.cluster) if self.bus is not None else None

    @property
    def admitted_copy(self) -> CopyReport | None:
        """Return a copy admitted in a worker, which may run whatever the hub says. A nominated one
        comes first, because the hub will take it over.
        """
        found = [copy for _, copy in sorted(self.copies.items()) if copy.running]
        return min(found, key=lambda one: one.cluster not in self.nominated, default=None)

    @property
    def blocked_copy(self) -> CopyReport | None:
        """Return a copy without a job, because another object has the job's name."""
        found = (copy for _, copy in sorted(self.copies.items()) if copy.blocked_by)
        return next(found, None)

    @property
    def running_copy(self) -> CopyReport | None:
        """Return a copy that runs in a worker or has run there."""
        return next((copy for _, copy in sorted(self.copies.items()) if copy.ran), None)


class Memo:
    """Notes of this process run about a workload. Losing them costs time only."""

    __slots__ = (
        "admitted_since_s",
        "blind",
        "cleared_at_s",
        "clears_until_s",
        "contest",
        "copy_was_seen",
        "ended_in",
        "evicting_since_s",
        "finished_since_s",
        "is_late",
        "is_refused",
        "is_unproven",
        "leaves_blameless",
        "leaving",
        "lingering_since_s",
        "nominated",
        "patience_since_s",
        "placed_for",
        "ran_in",
        "ready_at_s",
        "told",
        "tried",
        "trouble",
        "trouble_passes",
        "trouble_until_s",
        "unmakeable",
        "why",
    )

    def __init__(self) -> None:
        # Time since which it may be nominated and has no cluster
        self.ready_at_s: float | None = None
        self.admitted_since_s: float | None = None  # a copy is admitted and the hub does not say so
        self.evicting_since_s: float | None = None  # Kueue releases it, and its pods still count
        self.blind = False  # nominated while the bus was away
        self.is_late = False  # over before the log knew of it
        # The hub creates copies elsewhere and none in its cluster (hub_kueue.py)
        self.is_refused = False
        self.is_unproven = False  # a nomination was cleared without any report of its copy
        self.ran_in = ""  # cluster of its last admitted copy
        self.ended_in: set[str] = set()  # clusters that reported the end of a copy or of its Job
        self.finished_since_s: float | None = None  # the hub shows its end
        self.why = ""  # cause of the wait at the last check
        self.patience_since_s = float("-inf")  # the hub has had its time (hub_kueue.py)
        self.placed_for = ""  # why the last placement of this run chose its cluster
        self.told: dict[str, str] = {}  # reason of a Kubernetes event -> its note
        self.trouble = ""  # why the last write to Kubernetes failed
        self.trouble_passes = False  # passes in seconds without an operator
        self.trouble_until_s = 0.0
        self.unmakeable = ""  # why the hub's API server refuses its Job for the Job's own sake
        self.contest = Contest()
        self.nominated: dict[str, float] = {}  # seen nominated in this Kueue attempt -> since when
        self.tried: dict[str, float] = {}  # clusters left in this Kueue attempt -> when
        self.leaving = ""  # why the open attempt's nomination is taken back
        self.leaves_blameless = False  # no evidence against its cluster
        self.copy_was_seen = False  # of the last nomination
        # When it was cleared; None = not in this process run
        self.cleared_at_s: float | None = None
        # The hub may not have seen the clearing until then (hub_kueue.py)
        self.clears_until_s = float("-inf")
        self.lingering_since_s: float | None = None  # copies to remove first

    def kueue_took_it_back(self) -> None:
        """Reset after Kueue's attempt ended: all copies are removed, and the next
        attempt is new.
        """
        self.ready_at_s = None
        self.ran_in = ""
        self.ended_in.clear()
        self.finished_since_s = None
        self.blind = False
        self.contest.over()
        self.nominated.clear()
        self.tried.clear()
        self.leaving = ""
        self.is_unproven = False
        self.copy_was_seen = False
        self.cleared_at_s = float("-inf")
        self.lingering_since_s = None

    def cleared(self, cluster: str, now_s: float) -> None:
        """The nomination was taken back, to leave a cluster if one is named."""
        self.nominated.clear()
        self.cleared_at_s = now_s
        self.is_unproven = self.is_unproven or not self.copy_was_seen
        if cluster:
            self.tried[cluster] = now_s


def view_of(name: Key, know: BusState, hub: Hub) -> WorkloadView:
    bus = know.open.get(name)
    workload = hub.workload(name, bus.origin.uid if bus is not None and bus.origin else "")
    if workload is None:
        workload = _gone(name, bus, hub)
    home = know.home_of(bus) if bus is not None else ""
    rules = hub.rules(workload) if workload is not None else None
    copies: dict[str, CopyReport] = {}
    if workload is not None and rules is not None:
        at = (workload.metadata.namespace, workload.metadata.name)
        for ref in rules.clusters:
            found = know.copies.get((ref.name, *at))
            if found is not None:
                copies[ref.name] = found
    involved = {*copies, bus.cluster} if bus is not None and bus.cluster else copies.keys()
    return WorkloadView(
        name=name,
        bus=bus,
        ended=know.ended.get(name) if bus is None else None,
        hub=workload,
        job=hub.job(name),
        rules=rules,
        ours=name in hub.job_of or (bus is not None and bus.origin is None),
        job_was_seen=name in hub.seen_jobs,
        copies=copies,
        alive_at_s={name: know.view.clusters.peek(name).alive_at_s for name in involved},
        elsewhere="" if hub.is_mine(home) else home,
        is_unwritten=(
            bus is None and workload is not None and hub.lives.is_unwritten(name, workload)
        ),
        ended_job=hub.lives.ended_jobs.get(name),
        heard_since_s=max(hub.heard_since_s, hub.kueue_since_s),
    )


def _gone(name: Key, bus: Workload | None, hub: Hub) -> KueueWorkload | None:
    """Return a Workload deleted before the log knew it or its result."""
    found = hub.lives.gone.get(name)
    if found is None or bus is None:
        return found
    same = bus.origin is None or bus.origin.uid in ("", found.metadata.uid)
    over = found.holds(FINISHED) or name in hub.lives.ended_jobs
    return found if same and over else None


Kind = tuple[str, int]  # ClusterQueue, the Workload's priority
Amounts = Mapping[str, int]  # by resource, in thousandths
_BEGUN: Final = (State.ADMITTED, State.RUNNING)
_AWAITS: Final = (State.CLAIMED, State.ADMITTED)


class _Row(NamedTuple):
    cluster: str  # cluster of its present or future capacity; "" = none
    state: State
    kind: Kind | None  # None: unknown to the hub or its rules
    amounts: Amounts
    has_quota: bool  # of the hub
    leaves: bool  # being evicted, by a decision or by Kueue


class Rooms:
    """By cluster and by ClusterQueue."""

    def __init__(self, know: BusState, hub: Hub) -> None:
        """Both are read-only views."""
        self._know = know
        self._hub = hub
        self._stale: set[Key] = set()
        self._rows: dict[Key, _Row] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._on_their_way_out: dict[Key, None] = {}
        self._begun: dict[str, dict[Kind, dict[Key, None]]] = {}
        self._leaving: dict[str, dict[Key, None]] = {}
        self._awaiting: dict[str, dict[Key, None]] = {}

    def heard_of(self, names: Iterable[Key]) -> None:
        """Something of these may be otherwise now."""
        self._stale.update(names)

    # Queries

    def used(self) -> Mapping[str, Amounts]:
        """Return the hub quota held by each ClusterQueue."""
        self._catch_up()
        return self._used

    def on_their_way_out(self) -> list[tuple[str, Amounts]]:
        """Return the part to be released: ClusterQueue and quantities of each."""
        self._catch_up()
        rows = (self._rows[name] for name in self._on_their_way_out)
        return [(row.kind[0], row.amounts) for row in rows if row.kind is not None]

    def begun(self, cluster: str) -> Mapping[Kind, Iterable[Key]]:
        """Return the running or admitted Workloads of a cluster."""
        self._catch_up()
        return self._begun.get(cluster, {})

    def leaving(self, cluster: str) -> Iterable[Key]:
        """Return those of them being evicted."""
        self._catch_up()
        return self._leaving.get(cluster, ())

    def awaiting(self, cluster: str) -> Iterable[Key]:
        """Return Workloads sent there that have not surely started."""
        self._catch_up()
        return self._awaiting.get(cluster, ())

    def amounts(self, name: Key) -> Amounts:
        """Return the usage of an open Workload."""
        self._catch_up()
        return self._rows[name].amounts

    # Maintenance

    def _catch_up(self) -> None:
        while self._stale:
            name = self._stale.pop()
            before, now = self._rows.pop(name, None), self._row(name)
            if before is not None:
                self._count(name, before, -1)
            if now is not None:
                self._rows[name] = now
                self._count(name, now, 1)

    def _row(self, name: Key) -> _Row | None:
        view = view_of(name, self._know, self._hub)
        bus, hub, rules = view.bus, view.hub, view.rules
        if bus is None:
            return None
        request = bus.request
        known = hub is not None and rules is not None and request is not None
        return _Row(
            cluster=bus.cluster if bus.state in HELD else "",
            state=bus.state,
            kind=(rules.cluster_queue, hub.spec.priority or 0) if known and hub and rules else None,
            amounts=amounts_of(request) if request is not None else {},
            has_quota=hub is not None and hub.holds(QUOTA_RESERVED) and not hub.holds(FINISHED),
            leaves=bool(bus.leaving) or (hub is not None and hub.holds(EVICTED)),
        )

    def _count(self, name: Key, row: _Row, sign: int) -> None:
        def keep(among: dict[Key, None]) -> None:
            if sign > 0:
                among[name] = None
            else:
                among.pop(name, None)

        if row.kind is not None and row.has_quota:
            used = self._used.setdefault(row.kind[0], {})
            for resource, amount in row.amounts.items():
                used[resource] = used.get(resource, 0) + sign * amount
            if row.leaves:
                keep(self._on_their_way_out)
        if not row.cluster:
            return
        if row.state in _AWAITS:
            keep(self._awaiting.setdefault(row.cluster, {}))
        if row.state in _BEGUN:
            if row.kind is not None:
                keep(self._begun.setdefault(row.cluster, {}).setdefault(row.kind, {}))
            if row.leaves:
                keep(self._leaving.setdefault(row.cluster, {}))


def amounts_of(request: JobRequest) -> dict[str, int]:
    """Return the devices of a request by resource, in thousandths."""
    return {name: round(1000 * number) for name, number in devices_asked(request).items()}
