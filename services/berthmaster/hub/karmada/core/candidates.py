"""The member clusters that a policy's placement allows for a binding. Pure.

Rules of this file:

- A binding goes to one cluster, regardless of its replica scheduling. A placement with a minimum of
  several clusters is impossible.
- Any of several affinity groups is allowed: the ranking decides which is best.
- A cluster's readiness is ignored: the resolver knows better, and readiness changes.
"""

from collections.abc import Iterable, Mapping

from berthmaster.hub.karmada.core.objects import ClusterAffinity, KarmadaCluster, Placement, Taint
from berthmaster.lib.kube.objects import LabelRequirement
from berthmaster.lib.kube.selector import selector_of
from berthmaster.lib.kueue.podsets.templates import PodToleration


def candidates(placement: Placement, members: Iterable[KarmadaCluster]) -> tuple[str, ...]:
    """Return the names of the allowed clusters. Raises SelectorError."""
    groups = placement.cluster_affinities or (placement.cluster_affinity or ClusterAffinity(),)
    tolerations = placement.cluster_tolerations or ()
    return tuple(
        sorted(
            member.metadata.name
            for member in members
            if not member.metadata.deletion_timestamp
            and any(_matches(group, member) for group in groups)
            and all(_tolerated(taint, tolerations) for taint in member.spec.taints or ())
        )
    )


def why_not(cluster: str, placement: Placement, members: Iterable[KarmadaCluster]) -> str:
    """Return why a cluster is not allowed, or "". Raises SelectorError."""
    found = [member for member in members if member.metadata.name == cluster]
    if not found:
        return f"{cluster} is no member of Karmada's any more"
    if candidates(placement, found):
        return ""
    taints = ", ".join(f"{one.key}:{one.effect}" for one in found[0].spec.taints or ())
    told = f" and its taints ({taints})" if taints else ""
    return f"the policy's clusterAffinity{told} keep it from {cluster}"


def several(placement: Placement) -> str:
    """Return the constraint that requires several clusters, or ""."""
    for one in placement.spread_constraints or ():
        if one.min_groups > 1:
            by = one.spread_by_label or one.spread_by_field
            return f"spreadConstraints: minGroups {one.min_groups} by {by[:63]}"
    return ""


def _matches(group: ClusterAffinity, member: KarmadaCluster) -> bool:
    name, spec = member.metadata.name, member.spec
    if name in (group.exclude or ()):
        return False
    if group.cluster_names and name not in group.cluster_names:
        return False
    if (labels := group.label_selector) is not None:
        told = [(e.key, e.operator, e.values or ()) for e in labels.match_expressions or ()]
        if not selector_of(labels.match_labels or {}, told).matches(member.metadata.labels):
            return False
    fields = {"provider": spec.provider, "region": spec.region}
    zones = spec.zones or ((spec.zone,) if spec.zone else ())
    expressions = group.field_selector.match_expressions if group.field_selector else None
    return all(_holds(one, fields, zones) for one in expressions or ())


def _holds(asked: LabelRequirement, fields: Mapping[str, str], zones: tuple[str, ...]) -> bool:
    values = asked.values or ()
    has = zones if asked.key == "zone" else tuple(filter(None, (fields.get(asked.key, ""),)))
    match asked.operator:
        case "In":  # all zones must be in the list, because any zone may get the pods
            return bool(has) and all(one in values for one in has)
        case "NotIn":
            return not any(one in values for one in has)
        case "Exists":
            return bool(has)
        case "DoesNotExist":
            return not has
        case _:
            return False


def _tolerated(taint: Taint, tolerations: Iterable[PodToleration]) -> bool:
    if taint.effect not in ("NoSchedule", "NoExecute") or taint.key.startswith("cluster.karmada."):
        return True  # Karmada's own taints report an unreachable cluster
    return any(
        (not one.effect or one.effect == taint.effect)
        and (not one.key or one.key == taint.key)
        and (one.operator == "Exists" or (one.value or "") == taint.value)
        for one in tolerations
    )
