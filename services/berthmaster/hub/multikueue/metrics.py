"""Metrics of the reconciler: actions, delays and stuck workloads."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from berthmaster.hub.multikueue.core.deciding.traps import TRAPS
from berthmaster.lib.lifecycle.states import LIVE, State
from berthmaster.lib.runtime.metrics import Metrics

STATES = (State.QUEUED, *sorted(LIVE))


class HubMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._nominations = metrics.counter("nominations", "Clusters nominated")
        self._blind = metrics.counter("blind_nominations", "Nominations while the bus was away")
        self._standing = metrics.gauge(
            "standing_still", "Workloads without a suitable cluster while the bus is away"
        )
        self._contested = metrics.gauge(
            "contested", "Workloads with another writer of their nomination"
        )
        self._contests = metrics.counter("contests", "Nominations replaced by another writer")
        self._contests_told = 0
        self.submitted = metrics.counter("submitted", "Workloads submitted to the bus")
        self.placed = metrics.counter("placements", "Committed placements")
        self.lost_commits = metrics.counter("refused_commits", "Refused commits")
        self._conflicts = metrics.gauge("conflicts", "Writes with a conflict")
        self._latency_s = metrics.histogram(
            "nomination_seconds", "Seconds from when a Workload may be nominated to its nomination"
        )
        self._trapped = metrics.gauge("trapped", "Workloads in a known failure state", ["trap"])
        self._traps = metrics.counter("traps", "Failure states entered by Workloads", ["trap"])
        self._traps_told: Counter[str] = Counter()
        self._demoted = metrics.gauge(
            "demoted", "Clusters that go last because Kueue there ignores copies", ["cluster"]
        )
        self._demoted_before: set[str] = set()
        self._states = metrics.gauge("workloads", "Workloads of the hub, by state", ["state"])
        self._silence_s = metrics.gauge(
            "hub_kueue_silent_seconds",
            "Seconds without a write of the hub's Kueue while work waits",
        )
        self._kueue_waiting = metrics.gauge(
            "hub_kueue_waiting", "Jobs and Workloads waiting for the hub's Kueue"
        )
        self._elsewhere = metrics.gauge(
            "workloads_elsewhere", "Open workloads of other hubs, left alone"
        )

    def nominated(self, *, known: bool) -> None:
        """A cluster was nominated; ``known``: the bus knows of it."""
        (self._nominations if known else self._blind).inc()

    def show(
        self,
        *,
        workloads: Iterable[State],
        elsewhere: int,
        standing: int,
        contested: int,
        contests: int,
        trapped: Iterable[str],
        demoted: Collection[str],
        traps: Mapping[str, int],
        latencies_s: Iterable[float],
        conflicts: int,
        kueue_silent_s: float,
        kueue_waiting: int,
    ) -> None:
        """As of now: states of workloads, and how many stand still or are contested; how often
        nominations were contested; kinds of traps that some sit in, and how often each kind was
        met; how long each nomination since the last time took."""
        for latency_s in latencies_s:
            self._latency_s.observe(latency_s)
        states = Counter(workloads)
        for state in STATES:
            self._states.labels(state.value).set(states[state])
        for cluster in self._demoted_before.union(demoted):
            self._demoted.labels(cluster).set(cluster in demoted)
        self._demoted_before.update(demoted)
        sitting = Counter(trapped)
        for trap in TRAPS:
            self._trapped.labels(trap).set(sitting[trap])
            self._traps.labels(trap).inc(traps.get(trap, 0) - self._traps_told[trap])
            self._traps_told[trap] = traps.get(trap, 0)
        self._elsewhere.set(elsewhere)
        self._standing.set(standing)
        self._contested.set(contested)
        self._contests.inc(contests - self._contests_told)
        self._contests_told = contests
        self._conflicts.set(conflicts)
        self._silence_s.set(kueue_silent_s)
        self._kueue_waiting.set(kueue_waiting)
