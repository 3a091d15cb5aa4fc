"""Which clusters a MultiKueueConfig lists. Pure.

Rules of this file:

- Who is listed keeps the place, whatever order it has now; new ones are appended in the order of
  the decisions. Nothing is ever reordered.
- Nobody is listed whom Kueue does not know: there must be a MultiKueueCluster.
- Who is no longer wanted *drains*: stays listed and takes nothing new. It leaves only when it is
  said to have left nothing behind (``free``). Kueue would retry at once what runs there, while the
  job there goes on: it would run twice.
- Kueue takes twenty clusters, and not none: while nobody is wanted all stay, draining.
- While it is not known who is wanted, nothing changes.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from berthmaster.lib.kueue.multikueue import MultiKueueCluster

MOST: Final = 20  # what the API takes


class Members(NamedTuple):
    clusters: tuple[str, ...]  # by MultiKueueCluster; () = there can be none
    draining: tuple[str, ...]  # of those
    left_out: tuple[str, ...]  # wanted, and beyond the twentieth
    unknown: tuple[str, ...]  # wanted, and no MultiKueueCluster, by the decisions' names

    @property
    def open(self) -> tuple[str, ...]:
        """Who takes new Workloads."""
        return tuple(name for name in self.clusters if name not in self.draining)


def members(
    current: tuple[str, ...],
    wanted: tuple[str, ...] | None,
    known: Mapping[str, str],
    *,
    marked: Collection[str] = (),
    free: Collection[str] = (),
) -> Members:
    """``current``: as listed now; ``marked``: who of them drains; ``free``: who may leave now.
    ``known``: MultiKueueClusters by the names that decisions use."""
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
    """MultiKueueClusters by what decisions may call them: their own name first, then that of the
    fleet."""
    found: dict[str, str] = {}
    for name, cluster in sorted(clusters.items()):
        found.setdefault(cluster.fleet_name, name)
    return found | {name: name for name in clusters}
