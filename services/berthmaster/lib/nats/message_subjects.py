"""The subject that each event, fact and setting belongs under. Pure.

Guards and permissions apply to subjects, so readers apply a message only under its own subject. An
event whose content names another workload, kind or cluster is void. Readers reject a copy of an old
setting, and a setting under another subject: no operator made these.
"""

from typing import Final, NamedTuple, assert_never

import msgspec

from berthmaster.lib.messages.control import (
    ClusterLost,
    ControlFact,
    Cordon,
    GpuCordon,
    QueueSetting,
)
from berthmaster.lib.messages.families import CONTROL_FACTS, EVENTS, event_cluster, event_kind
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    CopyReport,
    FleetFact,
    Membership,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.stream_messages import Recorded


class Decoded(NamedTuple):
    event: WorkloadEvent  # of the workload in the subject
    is_astray: bool  # whether the content names another workload, kind or cluster


def event_subject(event: WorkloadEvent) -> str:
    """Return the subject of an event. Raises SubjectError."""
    return subjects.workload_event(event.tenant, event.id, event_kind(event), event_cluster(event))


def decode_event(subject: str, data: bytes) -> Decoded:
    """Decode an event of the workload in the subject.

    Raises UNREADABLE, and SubjectError if the subject names no workload.
    """
    event = EVENTS.decode(data)
    try:
        if event_subject(event) == subject:
            return Decoded(event, False)
    except subjects.SubjectError:
        pass
    place = subjects.parse_workload_event(subject)
    return Decoded(msgspec.structs.replace(event, tenant=place.tenant, id=place.id), True)


def fact_subject(fact: FleetFact) -> str:
    """Return the subject of a fact about the fleet. Raises SubjectError."""
    match fact:
        case ClusterAlive():
            return subjects.alive(fact.cluster)
        case ClusterProfile():
            return subjects.profile(fact.cluster)
        case Membership():
            return subjects.membership(fact.cluster)
        case NodeReport() | NodeGone():
            return subjects.node(fact.cluster, fact.node)
        case QueueReport():
            return subjects.queue_report(fact.cluster, fact.queue)
        case CopyReport():
            return subjects.copy_report(fact.cluster, fact.namespace, fact.workload)
        case ClusterScore():
            return subjects.score(fact.cluster)
        case _:
            assert_never(fact)


TICK_S: Final = 0.000_01  # minimum difference between a setting's time and the previous one's


class InvalidSetting(msgspec.ValidationError):
    """A setting is stored under another subject than its own, or is older than the previous one."""


def control_subject(fact: ControlFact) -> str:
    """Return the subject of an operator's setting."""
    match fact:
        case QueueSetting():
            return subjects.queue_setting(fact.queue)
        case RuntimeSetting():
            return subjects.runtime_setting(fact.runtime)
        case Cordon():
            return subjects.cordon(fact.cluster, fact.node)
        case GpuCordon():
            return subjects.gpu_cordon(fact.cluster, fact.node, str(fact.gpu))
        case ClusterLost():
            return subjects.lost(fact.cluster)
        case _:
            assert_never(fact)


def read_control(subject: str, data: bytes) -> ControlFact:
    """Read one setting. Raises UNREADABLE, and InvalidSetting if stored under another subject."""
    fact: ControlFact = CONTROL_FACTS.decode(data)
    try:
        own = control_subject(fact)
    except subjects.SubjectError as error:
        raise InvalidSetting(f"the setting names what cannot be: {error}") from error
    if own != subject:
        raise InvalidSetting(f"the setting is of {own}, and stands under {subject}")
    return fact


def later_than(fact: ControlFact, before: ControlFact | None) -> ControlFact:
    """Return the setting with a time after the previous one's, so that readers accept the setting.
    The previous writer's clock may have been fast.
    """
    if before is None:
        return fact
    return msgspec.structs.replace(fact, set_at_s=max(fact.set_at_s, before.set_at_s + TICK_S))


class ControlReader:
    """Reads settings in stream order."""

    def __init__(self) -> None:
        # by subject: sequence and time of the setting
        self._newest: dict[str, tuple[int, float]] = {}

    def read(self, recorded: Recorded) -> ControlFact:
        """Read one setting. The same setting may be read again. Raises UNREADABLE,
        InvalidSetting.
        """
        fact = read_control(recorded.subject, recorded.data)
        sequence, newest_s = self._newest.get(recorded.subject, (0, 0.0))
        at_s = fact.set_at_s
        if sequence < recorded.sequence and at_s < newest_s:
            raise InvalidSetting(
                f"the setting was made at {at_s:.3f}, and one before it at {newest_s:.3f}"
            )
        self._newest[recorded.subject] = (recorded.sequence, at_s)
        return fact

    def forget(self) -> None:
        """Forget all settings, since the stream was replaced."""
        self._newest.clear()
