"""Settings of the stream CONTROL: where each is kept, and which of them readers believe.

A copy of an old setting under its own subject, or of any setting under another subject, says what
an operator never said at that place and time. Readers refuse both.
"""

from typing import Final, assert_never

import msgspec

from berthmaster.lib.messages.control import ClusterLost, ControlFact, Cordon, QueueSetting
from berthmaster.lib.messages.families import CONTROL_FACTS
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.recorded import Recorded

TICK_S: Final = 0.000_01  # the least by which a setting is later than the one before


class NotBelieved(msgspec.ValidationError):
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
        raise NotBelieved(f"the setting names what cannot be: {error}") from error
    if own != subject:
        raise NotBelieved(f"the setting is of {own}, and stands under {subject}")
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
            raise NotBelieved(
                f"the setting was made at {at_s:.3f}, and one before it at {newest_s:.3f}"
            )
        self._newest[recorded.subject] = (recorded.sequence, at_s)
        return fact

    def forget(self) -> None:
        """Forget all, since the stream is another one."""
        self._newest.clear()
