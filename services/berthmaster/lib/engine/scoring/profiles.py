"""Weights of the score components: named profiles, and single weights.

A score is the weighted mean of its components. Weights are -10 to 10, as in OCM. A negative weight
prefers low values, and unknown values are the worst for either sign. Weight 0 omits a component.
Components that cannot distinguish clusters are omitted too: interference without a GPU fraction,
wait without a governing queue, tier and headroom outside of hubs, locality without a data location,
and interference and price if unknown for all clusters.

The profile of the request, its queue or the resolver is used, in this order. Single weights replace
weights of the profile: those of the request, and those of the queue unless the request names a
profile.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

# Descriptions, in the order of records. fleetview/components.py has the function of each.
COMPONENTS: Final[Mapping[str, str]] = {
    "fit": "how little a pod costs beyond itself on the best node: fragments and GPUs without CPU",
    "room": "the free share of the cluster's GPUs",
    "idle": "the measured idle share of the cluster's GPUs",
    "interference": "of the GPUs that are shared, how many are measured below 70 % busy",
    "wait": "how soon the cluster's own queue would start it: who is before it, quota of its own",
    "price": "the cheapest price of a GPU hour that is to be had, as a share of the price there",
    "locality": "how much of what the request says of its data's place holds for the cluster",
    "tier": "on a hub: it fits now, waits for GPUs, for nodes, or for quota",
    "headroom": "on a hub: GPUs that are free and within quota, beside the cluster with the most",
}

# Weights of the components that count, in the order of records, as floats.
Weights = Mapping[str, float]


def weighted(base: Weights, changes: Mapping[str, float]) -> Weights:
    """Return the weights with some of them replaced. Names of no component (a newer one's) are
    passed over."""
    each = {**base, **changes}
    return {name: float(each[name]) for name in COMPONENTS if each.get(name)}


def _profile(**weights: float) -> Weights:
    assert weights.keys() <= COMPONENTS.keys()
    return weighted({}, weights)


BALANCED: Final = "balanced"
PROFILES: Final[Mapping[str, Weights]] = {
    # Packs best, with some weight of everything else.
    BALANCED: _profile(fit=4, room=0.5, idle=0.5, interference=0.5, wait=1, locality=2),
    # The fullest cluster first: others stay empty, for large jobs or to be switched off.
    "pack": _profile(fit=4, room=-2, locality=2),
    # The emptiest and idlest first: least heat, and least lost when one fails.
    "spread": _profile(fit=0.5, room=4, idle=1, interference=1, locality=2),
    # The earliest start first.
    "soonest": _profile(fit=0.5, room=1, idle=1, wait=6, locality=1),
    # Where a GPU's hour costs least.
    "cheapest": _profile(fit=1, room=0.25, price=10, locality=2),
}

_TIER: Final = 10.0
_BESIDE_TIER: Final = 3.0  # of all other components together: less than the third of one tier


def for_hub(weights: Weights) -> Weights:
    """Return what a profile counts for the Workloads of a hub, where a cluster may be chosen
    although the job has to wait there. A better tier goes before all else that the profile counts,
    and headroom stands in for room. For example "spread" (room 4 of 8.5 in all) becomes tier 10,
    headroom 1.41 and the others in proportion, 3 together."""
    headroom = weights.get("room", 0.0) + weights.get("headroom", 0.0)
    others = weighted(weights, {"tier": 0.0, "headroom": headroom, "room": 0.0})
    total = sum(map(abs, others.values()))
    scale = _BESIDE_TIER / total if total > 0 else 0.0
    scaled = {component: weight * scale for component, weight in others.items()}
    return weighted(scaled, {"tier": _TIER})


# For hubs: "balanced" is what people expect of MultiKueue, the most free GPUs first. The idle share
# decides where headroom is the same within 1 %.
HUB_PROFILES: Final[Mapping[str, Weights]] = {
    name: for_hub(weights) for name, weights in PROFILES.items()
} | {BALANCED: _profile(tier=_TIER, headroom=2.9, idle=0.02)}


class Said(msgspec.Struct, frozen=True):
    """Ranking preferences of one party."""

    profile: str = ""
    weights: Mapping[str, float] = {}


def chosen(
    request: Said, queue: Said, usual: str, profiles: Mapping[str, Weights]
) -> tuple[str, Weights]:
    """Return the profile that counts, and the weights. Profiles of a newer version count as not
    named."""
    own = request.profile if request.profile in profiles else ""
    theirs = queue.profile if queue.profile in profiles else ""
    name = own or theirs or (usual if usual in profiles else BALANCED)
    weights = profiles[name]
    if not own:
        weights = weighted(weights, queue.weights)
    return name, weighted(weights, request.weights)


class Fault(NamedTuple):
    """An unknown name in ranking preferences."""

    path: tuple[str, ...]  # of the field
    value: str
    expected: str


def fault(profile: str, weights: Mapping[str, float]) -> Fault | None:
    """Return the first unknown name, which would otherwise be ignored silently."""
    if profile and profile not in PROFILES:
        return Fault(("profile",), profile, f"one of {_listed(PROFILES)}")
    for name in weights:
        if name not in COMPONENTS:
            return Fault(("weights", name), name, f"as a name there one of {_listed(COMPONENTS)}")
    return None


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(f'"{name}"' for name in names)
