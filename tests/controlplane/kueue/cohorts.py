"""What ClusterQueues may use beyond their own quota: cohorts, and cohorts of cohorts. Pure.

Every question is answered by walking the tree anew, as its rule is written down: this is the slow,
plain twin of what it stands beside.

- A node (a queue or a cohort) has its own quota and what its children lend it: all but what their
  lending limits keep for themselves.
- What a child uses beyond what it keeps, it uses of its parent.
- A node may use what it keeps, and of its parent what is left there: at most its borrowing limit
  more than it has put in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from berthmaster.kubernetes.quantity import parse_quantity
from tests.controlplane.kueue.objects import Obj

Place = tuple[str, str]  # flavor, resource
Usage = Mapping[Place, Fraction]
Node = tuple[str, str]  # kind, name
ZERO = Fraction(0)


class Room:
    """The queues of one cluster, and what each of them uses."""

    def __init__(
        self, queues: Iterable[Obj], cohorts: Iterable[Obj], used: Mapping[str, Usage]
    ) -> None:
        self._queues, self._cohorts = list(queues), list(cohorts)
        self._used = dict(used)
        self._quota: dict[Node, dict[Place, Obj]] = {}
        self._parent: dict[Node, Node] = {}
        self._children: dict[Node, list[Node]] = {}
        for kind, field, objects in (
            ("queue", "cohortName", self._queues),
            ("cohort", "parentName", self._cohorts),
        ):
            for each in objects:
                node = (kind, each["metadata"]["name"])
                self._quota[node] = quotas_of(each)
                if name := each["spec"].get(field):
                    self._parent[node] = ("cohort", name)
                    self._children.setdefault(("cohort", name), []).append(node)

    def with_used(self, queue: str, used: Usage) -> Room:
        """The same, but for what one queue uses."""
        return Room(self._queues, self._cohorts, {**self._used, queue: used})

    def empty(self) -> Room:
        """As if nobody used anything."""
        return Room(self._queues, self._cohorts, {})

    def used(self, queue: str, place: Place) -> Fraction:
        """What a queue uses."""
        return self._use(("queue", queue), place)

    def free(self, queue: str, place: Place) -> Fraction:
        """What a queue may still use."""
        return self._free(("queue", queue), place)

    def most(self, queue: str, place: Place) -> Fraction:
        """What it may use if nobody uses anything."""
        return self.empty().free(queue, place)

    def distance(self, queue: str, place: Place, amount: Fraction) -> int:
        """How high above the queue an amount has to be borrowed; 0 = it is the queue's own."""
        node: Node = ("queue", queue)
        if node not in self._parent or self._has(node, place, amount):
            return 0
        for above in self._above(node):
            amount -= max(ZERO, self._kept(node, place) - self._use(node, place))
            node = above
            if self._has(node, place, amount):
                break
        return self._height(node)

    def _has(self, node: Node, place: Place, amount: Fraction) -> bool:
        return self._use(node, place) + amount <= self._quota_below(node, place)

    def _above(self, node: Node) -> Iterator[Node]:
        while node in self._parent:
            node = self._parent[node]
            yield node

    def _height(self, node: Node) -> int:
        below = [self._height(child) for child in self._children.get(node, ())]
        return 1 + max(below) if below else 0

    def _limit(self, node: Node, place: Place, which: str) -> Fraction | None:
        text = self._quota.get(node, {}).get(place, {}).get(which)
        return None if text is None else parse_quantity(text)

    def _quota_below(self, node: Node, place: Place) -> Fraction:
        own = self._limit(node, place, "nominalQuota") or ZERO
        children = self._children.get(node, ())
        return own + sum(
            (self._quota_below(child, place) - self._kept(child, place) for child in children), ZERO
        )

    def _kept(self, node: Node, place: Place) -> Fraction:
        lends = self._limit(node, place, "lendingLimit")
        return ZERO if lends is None else max(ZERO, self._quota_below(node, place) - lends)

    def _use(self, node: Node, place: Place) -> Fraction:
        kind, name = node
        if kind == "queue":
            return self._used.get(name, {}).get(place, ZERO)
        children = self._children.get(node, ())
        over = (self._use(child, place) - self._kept(child, place) for child in children)
        return sum((max(ZERO, each) for each in over), ZERO)

    def _free(self, node: Node, place: Place) -> Fraction:
        has, uses = self._quota_below(node, place), self._use(node, place)
        if node not in self._parent:
            return has - uses
        kept = self._kept(node, place)
        above = self._free(self._parent[node], place)
        borrows = self._limit(node, place, "borrowingLimit")
        if borrows is not None:
            above = min(above, has - kept - max(ZERO, uses - kept) + borrows)
        return max(ZERO, kept - uses) + above


def quotas_of(thing: Obj) -> dict[Place, Obj]:
    """Of a queue or a cohort, by flavor and resource."""
    return {
        (flavor["name"], resource["name"]): resource
        for group in thing["spec"].get("resourceGroups") or ()
        for flavor in group["flavors"]
        for resource in flavor["resources"]
    }
