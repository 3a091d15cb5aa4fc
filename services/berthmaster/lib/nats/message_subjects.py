"""The subject that each event, fact and setting belongs under. Pure.

Guards and permissions go by subjects, so readers apply a message only under its own subject. An
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
    event: WorkloadEvent  # of the workload that its subject names
    is_astray: bool  # its content is another's


def event_subject(event: WorkloadEvent) -> str:
    """Return the subject of an event. Raises SubjectError."""
    return subjects.workload_event(event.tenant, event.id, event_kind(event), event_cluster(event))


def decode_event(subject: str, data: bytes) -> Decoded:
    """Decode an event of the workload that the subject names. Raises UNREADABLE, and SubjectError
    where the subject names none."""
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


TICK_S: Final = 0.000_01  # the least by which a setting is later than the one before


class InvalidSetting(msgspec.ValidationError):
    """A setting stands under another subject than its own, or is older than the one before."""


def control_subject(fact: ControlFact) -> str:
    """Return where an operator's setting is kept."""
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
    """Read one setting. Raises UNREADABLE; NotBelieved if its subject is another one."""
    fact: ControlFact = CONTROL_FACTS.decode(data)
    try:
        own = control_subject(fact)
    except subjects.SubjectError as error:
        raise InvalidSetting(f"the setting names what cannot be: {error}") from error
    if own != subject:
        raise InvalidSetting(f"the setting is of {own}, and stands under {subject}")
    return fact


def later_than(fact: ControlFact, before: ControlFact | None) -> ControlFact:
    """Return the setting with a time behind that of the one before, whose writer's clock may be
    ahead, so that readers believe it."""
    if before is None:
        return fact
    return msgspec.structs.replace(fact, set_at_s=max(fact.set_at_s, before.set_at_s + TICK_S))


class ControlReader:
    """Reads settings in the order in which they are stored."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, float]] = {}  # by subject: sequence, when it was set

    def read(self, recorded: Recorded) -> ControlFact:
        """Read one setting; the same one may come again. Raises UNREADABLE; NotBelieved."""
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
        """Forget all, since the stream is another one."""
        self._newest.clear()
