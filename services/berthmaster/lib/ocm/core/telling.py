"""Whether a silent cluster is itself silent, or the path of its scores. Pure.

A cluster's scores pass the bus, the scorer and this service, and each may be silent. While one is
unreachable, nothing is known of any cluster, and nothing may be concluded. After their return, the
last heartbeat of every cluster is as old as the outage. The scorer calls such a cluster stale or
withdrawn until its agent reports again. Rules:

- A score that is no longer published says nothing about its cluster.
- After a gap in publishing, or a change of the publisher, a cluster has ``silent_after_s`` for a
  heartbeat before its silence counts as its own. A cluster that has sent one since and fell silent
  again counts as silent at once.
"""

from math import inf
from typing import Final

from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.ocm.core.view import NOT_TOLD, View, view

SILENT_AFTER_S: Final = 30.0  # without a heartbeat, until a cluster counts as silent
GAPS: Final = 3  # a gap is a third of the silence limit: two refreshes of the scorer


class Telling:
    def __init__(self, silent_after_s: float) -> None:
        self.score: ClusterScore | None = None
        self.heard_s = -inf  # by the bus's clock
        self._back_s = -inf  # time since which scores arrive without a gap
        self._limit_s = silent_after_s

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None:
        known = self.score
        again = known is None or stored_at_s - self.heard_s > self._limit_s / GAPS
        if again or (known is not None and known.stamp.epoch != score.stamp.epoch):
            self._back_s = stored_at_s
        self.score, self.heard_s = score, stored_at_s

    def on_gone(self) -> None:
        """Apply that the bus has no score any more, and wait for the next."""
        self.score = None

    def view(self, now_s: float) -> tuple[View, float]:
        """Return the view of a published score, and its end of validity."""
        score = self.score
        assert score is not None
        silent_s = self.heard_s + self._limit_s
        if now_s >= silent_s:
            return view(score, silent_s=self._limit_s), inf
        settled_s = self._back_s + self._limit_s
        plain = view(score, silent_s=0)
        if now_s >= settled_s:
            return plain, silent_s
        until_s = min(settled_s, silent_s)
        if plain.fresh:
            return View(plain.reason, plain.message, plain.score, settling=True), until_s
        if _last_sign_s(score, self.heard_s) >= self._back_s:
            return plain, until_s
        why = "its scores are told again, and the cluster itself is not heard yet"
        return View(plain.reason, plain.message, silence=why), until_s


def _last_sign_s(score: ClusterScore, told_at_s: float) -> float:
    """Return the cluster's last heartbeat by the bus's clock; -inf = unknown."""
    if score.freshness == "fresh" or (score.freshness == "withdrawn" and not score.input_age_s):
        return -inf  # present without any node, or unknown to the bus
    return told_at_s - score.input_age_s


class Tellers:
    """Whether any score is published."""

    def __init__(self, silent_after_s: float) -> None:
        self._limit_s = silent_after_s
        self._heard_s = -inf
        self._back_s = -inf

    def on_score(self, stored_at_s: float) -> bool:
        """Apply the time of a score. Return whether all scores had been silent before."""
        back = stored_at_s - self._heard_s > self._limit_s / GAPS
        if back:
            self._back_s = stored_at_s
        self._heard_s = max(self._heard_s, stored_at_s)
        return back

    def unheard(self, now_s: float, *, blind: bool) -> tuple[View, float]:
        """Return the view of a cluster without any published score, and its end of validity."""
        if blind:
            why = "no score is heard of: the bus is away"
            return View(NOT_TOLD, why, silence=why), inf
        plain = view(None, silent_s=self._limit_s)
        settled_s = self._back_s + self._limit_s
        if now_s >= self._heard_s + self._limit_s:
            why = "no score of any cluster is told: the scorer is away"
            return View(plain.reason, plain.message, silence=why), inf
        if now_s < settled_s:
            why = "scores are told again, and this cluster is not heard yet"
            return View(plain.reason, plain.message, silence=why), settled_s
        return plain, inf
