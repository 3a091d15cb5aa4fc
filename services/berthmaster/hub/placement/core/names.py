"""Names of annotations, labels and reasons, and the one error of people's making. Pure."""

from typing import Final

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
