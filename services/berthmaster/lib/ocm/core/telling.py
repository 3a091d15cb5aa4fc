"""Whose silence it is: the cluster's own, or that of whoever tells its score. Pure.

A cluster is heard of through three who may fall silent themselves: the bus, the scorer, and us.
While one of them is away nothing is known of any cluster, and nothing is to be concluded. When they
are back, the last sign of life of every cluster is as old as they were away, and the scorer calls
it stale or withdrawn until its agent is heard again. So

- a score that nobody tells any more says nothing about its cluster;
- after a gap in what is told, or a change of who tells it, a cluster has ``silent_after_s`` to give
  a sign of life before its silence counts as its own. One that has given a sign since, and fell
  silent again, is believed at once.
"""

from math import inf
from typing import Final

from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.ocm.core.view import NOT_TOLD, View, view

SILENT_AFTER_S: Final = 30.0  # without a sign of life, until a cluster counts as silent
GAPS: Final = 3  # a gap is a third of what counts as silence: two refreshes of the scorer's


class Telling:
    def __init__(self, silent_after_s: float) -> None:
        self.score: ClusterScore | None = None
        self.heard_s = -inf  # by the bus's clock
        self._back_s = -inf  # since when it is told without a gap
        self._limit_s = silent_after_s

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None:
        known = self.score
        again = known is None or stored_at_s - self.heard_s > self._limit_s / GAPS
        if again or (known is not None and known.stamp.epoch != score.stamp.epoch):
            self._back_s = stored_at_s
        self.score, self.heard_s = score, stored_at_s

    def on_gone(self) -> None:
        """The bus does not have it any more; from now on it is waited for."""
        self.score = None

    def view(self, now_s: float) -> tuple[View, float]:
        """(what to say of a score that is told, until when that holds)."""
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
    """Of the cluster, by the bus's clock; the past, if nobody knows."""
    if score.freshness == "fresh" or (score.freshness == "withdrawn" and not score.input_age_s):
        return -inf  # it is there without any node, or the bus has nothing of it
    return told_at_s - score.input_age_s


class Tellers:
    """Whether anybody tells any score."""

    def __init__(self, silent_after_s: float) -> None:
        self._limit_s = silent_after_s
        self._heard_s = -inf
        self._back_s = -inf

    def on_score(self, stored_at_s: float) -> bool:
        """One was told; whether they were silent before."""
        back = stored_at_s - self._heard_s > self._limit_s / GAPS
        if back:
            self._back_s = stored_at_s
        self._heard_s = max(self._heard_s, stored_at_s)
        return back

    def unheard(self, now_s: float, *, blind: bool) -> tuple[View, float]:
        """(what to say of a cluster of which no score is told at all, until when that holds)."""
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
