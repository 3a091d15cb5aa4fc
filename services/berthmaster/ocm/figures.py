"""This service's figures: what it writes, how soon, and what is not as it should be."""

from collections import Counter as Tally
from typing import Any

from berthmaster.ocm.desk import Desk
from berthmaster.ocm.words import Done, Write, WriteScore
from berthmaster.runtime.metrics import Metrics


class Figures:
    """Of one replica."""

    def __init__(self, metrics: Metrics) -> None:
        self._writes = metrics.counter("writes", "Writes tried", ["kind", "outcome"])
        self._waited_s = metrics.histogram(
            "score_seconds", "From a score on the bus to the same in an AddOnPlacementScore"
        )
        self.acting = metrics.gauge("acting", "1 where this replica writes")
        self._kept = metrics.gauge("objects_kept", "Objects that are kept as they should be")
        self._troubled = metrics.gauge("objects_troubled", "Those of them that are not")
        self._dropped = metrics.gauge("events_dropped", "Kubernetes events not written")

    def wrote(self, write: Write, done: Done, now_s: float) -> None:
        """What became of a write."""
        self._writes.labels(type(write).__name__, done.outcome).inc()
        told_at_s = write.told_at_s if isinstance(write, WriteScore) else None
        if done.outcome == "stored" and told_at_s is not None:
            self._waited_s.observe(max(0.0, now_s - told_at_s))

    def show(self, desk: Desk[Any], dropped: int) -> str:
        """As of now, and in words what is wrong."""
        troubles = Tally(one.trouble for one in desk.targets.values() if one.trouble)
        self._kept.set(len(desk.targets))
        self._troubled.set(troubles.total())
        self._dropped.set(dropped)
        if not troubles:
            return ""
        why, count = troubles.most_common(1)[0]
        return f"{troubles.total()} objects are not as they should be; {count}: {why}"
