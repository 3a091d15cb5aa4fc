"""Workloads on their way to a cluster: their capacity still looks free in reports.

Example: w1 reports 8 free GPUs. A Workload of 2 GPUs was nominated there a second ago, so 6 are
left for the next.

A workload is on its way from its placement until it runs and nodes had time to report it, or until
its admission is old enough that its pods are bound or wait for nodes. Placements of a decision in
progress count for later ones (``draft``). So does a workload with an eviction decision, until it is
placed again or over, for an hour at most: its capacity is reserved.

**Arrivals.** GPUs on their way to a cluster that its nodes already show.

Example: a job of 4 GPUs was nominated for w1. A node of w1 then reports 4 more GPUs used by
unmanaged pods. The job counts as arrived there, although the hub reports it running only a second
or two later.

Pods of jobs created with kubectl carry no labels of Berthmaster, so nodes report them as unmanaged.
Growth of unmanaged usage is credited to jobs on their way, the oldest first. If other pods start in
that second, a little too much capacity is assumed. Nothing is known before the first report of a
node in this process run. Then time decides.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.accelerators.table import How, how_of
from berthmaster.lib.engine.fleet.gpus import resources_of
from berthmaster.lib.kueue.asks import devices_asked
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.fleet import CopyReport, NodeReport

_Uses = tuple[float, dict[Key, float]]  # GPUs of other people's pods, and of ours by workload


class Arrivals:
    """Arrived GPUs of jobs on their way."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], _Uses] = {}  # cluster, node
        self._arrived: dict[tuple[str, Key], float] = {}  # cluster, workload -> GPUs

    def of(self, cluster: str, name: Key) -> float:
        """Return the GPUs of a workload that the cluster's nodes already show."""
        return self._arrived.get((cluster, name), 0.0)

    def report(self, fact: NodeReport, coming: Callable[[], Mapping[Key, float]]) -> None:
        """Apply a node report. ``coming``: returns GPUs on their way by workload, called only after
        growth.
        """
        now = self._uses_of(fact)
        before = self._uses.get((fact.cluster, fact.node))
        self._uses[fact.cluster, fact.node] = now
        if before is None:
            return
        grown = max(0.0, now[0] - before[0])
        if not grown and now[1] == before[1]:
            return
        for name, wants in coming().items():
            seen = self.of(fact.cluster, name)
            own = now[1].get(name)
            if own is not None:
                more = own - before[1].get(name, 0.0)
            else:
                more = min(grown, max(0.0, wants - seen))
                grown -= more
            if more > 0:
                self._arrived[fact.cluster, name] = min(wants, seen + more)

    def forget(self, cluster: str, name: Key) -> None:
        """Remove a workload that is no longer on its way."""
        self._arrived.pop((cluster, name), None)

    def drop_node(self, cluster: str, node: str) -> None:
        self._uses.pop((cluster, node), None)

    @staticmethod
    def _uses_of(fact: NodeReport) -> _Uses:
        ours: dict[Key, float] = {}
        for pod in fact.pods:
            name = key(pod.tenant, pod.workload)
            ours[name] = ours.get(name, 0.0) + pod.gpu_milli * len(pod.gpus) / 1000
        return fact.foreign.gpu_milli / 1000, ours


IN_PIECES: Final = (How.TPU, How.OTHER)
KEPT_S: Final = 3600.0  # limit for an evicted workload
ADMITTED_S: Final = 10.0  # after admission pods are bound and reported, or wait for nodes


class Way(NamedTuple):
    devices: Mapping[str, float]  # by resource, of pods that nodes do not report yet
    unreserved: tuple[Workload, ...]  # workloads whose copies have no quota reservation yet

    @property
    def gpus(self) -> float:
        """Return the GPUs of all vendors, with fractions."""
        return sum(n for name, n in self.devices.items() if how_of(name) not in IN_PIECES)

    def of(self, resource: str) -> float:
        """Return the GPUs, slices or units requested as this resource."""
        return self.devices.get(resource, 0.0)


class Draft:
    """Placements of a decision in progress."""

    def __init__(self) -> None:
        self.workloads: dict[Key, Workload] = {}  # state after the commit is stored

    def place(self, workload: Workload, cluster: str, now_s: float) -> None:
        """Count a placement as on its way."""
        self.workloads[workload.key] = _as_placed(workload, cluster, now_s)


class OnTheWay:
    """By cluster, in the order of the placements."""

    def __init__(
        self,
        open_: Mapping[Key, Workload],
        copies: Mapping[tuple[str, str, str], CopyReport],
    ) -> None:
        """``open_``: workloads of the log. ``copies``: by cluster, namespace and name. Both are
        read-only views.
        """
        self._open = open_
        self._copies = copies
        self._coming: dict[str, dict[Key, None]] = {}  # cluster -> placed, not surely seen there
        self._arrivals = Arrivals()
        self._draft: Draft | None = None

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Count the placements of a decision while it is made."""
        assert self._draft is None
        self._draft = Draft()
        try:
            yield self._draft
        finally:
            self._draft = None

    def placed(self, cluster: str, name: Key) -> None:
        """Note a placement in the log."""
        self._coming.setdefault(cluster, {})[name] = None

    def arrived(self, cluster: str, name: Key) -> None:
        """Note that the workload is surely reported, or over."""
        self._coming.get(cluster, {}).pop(name, None)
        self._arrivals.forget(cluster, name)

    def node_reported(self, report: NodeReport) -> None:
        """Apply a node report, which may show Workloads on their way."""
        self._arrivals.report(report, lambda: self._held_for(report))

    def node_gone(self, cluster: str, node: str) -> None:
        self._arrivals.drop_node(cluster, node)

    def to(
        self,
        cluster: str,
        now_s: float,
        settle_s: float,
        but: Key | None = None,
        counts: Callable[[Workload], bool] = lambda _: True,
    ) -> Way:
        """Return what is on its way to a cluster.

        ``settle_s``: time from running to a sure report. ``but``: the Workload in question.
        ``counts``: which others count.
        """
        devices: dict[str, float] = {}
        unreserved: list[Workload] = []
        for workload in self._coming_to(cluster, now_s):
            if workload.key == but or not counts(workload):
                continue
            since_s = now_s - workload.changed_at_s
            shown = workload.state is State.RUNNING and since_s > settle_s
            if shown or (workload.state is State.ADMITTED and since_s > ADMITTED_S):
                self.arrived(cluster, workload.key)
            else:
                arrived = self._arrivals.of(cluster, workload.key)
                for resource, wants in _devices(workload).items():
                    # For units time decides, because reports show GPUs only.
                    shown_of_it = 0.0 if how_of(resource) in IN_PIECES else min(wants, arrived)
                    arrived -= shown_of_it
                    devices[resource] = devices.get(resource, 0.0) + wants - shown_of_it
                if workload.state in (State.PLACED, State.CLAIMED) and not self._reserved(workload):
                    unreserved.append(workload)
        return Way(devices, tuple(unreserved))

    def _coming_to(self, cluster: str, now_s: float) -> list[Workload]:
        drafted = self._draft.workloads if self._draft is not None else {}
        found = []
        for name in list(self._coming.get(cluster, {})):
            workload = self._open.get(name)
            if name in drafted:
                continue
            if workload is not None and workload.cluster == cluster and workload.live:
                found.append(workload)
            elif workload is not None and _is_kept(workload, cluster, now_s):
                found.append(_as_placed(workload, cluster, workload.changed_at_s))
            else:
                self.arrived(cluster, name)
        return [*found, *(w for w in drafted.values() if w.cluster == cluster)]

    def _held_for(self, node: NodeReport) -> dict[Key, float]:
        """Return workloads that may have pods on the node, with GPUs, in order of placement. GPUs
        of another vendor are excluded.
        """
        offers = {*resources_of(node), *(share.resource for share in node.shares)}
        coming = (self._open.get(name) for name in self._coming.get(node.cluster, {}))
        return {
            w.key: sum(number for resource, number in _devices(w).items() if resource in offers)
            for w in coming
            if w is not None and w.state in HELD
        }

    def _reserved(self, workload: Workload) -> bool:
        origin = workload.origin
        if origin is None:
            return False
        copy = self._copies.get((workload.cluster, origin.namespace, origin.name))
        return copy is not None and copy.quota_reserved


def _is_kept(workload: Workload, cluster: str, now_s: float) -> bool:
    return workload.leads_to == cluster and now_s - workload.changed_at_s < KEPT_S


def _as_placed(workload: Workload, cluster: str, at_s: float) -> Workload:
    return msgspec.structs.replace(workload, state=State.PLACED, cluster=cluster, changed_at_s=at_s)


def _devices(workload: Workload) -> dict[str, float]:
    return devices_asked(workload.request) if workload.request is not None else {}
