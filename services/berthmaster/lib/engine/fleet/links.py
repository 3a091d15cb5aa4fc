"""Domains of GPUs on one node: linked by NVLink, or on one NUMA node.

Example: a node has GPUs 0 to 3 on NUMA node 0 and 4 to 7 on NUMA node 1. GPU 1 is taken. A pod with
2 GPUs gets 0 and 2, which keeps the
other domain whole. A pod
that requires a domain and needs 5 GPUs fits nowhere.

Rules of this file:

- A GPU without reported links belongs to no domain.
- A domain is an NVLink domain, or a NUMA node if the node reports no NVLink.
- A pod with several GPUs gets one NVLink domain and one NUMA node if possible, else one of either.
  Of several choices, the domain with the fewest free GPUs is used, which keeps larger domains
  whole.
- A pod that requires a domain gets nothing else. Other pods mix as few domains as possible.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from berthmaster.lib.messages.fleet import GpuDevice

UNKNOWN: Final = -1

Links = tuple[tuple[int, int], ...]  # of each GPU: NVLink domain, NUMA node; () = nothing is told
Group = tuple[int, ...]  # positions of GPUs


class Levels(NamedTuple):
    """GPUs of a node grouped by common domains."""

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
    """Return the groups of a layout of GPUs. Computed once per layout."""
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
    """Return the domain number of each position; UNKNOWN without one."""
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
    # No domain is large enough: use the largest first, to mix few.
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
