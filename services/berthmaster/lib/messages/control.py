"""What operators set: queues, cordons, clusters declared lost. Last value per subject."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.placement import PartWeights, Via
from berthmaster.lib.messages.runtimes import RuntimeSetting


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a queue's jobs are made in a Kubernetes cluster."""

    namespace: str = "default"
    service_account: str = ""  # "" = the namespace's default
    local_queue: str = ""  # Kueue LocalQueue, for via worker and hub; "" = the queue's own name


Amount = Annotated[int, Meta(ge=0, le=1 << 50)]


class QueueAmounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue has of one resource; None is "nothing" but for the capability: "no limit"."""

    guarantee: Amount | None = None  # can always be had, unless it is lent to what runs already
    deserved: Amount | None = None  # goes before others up to here
    capability: Amount | None = None  # is never exceeded


Allowed = Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(max_length=256)]


class QueueAllows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What requests of a queue may ask for; None = whatever they like, empty = nothing of it."""

    tolerations: Allowed | None = None  # keys of the taints that may be tolerated
    node_labels: Allowed | None = None  # keys of the labels that may be required
    images: Allowed | None = None  # whole ones, or beginnings that end in "/" or ":"
    gpu_models: Allowed | None = None  # then a request for GPUs must name some of them
    resources: Allowed | None = None
    # Full names of extended resources, such as rdma/hca. None = any, or none where gpu_models is
    # set: an extended resource may be an accelerator of any maker.


class JobDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for a queue's jobs whose requests do not say it; None: what holds for all."""

    max_run_s: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    checkpoint_every_s: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    grace_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    preemptible: bool | None = None


class QueueSetting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.queue.v1"
):
    """A tenant's share, under a name that requests give.

    Subject: ``berth.control.queue.<queue>``

    Amounts are GPU milli of whatever model, as nodes charge for them; None is "no limit" for the
    capability and "nothing" for the guarantee. ``resources`` holds amounts of others by name:
    ``cpu`` in milli, ``memory`` in MiB, ``gpu/<model>`` in GPU milli of that model, and extended
    resources in pieces by their full names, such as ``rdma/hca`` and ``google.com/tpu``. Where
    ``via`` is not direct, the clusters' own Kueue governs order and quota: then amounts and numbers
    are kept and limit nothing.
    """

    queue: str
    tenants: tuple[str, ...] = ()  # who may use it; empty = everybody
    parent: Annotated[str, Meta(max_length=63)] = ""
    # Another queue, of whose shares this one has a part; "" = it has its part of the fleet. A queue
    # that is a parent takes no requests. Priority and weight count among those of one parent.
    priority: int = 0  # queues with more go first
    weight: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    guarantee_gpu_milli: Annotated[int, Meta(ge=0)] | None = None
    deserved_gpu_milli: Annotated[int, Meta(ge=0)] | None = None
    capability_gpu_milli: Annotated[int, Meta(ge=0)] | None = None
    resources: dict[str, QueueAmounts] = {}
    max_job_gpu_milli: Annotated[int, Meta(ge=0)] | None = None  # of all pods of one job
    max_running_jobs: Annotated[int, Meta(ge=0)] | None = None  # placed and not ended
    max_waiting_jobs: Annotated[int, Meta(ge=0)] | None = None  # more are refused
    max_evictions_per_hour: Annotated[int, Meta(ge=0)] | None = None  # of its jobs, to make room
    max_priority: int | None = None  # of its jobs among each other and beside those of others
    allows: QueueAllows = QueueAllows()
    profile: Annotated[str, Meta(max_length=63)] = ""  # that ranks clusters for its jobs
    weights: PartWeights = {}  # of parts of the score, in place of the profile's
    via: Via = "direct"
    places: dict[str, QueuePlace] = {}  # by cluster; "*" = every other one, "hub" = on the hub
    preempts: Literal["never", "queue", "all"] = "queue"
    # Whose running jobs of lower priority make room for its jobs: nobody's, its own, or those of
    # others too, down to what those deserve. What it is guaranteed or deserves it gets in any case.
    # Of a queue that nobody has set: nobody's.
    preempts_equals: bool = False
    # Whether a job of it that waits may stop another of its own queue and priority that has clearly
    # more left to do, if both say how long they take or it was learned.
    rebalances: Literal["never", "queue", "all"] = "never"
    # Whose running jobs may be moved to room that is free, at most a few and if that pays, so that
    # a job of it that waits fits: nobody's, its own, or those of queues of no higher priority too.
    defaults: JobDefaults = JobDefaults()  # taken over when a request is accepted
    held: bool = False  # True: accepts requests and dispatches none
    deleted: bool = False  # True: refuses new requests; those inside go on
    set_by: str = ""
    set_at_s: float = 0.0


class Cordon(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.cordon.v1"
):
    """No new placements on a cluster or one of its nodes; what runs there goes on, unless it is
    drained: then decisions move it away at the least cost.

    Subject: ``berth.control.cordon.<cluster>.<node or ->``
    """

    cluster: str
    node: str | None = None  # None = the whole cluster
    cordoned: bool
    drain: bool = False
    drain_by_s: float | None = None  # seconds since 1970: nothing of ours runs there after that
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0


class ClusterLost(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.lost.v1"
):
    """A person says whether a cluster is gone for good: what was claimed there is placed anew.

    Subject: ``berth.control.lost.<cluster>``
    """

    cluster: str
    lost: bool
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0


ControlFact = QueueSetting | RuntimeSetting | Cordon | ClusterLost
