import json
from typing import Any

from berthmaster.control.dashboard.core.board import Scope
from berthmaster.control.dashboard.core.dashboard import Dashboard
from berthmaster.control.dashboard.core.details import job_document, node_document
from berthmaster.control.dashboard.core.jobs import Jobs, Query
from berthmaster.control.dashboard.core.series import MOST, Series, measured
from berthmaster.lib.event_log.damage import REMEDY
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.quality import QualityReport, QueueQuality
from berthmaster.lib.messages.records import Lease
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.lib.messages.workload import (
    Claimed,
    Divide,
    Divided,
    Part,
    PartPlace,
    Placed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from tests.support.builders import alive, job, node, profile

import numpy as np  # isort: skip

EVERYTHING = Scope(True)
ACME = Scope(False, frozenset({"acme"}))


def documents(known: Dashboard, scope: Scope = EVERYTHING) -> dict[str, Any]:
    update = known.board.update(0, scope, 0.0)
    told: dict[str, Any] = json.loads(update.split(b"data: ", 1)[1])
    return told


def life(tenant: str, name: str, first: int) -> list[tuple[WorkloadEvent, int]]:
    """Submitted, placed on n1's GPUs 0 and 1, claimed."""
    request = job(name, gpus=2)
    common: dict[str, Any] = {"tenant": tenant, "id": name, "at_s": 0.0, "by": "t"}
    pods = (PodBinding(pod="main-0", node="n1", gpus=(0, 1)),)
    return [
        (Submitted(**common, after=0, request=request, digest="d"), first),
        (
            Placed(
                **common,
                after=first,
                cluster="c1",
                attempt=1,
                pods=pods,
                request=request,
                decision=1,
            ),
            first + 1,
        ),
        (Claimed(**common, after=first + 1, cluster="c1", attempt=1, executor="e"), first + 2),
    ]


def reading(cluster: str, *busy: float) -> NodeTelemetry:
    gpus = tuple(
        GpuReading(index=i, uuid=str(i), model="T4", utilization_percent=each)
        for i, each in enumerate(busy)
    )
    return NodeTelemetry(
        cluster=cluster,
        node="n1",
        epoch=1,
        counter=1,
        observed_at_s=0.0,
        interval_s=1.0,
        source="emulated",
        gpus=gpus,
    )


def test_what_is_heard_is_shown_and_what_falls_silent_is_broken() -> None:
    known = Dashboard("life")
    known.on_fact(profile("c1"), 100.0)
    known.on_fact(alive("c1"), 100.0)
    known.on_fact(node("c1", "n1", gpus=2, unhealthy=(1,)), 100.0)
    known.on_reading(reading("c1", 80.0, 10.0), 100.0)
    known.on_reading(reading("nobody", 1.0), 100.0)
    known.services.on_answer("berth-gateway", "g1", 100.0)
    known.services.on_lease(Lease(name="scorer.all", holder="s", ttl_s=3), 100.0)
    assert known.tick(100.0)
    shown = documents(known)["documents"]
    assert shown["fleet"]["gpus"] == 2
    assert (shown["fleet"]["lost_gpus"], shown["fleet"]["busy_percent"]) == (1, 80.0)
    assert [line["text"] for line in shown["problems"]] == ["1 GPU lost"]
    assert [one["service"] for one in shown["services"]] == ["gateway", "scorer"]
    assert known.unknown_readings == 1

    # Nothing more is heard of anything.
    assert known.tick(120.0)
    texts = [line["text"] for line in documents(known)["documents"]["problems"]]
    assert texts[:2] == ["gateway does not answer", "scorer does not answer"]
    assert "is silent" in texts
    assert "no readings of its GPUs" in texts

    # It is heard again.
    known.on_fact(alive("c1", counter=2), 121.0)
    known.on_reading(reading("c1", 5.0, 5.0), 121.0)
    known.services.on_answer("berth-gateway", "g1", 121.0)
    known.services.on_lease(Lease(name="scorer.all", holder="s", ttl_s=3), 121.0)
    known.tick(121.5)
    assert [each["text"] for each in documents(known)["documents"]["problems"]] == ["1 GPU lost"]

    # The log has lost something: nothing is decided, so that comes first.
    known.damage = ("WORKLOADS ends at 7; door saw it go up to 9: 2 messages are missing, 8 to 9",)
    known.tick(123.0)
    lines = documents(known)["documents"]["problems"]
    assert (lines[0]["level"], lines[0]["text"]) == ("broken", f"{known.damage[0]}; {REMEDY}")
    assert [each["text"] for each in lines[1:]] == ["1 GPU lost"]
    known.damage = ()

    # A node that is not ready, and without readings: told as that alone.
    known.on_fact(node("c1", "n1", gpus=2, ready=False, counter=3), 124.0)
    known.on_fact(alive("c1", counter=3), 130.0)
    known.tick(130.0)
    texts = [line["text"] for line in documents(known)["documents"]["problems"]]
    assert "1 node not ready" in texts
    assert "no readings of its GPUs" not in texts


def test_a_job_is_counted_found_and_measured_and_no_other_tenant_sees_it() -> None:
    known = Dashboard("life")
    known.on_fact(profile("c1"), 1.0)
    known.on_fact(node("c1", "n1", gpus=4), 1.0)
    known.tick(1.0)
    for event, sequence in life("acme", "train", 1):
        known.on_event(event, sequence, 2.0, is_astray=False)
    running = Running(
        tenant="acme", id="train", at_s=0.0, by="t", after=3, cluster="c1", attempt=1,
        pods=(PodBinding(pod="main-0", node="n1", gpus=(0, 1)),),
    )  # fmt: skip
    known.on_event(running, 4, 3.0, is_astray=False)
    for second in range(4, 14):
        known.on_reading(reading("c1", 90.0, 50.0, 0.0, 0.0), float(second))
        known.tick(float(second))
    work = known.jobs.find("acme", "train")
    assert work is not None
    shown = job_document(known, work)
    assert [(gpu["node"], gpu["index"], gpu["busy"]) for gpu in shown["gpus"]] == [
        ("n1", 0, 90),
        ("n1", 1, 50),
    ]
    assert set(shown["series"]["mean"]) == {70.0}
    assert (shown["series"]["low"][0], shown["series"]["high"][0]) == (50.0, 90.0)
    told = node_document(known, "c1", "n1")
    assert told is not None
    assert len(told["gpus"]) == 4
    assert node_document(known, "c1", "n9") is None

    assert documents(known, ACME)["documents"]["jobs/acme"]["counts"] == {"running": 1}
    other = documents(known, Scope(False, frozenset({"rival"})))
    assert "train" not in json.dumps(other)
    assert "gpus" not in other


def test_a_cordon_and_a_queue_are_shown() -> None:
    known = Dashboard("life")
    known.on_fact(profile("c1"), 1.0)
    known.on_fact(node("c1", "n1", gpus=1), 1.0)
    known.on_control("s1", Cordon(cluster="c1", node="n1", cordoned=True, reason="x" * 5000))
    known.on_control("s2", QueueSetting(queue="ml", tenants=("acme",), deserved_gpu_milli=2000))
    quality = QueueQuality(queue="ml", waiting=3, used_gpu_milli=5000)
    known.on_quality(
        QualityReport(cell="all", decider="d", observed_at_s=0.0, queues=(quality,)), 1.0
    )
    known.tick(1.0)
    shown = documents(known, ACME)["documents"]
    assert shown["queue/ml"]["borrowed"] == 3.0
    assert shown["cluster/c1"]["cordoned_nodes"] == 1
    assert "queue/ml" not in documents(known, Scope(False, frozenset({"rival"})))["documents"]


def test_jobs_are_found_by_what_is_asked_and_ended_ones_are_bounded() -> None:
    jobs = Jobs(most_ended=2)
    for number in range(4):
        name, first = f"j{number}", 10 * number + 1
        for event, sequence in life("acme", name, first):
            jobs.take(event, sequence, float(sequence))
    end: dict[str, Any] = {"tenant": "acme", "at_s": 0.0, "by": "t", "digest": "d"}
    for number in range(3):
        first = 10 * number + 1
        ending = Succeeded(
            **end, id=f"j{number}", after=first + 2, cluster="c1", attempt=1, submitted_at_s=0.0
        )
        jobs.take(ending, 100 + number, 100.0 + number)
    assert sorted(jobs.ended) == ["acme/j1", "acme/j2"]
    assert dict(+jobs.counts["acme"]) == {"succeeded": 2, "claimed": 1}

    def names(query: Query, scope: Scope = EVERYTHING) -> list[str]:
        return [work.id for work in jobs.select(query, scope).jobs]

    assert names(Query()) == ["j3", "j2", "j1"]
    assert names(Query(states=frozenset({"live"}))) == ["j3"]
    assert names(Query(text="J2".lower())) == ["j2"]
    assert names(Query(limit=1, offset=1)) == ["j2"]
    assert names(Query(), Scope(False, frozenset({"rival"}))) == []
    assert names(Query(queue="other")) == []


def test_a_divided_job_is_one_row_found_by_the_clusters_and_ids_of_its_parts() -> None:
    jobs = Jobs()
    head: dict[str, Any] = {"tenant": "acme", "at_s": 0.0, "by": "t"}
    places = tuple(PartPlace(id=f"train--1-{n}", cluster=f"c{n + 1}", pods=1) for n in (0, 1))
    of = Part(job="train", attempt=1, number=0, clusters=("c1", "c2"), pods=(1, 1))
    events: list[WorkloadEvent] = [
        Submitted(
            **head, id="train", after=0, request=job("train", divide=Divide(gang=False)), digest="d"
        ),
        Divided(**head, id="train", after=1, attempt=1, parts=places, decision=1),
        *(
            Submitted(**head, id=p.id, after=0, request=job(p.id, part=of), digest="d")
            for p in places
        ),
    ]
    for sequence, event in enumerate(events, 1):
        jobs.take(event, sequence, float(sequence))
    assert dict(+jobs.counts["acme"]) == {"running": 1}
    assert list(jobs.waiting()) == []

    def names(**query: Any) -> list[str]:
        return [work.id for work in jobs.select(Query(**query), EVERYTHING).jobs]

    assert names() == names(states=frozenset({"live"})) == ["train"]
    assert names(states=frozenset({"running"})) == names(cluster="c2") == ["train"]
    assert names(text="train--1-1") == ["train"]
    assert names(states=frozenset({"waiting"})) == names(cluster="c3") == []


def test_a_long_life_stands_in_a_bounded_number_of_points() -> None:
    series = Series(1)
    for second in range(10 * MOST):
        series.add(float(second), np.array([second % 100]), np.array([50]))
    columns = series.columns()
    assert len(columns["at_s"]) <= MOST
    assert (min(columns["low"]), max(columns["high"])) == (0.0, 99.0)
    assert columns["at_s"] == sorted(columns["at_s"])
    assert list(measured(np.array([1, 255, 3], np.uint8))) == [1, 3]
