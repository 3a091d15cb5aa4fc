"""How clusters have done lately: what went well there and what did not, hour by hour.

Whole numbers an hour, so that the order of folding and whether a snapshot lay between make no
difference; what is older than a day does not count, and an hour counts half of what one six hours
younger does. Bounded: a day's hours a cluster.
"""

from typing import Final

import msgspec
import numpy as np

from berthmaster.engine.scoring.parts.steadiness import part
from berthmaster.lifecycle.faults import OWN
from berthmaster.messages.workload import Evicted, Running, Succeeded, Withdrawn, WorkloadEvent

HOUR_S: Final = 3600.0
HOURS: Final = 24
HALF_LIFE_HOURS: Final = 6.0
MOST_CLUSTERS: Final = 10_000
SPEAKS: Final = (Running, Succeeded, Evicted, Withdrawn)  # events that say how it went


class TrackRecordState(msgspec.Struct, frozen=True):
    """As a snapshot has it: cluster -> hour -> what went well, what did not."""

    hours: dict[str, dict[int, tuple[int, int]]] = {}


class TrackRecord:
    def __init__(self, state: TrackRecordState | None = None) -> None:
        hours = state.hours if state is not None else {}
        self._hours = {cluster: dict(of_it) for cluster, of_it in hours.items()}
        self._shown_hour = -1
        self._shown: dict[str, float] = {}  # of that hour, UNKNOWN for who is not known

    def state(self) -> TrackRecordState:
        """What another one goes on from."""
        return TrackRecordState({cluster: dict(of_it) for cluster, of_it in self._hours.items()})

    def take(self, event: WorkloadEvent, cluster: str, at_s: float) -> None:
        """An event of a workload on a cluster, by the server's time."""
        if isinstance(event, Evicted) and (event.blameless or event.fault in OWN):
            return  # a failure of the job itself, which is tried again, says nothing of the cluster
        self.note(cluster, at_s, went_well=isinstance(event, Running | Succeeded))

    def note(self, cluster: str, at_s: float, *, went_well: bool) -> None:
        """Something that went well there, or did not."""
        if not cluster or not 0 <= at_s < 1e12:
            return
        self._shown.pop(cluster, None)
        hour = int(at_s // HOUR_S)
        of_it = self._hours.get(cluster)
        if of_it is None:
            if len(self._hours) >= MOST_CLUSTERS:
                return
            of_it = self._hours[cluster] = {}
        if hour not in of_it:
            newest = max(of_it, default=hour)
            if hour <= newest - HOURS:
                return
            for old in [each for each in of_it if each <= hour - HOURS]:
                del of_it[old]
        good, bad = of_it.get(hour, (0, 0))
        of_it[hour] = (good + 1, bad) if went_well else (good, bad + 1)

    def steadiness(self, now_s: float) -> dict[str, float]:
        """Cluster -> 0..100, of those that are known, as records tell it."""
        hour = int(now_s // HOUR_S) if 0 <= now_s < 1e12 else 0
        shown = self._shown
        if hour != self._shown_hour:
            self._shown_hour = hour
            shown.clear()
        stale = [cluster for cluster in self._hours if cluster not in shown]
        if stale:
            sums = np.array([self._sums(cluster, hour) for cluster in stale], np.float64)
            shown.update(zip(stale, part(sums[:, 0], sums[:, 1]).tolist(), strict=True))
        known = ((name, shown[name]) for name in sorted(shown))
        return {name: round(value, 4) for name, value in known if value == value}

    def _sums(self, cluster: str, hour: int) -> tuple[float, float]:
        good = bad = 0.0
        for each, told in sorted(self._hours[cluster].items()):
            weight = _weight(hour - each)
            good += weight * told[0]
            bad += weight * told[1]
        return good, bad


def _weight(age_hours: int) -> float:
    """An hour that is yet to come by our clock counts as this one."""
    return 0.5 ** (max(0, age_hours) / HALF_LIFE_HOURS) if age_hours < HOURS else 0.0
