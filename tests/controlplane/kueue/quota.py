"""Quota by flavor and resource: what a Workload asks for, what a ClusterQueue has, which flavors it
gets. Pure.

What a queue may use of its cohorts' quota is cohorts.py's to say. A flavor is passed over when its
taints, node labels or required affinity do not suit the pods; a resource that no resource group
covers can never be had. Where a pod set finds no flavor, the Workload is tried again at once, its
earlier pod sets beginning behind the flavors that they had.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from berthmaster.kubernetes.quantity import parse_quantity
from tests.controlplane.kueue.cohorts import Place, Room, quotas_of
from tests.controlplane.kueue.objects import Obj

MOST_ATTEMPTS = 64  # to find flavors for several pod sets
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


def flavors_of(queue: Obj) -> list[str]:
    """The flavors that a ClusterQueue names, in its order."""
    groups = queue["spec"].get("resourceGroups") or ()
    return [flavor["name"] for group in groups for flavor in group["flavors"]]


def assign(
    workload: Obj,
    queue: Obj,
    flavors: Mapping[str, Obj],
    room: Room,
    *,
    spare: Usage | None = None,
) -> Assignment:
    """Give each pod set, for each group of resources, the first flavor that suits and has room.

    `spare` is what less important Workloads hold: room that preemption would make.
    """
    groups = queue["spec"].get("resourceGroups") or ()
    begin = [[0] * len(groups) for _ in workload["spec"]["podSets"]]
    first: Assignment | None = None
    for _ in range(MOST_ATTEMPTS):
        found, begin = _attempt(workload, queue, flavors, room, spare or {}, begin)
        if found.admission is not None:
            return found
        first = first or found
        if not any(map(any, begin)):
            break
    assert first is not None
    return first


def _attempt(
    workload: Obj,
    queue: Obj,
    flavors: Mapping[str, Obj],
    room: Room,
    spare: Usage,
    begin: list[list[int]],
) -> tuple[Assignment, list[list[int]]]:
    """With where to begin next, if this has failed."""
    taken: Usage = defaultdict(Fraction)
    assignments: list[Obj] = []
    preempting = False
    groups = queue["spec"].get("resourceGroups") or ()
    behind = [[0] * len(groups) for _ in begin]
    for number, pod_set in enumerate(workload["spec"]["podSets"]):
        count = pod_set.get("count", 1)
        one = pod_requests(pod_set["template"])
        wanted = {name: amount * count for name, amount in one.items()}
        chosen: dict[str, str] = {}
        tried = [0] * len(groups)
        for at, group in enumerate(groups):
            covered = group["coveredResources"]
            if "pods" in covered:
                wanted["pods"] = Fraction(count)
            part = {name: wanted[name] for name in covered if name in wanted}
            if not part:
                continue
            fit = _best_fit(
                queue, group, part, pod_set, flavors, room, taken, spare, begin[number][at]
            )
            if isinstance(fit, str):
                name = pod_set["name"]
                words = f"couldn't assign flavors to pod set {name}: {fit}"
                return Assignment(None, words), behind
            flavor, by_preemption, tried[at] = fit
            preempting |= by_preemption
            for resource, amount in part.items():
                chosen[resource] = flavor
                taken[flavor, resource] += amount
        for resource in one:
            if resource not in chosen:
                words = (
                    f"couldn't assign flavors to pod set {pod_set['name']}: "
                    f"resource {resource} unavailable in ClusterQueue"
                )
                return Assignment(None, words), behind
        behind[number] = tried
        assignments.append(
            {
                "name": pod_set["name"],
                "count": count,
                "flavors": chosen,
                "resourceUsage": {name: text_of(wanted[name]) for name in chosen},
            }
        )
    admission = {"clusterQueue": queue["metadata"]["name"], "podSetAssignments": assignments}
    return Assignment(admission, "", preemptible=preempting), behind


def _best_fit(
    queue: Obj,
    group: Obj,
    part: Amounts,
    pod_set: Obj,
    flavors: Mapping[str, Obj],
    room: Room,
    taken: Usage,
    spare: Usage,
    begin: int,
) -> tuple[str, bool, int] | str:
    """(flavor, whether only preemption makes room there, which to begin with next), else why not.
    The first with room; where the next one is tried before borrowing, the nearest of them."""
    name = queue["metadata"]["name"]
    strict = (queue["spec"].get("flavorFungibility") or {}).get("whenCanBorrow") != "TryNextFlavor"
    reasons: list[str] = []
    fits: list[tuple[int, int, str]] = []
    by_preemption: str | None = None
    entries = [entry["name"] for entry in group["flavors"]]
    last = len(entries) - 1
    for number, flavor in enumerate(entries[begin:], begin):
        if problem := _unsuited(flavors.get(flavor), flavor, pod_set["template"]):
            reasons.append(problem)
            continue
        short = _shortage(name, flavor, part, room, taken)
        if not short:
            far = max(
                room.distance(name, (flavor, resource), taken[flavor, resource] + amount)
                for resource, amount in part.items()
            )
            fits.append((far, number, flavor))
            if strict or not far:
                last = number
                break
        elif by_preemption is None and _fits_after(queue, flavor, part, room, taken, spare):
            by_preemption = flavor
        reasons += short
    if fits:
        return min(fits)[2], False, (last + 1) % len(entries)
    if by_preemption is not None:
        return by_preemption, True, 0
    return ", ".join(reasons)


def _fits_after(
    queue: Obj, flavor: str, part: Amounts, room: Room, taken: Usage, spare: Usage
) -> bool:
    """Whether the queue's own quota is enough once `spare` is given back."""
    own = quotas_of(queue)
    name = queue["metadata"]["name"]
    for resource, amount in part.items():
        place = (flavor, resource)
        nominal = parse_quantity(own[place]["nominalQuota"])
        back = spare.get(place, Fraction(0)) - taken[place]
        if amount > nominal or room.used(name, place) - back + amount > nominal:
            return False
        if amount > room.free(name, place) + back:
            return False  # others hold what is its own
    return True


def _shortage(queue: str, flavor: str, part: Amounts, room: Room, taken: Usage) -> list[str]:
    """What is missing in one flavor, in words."""
    reasons = []
    for resource, amount in sorted(part.items()):
        place = (flavor, resource)
        needed = taken[place] + amount
        missing = needed - room.free(queue, place)
        if missing <= 0:
            continue
        if needed > (most := room.most(queue, place)):
            reasons.append(
                f"insufficient quota for {resource} in flavor {flavor}, "
                f"request ({text_of(needed)}) > maximum capacity ({text_of(most)})"
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
    if not _has_affinity(pod, labels):
        return f"flavor {name} doesn't match node affinity"
    return ""


def _has_affinity(pod: Obj, labels: Mapping[str, str]) -> bool:
    """By what is required of nodes, as far as the flavor names those labels (operator In only)."""
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [
        [each for each in term.get("matchExpressions") or () if each["key"] in labels]
        for term in required.get("nodeSelectorTerms") or ()
    ]
    if not terms or not all(terms):
        return True  # a term without a word on this flavor's labels suits every flavor
    return any(
        all(each["operator"] != "In" or labels[each["key"]] in each["values"] for each in term)
        for term in terms
    )


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
