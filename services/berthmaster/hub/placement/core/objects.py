"""Open Cluster Management's objects, as far as they are read here. Pure.

Everything has a default, as the API omits what is empty.

Annotations, labels and reasons of ours have their names here, and ``Misconfigured`` is the one
error that a user can cause.
"""

from functools import cached_property
from typing import Any, Final

import msgspec

from berthmaster.hub.placement.core.document import document
from berthmaster.lib.kube.objects import Condition, Object, Struct, condition

OCM: Final = "cluster.open-cluster-management.io"
DISABLED: Final = f"{OCM}/experimental-scheduling-disable"
PLACEMENT_LABEL: Final = f"{OCM}/placement"
GROUP_NAME_LABEL: Final = f"{OCM}/decision-group-name"
GROUP_INDEX_LABEL: Final = f"{OCM}/decision-group-index"
CLUSTER_SET_LABEL: Final = f"{OCM}/clusterset"

# On a Placement.
UNKNOWN_SCORES: Final = "berthmaster.io/placement-unknown-scores"  # zero (as OCM) or worst
HYSTERESIS: Final = "berthmaster.io/placement-hysteresis"  # points a newcomer must be ahead
# On the first PlacementDecision of a Placement.
RANKING: Final = "berthmaster.io/placement-ranking"
REQUEST: Final = "berthmaster.io/placement-request"  # the last good one, for after a wrong edit
NOTES: Final = (RANKING, REQUEST)  # all of ours there

# On AddOnPlacementScores that we write.
MANAGED_BY: Final = "app.kubernetes.io/managed-by"  # a label
OURS: Final = "berthmaster"
FRESH: Final = "Fresh"  # a condition
NOT_TOLD: Final = "NotTold"  # its reason while nobody tells, and the last values stay

MAX_LABEL_CHARS: Final = 63
MAX_NAME_CHARS: Final = 253

SATISFIED: Final = "PlacementSatisfied"
MISCONFIGURED: Final = "PlacementMisconfigured"


class Misconfigured(Exception):
    """A Placement, or what it refers to, asks for what cannot be; the text says what is right."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"{plugin}: {problem}")
        self.plugin = plugin
        self.problem = problem


Amount = str | int


# ---- ManagedCluster


class Taint(Struct, frozen=True):
    """Keeps Placements that do not tolerate it away from a cluster."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class ManagedClusterSpec(Struct, frozen=True):
    taints: tuple[Taint, ...] = ()


class Claim(Struct, frozen=True):
    """What a cluster says of itself."""

    name: str = ""
    value: str = ""


class ManagedClusterStatus(Struct, frozen=True):
    capacity: dict[str, Amount] = msgspec.field(default_factory=dict)
    allocatable: dict[str, Amount] = msgspec.field(default_factory=dict)
    cluster_claims: tuple[Claim, ...] = ()


class ManagedCluster(Object, frozen=True, dict=True, gc=True):
    """A cluster that the hub knows. ``spec`` and ``status`` are what is read here, ``document`` is
    all of it as expressions see it; each is made when it is first asked for."""

    as_told: dict[str, Any] | None = msgspec.field(default=None, name="spec")
    as_seen: dict[str, Any] | None = msgspec.field(default=None, name="status")

    @cached_property
    def spec(self) -> ManagedClusterSpec:
        """What the hub has decided about it. Raises ValidationError."""
        return msgspec.convert(_present(self.as_told), ManagedClusterSpec)

    @cached_property
    def status(self) -> ManagedClusterStatus:
        """What is known of it. Raises ValidationError."""
        return msgspec.convert(_present(self.as_seen), ManagedClusterStatus)

    @cached_property
    def document(self) -> dict[str, Any]:
        """What ``managedCluster`` is in an expression."""
        # Through JSON, as that gives lists where structs have tuples.
        metadata = msgspec.json.decode(msgspec.json.encode(self.metadata))
        return document(metadata, self.as_told, self.as_seen)

    @property
    def name(self) -> str:
        """Its name, which is also its namespace on the hub."""
        return self.metadata.name

    @property
    def leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None


def _present(fields: dict[str, Any] | None) -> dict[str, Any]:
    """Null is nothing, as with Go."""
    return {name: value for name, value in (fields or {}).items() if value is not None}


# ---- sets


class Expression(Struct, frozen=True):
    """One requirement of a selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = ()


class LabelSelector(Struct, frozen=True):
    """Labels that must be there, and requirements."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = ()


class SetSelector(Struct, frozen=True):
    """Which clusters are in a set: those that carry its name as a label, or those selected."""

    selector_type: str = ""
    label_selector: LabelSelector | None = None


class ManagedClusterSetSpec(Struct, frozen=True):
    cluster_selector: SetSelector = SetSelector()


class ManagedClusterSet(Object, frozen=True):
    spec: ManagedClusterSetSpec = ManagedClusterSetSpec()


class ManagedClusterSetBinding(Object, frozen=True):
    """Lets a namespace choose from the set of the same name."""


# ---- scores


class Score(Struct, frozen=True):
    name: str = ""
    value: int = 0


class ScoresStatus(Struct, frozen=True):
    """Scores, and how long they may be believed."""

    scores: tuple[Score, ...] | None = ()
    valid_until: str | None = None
    conditions: tuple[Condition, ...] | None = ()


class AddOnPlacementScore(Object, frozen=True):
    """Scores of the cluster whose namespace it is in."""

    status: ScoresStatus = ScoresStatus()

    @property
    def ours(self) -> bool:
        """Whether Berthmaster writes it: one service for all clusters."""
        return self.metadata.labels.get(MANAGED_BY) == OURS

    @property
    def measured(self) -> bool:
        """Whether its values say something of the cluster. Of ours that are not fresh, only those
        that were told last do; the others are the worst because nothing is known."""
        fresh = condition(self.status.conditions or (), FRESH) if self.ours else None
        return fresh is None or fresh.true or fresh.reason == NOT_TOLD


# ---- Placement


class ClaimSelector(Struct, frozen=True):
    """Requirements of a cluster's claims."""

    match_expressions: tuple[Expression, ...] | None = ()


class CelSelector(Struct, frozen=True):
    """Expressions that must all be true."""

    cel_expressions: tuple[str, ...] | None = ()


class ClusterSelector(Struct, frozen=True):
    """All three must hold."""

    label_selector: LabelSelector | None = None
    claim_selector: ClaimSelector | None = None
    cel_selector: CelSelector | None = None


class PredicateSpec(Struct, frozen=True):
    """One of several ways to be chosen."""

    required_cluster_selector: ClusterSelector = ClusterSelector()


class AddOnCoordinate(Struct, frozen=True):
    """Which AddOnPlacementScore, and which score in it."""

    resource_name: str = ""
    score_name: str = ""


class ScoreCoordinate(Struct, frozen=True):
    type: str = ""
    built_in: str = ""
    add_on: AddOnCoordinate | None = None


class PrioritizerConfig(Struct, frozen=True):
    """A score and how much it weighs."""

    score_coordinate: ScoreCoordinate | None = None
    weight: int = 0


class PrioritizerPolicy(Struct, frozen=True):
    """How clusters are ranked."""

    mode: str = ""
    configurations: tuple[PrioritizerConfig, ...] | None = ()


class Toleration(Struct, frozen=True):
    """Lets clusters with such a taint be chosen, for ever or for a while."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class DecisionGroup(Struct, frozen=True):
    """Clusters that are decided under a name of their own."""

    group_name: str = ""
    group_cluster_selector: ClusterSelector = ClusterSelector()


class GroupStrategy(Struct, frozen=True):
    decision_groups: tuple[DecisionGroup, ...] | None = ()
    clusters_per_decision_group: Amount = 0


class DecisionStrategy(Struct, frozen=True):
    group_strategy: GroupStrategy = GroupStrategy()


class SpreadConstraint(Struct, frozen=True):
    """Over what to spread."""

    topology_key: str = ""


class SpreadPolicy(Struct, frozen=True):
    """Accepted and not obeyed, as by OCM."""

    spread_constraints: tuple[SpreadConstraint, ...] | None = ()


class PlacementSpec(Struct, frozen=True):
    cluster_sets: tuple[str, ...] | None = ()
    number_of_clusters: int | None = None
    predicates: tuple[PredicateSpec, ...] | None = ()
    prioritizer_policy: PrioritizerPolicy = PrioritizerPolicy()
    spread_policy: SpreadPolicy = SpreadPolicy()
    tolerations: tuple[Toleration, ...] | None = ()
    decision_strategy: DecisionStrategy = DecisionStrategy()
    sort_by: str = ""
    score_rate_limit: str = ""


class GroupStatus(Struct, frozen=True):
    """One group of decisions; written whole, hence no default that could be left out."""

    decision_group_index: int = 0
    decision_group_name: str = ""
    decisions: tuple[str, ...] | None = ()
    cluster_count: int = 0


class PlacementStatus(Struct, frozen=True):
    number_of_selected_clusters: int = 0
    decision_groups: tuple[GroupStatus, ...] | None = ()
    conditions: tuple[Condition, ...] | None = ()


class Placement(Object, frozen=True):
    spec: PlacementSpec = PlacementSpec()
    status: PlacementStatus = PlacementStatus()


# ---- PlacementDecision


class ClusterDecision(Struct, frozen=True):
    cluster_name: str = ""
    reason: str = ""
    score: int | None = None  # not every version of the CRD has it


class DecisionStatus(Struct, frozen=True):
    """At most a hundred of them."""

    decisions: tuple[ClusterDecision, ...] | None = ()


class PlacementDecision(Object, frozen=True):
    """A page of what a Placement decided; ``status`` is None until it was first written."""

    status: DecisionStatus | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        decisions = self.status.decisions if self.status is not None else None
        return tuple(one.cluster_name for one in decisions or () if one.cluster_name)


PAGE_LIMIT: Final = 100
