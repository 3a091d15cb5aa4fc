"""Decode messages into events of the core, or into a reason for their rejection. Pure.

A message that names another cluster or node than its subject is rejected: permissions are given by
subject, so a sender may speak for its subject only.
"""

from typing import Final

import msgspec

from berthmaster.control.scorer.core.events import (
    FactForgotten,
    FactSeen,
    InputFact,
    ScoreSeen,
    TelemetryHeard,
    WorkloadSubmitted,
)
from berthmaster.control.scorer.core.plausibility import Drop
from berthmaster.control.scorer.core.shard import Shard
from berthmaster.lib.messages.families import TELEMETRY, UNREADABLE
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    CopyReport,
    FleetFact,
    Membership,
    QueueReport,
)
from berthmaster.lib.nats import subjects

MAX_SUBJECTS: Final = 500_000  # remembered, to parse each once. Beyond it, all are parsed again

# Telemetry, all facts, and the events of submitted jobs. Scores are read for their closed GPUs.
TELEMETRY_SUBJECTS: Final = subjects.telemetry_of()
FACT_SUBJECTS: Final = (
    subjects.fleet_facts("alive"),
    subjects.fleet_facts("profile"),
    subjects.fleet_facts("membership"),
    subjects.fleet_facts("score"),
    subjects.node_facts(),
)
SUBMITTED_SUBJECTS: Final = subjects.workload_events_of("submitted")


class NotBelieved(msgspec.Struct, frozen=True):
    """Why a message was rejected."""

    kind: str
    why: Drop
    text: str


class _PodSet(msgspec.Struct, frozen=True):
    """The fields of a pod set for the mix, with the defaults of the whole."""

    count: int = 1
    cpu_milli: int = 1000
    memory_mib: int = 1024
    gpus: int = 0
    gpu_milli: int = 1000
    gpu_models: tuple[str, ...] = ()


class _Request(msgspec.Struct, frozen=True):
    pod_sets: tuple[_PodSet, ...] = (_PodSet(),)


class _Submitted(msgspec.Struct, frozen=True):
    request: _Request


_SUBMITTED: Final = msgspec.json.Decoder(_Submitted)


class Intake:
    """Decoder for one shard. Remembers the cluster and node of each subject."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._nodes: dict[str, tuple[str, str] | None] = {}  # None: of another shard
        self._facts: dict[str, FactForgotten] = {}  # event for the removal of the fact

    def telemetry(self, subject: str, data: bytes) -> TelemetryHeard | NotBelieved | None:
        """Return the event, or None for another shard's telemetry, which is not decoded."""
        known = self._nodes.get(subject, ())
        if known == ():
            try:
                known = self._place(subject)
            except subjects.SubjectError as error:
                return NotBelieved("telemetry", Drop.WRONG_SUBJECT, str(error))
        if not known:
            return None
        try:
            told = TELEMETRY.decode(data)
        except UNREADABLE as error:
            return NotBelieved("telemetry", Drop.UNDECODABLE, str(error))
        if (told.cluster, told.node) != known:
            return _another("telemetry", subject)
        return TelemetryHeard(told)

    def _place(self, subject: str) -> tuple[str, str] | None:
        cluster, node = subjects.parse_telemetry(subject)
        if len(self._nodes) >= MAX_SUBJECTS:
            self._nodes.clear()
        place = (cluster, node) if self._shard.owns(cluster) else None
        self._nodes[subject] = place
        return place

    def fact(
        self, subject: str, fact: FleetFact, stored_at_s: float
    ) -> FactSeen | ScoreSeen | FactForgotten | NotBelieved | None:
        """Return the event of a fact. Facts of other shards' clusters are kept: the scale is the
        fleet's.
        """
        if isinstance(fact, ClusterScore):
            return self._score(subject, fact)
        if isinstance(fact, QueueReport | CopyReport):
            return None  # no inputs of a score
        if subject not in self._facts:
            try:
                if _subject_of(fact) != subject:
                    return _another("fact", subject)
            except subjects.SubjectError as error:
                return NotBelieved("fact", Drop.WRONG_SUBJECT, str(error))
            self._facts[subject] = _loss_of(fact)
        elif self._facts[subject] != _loss_of(fact):
            return _another("fact", subject)
        if isinstance(fact, Membership) and fact.room is None:
            return self._facts[subject]
        return FactSeen(fact, stored_at_s)

    def _score(self, subject: str, fact: ClusterScore) -> ScoreSeen | NotBelieved | None:
        try:
            if subjects.score(fact.cluster) != subject:
                return _another("fact", subject)
        except subjects.SubjectError as error:
            return NotBelieved("fact", Drop.WRONG_SUBJECT, str(error))
        return ScoreSeen(fact) if self._shard.owns(fact.cluster) else None

    def gone(self, subject: str) -> FactForgotten | None:
        """Return the event of a fact removed under this subject."""
        return self._facts.pop(subject, None)

    def submitted(self, data: bytes, stored_at_s: float) -> WorkloadSubmitted | NotBelieved:
        """Return the event of a submitted workload. Only the fields for the mix are decoded and
        checked.
        """
        try:
            request = _SUBMITTED.decode(data).request
        except UNREADABLE as error:
            return NotBelieved("submitted", Drop.UNDECODABLE, str(error))
        return WorkloadSubmitted(request.pod_sets, stored_at_s)


def _another(kind: str, subject: str) -> NotBelieved:
    return NotBelieved(kind, Drop.WRONG_SUBJECT, f"it is not about what {subject} stands for")


def _subject_of(fact: InputFact) -> str:
    if isinstance(fact, ClusterAlive):
        return subjects.alive(fact.cluster)
    if isinstance(fact, ClusterProfile):
        return subjects.profile(fact.cluster)
    if isinstance(fact, Membership):
        return subjects.membership(fact.cluster)
    return subjects.node(fact.cluster, fact.node)


def _loss_of(fact: InputFact) -> FactForgotten:
    if isinstance(fact, ClusterAlive):
        return FactForgotten(fact.cluster, "alive")
    if isinstance(fact, ClusterProfile):
        return FactForgotten(fact.cluster, "profile")
    if isinstance(fact, Membership):
        return FactForgotten(fact.cluster, "membership")
    return FactForgotten(fact.cluster, "node", fact.node)
