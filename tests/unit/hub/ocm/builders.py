"""Scores and objects as tests tell them: valid, and only what the test is about is said."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from berthmaster.hub.ocm.core.objects import (
    FRESH,
    DatedMetadata,
    Item,
    PlacementScore,
    PlacementScoreStatus,
    SetBinding,
    Written,
)
from berthmaster.hub.ocm.core.scores import OCM_NAMES
from berthmaster.lib.kube.managed_clusters import ManagedCluster, ManagedClusterSpec
from berthmaster.lib.kube.multicluster import (
    ClusterManager,
    ClusterProfile,
    ClusterProfileSpec,
    ClusterProfileStatus,
    ClusterVersion,
    Property,
)
from berthmaster.lib.kube.objects import Condition, Metadata, OwnerReference, timestamp
from berthmaster.lib.messages.fleet import ClusterScore, Freshness, ResourceScore, Stamp
from berthmaster.lib.ocm.core.ownership import CLUSTER_MANAGER, FIELD_MANAGER, MANAGED_BY, OURS

T0_S = 1_790_000_000.0
NAME = "resource-usage-score"
FULL_GPUS = 20.0


def score(
    cluster: str = "east",
    *,
    free: float = 12.0,
    freshness: Freshness = "fresh",
    gangs: Mapping[str, int] | None = None,
    idle: float | None = 50.0,
    fragmentation: float | None = 25.0,
    calm: float | None = 100.0,
    counter: int = 1,
    epoch: int = 1,
    age_s: float | None = None,
    note: str = "",
    nodes: int = 2,
    full: float = FULL_GPUS,
) -> ClusterScore:
    """``free`` of ``full`` GPUs; everything but GPUs is at 0 points."""
    if freshness == "withdrawn":
        return ClusterScore(
            cluster=cluster,
            stamp=Stamp(epoch=epoch, counter=counter),
            freshness=freshness,
            input_age_s=120.0 if age_s is None else age_s,
            nodes=nodes,
            note=note,
        )
    points = int(200 * free / full - 100)
    resources = {
        name: ResourceScore(
            score=points if name.startswith("gpu") else 0, available=free, full_scale=full
        )
        for name in OCM_NAMES
    }
    return ClusterScore(
        cluster=cluster,
        stamp=Stamp(epoch=epoch, counter=counter),
        freshness=freshness,
        input_age_s=0.5 if age_s is None else age_s,
        resources=resources if nodes else {},
        idle_gpu_percent=idle,
        calm_gpu_percent=calm,
        free_gpus=free,
        largest_gang={"Tesla T4": int(free)} if gangs is None else dict(gangs),
        fragmentation_percent=fragmentation,
        nodes=nodes,
        note=note,
    )


def metadata(
    name: str,
    namespace: str = "",
    *,
    version: int = 1,
    labels: Mapping[str, str] | None = None,
    owner: str = "",
    uid: str = "",
    leaving: bool = False,
) -> Metadata:
    owners = (OwnerReference(kind="Addon", name=owner, uid="o", controller=True),) if owner else ()
    return Metadata(
        name=name,
        namespace=namespace,
        uid=uid or f"uid-{namespace}-{name}",
        resource_version=str(version),
        labels=dict(labels or {}),
        owner_references=owners,
        deletion_timestamp=timestamp(T0_S) if leaving else None,
    )


def managed(cluster: str = "east", *, accepted: bool = True, leaving: bool = False) -> Any:
    return ManagedCluster(
        metadata=metadata(cluster, leaving=leaving),
        spec=ManagedClusterSpec(hub_accepts_client=accepted),
    )


def placed(
    cluster: str = "east",
    values: Mapping[str, int] | None = None,
    *,
    version: int = 1,
    until_s: float | None = None,
    reason: str = "",
    message: str = "",
    ours: bool = True,
    owner: str = "",
    name: str = NAME,
    since_s: float = T0_S,
    stored_s: float | None = None,
) -> PlacementScore:
    """An AddOnPlacementScore; one without values has no status yet."""
    conditions = (
        Condition(
            type=FRESH,
            status="True" if reason == "Live" else "False",
            reason=reason,
            message=message,
            last_transition_time=timestamp(since_s),
        ),
    )
    plain = metadata(
        name, cluster, version=version, labels={MANAGED_BY: OURS} if ours else {}, owner=owner
    )
    dates = (
        Written(manager="kubectl", time="2020-01-01T00:00:00Z"),
        Written(manager=FIELD_MANAGER, time=timestamp(stored_s or 0.0)),
    )
    return PlacementScore(
        metadata=DatedMetadata(
            **msgspec.structs.asdict(plain), managed_fields=dates if stored_s is not None else ()
        ),
        status=PlacementScoreStatus(
            conditions=conditions if reason else (),
            scores=tuple(Item(name=one, value=value) for one, value in (values or {}).items()),
            valid_until=timestamp(until_s) if until_s is not None else None,
        ),
    )


def profile(
    cluster: str = "east",
    properties: Mapping[str, str] | None = None,
    *,
    namespace: str = "fleet",
    spec: str = OURS,
    label: str = OURS,
    made: bool = False,
    version: int = 1,
    at_s: float = T0_S,
    conditions: Sequence[Condition] = (),
    kubernetes: str = "",
) -> ClusterProfile:
    """A ClusterProfile that we manage; ``made``: and have made."""
    return ClusterProfile(
        metadata=metadata(
            cluster,
            namespace,
            version=version,
            labels=({CLUSTER_MANAGER: label} if label else {})
            | ({MANAGED_BY: OURS} if made else {}),
        ),
        spec=ClusterProfileSpec(cluster_manager=ClusterManager(name=spec)),
        status=ClusterProfileStatus(
            properties=tuple(
                Property(name=name, value=value, last_observed_time=timestamp(at_s))
                for name, value in (properties or {}).items()
            ),
            conditions=tuple(conditions),
            version=ClusterVersion(kubernetes=kubernetes),
        ),
    )


def binding(name: str = "global", namespace: str = "fleet") -> SetBinding:
    """Of a set of clusters to a namespace."""
    return SetBinding(metadata=metadata(name, namespace))
