"""The clusters from which a Placement may choose. Pure.

A Placement chooses from the existing sets that are bound to its namespace. If the Placement names
sets, only the named sets remain. A cluster that is being deleted is in no set.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from berthmaster.hub.placement.core.objects import (
    CLUSTER_SET_LABEL,
    CandidateCluster,
    ManagedClusterSet,
    Misconfigured,
)
from berthmaster.hub.placement.core.scheduling.plugin import Snapshot
from berthmaster.hub.placement.core.scheduling.request import labels_of

NAME: Final = "ClusterSets"
EXCLUSIVE: Final = "ExclusiveClusterSetLabel"
SELECTOR: Final = "LabelSelector"
Member = Callable[[CandidateCluster], bool]


def valid_bindings(snapshot: Snapshot) -> frozenset[str]:
    """Return the existing sets that are bound to the namespace."""
    return snapshot.bound & snapshot.sets.keys()


def eligible(bound: frozenset[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the requested sets, or all bound sets if none is requested."""
    named = frozenset(wanted)
    return tuple(sorted(bound & named if named else bound))


def member_of(one: ManagedClusterSet) -> Member:
    """Return the membership test of a set. Raises Misconfigured if the selector is invalid."""
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
    clusters: Mapping[str, CandidateCluster],
) -> tuple[CandidateCluster, ...]:
    """Return the clusters of these sets, sorted by name. Raises Misconfigured."""
    tests = [member_of(sets[name]) for name in names]
    return tuple(
        cluster
        for _, cluster in sorted(clusters.items())
        if not cluster.leaving and any(test(cluster) for test in tests)
    )


def rightful(
    bound: frozenset[str],
    found: Mapping[str, ManagedClusterSet],
    clusters: Mapping[str, CandidateCluster],
) -> frozenset[str]:
    """Return the clusters that a namespace may use.

    If a set's selector is invalid, every cluster counts as a member.
    """
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
