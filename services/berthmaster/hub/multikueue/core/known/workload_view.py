"""One workload, as log, hub and workers show it now, and what was noticed of it before."""

from collections.abc import Mapping
from typing import NamedTuple

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.contest import Contest
from berthmaster.hub.multikueue.core.known.hub import Hub, Rules
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import FINISHED
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import CopyReport


class WorkloadView(NamedTuple):
    """One workload, as log, hub and its worker show it."""

    name: Key
    bus: Workload | None  # open on the bus
    ended: State | None  # over on the bus
    hub: KueueWorkload | None
    job: HubJob | None
    rules: Rules | None
    ours: bool  # its Job is made by us: the request came over the bus
    job_was_seen: bool
    copies: Mapping[str, CopyReport]  # by cluster, of those that were heard of and not gone
    alive_at_s: Mapping[str, float]  # of these and the attempt's cluster: when it was heard of last
    elsewhere: str = ""  # id of the hub where it stands, if that is another one
    is_unwritten: bool = False  # it is over, and the log should tell of it and does not
    heard_since_s: float = float("-inf")  # the hub and its Kueue, without a break; else infinite

    @property
    def nominated(self) -> frozenset[str]:
        """The fleet's names of the clusters that are nominated already."""
        if self.hub is None or self.rules is None:
            return frozenset()
        return frozenset(r.name for r in self.rules.clusters if r.hub_name in self.hub.nominated)

    @property
    def copy(self) -> CopyReport | None:
        """In the cluster of the open attempt."""
        return self.copies.get(self.bus.cluster) if self.bus is not None else None

    @property
    def admitted_copy(self) -> CopyReport | None:
        """One that was admitted in a worker: it may run already, whatever the hub says. Where it is
        nominated first: that one the hub will take over."""
        found = [copy for _, copy in sorted(self.copies.items()) if copy.running]
        return min(found, key=lambda one: one.cluster not in self.nominated, default=None)

    @property
    def blocked_copy(self) -> CopyReport | None:
        """One for which Kueue can make no job, since another object has the job's name."""
        found = (copy for _, copy in sorted(self.copies.items()) if copy.blocked_by)
        return next(found, None)

    @property
    def running_copy(self) -> CopyReport | None:
        """The one that runs in a worker, or has run there."""
        return next((copy for _, copy in sorted(self.copies.items()) if copy.ran), None)


class Memo:
    """What one life of the process noticed of a workload. Losing it costs time, never truth."""

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
        self.ready_at_s: float | None = None  # since when it may be nominated, and has no cluster
        self.admitted_since_s: float | None = None  # a copy is admitted and the hub does not say so
        self.evicting_since_s: float | None = None  # Kueue takes it back and its pods still count
        self.blind = False  # it was nominated while the bus was away
        self.is_late = False  # it was over before the log knew of it
        self.is_refused = False  # the hub makes copies, and none of it in its cluster (hub_pace.py)
        self.is_unproven = False  # a nomination was taken back whose copy nobody has reported
        self.ran_in = ""  # cluster that had its last admitted copy
        self.ended_in: set[str] = set()  # clusters that reported the end of a copy or of its Job
        self.finished_since_s: float | None = None  # the hub shows its end
        self.why = ""  # what it waited for at the last look
        self.patience_since_s = float("-inf")  # the hub has had its time for it (hub_pace.py)
        self.placed_for = ""  # why the last placement of this life chose its cluster, in words
        self.told: dict[str, str] = {}  # reason of an event -> its note
        self.trouble = ""  # why the last write to Kubernetes failed
        self.trouble_passes = False  # it is none that a person can mend, and over in seconds
        self.trouble_until_s = 0.0
        self.unmakeable = ""  # why the hub's API server refuses its Job for the Job's own sake
        self.contest = Contest()
        self.nominated: dict[str, float] = {}  # seen nominated in this Kueue attempt -> since when
        self.tried: dict[str, float] = {}  # clusters that were left in it -> when
        self.leaving = ""  # why the open attempt's nomination is taken back
        self.leaves_blameless = False  # which says nothing of its cluster
        self.copy_was_seen = False  # of the last nomination
        self.cleared_at_s: float | None = None  # when that was taken back; None = not in this life
        self.clears_until_s = float("-inf")  # the hub may not have seen that yet (hub_pace.py)
        self.lingering_since_s: float | None = None  # copies of it have to go

    def kueue_took_it_back(self) -> None:
        """Its attempt in Kueue has ended: Kueue removes all copies, and the next one is new."""
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
        heard_since_s=max(hub.heard_since_s, hub.kueue_since_s),
    )


def _gone(name: Key, bus: Workload | None, hub: Hub) -> KueueWorkload | None:
    """A Workload that was deleted before the log knew of it, or of its good or bad end."""
    found = hub.lives.gone.get(name)
    if found is None or bus is None:
        return found
    same = bus.origin is None or bus.origin.uid in ("", found.metadata.uid)
    return found if same and found.holds(FINISHED) else None
