"""GPUs of one node that belong together: linked by NVLink, or of one NUMA node.

Rules of this file:

- What nobody told is unknown, and unknown GPUs belong to nothing.
- A domain is an NVLink domain. Where a node tells of no NVLink, it is a NUMA node.
- Pods with several GPUs get them from one NVLink domain and one NUMA node if they can, else from
  one of either; of several that would do, from the one with fewest free, so that larger ones stay
  whole. Whoever requires a domain gets nothing else; others get GPUs of as few as can be.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from berthmaster.lib.messages.fleet import GpuDevice

UNKNOWN: Final = -1

Links = tuple[tuple[int, int], ...]  # of each GPU: NVLink domain, NUMA node; () = nothing is told
Group = tuple[int, ...]  # positions of GPUs


class Levels(NamedTuple):
    """The GPUs of a node by what they have in common."""

    domains: tuple[Group, ...]
    tightest_first: tuple[tuple[Group, ...], ...]  # groups of each level


def links_of(gpus: Sequence[GpuDevice]) -> Links:
    for gpu in gpus:
        if gpu.nvlink_domain is not None or gpu.numa_node is not None:
            return tuple((_known(one.nvlink_domain), _known(one.numa_node)) for one in gpus)
    return ()


def _known(number: int | None) -> int:
    return UNKNOWN if number is None else number


@lru_cache(maxsize=1024)
def levels_of(links: Links) -> Levels:
    """Worked out once for each layout of GPUs that there is."""
    both = _groups([None if UNKNOWN in link else link for link in links])
    nvlink = _groups([None if link[0] == UNKNOWN else link[0] for link in links])
    numa = _groups([None if link[1] == UNKNOWN else link[1] for link in links])
    return Levels(nvlink or numa, tuple(level for level in (both, nvlink, numa) if level))


def _groups(keys: Sequence[object]) -> tuple[Group, ...]:
    found: dict[object, list[int]] = {}
    for position, key in enumerate(keys):
        if key is not None:
            found.setdefault(key, []).append(position)
    return tuple(tuple(group) for group in found.values())


def domain_numbers(links: Links, width: int) -> list[int]:
    """Of each position the number of its domain, UNKNOWN where there is none."""
    numbers = [UNKNOWN] * width
    for number, group in enumerate(levels_of(links).domains):
        for position in group:
            numbers[position] = number
    return numbers


def pick(links: Links, free: Sequence[int], count: int, *, required: bool) -> list[int]:
    """So many of the free positions, in order; none where a domain is required and has too few."""
    domains, levels = levels_of(links)
    there = set(free)
    for level in levels:
        best: list[int] = []
        for group in level:
            found = [position for position in group if position in there]
            if len(found) < count or (best and len(found) >= len(best)):
                continue
            if not required or _within(found[:count], domains):
                best = found
        if best:
            return best[:count]
    if required:
        return []
    # No domain has as many: those with most first, so that few are mixed.
    size = dict.fromkeys(free, 0)
    first = dict.fromkeys(free, len(links))
    for group in domains:
        found = [position for position in group if position in there]
        for position in found:
            size[position], first[position] = len(found), found[0]
    order = sorted(free, key=lambda position: (-size[position], first[position], position))
    return sorted(order[:count])


def _within(positions: Sequence[int], domains: Sequence[Group]) -> bool:
    return any(positions[0] in group and set(positions) <= set(group) for group in domains)
