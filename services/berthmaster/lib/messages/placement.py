"""Placements, and the record of each decision.

A decision is an entry of its cell's chain. The entry holds all placements, withdrawals and moves
decided together, and one sequence per stream as input. From these the same core repeats the
decision bit for bit.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# direct = a plain Job in the worker cluster; worker = queued by its Kueue; hub = by the hub's Kueue
Via = Literal["direct", "worker", "hub"]

MAIN_CELL = "all"  # cell of the resolver
HUB_CELL = "hub"  # cell of the MultiKueue reconciler


# Weight of each score component by name; a negative weight prefers low values.
PartWeights = Annotated[
    dict[Annotated[str, Meta(max_length=63)], Annotated[float, Meta(ge=-10, le=10)]],
    Meta(max_length=32),
]


class Target(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How the executor creates the job object of an attempt, from the job's queue."""

    via: Via = "direct"
    # via: direct = a plain Job; worker = queued by the cluster's Kueue; hub = sent by the hub's
    # Kueue
    namespace: str = "default"  # namespace of the job object
    service_account: str = ""  # service account of the pods; "" = the namespace's default
    local_queue: str = ""  # Kueue LocalQueue of the job object; "" = unset


class PodBinding(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Node and GPUs of one pod."""

    pod: str  # name of the pod, "<pod set>-<index>"
    node: str  # node of the pod; "" = the cluster chooses
    gpus: tuple[int, ...] = ()  # indices of GPUs on the node; empty = the cluster chooses
    isolation: Literal["", "hardware", "memory", "none"] = ""
    # isolation: isolation of the GPU fraction; "" = whole GPUs, or unknown
    charged_milli: Annotated[int, Meta(ge=0, le=1000)] = 0
    # charged_milli: GPU milli charged for the fraction on this node; 0 = as requested


class RankedCluster(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A cluster that fits the workload, with the components of its score."""

    cluster: str
    score: float  # weighted mean of the components, 0 to 100
    parts: dict[str, float]  # components of the score by name, 0 to 100 each; 0 = unknown
    input_age_s: float  # age of the cluster's newest heartbeat at the decision, in seconds


class Option(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One configuration of a job (``choose`` or ``trial``), as a decision compared it."""

    gpus: int  # GPUs of each pod
    gpu_models: tuple[str, ...] = ()  # accepted GPU models; empty = any
    expected_s: float | None = None
    # expected_s: median run time of similar jobs in this configuration; null = unknown, or unused
    jobs: int = 0  # number of those jobs
    step_s: float | None = None
    # step_s: time of a step in the job's trial, or of its run without steps; null = no result
    cost: float | None = None
    # cost: GPU hours by the lowest price of a cluster; GPU hours alone where prices are unknown;
    # null = unknown, or unused
    why: str = ""  # why another one was taken; "" = the job has this one


class Weighed(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Learned run times by which a decision chose the configuration of a job."""

    tenant: str
    id: str
    expected_s: tuple[float | None, ...]  # median run time of each configuration; null = unknown
    jobs: tuple[int, ...]  # number of similar jobs of each


class Choice(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One placement of a decision, and the reasons for its cluster."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    pods: tuple[PodBinding, ...]  # node and GPUs of each pod
    ranking: tuple[RankedCluster, ...]  # clusters that fit, best first; the first is the chosen one
    filtered: dict[str, str] = {}  # reason by cluster that did not fit
    profile: str = ""  # scoring profile of the ranking; "" = balanced
    weights: PartWeights = {}  # weights changed by the request or its queue
    follows: str = ""
    # follows: party that chose the cluster in place of this decision, in words; "" = the decision
    options: tuple[Option, ...] = ()
    # options: configurations compared for the job, in the requested order; empty = no choice


class Retraction(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One placement withdrawn by a decision."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    reason: str  # reason of the withdrawal


class EvictionOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt preempted by a decision, with the beneficiary and the cost."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    lost_gpu_s: float  # cost: repeated work and the restart, in GPU seconds
    for_tenant: str  # tenant of the beneficiary, which has a reservation
    for_id: str  # id of the beneficiary
    right: Literal["guarantee", "deserved", "priority", "idle"]  # precedence of the beneficiary
    left_s: float | None = None
    # left_s: remaining work of the victim in seconds, between jobs of one queue and priority; None
    # = not compared
    for_left_s: float | None = None
    # for_left_s: remaining work of the beneficiary in seconds; null = not compared


class ResizeOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt resized by a decision: fewer pods for a beneficiary, or more pods on free
    capacity.
    """

    tenant: str
    id: str
    attempt: int
    cluster: str
    pods_before: int  # number of pods before
    pods: int  # number of pods after
    lost_gpu_s: float = 0.0  # cost to pods that stay and pods that end, in GPU seconds
    for_tenant: str = ""  # tenant of the beneficiary; "" = unset
    for_id: str = ""  # id of the beneficiary; "" = unset
    right: Literal["", "guarantee", "deserved", "priority", "idle"] = ""
    # right: precedence of the beneficiary; "" = borrowed capacity is taken or returned


class MoveOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt ended by a decision for an operator's or tenant's request, or for a drain.
    Preemptions are EvictionOrders.
    """

    tenant: str
    id: str
    attempt: int
    cluster: str
    lost_gpu_s: float  # cost in GPU seconds, as in EvictionOrder
    why: Literal["asked", "held", "drain"]
    # why: asked = a requested move or eviction; held = a hold; drain = a drain
    to: str = ""  # cluster with a reservation for the workload; "" = unset
    who: str = ""  # requester; "" = a drain


class DividedPart(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One cluster's part of a divided job."""

    id: str  # id of the workload of the part
    cluster: str
    pods: int  # number of pods of the part
    room: int  # number of pods that the cluster's free capacity allows


class Division(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One job divided over several clusters. Each part has a reservation."""

    tenant: str
    id: str
    attempt: int
    parts: tuple[DividedPart, ...]  # part of each cluster
    filtered: dict[str, str] = {}  # reason by cluster that got no part


class Commit(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Start of a divided gang, after the claim of its last part."""

    tenant: str
    id: str
    attempt: int
    parts: tuple[str, ...]  # ids of the parts


class PartOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One part of a divided job ended by a decision, because another part ended."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    lost_gpu_s: float  # cost in GPU seconds, as in EvictionOrder
    reason: str  # reason of the end


class RebalanceMove(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One attempt moved to free capacity elsewhere, for a pending job that fits in its place."""

    tenant: str
    id: str
    attempt: int
    cluster: str
    to: str  # cluster with a reservation for the moved workload, possibly the same
    lost_gpu_s: float  # cost in GPU seconds, as in EvictionOrder


class Rebalance(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A pending job that can start once a few other jobs have moved, with gain and cost."""

    tenant: str
    id: str
    cluster: str  # cluster of the pending job's reservation
    moves: tuple[RebalanceMove, ...]  # attempts that move
    gpus: float  # requested GPUs; for a job without GPUs, the worth of its CPUs
    waited_s: float  # time since the submission, in seconds
    saves_s: float
    # saves_s: saved waiting time: expected wait without moves, less the time that the moves take
    gain_gpu_s: float  # gain: gpus times saves_s
    cost_gpu_s: float  # cost of all moves, in GPU seconds


class HeldPieces(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A number of units of one extended resource."""

    resource: str  # full name of the extended resource
    number: int  # number of units


class HeldNode(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Capacity that a reservation holds on one node."""

    node: str
    cpu_milli: int = 0  # CPU in milli
    memory_mib: int = 0  # memory in MiB
    gpu_milli: int = 1000  # milli of each GPU in ``gpus``
    gpus: tuple[int, ...] = ()  # indices of the GPUs
    gpu_memory_mib: int = 0  # memory of each GPU in MiB, for a fraction; 0 = by gpu_milli
    mig_profile: str = ""  # MIG profile, such as 1g.10gb; "" = unset
    isolation: str = ""  # minimum isolation of the fraction; "" = any
    pieces: tuple[HeldPieces, ...] = ()  # units of TPUs and other extended resources


class Reservation(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Capacity reserved for a pending job. Other jobs may use the capacity if they end in time."""

    tenant: str
    id: str
    cluster: str
    held: tuple[HeldNode, ...]  # reserved capacity by node
    expected_at_s: float | None = None
    # expected_at_s: time at which the capacity is expected to be free; null = unknown
    owed: bool = False
    # owed: True: victims were preempted for the job, and no other job gets the capacity
    moving: bool = False  # True: the job is being moved here, and no other job gets the capacity
    estimated: bool = False  # True: expected_at_s rests on at least one estimate from similar jobs


class PodKind(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Shape of a pod, and how often such pods arrived."""

    gpus: int = 0  # number of GPUs
    gpu_milli: int = 0  # milli of each GPU
    cpu_milli: int = 0  # CPU in milli
    weight: int  # number of such pods


class Wanted(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Node requirements of pods, and the GPU capacity that such pods requested."""

    accepts: str  # representative pod set as JSON; other sets here accept the same nodes
    gpu_milli: int  # requested GPU milli


class LearnedMix(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Mix of pods that scores assume, as learned from submissions."""

    pods: int  # number of pods that had arrived
    kinds: tuple[PodKind, ...] = ()  # shapes of pods
    wants: tuple[Wanted, ...] = ()  # node requirements of pods


class PressedPool(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Nodes that the same pods accept, and the price of their capacity."""

    wanted_by: tuple[int, ...] = ()  # indices into ``wants`` of the mix, from 0
    price_milli: int  # extra price of a GPU here, in thousandths of a GPU on uncontended nodes


class WholeBlock(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Extra worth of a number of wholly free GPUs on one node."""

    gpus: int  # number of wholly free GPUs
    price_milli: int  # extra worth, in thousandths of a GPU


class Pressure(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Scarcity of nodes, from the mix of pods and free capacity."""

    pods: int = 0  # number of pods in the mix of the calculation
    pools: tuple[PressedPool, ...] = ()  # pools with an extra price; all other nodes have none
    whole: tuple[WholeBlock, ...] = ()  # extra worth of blocks of free GPUs


class ToldOutlook(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Inputs of the order of pending jobs, where jobs go by their due times."""

    patience_s: float | None = None
    # patience_s: seconds that the fleet needs for all open work; null = unlimited
    gpus: float | None = None  # GPUs of the fleet; null = unlimited
    left_gpu_s: float | None = None  # service above which a job goes behind others; null = no limit
    submitted: int = 0  # total number of submitted jobs
    late: int = 0  # number of jobs put behind others that had waited long at their start


class Expected(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Learned duration of a job that states none."""

    tenant: str
    id: str
    expected_s: float  # expected duration in seconds; estimated from similar jobs: the median
    high_s: float = 0.0
    # high_s: duration in seconds that one similar job in ten exceeds; 0 = not estimated so
    jobs: int = 0  # number of similar jobs behind the estimate; 0 = not estimated so


class LifeTable(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Survival counts of jobs of one size, by step of duration. Trailing zeros are left out."""

    gpus: float  # upper limit of the size; jobs have more than half as many GPUs
    ended: tuple[int, ...] = ()  # successful endings by step of duration
    open: tuple[int, ...] = ()  # open jobs by step of run time


class Lives(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Learned durations of jobs that state none."""

    endings: int = 0  # number of endings seen
    tables: tuple[LifeTable, ...] = ()  # survival counts by job size


class Saw(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Last folded sequence of each stream."""

    workloads: int  # sequence of WORKLOADS
    fleet: int  # sequence of FLEET
    control: int  # sequence of CONTROL


class Decision(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="decision.v1"
):
    """One group commit of a cell's resolver.

    Subject: ``berth.decision.<cell>``
    """

    cell: str
    number: int  # number in the chain, from 1, without gaps
    after: int  # stream sequence of decision number - 1; 0 = the first decision
    decider: str  # service and instance of the resolver
    engine: str  # version of the deciding code
    now_s: float  # time given to the deciding code
    settings: dict[str, float | int | str]  # settings that decisions depend on
    saw: Saw  # sequences that the decision is based on
    events: int | None = None
    # events: number of events stored right behind the decision; null = one for each order
    placements: tuple[Choice, ...] = ()  # placements, with their reasons
    withdrawals: tuple[Retraction, ...] = ()  # placements withdrawn before a claim
    evictions: tuple[EvictionOrder, ...] = ()
    # evictions: preemptions, the cheapest set that frees the needed capacity
    resizes: tuple[ResizeOrder, ...] = ()  # resizes, decided before preemptions
    moves: tuple[MoveOrder, ...] = ()  # moves for requests, holds and drains
    rebalances: tuple[Rebalance, ...] = ()  # moves of running jobs so that a pending job fits
    divisions: tuple[Division, ...] = ()  # jobs divided over clusters
    commits: tuple[Commit, ...] = ()  # divided gangs that start
    partings: tuple[PartOrder, ...] = ()  # parts ended because another part ended
    reservations: tuple[Reservation, ...] | None = None
    # reservations: all reservations in force; null = unchanged
    reserved: int = 0  # number of reservations in force
    mix: LearnedMix | None = None  # mix of pods for later scores; null = unchanged
    mix_pods: int = 0  # number of pods in the mix of this decision
    pressure: Pressure | None = None  # scarcity for later scores; null = unchanged
    pressed_by: int = 0  # number of the decision with the scarcity of this one
    outlook: ToldOutlook | None = None  # inputs of the order; null = first come, first served
    expected: tuple[Expected, ...] = ()  # learned durations not in an earlier decision
    weighed: tuple[Weighed, ...] = ()  # run times of configurations that jobs choose from
    lives: Lives | None = None  # survival counts for later decisions; null = unchanged
    lives_by: int = 0  # number of the decision with the survival counts of this one
    unclaimed: dict[str, float] = {}
    # unclaimed: time of the last unclaimed placement by cluster, while that excludes the cluster
    suspended: tuple[str, ...] = ()
    # suspended: <tenant>/<id> of workloads backed off because the log refuses their commits
    retried: tuple[str, ...] = ()
    # retried: <tenant>/<id> of backed off workloads tried again, without preemption
