"""The clusters that a MultiKueueConfig lists. Pure.

Rules of this file:

- A listed cluster keeps its position, whatever the new order. New clusters are appended in the
  order of the decisions. Nothing is ever reordered.
- A cluster without a MultiKueueCluster is never listed, because Kueue does not know it.
- A cluster that is no longer selected *drains*: the cluster stays listed and gets nothing new. The
  cluster is removed only when reported free of leftovers (``free``). Kueue would immediately retry
  its running jobs while they still run there: each would run twice.
- Kueue accepts one to twenty clusters. While no cluster is selected, all stay and drain.
- While the selection is unknown, nothing changes.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from berthmaster.lib.kueue.multikueue import MultiKueueCluster

MOST: Final = 20  # limit of the API


class Members(NamedTuple):
    clusters: tuple[str, ...]  # by MultiKueueCluster; () = none possible
    draining: tuple[str, ...]  # subset of ``clusters``
    left_out: tuple[str, ...]  # selected, but beyond the twentieth
    unknown: tuple[str, ...]  # selected without a MultiKueueCluster, by the decisions' names

    @property
    def open(self) -> tuple[str, ...]:
        """Return the clusters that accept new Workloads."""
        return tuple(name for name in self.clusters if name not in self.draining)


def members(
    current: tuple[str, ...],
    wanted: tuple[str, ...] | None,
    known: Mapping[str, str],
    *,
    marked: Collection[str] = (),
    free: Collection[str] = (),
) -> Members:
    """Return the members of a configuration.

    ``current`` is the present list, ``marked`` its draining clusters, and ``free`` the clusters
    that may leave now. ``known`` maps the decisions' names to MultiKueueClusters.
    """
    listed = tuple(dict.fromkeys(current))
    if wanted is None:
        return Members(listed, tuple(n for n in listed if n in marked), (), ())
    chosen = tuple(dict.fromkeys(known[name] for name in wanted if name in known))
    unknown = tuple(name for name in wanted if name not in known)
    if not chosen:
        return Members(listed, listed, (), unknown)
    stays = [n for n in listed if n in chosen or n not in free]
    fresh = [name for name in chosen if name not in listed]
    room = max(0, MOST - len(stays))
    clusters = (*stays, *fresh[:room])
    draining = tuple(name for name in stays if name not in chosen)
    return Members(clusters, draining, tuple(fresh[room:]), unknown)


def names_of(clusters: Mapping[str, MultiKueueCluster]) -> dict[str, str]:
    """Return MultiKueueClusters by the names in decisions: own name first, then the fleet's
    name."""
    found: dict[str, str] = {}
    for name, cluster in sorted(clusters.items()):
        found.setdefault(cluster.fleet_name, name)
    return found | {name: name for name in clusters}
