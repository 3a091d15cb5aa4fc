"""What is said of a cluster: its score while that is live, else why there is none. Pure."""

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
    """What is to be said of a cluster now."""

    reason: str  # of the condition: Live, or why the scores are the worst
    message: str
    score: ClusterScore | None = None  # only while it is live
    silence: str = ""  # why nobody can tell: what stands stays, and this is said of it
    last: ClusterScore | None = None  # with a silence: what was told last, where it was live
    settling: bool = False  # whoever tells has just come back, and need not have measured all

    @property
    def fresh(self) -> bool:
        """Whether there is something to go by."""
        return self.score is not None


def view(score: ClusterScore | None, *, silent_s: float) -> View:
    """``silent_s``: 0 = it is told regularly, else for how long nobody has."""
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
    """A GPU model's name, such that it can be part of another."""
    told = _UNSAFE.sub("-", model).strip("-._")[: MAX_NAME_CHARS - len(GANG)]
    return told.rstrip("-._") or "unknown"
