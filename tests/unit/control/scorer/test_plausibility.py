"""What is not believed, each with its reason; and what looks odd and is right."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.control.scorer.core.events import (
    FactForgotten,
    FactSeen,
    TelemetryHeard,
    WorkloadSubmitted,
)
from berthmaster.control.scorer.core.intake import Intake, NotBelieved
from berthmaster.control.scorer.core.mix import PodShape
from berthmaster.control.scorer.core.plausibility import Drop, judge_report, judge_telemetry
from berthmaster.control.scorer.core.shard import Shard, shard_of
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import Amounts, ClusterScore, FleetFact, NodeReport
from berthmaster.lib.messages.workload import JobRequest, PodSet, Submitted
from tests.unit.control.scorer.builders import (
    START_S,
    Story,
    alive,
    gone,
    gpu,
    pod,
    profile,
    report,
    stamp,
    telemetry,
)

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("percent", "fields", "why"),
    [
        (50.0, {}, None),
        (0.0, {"observed_at_s": START_S - 1e6}, None),  # a clock that is days behind
        (100.0, {"observed_at_s": START_S + 299}, None),  # one that is minutes ahead
        (None, {"gpus": ()}, None),
        (50.0, {"observed_at_s": START_S + 301}, Drop.FUTURE),
        (50.0, {"observed_at_s": NAN}, Drop.NOT_FINITE),
        (50.0, {"observed_at_s": INF}, Drop.NOT_FINITE),
        (50.0, {"interval_s": NAN}, Drop.NOT_FINITE),
        (50.0, {"interval_s": 0.0}, Drop.ABSURD),
        (50.0, {"interval_s": 86_400.0}, Drop.ABSURD),
        (50.0, {"epoch": -1}, Drop.ABSURD),
        (50.0, {"counter": 2**63}, Drop.ABSURD),
        (NAN, {}, Drop.NOT_FINITE),
        (INF, {}, Drop.NOT_FINITE),
        (-0.5, {}, Drop.ABSURD),
        (100.5, {}, Drop.ABSURD),
    ],
)
def test_telemetry_is_believed_or_dropped_with_its_reason(
    percent: float | None, fields: dict[str, Any], why: Drop | None
) -> None:
    told = telemetry(percent, **fields)
    assert judge_telemetry(told, START_S, 300) == why
    # Through the core: it leaves no trace but the count.
    story = Story()
    story.fact(report(gpus=1))
    story.hear(told)
    assert story.scorer.dropped == ({("telemetry", why): 1} if why else {})
    assert story.score().telemetry_nodes == (0 if why else 1)


def test_telemetry_of_more_gpus_than_a_node_can_have_is_absurd() -> None:
    assert judge_telemetry(telemetry(*[0.0] * 1025), START_S, 300) is Drop.ABSURD


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (report(), None),
        (report(gpus=2, pods=(pod(5, 6, 7),)), None),  # odd, and charged: see test_room.py
        (report(cpu=10.0**6), Drop.ABSURD),
        (report(memory_gib=10.0**9), Drop.ABSURD),
        (report(tpus=5000), Drop.ABSURD),
        (report(foreign=Amounts(cpu_milli=10**12)), Drop.ABSURD),
        (report(foreign=Amounts(gpu_milli=-1)), Drop.ABSURD),
        (report(pods=(pod(0, milli=1001),)), Drop.ABSURD),
        (report(pods=(pod(0, cpu=-1),)), Drop.ABSURD),
        (report(gpus=(gpu(0, foreign_milli=-5),)), Drop.ABSURD),
        (report(gpus=tuple(gpu(at) for at in range(1025))), Drop.ABSURD),
        (report(gpus=(gpu(0), replace(gpu(1), index=0))), Drop.DUPLICATE_GPU),
        (report(gpus=(gpu(0), replace(gpu(1), uuid="GPU-n1-0"))), Drop.DUPLICATE_GPU),
    ],
)
def test_a_report_is_believed_or_dropped_with_its_reason(
    told: NodeReport, why: Drop | None
) -> None:
    assert judge_report(told) == why


# From bytes


ODD = "Süd-Ost 1. Stock/rack=4 >*"
ODD_TOKEN = "S=C3=BCd-Ost=201=2E=20Stock=2Frack=3D4=20=3E=2A"


def test_odd_names_come_through_whole() -> None:
    intake = Intake(Shard())
    told = telemetry(50.0, cluster=ODD, node="node.local")
    assert intake.telemetry(
        f"berth.telemetry.{ODD_TOKEN}.node=2Elocal", encode(told)
    ) == TelemetryHeard(told)
    fact = report("node.local", cluster=ODD)
    subject = f"berth.fleet.{ODD_TOKEN}.node.node=2Elocal"
    assert intake.fact(subject, fact, 5.0) == FactSeen(fact, 5.0)
    assert intake.gone(subject) == FactForgotten(ODD, "node", "node.local")
    assert intake.gone(subject) is None


def test_a_message_that_speaks_for_another_is_not_believed() -> None:
    intake = Intake(Shard())
    told = encode(telemetry(50.0))
    for subject in ("berth.telemetry.west.n1", "berth.telemetry.east.n2"):
        assert intake.telemetry(subject, told) == NotBelieved(
            "telemetry", Drop.WRONG_SUBJECT, f"it is not about what {subject} stands for"
        )
    assert isinstance(intake.telemetry("berth.telemetry.east.n1", told), TelemetryHeard)
    wrong: list[tuple[str, FleetFact]] = [
        ("berth.fleet.west.node.n1", report()),
        ("berth.fleet.east.node.n2", gone("n1")),
        ("berth.fleet.west.alive", alive()),
        ("berth.fleet.east.profile", alive()),
        ("berth.fleet.west.profile", profile()),
        ("berth.fleet.east.node.n1", report(cluster="")),
    ]
    for subject, fact in wrong:
        doubt = intake.fact(subject, fact, 0.0)
        assert isinstance(doubt, NotBelieved)
        assert doubt.why is Drop.WRONG_SUBJECT
    # Also once the subject is known.
    assert isinstance(intake.fact("berth.fleet.east.alive", alive(), 0.0), FactSeen)
    late = intake.fact("berth.fleet.east.alive", alive(cluster="west"), 0.0)
    assert isinstance(late, NotBelieved)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"type":"telemetry.node.v2"}',
        b'{"type":"telemetry.node.v1","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        encode(telemetry(50.0)).replace(b"50.0", b"NaN"),
        encode(telemetry(50.0)).replace(b"50.0", b"1e999"),
        encode(telemetry(50.0)).replace(b"50.0", b"-1"),
        encode(telemetry(50.0)).replace(b"50.0", b'"50"'),
    ],
)
def test_bytes_that_are_no_telemetry_are_told_apart(body: bytes) -> None:
    doubt = Intake(Shard()).telemetry("berth.telemetry.east.n1", body)
    assert isinstance(doubt, NotBelieved)
    assert (doubt.kind, doubt.why) == ("telemetry", Drop.UNDECODABLE)


def test_a_newer_agent_may_say_more() -> None:
    told = telemetry(50.0)
    body = encode(told).replace(b'"epoch"', b'"new_field":{"a":1},"epoch"')
    assert Intake(Shard()).telemetry("berth.telemetry.east.n1", body) == TelemetryHeard(told)


def test_a_subject_that_stands_for_nothing_is_told_apart() -> None:
    for subject in ("berth.telemetry.=FF.n1", "berth.telemetry.east", "x.telemetry.east.n1"):
        doubt = Intake(Shard()).telemetry(subject, b"{}")
        assert isinstance(doubt, NotBelieved)
        assert doubt.why is Drop.WRONG_SUBJECT


def test_another_shards_telemetry_is_not_even_decoded_and_scores_are_not_inputs() -> None:
    intake = Intake(Shard(3 - shard_of("east", 2), 2))
    assert intake.telemetry("berth.telemetry.east.n1", b"not json") is None
    score = ClusterScore(cluster="east", stamp=stamp(1), freshness="fresh", input_age_s=0)
    assert intake.fact("berth.fleet.east.score", score, 0.0) is None


def test_a_submitted_event_tells_its_shapes_and_needs_nothing_else() -> None:
    event = Submitted(
        tenant="ml",
        id="a",
        after=0,
        at_s=0,
        by="gateway",
        digest="",
        request=JobRequest(
            id="a",
            pod_sets=(PodSet(count=3, gpus=1, gpu_milli=500, gpu_models=("T4", "A10")), PodSet()),
        ),
    )
    heard = Intake(Shard()).submitted(encode(event), START_S)
    assert isinstance(heard, WorkloadSubmitted)
    assert [(p.count, p.cpu_milli, p.memory_mib, p.gpus, p.gpu_milli) for p in heard.pod_sets] == [
        (3, 1000, 1024, 1, 500),
        (1, 1000, 1024, 0, 1000),
    ]
    story = Story()
    for _ in range(20):
        story.scorer.handle(heard, story.now_s)
    story.wait(10)
    assert [p.shape for p in story.scorer.mix.pods] == [PodShape(1000, 1, 500, ("A10", "T4"))]
    # A later version of the event, of which this one reads what it knows.
    later = encode(event).replace(b"submitted.v1", b"submitted.v9").replace(b'"digest"', b'"d"')
    assert isinstance(Intake(Shard()).submitted(later, 7.0), WorkloadSubmitted)
    broken = Intake(Shard()).submitted(b'{"request":{"pod_sets":"all"}}', 7.0)
    assert isinstance(broken, NotBelieved)
