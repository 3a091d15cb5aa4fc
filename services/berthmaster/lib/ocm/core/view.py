"""The view of a cluster: its score while live, else the reason for its absence. Pure."""

import re
from typing import Final

import msgspec

from berthmaster.lib.messages.fleet import ClusterScore

NOT_TOLD: Final = "NotTold"
GANG: Final = "gpuGang-"  # before a model, in the name of a score
MAX_NAME_CHARS: Final = 63
MAX_MESSAGE_CHARS: Final = 1024
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class View(msgspec.Struct, frozen=True):
    """The current view of a cluster."""

    reason: str  # of the condition: Live, or why the scores are the lowest
    message: str
    score: ClusterScore | None = None  # only while live
    silence: str = ""  # why the cluster's state is unknown: written values stay, with this note
    last: ClusterScore | None = None  # with a silence: the last published score, if live
    settling: bool = False  # the publisher has just returned, and may not have measured all

    @property
    def fresh(self) -> bool:
        """Whether a live score exists."""
        return self.score is not None


def view(score: ClusterScore | None, *, silent_s: float) -> View:
    """Return the view of a score. ``silent_s``: seconds of silence, 0 = published regularly."""
    if silent_s > 0:
        if score is None:
            return View("NoReport", "no agent of this cluster has reported to the fleet")
        why = f"nobody has told its score for {silent_s:g} s"
        was_live = score.freshness == "fresh" and bool(score.resources)
        return View(NOT_TOLD, why, silence=why, last=score if was_live else None)
    assert score is not None
    note = score.note[:MAX_MESSAGE_CHARS]
    if score.freshness != "fresh":
        return View(score.freshness.capitalize(), note or f"its inputs are {score.freshness}")
    if not score.resources:
        return View("NoNodes", "no node of the cluster has reported yet")
    return View("Live", note, score)


def short_name(model: str) -> str:
    """Return a GPU model's name in a form usable within another name."""
    told = _UNSAFE.sub("-", model).strip("-._")[: MAX_NAME_CHARS - len(GANG)]
    return told.rstrip("-._") or "unknown"
