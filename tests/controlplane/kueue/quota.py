"""Quota by flavor and resource: what a Workload asks for, what a ClusterQueue has, which flavors it
gets. Pure.

Nominal quota only: borrowing within cohorts is left out, since no test here needs two ClusterQueues
that lend to each other (with a real manager they do). A flavor is passed over when its taints or
node labels do not suit the pods; a resource that no resource group covers can never be had.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from berthmaster.kubernetes.quantity import parse_quantity
from tests.controlplane.kueue.objects import Obj

Place = tuple[str, str]  # flavor, resource
Amounts = dict[str, Fraction]  # by resource
Usage = dict[Place, Fraction]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Where every pod set gets its resources, or why it gets none."""

    admission: Obj | None
    message: str
    preemptible: bool = False  # it would fit if less important Workloads went


def text_of(amount: Fraction) -> str:
    """A quantity as people write it."""
    if amount.denominator == 1:
        return str(amount.numerator)
    return f"{-(-amount * 1000 // 1)}m"


def pod_requests(template: Obj) -> Amounts:
    """What one pod asks for: the greater of its containers together and any one init container."""
    spec = template.get("spec", {})
    total: Amounts = defaultdict(Fraction)
    for container in spec.get("containers") or ():
        for name, amount in _requests(container).items():
            total[name] += amount
    for container in spec.get("initContainers") or ():
        for name, amount in _requests(container).items():
            total[name] = max(total[name], amount)
    for name, text in (spec.get("overhead") or {}).items():
        total[name] += parse_quantity(text)
    return dict(total)


def _requests(container: Obj) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request is a request of the same size.
    texts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(text) for name, text in texts.items()}


def usage_of(workload: Obj) -> Usage:
    """What the admission of a Workload takes, by flavor and resource."""
    usage: Usage = defaultdict(Fraction)
    admission = workload.get("status", {}).get("admission") or {}
    for assigned in admission.get("podSetAssignments") or ():
        for resource, flavor in (assigned.get("flavors") or {}).items():
            amount = parse_quantity((assigned.get("resourceUsage") or {}).get(resource, "0"))
            usage[flavor, resource] += amount
    return dict(usage)


def total(usages: Iterable[Usage]) -> Usage:
    """All together."""
    summed: Usage = defaultdict(Fraction)
    for usage in usages:
        for place, amount in usage.items():
            summed[place] += amount
    return dict(summed)


def nominal_of(queue: Obj) -> Usage:
    """What a ClusterQueue has of its own."""
    return {
        (flavor["name"], resource["name"]): parse_quantity(resource["nominalQuota"])
        for group in queue["spec"].get("resourceGroups") or ()
        for flavor in group["flavors"]
        for resource in flavor["resources"]
    }


def flavors_of(queue: Obj) -> list[str]:
    """The flavors that a ClusterQueue names, in its order."""
    groups = queue["spec"].get("resourceGroups") or ()
    return [flavor["name"] for group in groups for flavor in group["flavors"]]


def assign(
    workload: Obj,
    queue: Obj,
    flavors: Mapping[str, Obj],
    used: Usage,
    *,
    spare: Usage | None = None,
) -> Assignment:
    """Give each pod set, for each group of resources, the first flavor that suits and has room.

    `spare` is what less important Workloads hold: room that preemption would make.
    """
    nominal = nominal_of(queue)
    taken: Usage = defaultdict(Fraction, used)
    assignments: list[Obj] = []
    preempting = False
    for pod_set in workload["spec"]["podSets"]:
        count = pod_set.get("count", 1)
        one = pod_requests(pod_set["template"])
        wanted = {name: amount * count for name, amount in one.items()}
        chosen: dict[str, str] = {}
        for group in queue["spec"].get("resourceGroups") or ():
            covered = group["coveredResources"]
            if "pods" in covered:
                wanted["pods"] = Fraction(count)
            part = {name: wanted[name] for name in covered if name in wanted}
            if not part:
                continue
            fit = _first_fit(group, part, pod_set, flavors, nominal, taken, spare or {})
            if isinstance(fit, str):
                name = pod_set["name"]
                return Assignment(None, f"couldn't assign flavors to pod set {name}: {fit}")
            flavor, by_preemption = fit
            preempting |= by_preemption
            for resource, amount in part.items():
                chosen[resource] = flavor
                taken[flavor, resource] += amount
        for resource in one:
            if resource not in chosen:
                return Assignment(
                    None,
                    f"couldn't assign flavors to pod set {pod_set['name']}: "
                    f"resource {resource} unavailable in ClusterQueue",
                )
        assignments.append(
            {
                "name": pod_set["name"],
                "count": count,
                "flavors": chosen,
                "resourceUsage": {name: text_of(wanted[name]) for name in chosen},
            }
        )
    admission = {"clusterQueue": queue["metadata"]["name"], "podSetAssignments": assignments}
    return Assignment(admission, "", preemptible=preempting)


def _first_fit(
    group: Obj,
    part: Amounts,
    pod_set: Obj,
    flavors: Mapping[str, Obj],
    nominal: Usage,
    taken: Usage,
    spare: Usage,
) -> tuple[str, bool] | str:
    """The first flavor with room, else the first where preemption makes room, else why not."""
    reasons: list[str] = []
    by_preemption: str | None = None
    for entry in group["flavors"]:
        name = entry["name"]
        if problem := _unsuited(flavors.get(name), name, pod_set["template"]):
            reasons.append(problem)
            continue
        short = _shortage(name, part, nominal, taken)
        if not short:
            return name, False
        if by_preemption is None and all(
            amount <= nominal.get((name, resource), Fraction(0))
            and taken[name, resource] - spare.get((name, resource), Fraction(0)) + amount
            <= nominal.get((name, resource), Fraction(0))
            for resource, amount in part.items()
        ):
            by_preemption = name
        reasons += short
    if by_preemption is not None:
        return by_preemption, True
    return ", ".join(reasons)


def _shortage(flavor: str, part: Amounts, nominal: Usage, taken: Usage) -> list[str]:
    """What is missing in one flavor, in words."""
    reasons = []
    for resource, amount in sorted(part.items()):
        has = nominal.get((flavor, resource), Fraction(0))
        missing = taken[flavor, resource] + amount - has
        if missing <= 0:
            continue
        if amount > has:
            reasons.append(
                f"insufficient quota for {resource} in flavor {flavor}, "
                f"request {text_of(amount)} > maximum {text_of(has)}"
            )
        else:
            reasons.append(
                f"insufficient unused quota for {resource} in flavor {flavor}, "
                f"{text_of(missing)} more needed"
            )
    return reasons


def _unsuited(flavor: Obj | None, name: str, template: Obj) -> str:
    """Why pods cannot go to nodes of this flavor; empty if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    spec = flavor.get("spec") or {}
    pod = template.get("spec", {})
    tolerations = [*(pod.get("tolerations") or ()), *(spec.get("tolerations") or ())]
    for taint in spec.get("nodeTaints") or ():
        if taint["effect"] != "PreferNoSchedule" and not any(
            _tolerates(toleration, taint) for toleration in tolerations
        ):
            return f"untolerated taint {taint['key']} in flavor {name}"
    labels = spec.get("nodeLabels") or {}
    selector = pod.get("nodeSelector") or {}
    if any(key in labels and labels[key] != value for key, value in selector.items()):
        return f"flavor {name} doesn't match node affinity"
    return ""


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))
