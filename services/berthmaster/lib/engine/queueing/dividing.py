"""How equal pods are divided over clusters: by weight, or by room on as few as will do. Pure.

Seats are given one by one to whoever has the most votes for each seat (Webster's method, as Karmada
divides replicas): votes / (2 * seats + 1). So shares come out as near to the weights as whole pods
allow, and nobody gets more than its room. Whoever gets any gets the least part first.

Example: 12 pods over clusters with room for 6, 8 and 10. The last two have 18 together, so they are
enough; by 8 and 10 they get 5 and 7.
"""

import heapq
from collections.abc import Mapping

from berthmaster.lib.messages.workload import MAX_PARTS, Divide


def by_weight(
    pods: int, weights: Mapping[str, int], most: Mapping[str, int] | None = None, least: int = 0
) -> dict[str, int]:
    """Cluster -> its pods. ``most``, ``least``: of each; what nobody can take is left out."""
    given = {name: least if votes > 0 else 0 for name, votes in weights.items()}
    pods -= sum(given.values())
    heap: list[tuple[float, int, str]] = [
        (-votes / (2 * least + 1), -votes, name) for name, votes in weights.items() if votes > 0
    ]
    heapq.heapify(heap)
    while pods > 0 and heap:
        _, votes, name = heapq.heappop(heap)
        if most is not None and given[name] >= most.get(name, 0):
            continue
        given[name] += 1
        pods -= 1
        heapq.heappush(heap, (votes / (2 * given[name] + 1), votes, name))
    return given


def on_fewest(pods: int, room: Mapping[str, int], least: int = 1) -> dict[str, int]:
    """The same by room, on as few clusters as have it: on all of them if it is not enough. None
    gets fewer than the least."""
    chosen: dict[str, int] = {}
    for name, free in sorted(room.items(), key=lambda each: (-each[1], each[0])):
        enough = sum(chosen.values()) >= pods
        if free < least or enough or least * (len(chosen) + 1) > pods:
            break
        chosen[name] = free
    return by_weight(min(pods, sum(chosen.values())), chosen, chosen, least)


def divided(pods: int, room: Mapping[str, int], how: Divide) -> dict[str, int]:
    """Cluster -> its pods, all of them together; {} if there is no room for that. ``room``: for how
    many pods there is some."""
    least = how.min_part
    if how.by == "room":
        parts = on_fewest(pods, dict(_largest(room, MAX_PARTS)), least)
    else:
        votes = {
            name: how.weights.get(name, 0) if how.weights else free
            for name, free in room.items()
            if free >= least and (name in how.weights or not how.weights)
        }
        votes = dict(_largest(votes, min(MAX_PARTS, pods // least)))
        parts = by_weight(pods, votes, room, least)
    parts = {name: count for name, count in parts.items() if count}
    return parts if sum(parts.values()) == pods else {}


def _largest(votes: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    return sorted(votes.items(), key=lambda each: (-each[1], each[0]))[:most]
