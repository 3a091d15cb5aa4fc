"""What shapes the reconciler's decisions: part of each one's record, so that it can be repeated."""

from typing import Literal

import msgspec

# 4: between clusters with the same room, where the queue's last one went counts no more.
ENGINE_VERSION = "5"
Mode = Literal["observe", "order", "dispatch"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the core depends on; times in seconds."""

    mode: Mode = "observe"
    patience_s: float = 30.0  # nominated and not admitted for so long: the next best is added
    stale_after_s: float = 10.0  # a cluster silent for so long gets no new placements
    silent_s: float = 5.0  # without any known candidate for so long: the configuration's order
    settle_s: float = 1.0  # from running until the nodes' reports surely show it
    trap_s: float = 5.0  # a copy is admitted there and the hub does not know: a trap
    eviction_s: float = 60.0  # Kueue takes it back and its pods count for so long: a trap
    mute_s: float = 3.0  # nominated and no copy heard of for so long: worth a word
    tell_after_s: float = 1.0  # waiting without a candidate for so long: worth an event
    order_every_s: float = 1.0  # a MultiKueueConfig is reordered at most so often
    order_margin: float = 1.0  # GPUs by which a cluster must be ahead to overtake another
    commit_limit: int = 128  # placements in one commit; more only cost latency
    ranking_limit: int = 5  # clusters that a record keeps

    def as_record(self) -> dict[str, float | int | str]:
        """As it stands in a decision."""
        return msgspec.structs.asdict(self)
