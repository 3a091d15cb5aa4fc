"""Which clusters a Placement may choose from at all. Pure.

The sets that its namespace is bound to and that exist, less those that it does not name, if it
names any. A cluster that is being deleted is in no set.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from berthmaster.hub.placement.core.objects import (
    CLUSTER_SET_LABEL,
    ManagedCluster,
    ManagedClusterSet,
    Misconfigured,
)
from berthmaster.hub.placement.core.scheduling.plugin import Snapshot
from berthmaster.hub.placement.core.scheduling.request import labels_of

NAME: Final = "ClusterSets"
EXCLUSIVE: Final = "ExclusiveClusterSetLabel"
SELECTOR: Final = "LabelSelector"
Member = Callable[[ManagedCluster], bool]


def valid_bindings(snapshot: Snapshot) -> frozenset[str]:
    """Sets that the namespace is bound to and that exist."""
    return snapshot.bound & snapshot.sets.keys()


def eligible(bound: frozenset[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of them that are asked for; all, if none is named."""
    named = frozenset(wanted)
    return tuple(sorted(bound & named if named else bound))


def member_of(one: ManagedClusterSet) -> Member:
    """The test for being in a set. Raises Misconfigured when nobody can say."""
    selector = one.spec.cluster_selector
    name = one.metadata.name
    if selector.selector_type in ("", EXCLUSIVE):
        return lambda cluster: cluster.metadata.labels.get(CLUSTER_SET_LABEL) == name
    if selector.selector_type != SELECTOR:
        told = f"ManagedClusterSet {name}: selectorType {selector.selector_type[:64]!r}"
        raise Misconfigured(NAME, f"{told}, right is {EXCLUSIVE} or {SELECTOR}")
    if selector.label_selector is None:
        return lambda cluster: False
    labels = labels_of(selector.label_selector, NAME, f"ManagedClusterSet {name}")
    return lambda cluster: labels.matches(cluster.metadata.labels)


def available(
    names: Iterable[str],
    sets: Mapping[str, ManagedClusterSet],
    clusters: Mapping[str, ManagedCluster],
) -> tuple[ManagedCluster, ...]:
    """The clusters of these sets, by name. Raises Misconfigured."""
    tests = [member_of(sets[name]) for name in names]
    return tuple(
        cluster
        for _, cluster in sorted(clusters.items())
        if not cluster.leaving and any(test(cluster) for test in tests)
    )


def rightful(
    bound: frozenset[str],
    found: Mapping[str, ManagedClusterSet],
    clusters: Mapping[str, ManagedCluster],
) -> frozenset[str]:
    """Clusters that a namespace may have at all. Where nobody can say who is in a set, everybody
    may be."""
    tests: list[Member] = []
    for name in bound & found.keys():
        try:
            tests.append(member_of(found[name]))
        except Misconfigured:
            tests.append(lambda cluster: True)
    return frozenset(
        name
        for name, cluster in clusters.items()
        if not cluster.leaving and any(test(cluster) for test in tests)
    )
