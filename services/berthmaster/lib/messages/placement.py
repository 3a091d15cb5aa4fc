"""Where attempts run, and the record of how that was decided.

A decision is one entry of its cell's chain: everything that was decided together, with what the
decider saw (one sequence per stream), so that the same core can repeat it bit for bit.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# A plain job in the worker cluster, one that its Kueue queues, or one that the hub's Kueue sends.
Via = Literal["direct", "worker", "hub"]

MAIN_CELL = "all"  # whose decider is the resolver
HUB_CELL = "hub"  # whose decider is the MultiKueue reconciler


# What each part of a cluster's score counts, by the part's name; below 0: the less the better.
PartWeights = Annotated[
    dict[Annotated[str, Meta(max_length=63)], Annotated[float, Meta(ge=-10, le=10)]],
    Meta(max_length=32),
]


class Target(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How an attempt's job object is made in a Kubernetes cluster: what its queue says."""

    via: Via = "direct"
    namespace: str = "default"
    service_account: str = ""
    local_queue: str = ""


class PodBinding(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One pod and its place."""

    pod: str  # "<pod set>-<index>"
    node: str
    gpus: tuple[int, ...] = ()  # indices on the node; empty = the cluster chooses
    isolation: Literal["", "hardware", "memory", "none"] = ""
    # How hard the limit of its part of a GPU is; "" = its GPUs are whole, or nobody says.
    charged_milli: Annotated[int, Meta(ge=0, le=1000)] = 0
    # GPU milli that its part of a GPU is charged with on the node; 0 = as much as it asks for.


class RankedCluster(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A cluster that could take the workload, with the parts of its score."""

    cluster: str
    score: float  # 0..100, the weighted mean of its parts
    parts: dict[str, float]  # each 0..100; of what is not known 0
    input_age_s: float  # of the newest sign of life that the decider had


class Choice(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One placement of a decision and why."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    pods: tuple[PodBinding, ...]
    ranking: tuple[RankedCluster, ...]  # best first; the first is the chosen one
    filtered: dict[str, str] = {}  # cluster -> why it was out
    profile: str = ""  # by which it was ranked; "" = balanced, as nobody asked for another
    weights: PartWeights = {}  # of the parts, where the request or its queue changed the profile's
    follows: str = ""  # it was not this decision's to choose: who did, in words


class Retraction(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One placement taken back by a decision and why."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    reason: str


class EvictionOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt that makes room for a workload of better right, and what that costs."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    lost_gpu_s: float  # work that is done again, and starting again, in GPU seconds
    for_tenant: str  # whose room it will be: see the reservation of that workload
    for_id: str
    right: Literal["guarantee", "deserved", "priority"]
    # Given where both are equal in queue and priority: what it has still to do, and what the other
    # has, which is clearly less and is what goes first then.
    left_s: float | None = None
    for_left_s: float | None = None


class ResizeOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt that goes on with another number of pods: fewer, so that a workload of better
    right gets their room, or more, in room that nobody else has a right to."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    pods_before: int
    pods: int
    lost_gpu_s: float = 0.0  # what it costs those that go on and those that go, in GPU seconds
    for_tenant: str = ""  # whose room it will be: see the reservation of that workload
    for_id: str = ""
    right: Literal["", "guarantee", "deserved", "priority"] = ""
    # "" = of what is lent: it grows into it or, where there is somebody to whom it goes, gives back
    # what it has beyond what it wished for.


class MoveOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt that leaves its place for a person's wish or for a drain, and what that costs.
    Those that make room by right are EvictionOrders."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    lost_gpu_s: float  # as in EvictionOrder
    why: Literal["asked", "held", "drain"]
    to: str = ""  # the cluster in which room is kept for it: see its reservation; "" = in none
    who: str = ""  # whose wish it is


class DividedPart(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one cluster gets of a divided job."""

    id: str  # of the part
    cluster: str
    pods: int
    room: int  # for how many pods there was some


class Division(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One job that goes to several clusters, and why each gets so many: see the reservations of its
    parts."""

    tenant: str
    id: str
    attempt: int
    parts: tuple[DividedPart, ...]
    filtered: dict[str, str] = {}  # cluster -> why it was out


class Commit(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All parts of one job are claimed, and start."""

    tenant: str
    id: str
    attempt: int
    parts: tuple[str, ...]  # their ids


class PartOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One part of a divided job that is ended, as the others do not go on, and what that costs."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    lost_gpu_s: float  # as in EvictionOrder
    reason: str


class RebalanceMove(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt that leaves its place so that a job that waits fits there, and goes on in room
    that was free: see its reservation."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    to: str  # the cluster in which room is kept for it; it may be the same
    lost_gpu_s: float  # as in EvictionOrder


class Rebalance(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job that waits and can begin once a few others have moved: who does, and why it pays."""

    tenant: str
    id: str
    cluster: str  # where it will begin: see its reservation
    moves: tuple[RebalanceMove, ...]
    gpus: float  # that it waits for; of one without any, what its CPUs are worth
    waited_s: float
    saves_s: float  # of waiting: what it would wait for yet, less what the others take to go
    gain_gpu_s: float  # gpus times saves_s
    cost_gpu_s: float  # what all that move lose together


class HeldPieces(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """So many of one extended resource."""

    resource: str
    number: int


class HeldNode(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a reservation keeps of one node."""

    node: str
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 1000  # of each GPU named
    gpus: tuple[int, ...] = ()
    gpu_memory_mib: int = 0
    mig_profile: str = ""
    isolation: str = ""
    pieces: tuple[HeldPieces, ...] = ()  # TPUs and other extended resources


class Reservation(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Room that is kept for a waiting job: others may use it until then, not longer."""

    tenant: str
    id: str
    cluster: str
    held: tuple[HeldNode, ...]
    expected_at_s: float | None = None  # None = not known when it will be free
    owed: bool = False  # others were ended for it: nobody but that job gets the room
    moving: bool = False  # the job itself is ended elsewhere so that it goes on here: owed too


class PodKind(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What of a pod decides which holes it can fill, and how often such pods came."""

    gpus: int = 0
    gpu_milli: int = 0
    cpu_milli: int = 0
    weight: int


class Wanted(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What pods cannot do without, and how much of GPUs was asked for by those that say so."""

    accepts: str  # a pod set that the same nodes do for, as JSON
    gpu_milli: int


class LearnedMix(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The mix of pods that scores are made for, as the decider had learned it."""

    pods: int  # that had arrived
    kinds: tuple[PodKind, ...] = ()
    wants: tuple[Wanted, ...] = ()


class PressedPool(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Nodes that the same pods accept, and how dear their room is."""

    wanted_by: tuple[int, ...] = ()  # numbers of the mix's ``wants``, from 0
    price_milli: int  # of a GPU there, beyond what one costs where nobody has to go


class WholeBlock(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What so many GPUs that are wholly free on one node are worth beyond themselves."""

    gpus: int
    price_milli: int  # in GPUs


class Pressure(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which nodes are scarce, by the mix of pods and by what was free."""

    pods: int = 0  # of the mix that it was worked out for
    pools: tuple[PressedPool, ...] = ()  # all others cost nothing beyond
    whole: tuple[WholeBlock, ...] = ()


class ToldOutlook(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the order of those that wait was made of, where jobs go by when they are due."""

    patience_s: float | None = None  # that the fleet needs for all that is open; None = for ever
    gpus: float | None = None  # of the fleet; None = as many as anybody wants
    left_gpu_s: float | None = None  # jobs of more service go behind the others; None = nobody does
    submitted: int = 0  # jobs that ever came
    late: int = 0  # of those that went behind, who had waited for long when they began


class Expected(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How long a job is expected to take that does not say itself."""

    tenant: str
    id: str
    expected_s: float


class LifeTable(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Of jobs of one size: after how long they ended well, and for how long those had run that were
    open. Counts by step of duration, as far as any is not 0."""

    gpus: float  # they have at most so many, and more than half as many
    ended: tuple[int, ...] = ()
    open: tuple[int, ...] = ()


class Lives(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What was learned of how long jobs go on that do not say it themselves."""

    endings: int = 0  # that were seen until then
    tables: tuple[LifeTable, ...] = ()


class Saw(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The last sequence of each stream that the decider had folded."""

    workloads: int
    fleet: int
    control: int


class Decision(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="decision.v1"
):
    """One group commit of a cell's decider.

    Subject: ``berth.decision.<cell>``
    """

    cell: str
    number: int  # 1, 2, 3 … without gaps
    after: int  # stream sequence of decision number - 1; 0 for the first
    decider: str
    engine: str  # version of the deciding code
    now_s: float  # the time that the core was given
    settings: dict[str, float | int | str]
    saw: Saw
    events: int | None = None  # stored with it, right behind it; None = as many as it orders
    placements: tuple[Choice, ...] = ()
    withdrawals: tuple[Retraction, ...] = ()
    evictions: tuple[EvictionOrder, ...] = ()  # the cheapest that make the room that is needed
    resizes: tuple[ResizeOrder, ...] = ()  # before anybody is evicted
    moves: tuple[MoveOrder, ...] = ()
    rebalances: tuple[Rebalance, ...] = ()
    divisions: tuple[Division, ...] = ()
    commits: tuple[Commit, ...] = ()
    partings: tuple[PartOrder, ...] = ()
    reservations: tuple[Reservation, ...] | None = None  # all in force; None = as before
    reserved: int = 0  # how many were in force when this was decided
    mix: LearnedMix | None = None  # scored with from here on; None = as before
    mix_pods: int = 0  # of the mix that this was scored with
    pressure: Pressure | None = None  # scored with from here on; None = as before
    pressed_by: int = 0  # number of the decision that told the pressure that this was scored with
    outlook: ToldOutlook | None = None  # that the order was made of; None = jobs went as they came
    expected: tuple[Expected, ...] = ()  # of jobs that say nothing, and no decision had told
    lives: Lives | None = None  # what is left of jobs goes by it from here on; None = as before
    lives_by: int = 0  # number of the decision that told what this was made with
    unclaimed: dict[str, float] = {}  # cluster -> when it left a placement so, while that counts
    suspended: tuple[str, ...] = ()  # <tenant>/<id> whose commits the log refuses: left out
    retried: tuple[str, ...] = ()  # and those tried again: nobody makes or leaves room for them
