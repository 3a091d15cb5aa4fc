"""When writes that fail are trouble, whose, and when it is over."""

from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import ApiError, NoAnswer, NotConnected
from berthmaster.lib.nats.write_health import FORGET_S, WriteHealth
from tests.bus.tools import Lines

EVENT = subjects.workload_event("ann", "train", "submitted", "-")
FACT = subjects.alive("c1")
SILENT = NoAnswer("no answer within 2 s")
TOLD = "the bus stores nothing in WORKLOADS, its disk may be full: no answer within 2 s"


class Bus:
    """Writes that take as long as the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.log = Lines()
        self.write_health = WriteHealth(self.log, lambda: self.now_s)

    def fail(
        self, error: NoAnswer | ApiError | NotConnected, *, took_s: float = 2.0, at: str = EVENT
    ) -> str:
        began_s = self.write_health.began()
        self.now_s += took_s
        self.write_health.failed(at, error, began_s)
        return self.write_health.trouble()


def test_writes_that_keep_failing_are_trouble_until_one_is_stored() -> None:
    bus = Bus()
    assert bus.fail(SILENT) == ""  # one is lost now and then
    assert bus.fail(SILENT) == TOLD
    bus.write_health.stored(FACT)  # of another stream, whose disk may be another one
    assert (bus.write_health.trouble("WORKLOADS"), bus.write_health.trouble("FLEET")) == (TOLD, "")
    bus.write_health.stored(subjects.decision("all"))  # of the same
    assert bus.write_health.trouble() == ""
    assert bus.fail(SILENT) == ""  # counted anew
    assert bus.write_health.failures == 3
    assert [(level, event) for level, event, _ in bus.log.seen] == [
        ("warning", "NATS does not store writes"),
        ("info", "NATS stores writes again"),
    ]


def test_it_is_told_at_a_bounded_rate() -> None:
    bus = Bus()
    for _ in range(60):
        bus.fail(SILENT, took_s=0.5)
    lines = bus.log.fields("NATS does not store writes")
    assert [line["for_s"] for line in lines] == [3.0, 13.0, 23.0]
    assert lines[0] == {
        "stream": "WORKLOADS",
        "why": "no answer within 2 s",
        "tries": 6,
        "for_s": 3.0,
    }


def test_a_lost_race_or_a_lost_connection_says_nothing_of_the_store() -> None:
    bus = Bus()
    for error in (ApiError(10071, "wrong last sequence: 4"), NotConnected("the server is away")):
        for _ in range(9):
            assert bus.fail(error) == ""
    assert bus.write_health.failures == 0
    full = ApiError(10077, "maximum bytes exceeded")
    bus.fail(full)
    assert bus.fail(full).endswith("maximum bytes exceeded (JetStream error 10077)")


def test_what_nobody_has_tried_for_long_and_what_was_before_a_restart_is_forgotten() -> None:
    bus = Bus()
    bus.fail(SILENT)
    assert bus.fail(SILENT) == TOLD
    bus.now_s += FORGET_S + 1
    assert bus.write_health.trouble() == ""
    assert bus.fail(SILENT) == ""  # a new story, not the third try of the old one
    assert bus.fail(SILENT) == TOLD
    bus.write_health.restarted()
    assert bus.write_health.trouble() == ""
