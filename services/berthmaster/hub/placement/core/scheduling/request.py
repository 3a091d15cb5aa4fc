"""A Placement, parsed and checked for the scheduler. Pure.

Parsing finds every user error of an edit at once, except errors in expressions. Expressions are
checked at evaluation, before any decision.

This module also converts the selectors of OCM's objects, or raises ``Misconfigured`` with the place
of the error.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from berthmaster.hub.placement.core.objects import (
    HYSTERESIS,
    MAX_LABEL_CHARS,
    UNKNOWN_SCORES,
    CandidateCluster,
    ClaimSelector,
    ClusterSelector,
    Misconfigured,
    Placement,
    PrioritizerConfig,
    Toleration,
)
from berthmaster.lib.kube.objects import LabelRequirement, LabelSelector
from berthmaster.lib.kube.selector import EVERYTHING, Selector, SelectorError, selector_of


def labels_of(selector: LabelSelector | None, plugin: str, where: str) -> Selector:
    """Return a selector of labels. None selects everything."""
    if selector is None:
        return EVERYTHING
    return _made(selector.match_labels or {}, selector.match_expressions or (), plugin, where)


def claims_of(selector: ClaimSelector | None, plugin: str, where: str) -> Selector:
    """Return a selector of claims. None selects everything."""
    if selector is None:
        return EVERYTHING
    return _made({}, selector.match_expressions or (), plugin, where)


def claims(cluster: CandidateCluster) -> dict[str, str]:
    """Return the ClusterClaims of a cluster."""
    return {claim.name: claim.value for claim in cluster.status.cluster_claims}


def _made(
    labels: Mapping[str, str], expressions: tuple[LabelRequirement, ...], plugin: str, where: str
) -> Selector:
    requirements = [(one.key, one.operator, one.values or ()) for one in expressions]
    try:
        return selector_of(labels, requirements)
    except SelectorError as error:
        raise Misconfigured(plugin, f"{where}: {error}") from None


T = TypeVar("T")
PREDICATE: Final = "Predicate"
TAINTS: Final = "TaintToleration"
PRIORITIZERS: Final = "Prioritizers"
GROUPS: Final = "DecisionStrategy"
BUILT_IN: Final = ("Balance", "Steady", "ResourceAllocatableCPU", "ResourceAllocatableMemory")
DEFAULTS: Final = {"Balance": 1, "Steady": 1}
MAX_WEIGHT: Final = 10
# maximum number of predicates, tolerations, configurations, and groups, each
MAX_PARTS: Final = 100
MAX_MARGIN: Final = 1_000_000
RATE_LIMIT_S: Final = 60.0
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600}
_GROUP_NAME: Final = re.compile(r"[a-zA-Z0-9][-A-Za-z0-9_.]{0,61}[a-zA-Z0-9]", re.ASCII)


class Predicate(NamedTuple):
    """Labels, claims and expressions that must all match."""

    labels: Selector
    claims: Selector
    expressions: tuple[str, ...] = ()


class Weighted(NamedTuple):
    """A prioritizer and its weight. ``resource`` and ``score`` apply to an addon's score."""

    name: str
    weight: int
    resource: str = ""
    score: str = ""


class Group(NamedTuple):
    """Clusters that are decided under a name of their own."""

    name: str
    labels: Selector
    claims: Selector


class Request(NamedTuple):
    """The parsed request of a Placement."""

    namespace: str
    name: str
    cluster_sets: tuple[str, ...] = ()
    number: int | None = None
    predicates: tuple[Predicate, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    prioritizers: tuple[Weighted, ...] = ()
    groups: tuple[Group, ...] = ()
    per_group: int = 0  # number of clusters; 0 = no limit
    percent_per_group: float = 0.0
    by_score: bool = False  # order decisions by score
    worst_if_unknown: bool = False
    margin: int = 0
    rate_limit_s: float = RATE_LIMIT_S
    notes: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        """Return whether the request has expressions, which may read any field of a cluster."""
        return any(one.expressions for one in self.predicates)

    def reads(self, resource: str) -> bool:
        """Return whether scores of this resource can matter."""
        if any(one.resource == resource for one in self.prioritizers):
            return True
        return any("scores" in text for one in self.predicates for text in one.expressions)


def read(placement: Placement) -> Request:
    """Return the request of a Placement. Raises Misconfigured."""
    spec, meta = placement.spec, placement.metadata
    if len(meta.name) > MAX_LABEL_CHARS:
        raise Misconfigured(
            "Placement",
            f"its name has {len(meta.name)} characters; decisions carry it as a label, which has "
            f"{MAX_LABEL_CHARS} at most",
        )
    if spec.number_of_clusters is not None and spec.number_of_clusters < 0:
        raise Misconfigured("Placement", f"numberOfClusters {spec.number_of_clusters}: at least 0")
    if spec.sort_by not in ("", "ClusterName", "Score"):
        raise Misconfigured("Placement", f"sortBy {spec.sort_by[:64]!r}: ClusterName or Score")
    strategy = spec.decision_strategy.group_strategy
    per_group, percent = _per_group(strategy.clusters_per_decision_group)
    notes: tuple[str, ...] = ()
    if spec.spread_policy.spread_constraints:
        notes = ("spec.spreadPolicy is not obeyed, as by Open Cluster Management itself",)
    return Request(
        namespace=meta.namespace,
        name=meta.name,
        cluster_sets=spec.cluster_sets or (),
        number=spec.number_of_clusters,
        predicates=tuple(
            _predicate(one.required_cluster_selector, f"predicates[{at}]")
            for at, one in enumerate(_bounded(spec.predicates, "predicates", PREDICATE))
        ),
        tolerations=_tolerations(_bounded(spec.tolerations, "tolerations", TAINTS)),
        prioritizers=_prioritizers(
            spec.prioritizer_policy.mode,
            _bounded(spec.prioritizer_policy.configurations, "configurations", PRIORITIZERS),
        ),
        groups=tuple(
            _group(one.group_name, one.group_cluster_selector, f"decisionGroups[{at}]")
            for at, one in enumerate(_bounded(strategy.decision_groups, "decisionGroups", GROUPS))
        ),
        per_group=per_group,
        percent_per_group=percent,
        by_score=spec.sort_by == "Score",
        worst_if_unknown=_worst_if_unknown(meta.annotations),
        margin=_margin(meta.annotations),
        rate_limit_s=_rate_limit_s(spec.score_rate_limit),
        notes=notes,
    )


def _bounded(found: tuple[T, ...] | None, what: str, plugin: str) -> tuple[T, ...]:
    if found is not None and len(found) > MAX_PARTS:
        raise Misconfigured(plugin, f"{len(found)} {what}, at most {MAX_PARTS}")
    return found or ()


def _predicate(selector: ClusterSelector, where: str) -> Predicate:
    texts = (selector.cel_selector.cel_expressions or ()) if selector.cel_selector else ()
    return Predicate(
        labels_of(selector.label_selector, PREDICATE, f"{where}.labelSelector"),
        claims_of(selector.claim_selector, PREDICATE, f"{where}.claimSelector"),
        tuple(_bounded(texts, "celExpressions", PREDICATE)),
    )


def _tolerations(found: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    for at, one in enumerate(found):
        if one.operator not in ("", "Equal", "Exists"):
            problem = f"operator {one.operator[:64]!r}: Equal or Exists"
        elif not one.key and one.operator != "Exists":
            problem = "if the key is empty, operator must be Exists"
        elif one.operator == "Exists" and one.value:
            problem = "if the operator is Exists, the value should be empty"
        else:
            continue
        raise Misconfigured(TAINTS, f"tolerations[{at}]: {problem}")
    return found


def _prioritizers(mode: str, found: Sequence[PrioritizerConfig]) -> tuple[Weighted, ...]:
    """Return the prioritizers with a weight, in a fixed order.

    As with OCM, the last entry of a built-in prioritizer wins, and an addon's score named twice is
    applied twice.
    """
    if mode not in ("", "Additive", "Exact"):
        raise Misconfigured(
            PRIORITIZERS, f"incorrect prioritizer policy mode: {mode[:64]!r}, Additive or Exact"
        )
    built_in = dict(DEFAULTS) if mode != "Exact" else {}
    addons: list[Weighted] = []
    for at, one in enumerate(found):
        coordinate, where = one.score_coordinate, f"configurations[{at}]"
        if coordinate is None:
            raise Misconfigured(PRIORITIZERS, f"{where}: scoreCoordinate field is required")
        if not -MAX_WEIGHT <= one.weight <= MAX_WEIGHT:
            problem = f"{where}: weight {one.weight}, right is -{MAX_WEIGHT} to {MAX_WEIGHT}"
            raise Misconfigured(PRIORITIZERS, problem)
        if coordinate.type in ("", "BuiltIn"):
            if one.weight and coordinate.built_in not in BUILT_IN:
                problem = f"incorrect builtin prioritizer: {coordinate.built_in[:64]!r}"
                raise Misconfigured(PRIORITIZERS, f"{where}: {problem}, {', '.join(BUILT_IN)}")
            built_in[coordinate.built_in] = one.weight
        elif coordinate.type == "AddOn":
            named = coordinate.add_on
            if named is None or not named.resource_name or not named.score_name:
                problem = "addOn should not be empty: resourceName and scoreName"
                raise Misconfigured(PRIORITIZERS, f"{where}: {problem}")
            name = f"AddOn/{named.resource_name}/{named.score_name}"
            addons.append(Weighted(name, one.weight, named.resource_name, named.score_name))
        else:
            problem = f"type {coordinate.type[:64]!r}: BuiltIn or AddOn"
            raise Misconfigured(PRIORITIZERS, f"{where}: {problem}")
    ordered = [Weighted(name, built_in[name]) for name in BUILT_IN if name in built_in]
    return tuple(one for one in (*ordered, *addons) if one.weight)


def _group(name: str, selector: ClusterSelector, where: str) -> Group:
    if not _GROUP_NAME.fullmatch(name):
        raise Misconfigured(
            GROUPS, f"{where}: groupName {name[:80]!r} is no label value of 2 to 63 characters"
        )
    return Group(
        name,
        labels_of(selector.label_selector, GROUPS, f"{where}.labelSelector"),
        claims_of(selector.claim_selector, GROUPS, f"{where}.claimSelector"),
    )


def _per_group(told: str | int) -> tuple[int, float]:
    """Return (clusters, percent). At most one of the two is set."""
    if isinstance(told, int):
        return max(told, 0), 0.0
    number = told[:-1] if told.endswith("%") else ""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", number, re.ASCII):
        raise Misconfigured(
            GROUPS, f"clustersPerDecisionGroup {told[:64]!r}: a number, or a percentage such as 20%"
        )
    return 0, float(number)


def _worst_if_unknown(annotations: dict[str, str]) -> bool:
    told = annotations.get(UNKNOWN_SCORES, "zero")
    if told not in ("zero", "worst"):
        raise Misconfigured("Placement", f"{UNKNOWN_SCORES} {told[:64]!r}: zero or worst")
    return told == "worst"


def _margin(annotations: dict[str, str]) -> int:
    told = annotations.get(HYSTERESIS, "0")
    if not re.fullmatch(r"\d{1,7}", told, re.ASCII) or int(told) > MAX_MARGIN:
        problem = f"{HYSTERESIS} {told[:64]!r}: points from 0 to {MAX_MARGIN}"
        raise Misconfigured("Placement", problem)
    return int(told)


def _rate_limit_s(told: str) -> float:
    if not told:
        return RATE_LIMIT_S
    if not re.fullmatch(r"\d{1,6}[hms]", told, re.ASCII):
        raise Misconfigured("Placement", f"scoreRateLimit {told[:64]!r}: such as 30s, 5m or 1h")
    return float(int(told[:-1]) * _UNITS_S[told[-1]])
