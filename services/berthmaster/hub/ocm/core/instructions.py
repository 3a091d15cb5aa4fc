"""What a core of this service asks for. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from berthmaster.hub.ocm.core.objects import ClusterProfile, PlacementScore
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.resources import ADD_ON_PLACEMENT_SCORES, CLUSTER_PROFILES
from berthmaster.lib.ocm.core.kept_objects import Create, Key, Kind

SCORE = "score"
PROFILE = "profile"
KINDS: Final[Mapping[str, Kind]] = {
    SCORE: Kind(ADD_ON_PLACEMENT_SCORES, PlacementScore),
    PROFILE: Kind(CLUSTER_PROFILES, ClusterProfile),
}


class CreateScore(Create, frozen=True):
    """Make a cluster's AddOnPlacementScore, still without a status."""


class WriteScore(msgspec.Struct, frozen=True, kw_only=True):
    """Write the status of one that is as it was read."""

    key: Key
    resource_version: str
    scores: Mapping[str, int]
    valid_until: str
    status: Literal["True", "False"]  # of the condition Fresh
    reason: str
    message: str
    since: str  # when the condition became so
    others: tuple[object, ...] = ()  # conditions that are not ours
    told_at_s: float | None = None  # when the score behind it came; None = a renewal


class CreateProfile(Create, frozen=True):
    """Make a ClusterProfile that we manage."""

    manager: str


class DeleteProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Delete one that we have made and that is as it was read."""

    key: Key
    uid: str
    resource_version: str
    why: str


class WriteProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Write the status of a ClusterProfile that is as it was read."""

    key: Key
    resource_version: str
    properties: Sequence[Mapping[str, str]]
    conditions: Sequence[Mapping[str, str | int]]
    version: str = ""  # of Kubernetes; "" = not known


Write = CreateScore | WriteScore | CreateProfile | DeleteProfile | WriteProperties
Instruction = Write | KubeEvent
