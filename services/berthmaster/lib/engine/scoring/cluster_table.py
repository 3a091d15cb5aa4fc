"""All clusters as arrays: ``Clusters.view`` of a hundred clusters in a few steps.

Few clusters change between two decisions, so only their rows are rebuilt. Time-dependent columns
(age, silence, pauses) are computed for all rows. ``Clusters.view`` is the slow and simple twin for
tests. Rows follow the fleet's order of clusters.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.clusters import NOT_CLAIMING, SILENT, Cluster, Clusters
from berthmaster.lib.engine.scoring.cluster_scores import UNKNOWN, Floats
from berthmaster.lib.messages.fleet import ClusterProfile, Membership

_NEVER: Final = float("-inf")
NOTES_KEPT: Final = 4096

T = TypeVar("T")


class Seen(NamedTuple):
    age_s: Floats  # since the newest sign of life; infinite if there was none
    closed: dict[int, str]  # number of a cluster -> why it takes no new placements, by number


class ClusterTable:
    """Rows of clusters with nodes in order, then of further visible clusters."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.without_nodes: list[str] = []  # clusters with a profile and without a row
        self.told: list[dict[str, str]] = []  # labels and properties of each
        self.tainted = False  # some cluster is
        self.notes: dict[Hashable, Any] = {}  # cached results that follow from names and labels
        self.idle: Floats = np.zeros(0)  # per cent, UNKNOWN where nothing fresh tells
        self.calm: Floats = np.zeros(0)
        self.open: frozenset[str] = frozenset()  # clusters open at the last scan
        # Cached results that also follow from the set of closed clusters.
        self.filtered: dict[Hashable, Any] = {}
        self._layout: Hashable = -1
        self._unsettled = True  # inputs of notes changed
        self._closed_then: dict[int, str] | None = None
        self._number: dict[str, int] = {}
        self._said: dict[str, tuple[ClusterProfile | None, Membership | None]] = {}
        self._alive_s: Floats = np.zeros(0)
        self._unclaimed_s: Floats = np.zeros(0)
        self._by_people: list[str] = []
        self._by_news: list[str] = []
        self._shut: NDArray[np.bool_] = np.zeros(0, np.bool_)  # by people or by news

    def follow(self, clusters: Clusters, names: list[str], layout: Hashable) -> None:
        """Bring the rows up to date. ``layout``: another when the names change."""
        if layout != self._layout:
            self._layout = layout
            self._begin(clusters, names)
        elif not clusters.changed:
            return
        else:
            for name in clusters.changed:
                self._take(clusters.peek(name))
        clusters.changed.clear()
        if self._unsettled:
            self._settle(clusters)

    def _begin(self, clusters: Clusters, names: list[str]) -> None:
        count = len(names)
        self.names = list(names)
        self._number = {name: number for number, name in enumerate(names)}
        self.idle, self.calm = np.full(count, UNKNOWN), np.full(count, UNKNOWN)
        self._alive_s, self._unclaimed_s = np.full(count, _NEVER), np.full(count, _NEVER)
        self._by_people, self._by_news = [""] * count, [""] * count
        self._shut = np.zeros(count, np.bool_)
        self._said = {}
        for cluster in clusters.known():
            self._take(cluster)
        for name in names:
            self._take(clusters.peek(name))
        self._unsettled = True

    def _settle(self, clusters: Clusters) -> None:
        """Rebuild data that follows from names, labels and taints."""
        self._unsettled = False
        self._closed_then = None
        self.notes.clear()
        known = clusters.known()
        self.without_nodes = [
            c.name for c in known if c.profile is not None and c.name not in self._number
        ]
        self.told = [clusters.peek(name).tells for name in self.names]
        self.tainted = any(clusters.peek(name).taints for name in self.names)

    def _take(self, cluster: Cluster) -> None:
        said = (cluster.profile, cluster.membership)
        before = self._said.get(cluster.name)
        if before is None or before[0] is not said[0] or before[1] is not said[1]:
            self._said[cluster.name] = said
            self._unsettled = True
        number = self._number.get(cluster.name)
        if number is None:
            return
        self._alive_s[number] = cluster.alive_at_s
        unclaimed_s = cluster.unclaimed_at_s
        self._unclaimed_s[number] = _NEVER if unclaimed_s is None else unclaimed_s
        score = cluster.fresh_score
        self.idle[number] = _known(score.idle_gpu_percent if score is not None else None)
        self.calm[number] = _known(score.calm_gpu_percent if score is not None else None)
        by_people, by_news = cluster.closed_by_people, cluster.closed_by_news
        self._by_people[number], self._by_news[number] = by_people, by_news
        self._shut[number] = bool(by_people or by_news)

    def at(self, now_s: float, *, stale_after_s: float, avoid_s: float) -> Seen:
        age_s = np.maximum(now_s - self._alive_s, 0.0)
        silent = ~(age_s <= stale_after_s)
        with np.errstate(invalid="ignore"):  # never, plus for ever
            paused = now_s < self._unclaimed_s + avoid_s
        out = self._shut | silent | paused
        closed: dict[int, str] = {}
        if out.any():
            for number in np.flatnonzero(out).tolist():
                quiet = SILENT if silent[number] else self._by_news[number] or NOT_CLAIMING
                closed[number] = self._by_people[number] or quiet
        if closed != self._closed_then:
            self._closed_then = closed
            self.filtered = {}
            self.open = frozenset(n for at, n in enumerate(self.names) if at not in closed)
        return Seen(age_s, closed)

    def note(self, key: Hashable, made: Callable[[], T]) -> T:
        """Return a cached result, computed again after changes of clusters."""
        found = self.notes.get(key)
        if found is None:
            if len(self.notes) >= NOTES_KEPT:
                self.notes.clear()
            found = self.notes[key] = made()
        noted: T = found
        return noted


def _known(percent: float | None) -> float:
    return UNKNOWN if percent is None else percent
