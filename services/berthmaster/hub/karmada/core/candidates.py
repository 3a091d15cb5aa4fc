"""Which of Karmada's members a policy's placement lets a binding go to. Pure.

Rules of this file:

- A binding goes to one cluster, whatever its replica scheduling says. What asks for several at
  least cannot be had.
- Of several affinity groups any will do: which is best, the ranking says.
- Whether a cluster answers is not looked at: the resolver knows that better, and it changes.
"""

from collections.abc import Iterable, Mapping

from berthmaster.hub.karmada.core.objects import ClusterAffinity, KarmadaCluster, Placement, Taint
from berthmaster.lib.kube.selector import selector_of
from berthmaster.lib.kueue.podsets.templates import PodToleration, Requirement


def candidates(placement: Placement, members: Iterable[KarmadaCluster]) -> tuple[str, ...]:
    """Names of those that will do. Raises SelectorError."""
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
    """Why it may not go to this one, or "". Raises SelectorError."""
    found = [member for member in members if member.metadata.name == cluster]
    if not found:
        return f"{cluster} is no member of Karmada's any more"
    if candidates(placement, found):
        return ""
    taints = ", ".join(f"{one.key}:{one.effect}" for one in found[0].spec.taints or ())
    told = f" and its taints ({taints})" if taints else ""
    return f"the policy's clusterAffinity{told} keep it from {cluster}"


def several(placement: Placement) -> str:
    """What of it asks for more than one cluster, or ""."""
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


def _holds(asked: Requirement, fields: Mapping[str, str], zones: tuple[str, ...]) -> bool:
    values = asked.values or ()
    has = zones if asked.key == "zone" else tuple(filter(None, (fields.get(asked.key, ""),)))
    match asked.operator:
        case "In":  # of zones, all must be among them: any of them may get the pods
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
        return True  # Karmada's own taints say that it does not answer
    return any(
        (not one.effect or one.effect == taint.effect)
        and (not one.key or one.key == taint.key)
        and (one.operator == "Exists" or (one.value or "") == taint.value)
        for one in tolerations
    )
