"""Settings of the reconciler's decisions, recorded in each decision so that it can be repeated."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from berthmaster.lib.engine.scoring.profiles import BALANCED, HUB_PROFILES, Weights, weighted
from berthmaster.lib.lifecycle.commits import COMMIT_BYTES

ENGINE_VERSION = "23"
NAME: Final = "multikueue"
Mode = Literal["observe", "dispatch"]


class HubPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the core. Times are in seconds."""

    mode: Mode = "observe"
    patience_s: float = 30.0  # nominated and not admitted for so long: the next best comes
    stale_after_s: float = 10.0  # a cluster silent for so long gets no new placements
    silent_s: float = 5.0  # without any known candidate for so long: the configuration's order
    settle_s: float = 1.0  # from running to a sure report of the nodes
    trap_s: float = 5.0  # a copy is admitted there and the hub does not know: a trap
    eviction_s: float = 60.0  # limit of an eviction with counted pods before it counts as stuck
    unscheduled_s: float = 60.0  # admitted and no pod of it runs for so long: a trap
    neglect_s: float = 3.0  # tolerated time of an ignored copy, before Kueue there counts as dead
    mute_s: float = 3.0  # nominated and no copy heard of for so long: worth a word
    # Silence of the hub's Kueue with pending work, before it counts as away
    hub_mute_s: float = 20.0
    tell_after_s: float = 1.0  # waiting without a candidate for so long: worth an event
    evictions_per_hour: int = 120  # preemptions; 0 = none
    commit_limit: int = 128  # placements in one commit; more only cost latency
    commit_bytes: int = COMMIT_BYTES
    ranking_limit: int = 5  # clusters in a record
    profile: str = BALANCED  # profile of queues that name none
    weights: str = ""  # of components of the score, in place of that profile's: "idle=2,price=1"

    @property
    def avoid_s(self) -> float:
        """No cluster is avoided because it does not claim: Kueue takes what is nominated."""
        return 0.0

    @property
    def profiles(self) -> Mapping[str, Weights]:
        """All profiles as they count on a hub, by name."""
        return _profiles(self.profile, self.weights)

    def as_record(self) -> dict[str, float | int | str]:
        """As it stands in a decision."""
        return msgspec.structs.asdict(self)


@lru_cache(maxsize=8)
def _profiles(usual: str, weights: str) -> Mapping[str, Weights]:
    """``weights``: of which ``weights_problem`` finds nothing wrong."""
    pairs = (pair.partition("=") for pair in weights.split(",") if pair)
    changed = {name: float(number) for name, _, number in pairs}
    return {**HUB_PROFILES, usual: weighted(HUB_PROFILES[usual], changed)}
