"""What a core of this service asks for, and what it is told became of it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from berthmaster.kubernetes.objects import Metadata, Object

Key = tuple[str, str, str]  # kind, namespace, name
SCORE = "score"
PROFILE = "profile"
CLAIM = "claim"


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


class WriteProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Write the whole list of properties of a ClusterProfile that is as it was read."""

    key: Key
    resource_version: str
    properties: Sequence[Mapping[str, str]]


class CreateClaim(msgspec.Struct, frozen=True):
    """Make a ClusterClaim."""

    key: Key
    value: str


class WriteClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Change one that is as it was read."""

    key: Key
    resource_version: str
    value: str


About = Literal["AddOnPlacementScore", "ManagedCluster", "ClusterProfile", "ClusterClaim"]


class Tell(msgspec.Struct, frozen=True, kw_only=True):
    """An event on an object, for people."""

    about: About
    metadata: Metadata
    warning: bool
    reason: str
    note: str


Write = CreateScore | WriteScore | CreateProfile | WriteProperties | CreateClaim | WriteClaim
Instruction = Write | Tell


class Look(NamedTuple):
    """One object as it should be, beside as it is."""

    gap: float  # between the two, in points
    renew_at_s: float  # when it must be written although nothing differs
    write: Write | None  # None = it must not be written
    tell: Tell | None = None  # why not


Outcome = Literal["stored", "conflict", "missing", "denied", "refused", "away"]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a write.

    stored: ``thing`` is the object now. conflict: somebody else wrote first; ``thing`` is what is
    there, None = nothing. missing: its namespace or its kind is not there. denied: rights are
    missing. refused: it breaks a rule. away: no answer.
    """

    key: Key
    outcome: Outcome
    thing: Object | None = None
    why: str = ""
