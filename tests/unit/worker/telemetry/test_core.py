"""The agent between source and bus, stepped by hand: no thread, no clock, no NATS."""

from msgspec.structs import replace

from berthmaster.lib.messages.telemetry import GpuHealth, GpuReading, NodeTelemetry
from berthmaster.worker.telemetry.core.agent import (
    QUIET_S,
    Agent,
    Count,
    Instruction,
    Publish,
    ReadEnded,
    ReadFailed,
    Ready,
    StartRead,
    Tell,
    Ticked,
    What,
)
from berthmaster.worker.telemetry.core.source import NodeReading

REFUSED = "http://x/metrics: Connection refused"


def agent() -> Agent:
    return Agent(
        cluster="east", node="n1", source="dcgm", epoch=7, interval_s=1.0, read_limit_s=5.0
    )


def gpu(health: GpuHealth = "ok", why: str = "") -> GpuReading:
    return GpuReading(index=0, uuid="GPU-a", model="T4", health=health, health_reason=why)


def ended(*gpus: GpuReading, node: str = "", at_s: float = 1000.0) -> ReadEnded:
    return ReadEnded([NodeReading(node, gpus or (gpu(),))], observed_at_s=at_s)


def message(
    counter: int, *gpus: GpuReading, node: str = "n1", at_s: float = 1000.0
) -> NodeTelemetry:
    return NodeTelemetry(
        cluster="east",
        node=node,
        epoch=7,
        counter=counter,
        observed_at_s=at_s,
        interval_s=1.0,
        source="dcgm",
        gpus=gpus or (gpu(),),
    )


def test_every_tick_is_one_read_and_every_read_one_message() -> None:
    one = agent()
    assert one.handle(Ticked(), now_s=0.0) == [StartRead()]
    assert one.handle(ended(at_s=1000.1), now_s=0.1) == [
        Ready(True),
        Publish(message(1, at_s=1000.1)),
    ]
    assert one.handle(Ticked(), now_s=1.0) == [StartRead()]
    assert one.handle(ended(at_s=1001.1), now_s=1.1) == [Publish(message(2, at_s=1001.1))]


def test_a_slow_read_skips_ticks_instead_of_piling_up() -> None:
    one = agent()
    assert one.handle(Ticked(), now_s=0.0) == [StartRead()]
    assert one.handle(Ticked(), now_s=1.0) == [Count(What.SKIPPED)]
    assert one.handle(Ticked(), now_s=2.0) == [Count(What.SKIPPED)]
    assert one.handle(ended(), now_s=2.5) == [Ready(True), Publish(message(1))]
    assert one.handle(Ticked(), now_s=3.0) == [StartRead()]


def test_beats_that_the_machine_missed_are_counted() -> None:
    assert agent().handle(Ticked(missed=3), now_s=3.0) == [StartRead(), Count(What.SKIPPED, 3)]


def test_a_read_that_hangs_is_told_once_and_what_it_brings_is_thrown_away() -> None:
    one = agent()
    hangs = "a read has not come back for more than 5 s"
    assert one.handle(Ticked(), now_s=0.0) == [StartRead()]
    assert one.handle(Ticked(), now_s=5.0) == [Count(What.SKIPPED)]
    assert one.handle(Ticked(), now_s=6.0) == [
        Count(What.HUNG),
        Ready(False, hangs),
        Tell("warning", "source_unreadable", {"source": "dcgm", "why": hangs}),
        Count(What.SKIPPED),
    ]
    assert one.handle(Ticked(), now_s=7.0) == [Count(What.SKIPPED)]

    # It comes back after all: old news are not published.
    assert one.handle(ended(), now_s=60.0) == [
        Count(What.LATE),
        Ready(False, "a read took 60.0 s and was thrown away"),
    ]
    assert one.handle(Ticked(), now_s=61.0) == [StartRead()]
    assert one.handle(ended(), now_s=61.1) == [
        Ready(True),
        Tell("info", "source_readable", {"source": "dcgm"}),
        Publish(message(1)),
    ]


def test_a_source_that_is_away_is_told_once_publishes_nothing_and_resumes() -> None:
    one = agent()
    one.handle(Ticked(), now_s=0.0)
    assert one.handle(ReadFailed(REFUSED), now_s=0.1) == [
        Count(What.FAILED),
        Ready(False, REFUSED),
        Tell("warning", "source_unreadable", {"source": "dcgm", "why": REFUSED}),
    ]
    one.handle(Ticked(), now_s=1.0)
    assert one.handle(ReadFailed(REFUSED), now_s=1.1) == [Count(What.FAILED)]

    # Another reason: whoever asks is told that one, the log is not filled with it.
    one.handle(Ticked(), now_s=2.0)
    assert one.handle(ReadFailed("timed out"), now_s=2.1) == [
        Count(What.FAILED),
        Ready(False, "timed out"),
    ]

    one.handle(Ticked(), now_s=3.0)
    assert one.handle(ended(), now_s=3.1) == [
        Ready(True),
        Tell("info", "source_readable", {"source": "dcgm"}),
        Publish(message(1)),
    ]


def test_each_node_of_an_exporter_has_a_counter_of_its_own() -> None:
    one = agent()
    both = ReadEnded([NodeReading("a", (gpu(),)), NodeReading("b", (gpu(),))], 1000.0)
    only_b = ended(node="b")
    published = [
        instruction.message
        for event in (both, only_b, both)
        for instruction in one.handle(event, now_s=0.0)
        if isinstance(instruction, Publish)
    ]
    assert published == [
        message(1, node="a"),
        message(1, node="b"),
        message(2, node="b"),
        message(2, node="a"),
        message(3, node="b"),
    ]


def told(instructions: list[Instruction]) -> list[tuple[str, object]]:
    return [
        (one.event, one.fields["why"])
        for one in instructions
        if isinstance(one, Tell) and one.event.startswith("gpu_")
    ]


def test_people_are_told_when_a_gpu_is_lost_and_when_it_is_back() -> None:
    one = agent()
    assert told(one.handle(ended(gpu()), now_s=0.0)) == []
    assert told(one.handle(ended(gpu("lost", "gone")), now_s=1.0)) == [("gpu_lost", "gone")]
    assert told(one.handle(ended(gpu("lost", "gone")), now_s=2.0)) == []
    assert told(one.handle(ended(gpu()), now_s=3.0)) == [("gpu_ok", "")]
    assert told(one.handle(ended(gpu("lost", "again")), now_s=4.0)) == [("gpu_lost", "again")]


def test_a_gpu_is_known_by_its_uuid_when_its_index_moves() -> None:
    one = agent()
    a, b = (GpuReading(index=at, uuid=f"GPU-{at}", model="T4") for at in range(2))
    one.handle(ended(a, b), now_s=0.0)
    moved = [replace(b, index=0), replace(a, index=1, health="lost", health_reason="gone")]
    assert told(one.handle(ended(*moved), now_s=1.0)) == [("gpu_lost", "gone")]
    assert told(one.handle(ended(*moved), now_s=2.0)) == []


def test_absurd_values_are_refused_counted_and_published_as_lacking() -> None:
    one = agent()
    absurd = replace(gpu(), power_w=-3.0, memory_used_mib=1_900_000_000)
    done = one.handle(ended(absurd), now_s=0.0)
    lack = "values that cannot be right: 2, the first: memory_used_mib of GPU 0 is 1.9e+09"
    assert done == [
        Ready(True),
        Count(What.REFUSED, 2),
        Publish(replace(message(1), lacks=(lack,))),
        Tell("warning", "figures_lacking", {"node": "n1", "lacks": (lack,)}),
    ]


def test_skipped_lines_and_what_the_source_refused_are_counted() -> None:
    one = agent()
    node = NodeReading("", (gpu(),), ("lines: 3",), lines_skipped=3, refused=("x is 1",) * 40)
    done = one.handle(ReadEnded([node], observed_at_s=1000.0), now_s=0.0)
    assert [each for each in done if isinstance(each, Count)] == [
        Count(What.REFUSED, 40),
        Count(What.UNREAD, 3),
    ]
    (published,) = (each.message for each in done if isinstance(each, Publish))
    first = "values that cannot be right: 40, the first: x is 1"
    assert published.lacks == ("lines: 3", first)


def test_a_gpu_whose_health_wavers_does_not_fill_the_log() -> None:
    one = agent()
    lines = []
    for second in range(int(3 * QUIET_S)):
        wavering = gpu("degraded", "heat") if second % 2 else gpu()
        lines += told(one.handle(ended(wavering), now_s=float(second)))
    assert lines == [("gpu_degraded", "heat"), ("gpu_ok", ""), ("gpu_degraded", "heat")]
