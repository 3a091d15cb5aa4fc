"""Which settings readers believe."""

import pytest

from berthmaster.lib.messages.control import (
    ClusterLost,
    ControlFact,
    Cordon,
    GpuCordon,
    QueueSetting,
)
from berthmaster.lib.messages.families import UNREADABLE, encode
from berthmaster.lib.nats.message_subjects import (
    ControlReader,
    InvalidSetting,
    control_subject,
    later_than,
    read_control,
)
from berthmaster.lib.nats.stream_messages import Recorded

CORDON = Cordon(cluster="t4", cordoned=True, set_by="ada", set_at_s=100.0)


def recorded(fact: ControlFact, sequence: int, subject: str = "") -> Recorded:
    return Recorded(subject or control_subject(fact), sequence, 0.0, encode(fact), 0)


@pytest.mark.parametrize(
    "fact",
    [
        CORDON,
        Cordon(cluster="t4", node="n1", cordoned=True),
        ClusterLost(cluster="a.b", lost=True),
        GpuCordon(cluster="a.b", node="n.1", gpu=0, cordoned=True),
        QueueSetting(queue="research"),
    ],
)
def test_setting_is_read_under_its_own_subject_only(fact: ControlFact) -> None:
    assert read_control(control_subject(fact), encode(fact)) == fact
    for other in ("berth.control.cordon.t9.-", "berth.control.queue.other", "berth.control.x"):
        with pytest.raises(InvalidSetting, match="stands under berth"):
            read_control(other, encode(fact))


def test_setting_with_a_name_that_cannot_be_is_not_believed() -> None:
    with pytest.raises(UNREADABLE):
        read_control("berth.control.queue.", encode(QueueSetting(queue="")))


def test_older_setting_is_refused_and_the_newer_stays() -> None:
    reader = ControlReader()
    lifted = Cordon(cluster="t4", cordoned=False, set_at_s=200.0)
    assert reader.read(recorded(CORDON, 1)) == CORDON
    assert reader.read(recorded(lifted, 2)) == lifted
    with pytest.raises(InvalidSetting, match=r"made at 100\.000, and one before it at 200\.000"):
        reader.read(recorded(CORDON, 3))
    # The same message listed again, another place, and a later setting are read.
    assert reader.read(recorded(lifted, 2)) == lifted
    for at, other in enumerate(
        (
            Cordon(cluster="t5", cordoned=True, set_at_s=1.0),
            Cordon(cluster="t4", cordoned=True, set_at_s=200.0),
        )
    ):
        assert reader.read(recorded(other, 4 + at)) == other


def test_replaced_stream_may_begin_with_older_settings() -> None:
    reader = ControlReader()
    reader.read(recorded(Cordon(cluster="t4", cordoned=False, set_at_s=200.0), 9))
    reader.forget()
    assert reader.read(recorded(CORDON, 10)) == CORDON


def test_writer_with_a_slow_clock_sets_behind_the_setting_before() -> None:
    slow = Cordon(cluster="t4", cordoned=False, set_at_s=99.0)
    reader = ControlReader()
    reader.read(recorded(CORDON, 1))
    told = later_than(slow, CORDON)
    assert told.set_at_s > CORDON.set_at_s
    assert reader.read(recorded(told, 2)) == told
    assert later_than(slow, None) == slow
