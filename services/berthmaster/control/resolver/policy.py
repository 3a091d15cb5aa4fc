"""Settings of a resolver's decisions, recorded in each decision so that it can be repeated."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from berthmaster.lib.engine.queueing.lines import OrderBy
from berthmaster.lib.engine.queueing.queues import CPU, MEMORY
from berthmaster.lib.engine.scoring.profiles import BALANCED, PROFILES, Weights, weighted
from berthmaster.lib.lifecycle.commits import COMMIT_BYTES

ExpectBy = Literal["stated", "similar"]
ENGINE_VERSION = "50"


# A reservation whose time is an estimate lets others use its nodes for so many times
# reserve_wait_s at most, counted from the job's submission. Then nobody starts on them before it.
ESTIMATED_WAITS: Final = 600


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of decide(). Times are in seconds."""

    claim_timeout_s: float = 10.0  # a placement without a claim for this time is withdrawn
    gather_s: float = 60.0  # time limit for claiming all parts of a divided gang
    # Time without placements after an unclaimed one, unless the cluster claims again
    avoid_s: float = 30.0
    stale_after_s: float = 10.0  # a cluster silent for so long gets no new placements
    deadline_grace_s: float = 30.0  # beyond a job's own deadline, before it is believed to be over
    commit_limit: int = 256  # placements in one commit; more only cost latency
    commit_bytes: int = COMMIT_BYTES
    ranking_limit: int = 5  # clusters in a record
    share_cpu: float = 1.0  # weight of the CPU share, relative to a GPU model's share
    share_memory: float = 1.0
    order: OrderBy = "arrival"  # among jobs of one queue and priority
    short_first: float = 0.0  # with order "due": 1 = the smallest jobs first
    reservations: int = 4  # maximum number of reservations; 0 = none
    reserve_wait_s: float = 300.0  # wait after which a reservation without a known time is made
    evictions_per_hour: int = 120  # preemptions of all queues; 0 = none
    restart_s: float = 60.0  # time from a restart to useful work
    grow_after_s: float = 60.0
    # Time without a resize, and without a start in the cluster, before an elastic job grows into
    # idle capacity; 0 = never.
    rebalance_moves: int = 4  # maximum number of moves for one pending job; 0 = no rebalancing
    rebalance_after_s: float = 600.0
    # Minimum wait of the pending job, and minimum run time of moved jobs.
    rebalance_gain: float = 2.0  # saved GPU seconds for each lost one
    expect: ExpectBy = "stated"  # durations that reservations and backfill use
    backfill: float = 1.0  # share of its duration that a job may run before a reservation begins
    profile: str = BALANCED  # ranks clusters where neither request nor queue names another
    # Component weights of the profile "balanced".
    fit: float = PROFILES[BALANCED]["fit"]
    room: float = PROFILES[BALANCED]["room"]
    idle: float = PROFILES[BALANCED]["idle"]

    @property
    def weights(self) -> Weights:
        """Return the weights of the profile "balanced"."""
        own = {"fit": self.fit, "room": self.room, "idle": self.idle}
        return weighted(PROFILES[BALANCED], own)

    @property
    def profiles(self) -> Mapping[str, Weights]:
        """All profiles, "balanced" as set here."""
        return {**PROFILES, BALANCED: self.weights}

    @property
    def share_multipliers(self) -> dict[str, float]:
        """Return multipliers of resources in a dominant share, where not 1."""
        return {CPU: self.share_cpu, MEMORY: self.share_memory}

    @property
    def expects_similar(self) -> bool:
        """Whether estimates from similar jobs count; ``order: due`` has expectations of its own."""
        return self.expect == "similar" and self.order == "arrival"

    def as_record(self) -> dict[str, float | int | str]:
        """Return the record in a decision, which leaves out ``expect`` at its default."""
        record = msgspec.structs.asdict(self)
        if self.expect == "stated":
            del record["expect"]
        return record

    @classmethod
    def from_record(cls, record: dict[str, float | int | str]) -> "Policy":
        """Return the policy of a recorded decision. Raises msgspec.ValidationError."""
        return msgspec.convert(record, cls, strict=False)
