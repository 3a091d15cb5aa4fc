"""What the scorer's core asks for: a score to be stored."""

import msgspec

from berthmaster.lib.messages.fleet import ClusterScore


class PutScore(msgspec.Struct, frozen=True):
    """Store this fact; on failure answer ScoreNotStored. ``since_s``: when the first of the inputs
    that made it necessary came in; None: only time has passed."""

    fact: ClusterScore
    since_s: float | None = None
