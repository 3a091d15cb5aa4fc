"""What shapes a resolver's decisions: part of each one's record, so that it can be repeated."""

from collections.abc import Mapping

import msgspec

from berthmaster.lib.engine.queueing.order import OrderBy
from berthmaster.lib.engine.queueing.queues import CPU, MEMORY
from berthmaster.lib.engine.scoring.profiles import BALANCED, PROFILES, Weights, weighted
from berthmaster.lib.lifecycle.refusals import COMMIT_BYTES

ENGINE_VERSION = "49"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide() depends on; times in seconds."""

    claim_timeout_s: float = 10.0  # a placement that nobody claimed for so long is withdrawn
    gather_s: float = 60.0  # within which all parts of a divided gang must be claimed
    avoid_s: float = 30.0  # and its cluster is passed over for so long, unless it claims again
    stale_after_s: float = 10.0  # a cluster silent for so long gets no new placements
    deadline_grace_s: float = 30.0  # beyond a job's own deadline, before it is believed to be over
    commit_limit: int = 256  # placements in one commit; more only cost latency
    commit_bytes: int = COMMIT_BYTES
    ranking_limit: int = 5  # clusters that a record keeps
    share_cpu: float = 1.0  # what a share of all CPU counts beside one of a GPU model
    share_memory: float = 1.0
    order: OrderBy = "arrival"  # among jobs of one queue and priority
    short_first: float = 0.0  # where they go as they are due: 1 = the smallest first
    reservations: int = 4  # waiting jobs that room is kept for at the same time; 0 = for none
    reserve_wait_s: float = 300.0  # after which room is kept although its time is not known
    evictions_per_hour: int = 120  # attempts of all queues that are ended to make room; 0 = none
    restart_s: float = 60.0  # that a job needs to be at work again, when it is ended and begun anew
    grow_after_s: float = 60.0
    # After so long without a change of its number, and without anything beginning in its cluster,
    # an elastic job grows into what is idle; 0 = none grows.
    rebalance_moves: int = 4  # jobs that move so that one begins, at most; 0 = none ever does
    rebalance_after_s: float = 600.0
    # So long such a job must have waited, and those who move for it must have run.
    rebalance_gain: float = 2.0  # GPU seconds of waiting that are saved for each that is lost
    backfill: float = 1.0  # share of its duration that a job may still run before room is needed
    profile: str = BALANCED  # ranks clusters where neither request nor queue names another
    # What the profile "balanced" counts of these components of the score
    fit: float = PROFILES[BALANCED]["fit"]
    room: float = PROFILES[BALANCED]["room"]
    idle: float = PROFILES[BALANCED]["idle"]

    @property
    def weights(self) -> Weights:
        """What the profile "balanced" counts."""
        own = {"fit": self.fit, "room": self.room, "idle": self.idle}
        return weighted(PROFILES[BALANCED], own)

    @property
    def profiles(self) -> Mapping[str, Weights]:
        """All profiles, "balanced" as set here."""
        return {**PROFILES, BALANCED: self.weights}

    @property
    def share_multipliers(self) -> dict[str, float]:
        """What shares of resources count in a queue's dominant share, where it is not 1."""
        return {CPU: self.share_cpu, MEMORY: self.share_memory}

    def as_record(self) -> dict[str, float | int | str]:
        """As it stands in a decision."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, float | int | str]) -> "Policy":
        """The policy under which a decision was made. Raises msgspec.ValidationError."""
        return msgspec.convert(record, cls, strict=False)
