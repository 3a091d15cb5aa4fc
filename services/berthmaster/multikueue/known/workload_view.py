"""One workload, as log, hub and workers show it now, and what was noticed of it before."""

from collections.abc import Mapping
from typing import NamedTuple

from berthmaster.kueue.jobs import HubJob
from berthmaster.kueue.workloads import KueueWorkload
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.lifecycle.states import State
from berthmaster.messages.fleet import CopyReport
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.multikueue.known.hub import Hub, Rules


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
    copies: Mapping[str, CopyReport]  # by cluster, of those that are heard of
    elsewhere: str = ""  # id of the hub where it stands, if that is another one
    heard_since_s: float = float("-inf")  # the hub, without a break; infinite while it is not

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
        """One that was admitted in a worker: it may run already, whatever the hub says."""
        for _, copy in sorted(self.copies.items()):
            if copy.admitted and not (copy.evicted or copy.finished):
                return copy
        return None

    @property
    def running_copy(self) -> CopyReport | None:
        """The one that runs in a worker, or has run there."""
        ran = (copy for _, copy in sorted(self.copies.items()) if copy.admitted or copy.finished)
        return next((copy for copy in ran if not copy.evicted), None)


class Memo:
    """What one life of the process noticed of a workload. Losing it costs time, never truth."""

    __slots__ = (
        "admitted_since_s",
        "evicting_since_s",
        "nominated",
        "ran_in",
        "ready_at_s",
        "told",
        "trouble",
        "trouble_passes",
        "trouble_until_s",
        "why",
    )

    def __init__(self) -> None:
        self.ready_at_s: float | None = None  # since when it may be nominated, and has no cluster
        self.admitted_since_s: float | None = None  # a copy is admitted and the hub does not say so
        self.evicting_since_s: float | None = None  # Kueue takes it back and its pods still count
        self.ran_in = ""  # cluster that had its last admitted copy
        self.why = ""  # what it waited for at the last look
        self.nominated: dict[str, float] = {}  # seen nominated in this Kueue attempt -> since when
        self.told: dict[str, str] = {}  # reason of an event -> its note
        self.trouble = ""  # why the last write to Kubernetes failed
        self.trouble_passes = False  # it is none that a person can mend, and over in seconds
        self.trouble_until_s = 0.0


def view_of(name: Key, know: BusState, hub: Hub) -> WorkloadView:
    """All that is known of one workload."""
    bus = know.open.get(name)
    workload = hub.workload(name, bus.origin.uid if bus is not None and bus.origin else "")
    home = know.home_of(bus) if bus is not None else ""
    rules = hub.rules(workload) if workload is not None else None
    copies: dict[str, CopyReport] = {}
    if workload is not None and rules is not None:
        at = (workload.metadata.namespace, workload.metadata.name)
        for ref in rules.clusters:
            found = know.copies.get((ref.name, *at))
            if found is not None:
                copies[ref.name] = found
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
        elsewhere="" if hub.is_mine(home) else home,
        heard_since_s=hub.heard_since_s,
    )
