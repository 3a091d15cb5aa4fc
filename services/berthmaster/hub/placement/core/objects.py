"""Open Cluster Management's objects, as far as the evaluator reads them. Pure.

Every field has a default, because the API omits empty fields.

The module also names Berthmaster's annotations, labels and reasons. ``Misconfigured`` is the only
error that a user can cause.
"""

from functools import cached_property
from typing import Any, Final

import msgspec

from berthmaster.hub.placement.core.document import document
from berthmaster.lib.kube.managed_clusters import ManagedClusterSpec, ManagedClusterStatus
from berthmaster.lib.kube.objects import (
    Condition,
    LabelRequirement,
    LabelSelector,
    Object,
    Struct,
    condition,
)

OCM: Final = "cluster.open-cluster-management.io"
DISABLED: Final = f"{OCM}/experimental-scheduling-disable"
PLACEMENT_LABEL: Final = f"{OCM}/placement"
GROUP_NAME_LABEL: Final = f"{OCM}/decision-group-name"
GROUP_INDEX_LABEL: Final = f"{OCM}/decision-group-index"
CLUSTER_SET_LABEL: Final = f"{OCM}/clusterset"

# On a Placement.
UNKNOWN_SCORES: Final = "berthmaster.io/placement-unknown-scores"  # zero (as OCM) or worst
# points by which a new cluster must be ahead
HYSTERESIS: Final = "berthmaster.io/placement-hysteresis"
# On the first PlacementDecision of a Placement.
RANKING: Final = "berthmaster.io/placement-ranking"
# the last good request, for use after a wrong edit
REQUEST: Final = "berthmaster.io/placement-request"
NOTES: Final = (RANKING, REQUEST)  # all annotations of Berthmaster on a page

# On AddOnPlacementScores of Berthmaster.
MANAGED_BY: Final = "app.kubernetes.io/managed-by"  # a label
OURS: Final = "berthmaster"
FRESH: Final = "Fresh"  # a condition
# reason of the condition while no score arrives and the last values stay
NOT_TOLD: Final = "NotTold"

MAX_LABEL_CHARS: Final = 63
MAX_NAME_CHARS: Final = 253

SATISFIED: Final = "PlacementSatisfied"
MISCONFIGURED: Final = "PlacementMisconfigured"


class Misconfigured(Exception):
    """An impossible request of a Placement or a referenced object. The text states what is
    right."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"{plugin}: {problem}")
        self.plugin = plugin
        self.problem = problem


Amount = str | int


# ---- ManagedCluster


class CandidateCluster(Object, frozen=True, dict=True, gc=True):
    """A ManagedCluster with every field that the API sent, because expressions may read any.

    ``spec`` and ``status`` have the fields that the evaluator reads. ``document`` has all fields as
    expressions see them. Each is computed on first use.
    """

    as_told: dict[str, Any] | None = msgspec.field(default=None, name="spec")
    as_seen: dict[str, Any] | None = msgspec.field(default=None, name="status")

    @cached_property
    def spec(self) -> ManagedClusterSpec:
        """Return the spec. Raises ValidationError."""
        return msgspec.convert(_present(self.as_told), ManagedClusterSpec)

    @cached_property
    def status(self) -> ManagedClusterStatus:
        """Return the status. Raises ValidationError."""
        return msgspec.convert(_present(self.as_seen), ManagedClusterStatus)

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the value of ``managedCluster`` in an expression."""
        # JSON turns the tuples of structs into lists.
        metadata = msgspec.json.decode(msgspec.json.encode(self.metadata))
        return document(metadata, self.as_told, self.as_seen)

    @property
    def name(self) -> str:
        """Return the cluster's name, also its namespace on the hub."""
        return self.metadata.name

    @property
    def leaving(self) -> bool:
        """Return whether the cluster is being deleted."""
        return self.metadata.deletion_timestamp is not None


def _present(fields: dict[str, Any] | None) -> dict[str, Any]:
    """Drop null fields: null means absent, as in Go."""
    return {name: value for name, value in (fields or {}).items() if value is not None}


# ---- sets


class SetSelector(Struct, frozen=True):
    """Selects a set's clusters: by the label with the set's name, or by a label selector."""

    selector_type: str = ""
    label_selector: LabelSelector | None = None


class ManagedClusterSetSpec(Struct, frozen=True):
    cluster_selector: SetSelector = SetSelector()


class ManagedClusterSet(Object, frozen=True):
    spec: ManagedClusterSetSpec = ManagedClusterSetSpec()


class ManagedClusterSetBinding(Object, frozen=True):
    """Allows a namespace to choose from the set of the same name."""


# ---- scores


class Score(Struct, frozen=True):
    name: str = ""
    value: int = 0


class ScoresStatus(Struct, frozen=True):
    """Scores and the end of their validity."""

    scores: tuple[Score, ...] | None = ()
    valid_until: str | None = None
    conditions: tuple[Condition, ...] | None = ()


class AddOnPlacementScore(Object, frozen=True):
    """Scores of the cluster whose namespace contains the object."""

    status: ScoresStatus = ScoresStatus()

    @property
    def ours(self) -> bool:
        """Return whether Berthmaster writes the scores: one service for all clusters."""
        return self.metadata.labels.get(MANAGED_BY) == OURS

    @property
    def measured(self) -> bool:
        """Return whether the values describe the cluster.

        Stale scores of Berthmaster describe the cluster only if they are the last reported values.
        Other stale scores are the worst value, because nothing is known.
        """
        fresh = condition(self.status.conditions or (), FRESH) if self.ours else None
        return fresh is None or fresh.true or fresh.reason == NOT_TOLD


# ---- Placement


class ClaimSelector(Struct, frozen=True):
    """Requirements of a cluster's claims."""

    match_expressions: tuple[LabelRequirement, ...] | None = ()


class CelSelector(Struct, frozen=True):
    """Expressions that must all be true."""

    cel_expressions: tuple[str, ...] | None = ()


class ClusterSelector(Struct, frozen=True):
    """Labels, claims and expressions that must all match."""

    label_selector: LabelSelector | None = None
    claim_selector: ClaimSelector | None = None
    cel_selector: CelSelector | None = None


class PredicateSpec(Struct, frozen=True):
    """One of several ways to be chosen."""

    required_cluster_selector: ClusterSelector = ClusterSelector()


class AddOnCoordinate(Struct, frozen=True):
    """The name of an AddOnPlacementScore and of a score in it."""

    resource_name: str = ""
    score_name: str = ""


class ScoreCoordinate(Struct, frozen=True):
    type: str = ""
    built_in: str = ""
    add_on: AddOnCoordinate | None = None


class PrioritizerConfig(Struct, frozen=True):
    """A score and its weight."""

    score_coordinate: ScoreCoordinate | None = None
    weight: int = 0


class PrioritizerPolicy(Struct, frozen=True):
    """The ranking of clusters."""

    mode: str = ""
    configurations: tuple[PrioritizerConfig, ...] | None = ()


class Toleration(Struct, frozen=True):
    """Tolerates a taint, for ever or for a time."""

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
    """The topology key to spread over."""

    topology_key: str = ""


class SpreadPolicy(Struct, frozen=True):
    """Accepted and ignored, as by OCM."""

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
    """One group of decisions. No default may be omitted, because the group is written whole."""

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


def owner_of(placement: Placement) -> dict[str, Any]:
    """Return the owner reference of an object that the garbage collector deletes with its
    Placement."""
    return {
        "apiVersion": f"{OCM}/v1beta1",
        "kind": "Placement",
        "name": placement.metadata.name,
        "uid": placement.metadata.uid,
        "controller": True,
    }


# ---- PlacementDecision


class ClusterDecision(Struct, frozen=True):
    cluster_name: str = ""
    reason: str = ""
    score: int | None = None  # missing in some versions of the CRD


class DecisionStatus(Struct, frozen=True):
    """At most a hundred decisions."""

    decisions: tuple[ClusterDecision, ...] | None = ()


class PlacementDecision(Object, frozen=True):
    """A page of a Placement's decisions. ``status`` is None before the first write."""

    status: DecisionStatus | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        decisions = self.status.decisions if self.status is not None else None
        return tuple(one.cluster_name for one in decisions or () if one.cluster_name)


PAGE_LIMIT: Final = 100
