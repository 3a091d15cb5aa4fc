"""The hub's objects as they arrive, and the number of Workloads per cluster. Pure.

The index counts on every change: the Workloads waiting at each check, and those in each cluster. So
a pass costs nothing for thousands of unchanged Workloads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from berthmaster.hub.admission.core.objects import Placement, PlacementDecision
from berthmaster.hub.admission.core.selection import Ocm, placement_of
from berthmaster.lib.kube.objects import Object, key_of
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.lib.kueue.names import PENDING
from berthmaster.lib.kueue.workloads import Workload

ObjectKey = tuple[str, str]
NOT_SERVED: Final = "Placements are not served by this hub: install Open Cluster Management's CRDs"


class HubIndex:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace  # of Placements
        self.checks: dict[str, AdmissionCheck] = {}
        self.configs: dict[str, MultiKueueConfig] = {}
        self.clusters: dict[str, MultiKueueCluster] = {}
        self.workloads: dict[ObjectKey, Workload] = {}
        self.waiting: dict[str, set[ObjectKey]] = {}  # check -> Workloads Pending there
        self.absent = ""  # why no Placements are readable, or ""
        self._placements: dict[str, Placement] = {}
        self._pages: dict[str, dict[str, PlacementDecision]] = {}
        self._page_of: dict[str, str] = {}  # page -> Placement
        self._bad_placements: dict[str, str] = {}
        self._bad_pages: dict[str, str] = {}
        # (check, MultiKueueCluster) -> number of Workloads
        self._places: Counter[tuple[str, str]] = Counter()
        self._copies: dict[str, set[ObjectKey]] = {}  # by fleet name

    # Inputs

    def put(self, thing: Object) -> None:
        name = thing.metadata.name
        match thing:
            case Workload():
                at = key_of(thing.metadata)
                self._forget(at)
                self.workloads[at] = thing
                self._count(thing, 1)
                for state in thing.checks:
                    if state.state == PENDING:
                        self.waiting.setdefault(state.name, set()).add(at)
            case AdmissionCheck():
                self.checks[name] = thing
            case MultiKueueConfig():
                self.configs[name] = thing
            case MultiKueueCluster():
                self.clusters[name] = thing
            case Placement():
                self._placements[name] = thing
                self._bad_placements.pop(name, None)
            case PlacementDecision():
                self._turn_out(name)
                self._page_of[name] = placement_of(thing)
                self._pages.setdefault(placement_of(thing), {})[name] = thing
                self._bad_pages.pop(name, None)
            case _:
                raise TypeError(f"{type(thing).__name__} is nothing that is mirrored here")

    def drop(self, thing: Object) -> None:
        name = thing.metadata.name
        match thing:
            case Workload():
                self._forget(key_of(thing.metadata))
            case AdmissionCheck():
                self.checks.pop(name, None)
            case MultiKueueConfig():
                self.configs.pop(name, None)
            case MultiKueueCluster():
                self.clusters.pop(name, None)
            case Placement():
                self._placements.pop(name, None)
            case PlacementDecision():
                self._turn_out(name)

    def set_unreadable(self, placements: Mapping[str, str], pages: Mapping[str, str]) -> bool:
        """Set all unreadable Placements and pages (name -> reason), and return whether they
        changed."""
        before = (self._bad_placements, self._bad_pages)
        self._bad_placements, self._bad_pages = dict(placements), dict(pages)
        return before != (self._bad_placements, self._bad_pages)

    def set_copy(self, cluster: str, at: ObjectKey, there: bool) -> None:
        """Set whether a worker (by fleet name) has a copy of an unfinished Workload."""
        if there:
            self._copies.setdefault(cluster, set()).add(at)
        else:
            self._copies.get(cluster, set()).discard(at)

    def _turn_out(self, page: str) -> None:
        placement = self._page_of.pop(page, None)
        if placement is not None:
            self._pages[placement].pop(page, None)

    def _forget(self, at: ObjectKey) -> None:
        before = self.workloads.pop(at, None)
        if before is None:
            return
        self._count(before, -1)
        for state in before.checks:
            self.waiting.get(state.name, set()).discard(at)

    def _count(self, workload: Workload, by: int) -> None:
        if workload.holds("Finished"):
            return
        for state in workload.checks:
            for cluster in workload.clusters:
                self._places[state.name, cluster] += by

    # Queries

    @property
    def ocm(self) -> Ocm:
        return Ocm(
            self.namespace,
            self._placements,
            self._pages,
            self._bad_placements,
            self._bad_pages,
            self.absent,
        )

    def users(self, config: str) -> tuple[str, ...]:
        """Return the MultiKueue checks that name a configuration."""
        return tuple(sorted(n for n, check in self.checks.items() if check.config == config))

    def left_behind(self, config: str, cluster: str) -> str:
        """Return what a configuration's Workloads still have in a cluster, or ""."""
        users = self.users(config)
        placed = sum(self._places[check, cluster] for check in users)
        if placed:
            return f"{placed} Workloads are there or nominated"
        known = self.clusters.get(cluster)
        fleet_name = known.fleet_name if known is not None else cluster
        copies = self._copies_of(fleet_name, users)
        if copies:
            return f"{len(copies)} copies are there, such as {'/'.join(min(copies))}"
        return ""

    def _copies_of(self, fleet_name: str, users: Iterable[str]) -> set[ObjectKey]:
        """Return copies there of open Workloads that use one of these checks."""
        wanted = set(users)
        found: set[ObjectKey] = set()
        for at in self._copies.get(fleet_name, ()):
            workload = self.workloads.get(at)
            if workload is None or workload.holds("Finished"):
                continue  # Kueue deletes the copy, whatever the configuration lists
            if any(state.name in wanted for state in workload.checks):
                found.add(at)
        return found
