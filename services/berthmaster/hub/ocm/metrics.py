"""The service's own figures: how soon a score shows, and what is not as it should be."""

from collections import Counter
from typing import Any

from berthmaster.hub.ocm.core.instructions import Write, WriteScore
from berthmaster.hub.ocm.core.kept_objects import KeptObjects
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.runtime.metrics import Metrics


class OcmMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._waited_s = metrics.histogram(
            "score_seconds", "From a score on the bus to the same in an AddOnPlacementScore"
        )
        self._kept = metrics.gauge("objects_kept", "Objects that are kept as they should be")
        self._troubled = metrics.gauge("objects_troubled", "Those of them that are not")

    def wrote(self, write: Write, answer: Answer, now_s: float) -> None:
        if answer.done and isinstance(write, WriteScore) and write.told_at_s is not None:
            self._waited_s.observe(max(0.0, now_s - write.told_at_s))

    def show(self, targets: KeptObjects[Any]) -> str:
        """As of now, and in words what is wrong."""
        troubles = Counter(one.trouble for one in targets.all.values() if one.trouble)
        self._kept.set(len(targets.all))
        self._troubled.set(troubles.total())
        if not troubles:
            return ""
        why, count = troubles.most_common(1)[0]
        return f"{troubles.total()} objects are not as they should be; {count}: {why}"
