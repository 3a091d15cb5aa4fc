"""How equal pods would be divided over clusters: by weight, or by room on as few as will do. Pure.

Seats are given one by one to whoever has the most votes for each seat (Webster's method, as Karmada
divides replicas): votes / (2 * seats + 1). So shares come out as near to the weights as whole pods
allow, and nobody gets more than its room.

Example: 12 pods over clusters with room for 6, 8 and 10. The last two have 18 together, so they are
enough; by 8 and 10 they get 5 and 7.
"""

import heapq
from collections.abc import Mapping


def by_weight(
    pods: int, weights: Mapping[str, int], most: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Cluster -> its pods. ``most``: of each; what nobody can take is left out."""
    given = dict.fromkeys(weights, 0)
    heap: list[tuple[float, int, str]] = [
        (-votes, -votes, name) for name, votes in weights.items() if votes > 0
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


def on_fewest(pods: int, room: Mapping[str, int]) -> dict[str, int]:
    """The same by room, on as few clusters as have it: on all of them if it is not enough."""
    chosen: dict[str, int] = {}
    for name, free in sorted(room.items(), key=lambda each: (-each[1], each[0])):
        if free <= 0 or sum(chosen.values()) >= pods:
            break
        chosen[name] = free
    return by_weight(min(pods, sum(chosen.values())), chosen, chosen)
