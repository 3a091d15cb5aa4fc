"""The one instruction of the scorer's core: store a score."""

import msgspec

from berthmaster.lib.messages.fleet import ClusterScore


class PutScore(msgspec.Struct, frozen=True):
    """Store this fact, and answer a failure with ScoreNotStored. ``since_s``: arrival of the first
    input behind the score. None: only time has passed.
    """

    fact: ClusterScore
    since_s: float | None = None
