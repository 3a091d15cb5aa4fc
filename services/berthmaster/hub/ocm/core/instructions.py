"""What a core of this service asks for. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.resources import (
    ADD_ON_PLACEMENT_SCORES,
    CLUSTER_CLAIMS,
    CLUSTER_PROFILES,
    Resource,
)

Key = tuple[str, str, str]  # kind, namespace, name
SCORE = "score"
PROFILE = "profile"
CLAIM = "claim"
RESOURCES: Final[Mapping[str, Resource]] = {
    SCORE: ADD_ON_PLACEMENT_SCORES,
    PROFILE: CLUSTER_PROFILES,
    CLAIM: CLUSTER_CLAIMS,
}


class CreateScore(msgspec.Struct, frozen=True):
    """Make a cluster's AddOnPlacementScore, still without a status."""

    key: Key


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


class CreateProfile(msgspec.Struct, frozen=True):
    """Make a ClusterProfile that we manage."""

    key: Key
    manager: str


class DeleteProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Delete one that we have made and that is as it was read."""

    key: Key
    uid: str
    resource_version: str
    why: str


class WriteProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Write the whole list of properties of a ClusterProfile that is as it was read."""

    key: Key
    resource_version: str
    properties: Sequence[Mapping[str, str]]


class CreateClaim(msgspec.Struct, frozen=True):
    key: Key
    value: str


class WriteClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Change one that is as it was read."""

    key: Key
    resource_version: str
    value: str


Write = (
    CreateScore
    | WriteScore
    | CreateProfile
    | DeleteProfile
    | WriteProperties
    | CreateClaim
    | WriteClaim
)
Create = CreateScore | CreateProfile | CreateClaim
Instruction = Write | KubeEvent


class Look(NamedTuple):
    """One object as it should be, beside as it is."""

    gap: float  # between the two, in points
    renew_at_s: float  # when it must be written although nothing differs
    write: Write | None  # None = it must not be written
    event: KubeEvent | None = None  # why not
