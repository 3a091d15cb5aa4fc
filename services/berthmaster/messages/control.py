"""What operators set: queues, cordons, clusters declared lost. Last value per subject."""

from typing import Annotated

import msgspec
from msgspec import Meta

from berthmaster.messages.placement import Via


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a queue's jobs are made in a Kubernetes cluster."""

    namespace: str = "default"
    service_account: str = ""  # "" = the namespace's default
    local_queue: str = ""  # Kueue LocalQueue, for via worker and hub; "" = the queue's own name


class QueueSetting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.queue.v1"
):
    """A tenant's share, under a name that requests give.

    Subject: ``berth.control.queue.<queue>``

    Amounts are GPU milli; None is "no limit" for the capability and "nothing" for the guarantee.
    """

    queue: str
    tenants: tuple[str, ...] = ()  # who may use it; empty = everybody
    priority: int = 0  # queues with more go first
    weight: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    guarantee_gpu_milli: Annotated[int, Meta(ge=0)] | None = None
    deserved_gpu_milli: Annotated[int, Meta(ge=0)] | None = None
    capability_gpu_milli: Annotated[int, Meta(ge=0)] | None = None
    via: Via = "direct"
    places: dict[str, QueuePlace] = {}  # by cluster; "*" = every other one, "hub" = on the hub
    held: bool = False  # True: accepts requests and dispatches none
    deleted: bool = False  # True: refuses new requests; those inside go on
    set_by: str = ""
    set_at_s: float = 0.0


class Cordon(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.cordon.v1"
):
    """No new placements on a cluster or one of its nodes; what runs there goes on.

    Subject: ``berth.control.cordon.<cluster>.<node or ->``
    """

    cluster: str
    node: str | None = None  # None = the whole cluster
    cordoned: bool
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


ControlFact = QueueSetting | Cordon | ClusterLost
