"""Instructions of the core to the writer. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from berthmaster.hub.ocm.core.objects import PlacementScore
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.resources import ADD_ON_PLACEMENT_SCORES, CLUSTER_PROFILES
from berthmaster.lib.ocm.core.kept_objects import Create, Key, Kind

SCORE = "score"
PROFILE = "profile"
KINDS: Final[Mapping[str, Kind]] = {
    SCORE: Kind(ADD_ON_PLACEMENT_SCORES, PlacementScore),
    PROFILE: Kind(CLUSTER_PROFILES, ClusterProfile),
}


class CreateScore(Create, frozen=True):
    """Create a cluster's AddOnPlacementScore without a status."""


class WriteScore(msgspec.Struct, frozen=True, kw_only=True):
    """Write the status of a score, if unchanged since the read."""

    key: Key
    resource_version: str
    scores: Mapping[str, int]
    valid_until: str
    status: Literal["True", "False"]  # of the condition Fresh
    reason: str
    message: str
    since: str  # time of the condition's last change
    others: tuple[object, ...] = ()  # conditions of other clients
    told_at_s: float | None = None  # time of the score; None = a renewal


class CreateProfile(Create, frozen=True):
    """Create a ClusterProfile with this manager."""

    manager: str


class DeleteProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Delete a profile by Berthmaster, if unchanged since the read."""

    key: Key
    uid: str
    resource_version: str
    why: str


class WriteProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Write the status of a ClusterProfile, if unchanged since the read."""

    key: Key
    resource_version: str
    properties: Sequence[Mapping[str, str]]
    conditions: Sequence[Mapping[str, str | int]]
    version: str = ""  # of Kubernetes; "" = not known


Write = CreateScore | WriteScore | CreateProfile | DeleteProfile | WriteProperties
Instruction = Write | KubeEvent
