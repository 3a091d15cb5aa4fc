"""Objects of Open Cluster Management, valid from the start; a test says only what it is about."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings

from berthmaster.hub.placement.cel.language import Language
from berthmaster.hub.placement.core.objects import (
    CLUSTER_SET_LABEL,
    DISABLED,
    PLACEMENT_LABEL,
    AddOnPlacementScore,
    CandidateCluster,
    ClusterDecision,
    DecisionStatus,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Placement,
    PlacementDecision,
)
from berthmaster.hub.placement.core.scheduling.plugin import Snapshot, Unfinished, Verdicts
from berthmaster.hub.placement.core.scheduling.request import Request, read
from berthmaster.lib.kube.objects import Metadata, timestamp

NAMESPACE = "team"
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NOW_S = 1_900_000_000.0


def cluster(
    name: str,
    *,
    in_set: str = "all",
    labels: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, Any]] = (),
    cpu: str = "",
    memory: str = "",
    **status: Any,
) -> CandidateCluster:
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": ({CLUSTER_SET_LABEL: in_set} if in_set else {}) | dict(labels or {}),
            },
            "spec": {"hubAcceptsClient": True, "taints": list(taints)},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "clusterClaims": [{"name": k, "value": v} for k, v in (claims or {}).items()],
            }
            | status,
        },
        CandidateCluster,
    )


def taint(
    key: str = "gone", *, effect: str = "NoSelect", age_s: float | None = None, value: str = ""
) -> dict[str, Any]:
    added = {} if age_s is None else {"timeAdded": timestamp(NOW_S - age_s)}
    return {"key": key, "value": value, "effect": effect, **added}


def cluster_set(name: str = "all", **selector: Any) -> ManagedClusterSet:
    spec = {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"} | selector}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ManagedClusterSet)


def everything(name: str = "global") -> ManagedClusterSet:
    """As OCM's own global set."""
    return cluster_set(name, selectorType="LabelSelector", labelSelector={})


def binding(name: str = "all", namespace: str = NAMESPACE) -> ManagedClusterSetBinding:
    return ManagedClusterSetBinding(metadata=Metadata(name=name, namespace=namespace))


def score(
    cluster: str,
    value: int,
    *,
    name: str = "demo",
    resource: str = "demo",
    valid_s: float | None = None,
) -> AddOnPlacementScore:
    status: dict[str, Any] = {"scores": [{"name": name, "value": value}]}
    if valid_s is not None:
        status["validUntil"] = timestamp(NOW_S + valid_s)
    metadata = {"name": resource, "namespace": cluster, "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "status": status}, AddOnPlacementScore)


def placement(
    name: str = "p",
    *,
    ours: bool = True,
    annotations: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
    uid: str = "",
    generation: int = 1,
    version: str = "1",
    status: Any = None,
    **spec: Any,
) -> Placement:
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or f"uid-{name}",
                "generation": generation,
                "resourceVersion": version,
                "annotations": ({DISABLED: "true"} if ours else {}) | dict(annotations or {}),
            },
            "spec": spec,
            **({"status": status} if status else {}),
        },
        Placement,
    )


def exactly(*weights: tuple[str, int]) -> dict[str, Any]:
    """A prioritizerPolicy of mode Exact."""
    return policy("Exact", *weights)


def policy(mode: str, *weights: tuple[str, int]) -> dict[str, Any]:
    """AddOn/RESOURCE/SCORE, or the name of a built-in one; and its weight."""
    found = []
    for name, weight in weights:
        kind, _, rest = name.partition("/")
        resource, _, score_name = rest.partition("/")
        coordinate: dict[str, Any] = (
            {"type": "AddOn", "addOn": {"resourceName": resource, "scoreName": score_name}}
            if kind == "AddOn"
            else {"type": "BuiltIn", "builtIn": kind}
        )
        found.append({"scoreCoordinate": coordinate, "weight": weight})
    return {"mode": mode, "configurations": found}


def where(*, cel: Sequence[str] = (), **selectors: Any) -> dict[str, Any]:
    """One predicate."""
    told = {f"{kind}Selector": selector for kind, selector in selectors.items()}
    if cel:
        told["celSelector"] = {"celExpressions": list(cel)}
    return {"requiredClusterSelector": told}


def request(**spec: Any) -> Request:
    annotations = spec.pop("annotations", None)
    return read(placement(annotations=annotations, **spec))


def snapshot(
    clusters: Iterable[CandidateCluster] = (),
    *,
    sets: Iterable[ManagedClusterSet] = (cluster_set(),),
    bound: Iterable[str] = ("all",),
    scores: Iterable[AddOnPlacementScore] = (),
    decided: Iterable[str] = (),
    elsewhere: Mapping[str, int] | None = None,
    now_s: float = NOW_S,
) -> Snapshot:
    return Snapshot(
        now_s=now_s,
        bound=frozenset(bound),
        sets={one.metadata.name: one for one in sets},
        clusters={one.name: one for one in clusters},
        scores={(one.metadata.namespace, one.metadata.name): one for one in scores},
        decided=frozenset(decided),
        elsewhere=elsewhere or {},
    )


language = lru_cache(Language)  # one in this process: no test that uses it builds long strings


def answered(run: Callable[..., Any], now: Snapshot, *rest: Any) -> Any:
    """Run the scheduler, or a filter, with the answers of all expressions."""
    now = now if now.verdicts is not None else now._replace(verdicts=Verdicts())
    while True:
        try:
            return run(now, *rest)
        except Unfinished as unfinished:
            unfinished.pending.settle(language().answer(unfinished.pending.question))


def named(*names: str) -> list[CandidateCluster]:
    return [cluster(name) for name in names]


def page(
    placement_name: str,
    number: int,
    clusters: Iterable[str],
    *,
    namespace: str = NAMESPACE,
    version: str = "1",
) -> PlacementDecision:
    return PlacementDecision(
        metadata=Metadata(
            name=f"{placement_name}-decision-{number}",
            namespace=namespace,
            uid=f"uid-{placement_name}-{number}",
            resource_version=version,
            labels={PLACEMENT_LABEL: placement_name},
        ),
        status=DecisionStatus(
            decisions=tuple(ClusterDecision(cluster_name=name) for name in clusters)
        ),
    )
