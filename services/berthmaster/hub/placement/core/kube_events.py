"""Kubernetes events of a Placement: clusters added and removed, and errors. Pure."""

from collections.abc import Sequence
from typing import Final

from berthmaster.hub.placement.core.scheduling.scheduler import ScheduleResult
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kube.resources import PLACEMENTS

TOLD_CLUSTERS: Final = 10


class EventHistory:
    """The last warning of each reason, so that no warning repeats in a row."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    def warning(self, about: Metadata, reason: str, note: str) -> tuple[KubeEvent, ...]:
        """Return a warning, unless it repeats the last of its reason."""
        if self._notes.get(reason) == note:
            return ()
        self._notes[reason] = note
        return (KubeEvent(PLACEMENTS, about, True, reason, note),)

    def over(self, reason: str) -> None:
        """Forget a reason that no longer applies, so that its return is reported again."""
        self._notes.pop(reason, None)

    def outcome(
        self, about: Metadata, outcome: ScheduleResult, before: Sequence[str], known: Sequence[str]
    ) -> tuple[KubeEvent, ...]:
        """Return events for added and removed clusters, and for expired scores.

        The condition already lists the ``known`` notes.
        """
        told: tuple[KubeEvent, ...] = ()
        now = [one.cluster for one in outcome.selected]
        came = sorted(set(now) - set(before))
        went = sorted(set(before) - set(now))
        if came or went:
            parts = [f"+{listed(came)}"] if came else []
            parts += [f"-{listed(went)}"] if went else []
            best = ", ".join(f"{one.cluster} {one.total}" for one in outcome.ranked[:TOLD_CLUSTERS])
            note = f"{' '.join(parts)}; best first: {best or 'none'}"
            told = (KubeEvent(PLACEMENTS, about, False, "DecisionUpdate", note),)
        expired = "; ".join(note for note in outcome.notes if note not in known)
        if not expired:
            self.over("ScoresExpired")
            return told
        return (*told, *self.warning(about, "ScoresExpired", expired))


def listed(names: Sequence[str]) -> str:
    """Return the names, or the first of many."""
    more = f" and {len(names) - TOLD_CLUSTERS} more" if len(names) > TOLD_CLUSTERS else ""
    return ", ".join(names[:TOLD_CLUSTERS]) + more
