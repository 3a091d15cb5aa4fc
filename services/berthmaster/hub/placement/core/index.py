"""All decisions of the hub, by any writer: pages by Placement, and choices per cluster. Pure.

Decisions not yet written count at once. Otherwise two Placements in the same pass would both move
to the same cluster, and back again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from berthmaster.hub.placement.core.objects import PLACEMENT_LABEL, PlacementDecision
from berthmaster.lib.kube.mirror import Key

NOBODY: Final = ""  # owner of pages without a label


class DecisionIndex:
    """Pages as last observed or written."""

    def __init__(self) -> None:
        self._pages: dict[Key, dict[str, PlacementDecision]] = {}  # by Placement, then by name
        self._owner: dict[Key, Key] = {}  # page -> Placement
        self._intents: dict[Key, tuple[str, ...]] = {}
        self._counted: dict[Key, tuple[str, ...]] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._owner)

    def set(self, decision: PlacementDecision) -> tuple[Key, ...]:
        """Store a page, and return its current and previous Placements."""
        meta = decision.metadata
        key = (meta.namespace, meta.name)
        owner = (meta.namespace, meta.labels.get(PLACEMENT_LABEL, NOBODY))
        before = self._owner.get(key)
        touched: tuple[Key, ...] = (owner,)
        if before is not None and before != owner:
            self._remove(key, before)
            touched = (owner, before)
        self._owner[key] = owner
        self._pages.setdefault(owner, {})[meta.name] = decision
        for one in touched:
            self._count(one)
        return touched

    def drop(self, key: Key) -> tuple[Key, ...]:
        """Drop a deleted page, and return its Placement."""
        owner = self._owner.pop(key, None)
        if owner is None:
            return ()
        self._remove(key, owner)
        self._count(owner)
        return (owner,)

    def _remove(self, key: Key, owner: Key) -> None:
        pages = self._pages.get(owner, {})
        pages.pop(key[1], None)
        if not pages:
            self._pages.pop(owner, None)

    def pages(self, placement: Key) -> Mapping[str, PlacementDecision]:
        return self._pages.get(placement, {})

    def page(self, key: Key) -> PlacementDecision | None:
        """Return one page."""
        owner = self._owner.get(key)
        return self._pages[owner].get(key[1]) if owner is not None else None

    def intend(self, placement: Key, clusters: Iterable[str] | None) -> None:
        """Store a decision in flight; None = count the written pages again."""
        if clusters is None:
            self._intents.pop(placement, None)
        else:
            self._intents[placement] = tuple(clusters)
        self._count(placement)

    def decided(self, placement: Key) -> tuple[str, ...]:
        """Return the Placement's clusters, in-flight decisions first."""
        return self._counted.get(placement, ())

    def elsewhere(self, placement: Key) -> Mapping[str, int]:
        """Return how many other Placements chose each cluster."""
        own = Counter(self.decided(placement))
        if not own:
            return self._counts
        return {
            name: left for name, count in self._counts.items() if (left := count - own[name]) > 0
        }

    def _count(self, placement: Key) -> None:
        before = self._counted.pop(placement, ())
        now = self._intents.get(placement)
        if now is None:
            pages = self._pages.get(placement, {})
            now = tuple(name for page in pages.values() for name in page.clusters)
        if now == before:
            if now:
                self._counted[placement] = now
            return
        self._counts.subtract(before)
        self._counts.update(now)
        for name in {*before}:
            if not self._counts[name]:
                del self._counts[name]
        if now:
            self._counted[placement] = now
