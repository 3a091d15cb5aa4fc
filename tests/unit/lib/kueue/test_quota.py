"""What Kueue lets in, by our arithmetic: the table that a real Kueue is held to as well
(tests/cluster/test_kueue_quota.py), and what only we say of it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.kube.quantity import milli, whole
from berthmaster.lib.kueue.queues import ClusterQueue, Cohort, ResourceFlavor
from berthmaster.lib.kueue.quota import (
    PODS,
    UNLIMITED,
    Answer,
    Ask,
    Gone,
    Quotas,
    closed,
    counted,
    promises,
    queue_of,
    without,
)
from berthmaster.lib.messages.fleet import (
    CohortQuota,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Stamp,
)
from berthmaster.lib.messages.workload import PodSet, Toleration
from berthmaster.worker.inventory.core.queue_index import QueueIndex
from tests.controlplane.kueue.rows import GPU, NEVER, PIN, ROWS, WAITS, Documents, Json, Pods, Row

STAMP = Stamp(epoch=1, counter=1)


def reports_of(row: Row) -> list[QueueReport]:
    problems = Problems()
    index = QueueIndex("here", problems)
    documents = Documents(row)
    for flavor in documents.flavors():
        index.set_flavor(msgspec.convert(flavor, ResourceFlavor))
    for cohort in documents.cohorts():
        index.set_cohort(msgspec.convert(cohort, Cohort))
    for queue in documents.queues():
        index.set_queue(msgspec.convert(with_status(row, queue), ClusterQueue))
    assert problems.take_new() == []
    return [index.queue(name, STAMP, 0.0, served=True) for name in row.queues]


def with_status(row: Row, queue: Json) -> Json:
    used = row.queues[queue["metadata"]["name"]].used
    reserved = [
        {"name": flavor, "resources": [{"name": n, "total": a} for n, a in amounts.items()]}
        for flavor, amounts in used.items()
    ]
    active = {"type": "Active", "status": "True"}
    return queue | {"status": {"conditions": [active], "flavorsReservation": reserved}}


def ask_of(pods: Pods) -> Ask:
    amounts = {name: amount_of(name, text) * pods.count for name, text in pods.requests.items()}
    tolerations = tuple(msgspec.convert(each, Toleration) for each in pods.tolerations)
    asked = PodSet(
        count=pods.count,
        gpu_models=tuple(f"={model}" for model in pods.models),
        node_labels=dict(pods.labels),
        tolerations=tolerations,
    )
    return Ask(asked, (amounts,))


def amount_of(name: str, text: str) -> int:
    if name == "cpu":
        return milli(text)
    return -(-whole(text) // 2**20) if name == "memory" else whole(text)


def answer_to(row: Row, reports: list[QueueReport]) -> Answer:
    quotas = Quotas(reports)
    for queue, pods in row.coming:
        quotas.charge(queue, [ask_of(pods)])
    return quotas.answer(row.queue, [ask_of(pods) for pods in row.asks])


def outcome(answer: Answer) -> str | list[Mapping[str, str]]:
    if answer.never:
        return NEVER
    return WAITS if answer.lacks else list(answer.flavors)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_what_kueue_lets_in(row: Row) -> None:
    answer = answer_to(row, reports_of(row))
    assert outcome(answer) == row.then
    assert answer.borrows == row.borrows
    assert row.why in answer.never + answer.lacks


def test_what_is_counted_as_another_resource_is_granted_by_that_name_only() -> None:
    """Whole GPUs by counting and slices by claims, both counted as one resource."""
    claimed = "deviceclass.resource.kubernetes.io/mig.nvidia.com"
    mapped = FlavorQuota(flavor="a", resources={"example.com/gpus": QuotaAmount(nominal=8, used=3)})
    names = {claimed: "example.com/gpus", GPU: "example.com/gpus"}
    both = Ask(PodSet(count=2), ({GPU: 2, claimed: 2},))
    answer = Quotas([report(mapped)], names).answer("q", [both])
    assert answer.now
    assert (answer.flavors, answer.devices_left) == (({"example.com/gpus": "a"},), 5)
    quotas = Quotas([report(mapped)], names)
    assert quotas.charge("q", [both])
    assert quotas.answer("q", [both]).lacks == "no quota left: needs 4 example.com/gpus, 1 left"
    assert quotas.answer("q", [Ask(PodSet(), ({GPU: 9},))]).never == (
        "ClusterQueue q grants 8 example.com/gpus at most, 9 are asked for"
    )
    assert Quotas([report(flavor())], names).answer("q", [both]).never == (
        "ClusterQueue q grants no example.com/gpus"
    )
    assert counted([both], {}) == [both]


def test_every_row_has_a_sentence_of_its_own() -> None:
    assert len({row.what for row in ROWS}) == len(ROWS)
    assert {NEVER, WAITS} <= {row.then for row in ROWS if isinstance(row.then, str)}


# What only we say


def report(*flavors: FlavorQuota, queue: str = "q", **more: object) -> QueueReport:
    return QueueReport(
        cluster="here", queue=queue, stamp=STAMP, observed_at_s=0.0, flavors=flavors,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def flavor(name: str = "a", labels: dict[str, str] | None = None, **amounts: int) -> FlavorQuota:
    resources = {GPU: QuotaAmount(**({"nominal": 8} | amounts))}
    return FlavorQuota(flavor=name, node_labels=labels or {}, resources=resources)


def of_gpus(count: int, **pods: object) -> Ask:
    return Ask(PodSet(**pods), ({GPU: count},))  # type: ignore[arg-type]


def test_what_is_left_is_what_the_best_flavor_in_question_has() -> None:
    two = report(flavor("a", {"zone": "a"}, used=7), flavor("b", {"zone": "b"}, used=5))
    assert Quotas([two]).answer("q", [of_gpus(1)]).devices_left == 3
    assert Quotas([two]).answer("q", [of_gpus(2, node_labels={"zone": "a"})]).devices_left == 1
    assert Quotas([two]).answer("q", [Ask(PodSet(), ({},))]).devices_left == UNLIMITED

    quotas = Quotas([two])
    assert quotas.charge("q", [of_gpus(2)])
    assert quotas.answer("q", [of_gpus(1)]).devices_left == 1
    # What waits uses nothing.
    assert not quotas.charge("q", [of_gpus(2)])
    assert quotas.answer("q", [of_gpus(1)]).devices_left == 1

    # More is used than there is, since quota was taken away: nothing is left, not less.
    assert Quotas([report(flavor(used=9))]).answer("q", [of_gpus(1)]).devices_left == 0


def test_what_has_gone_is_free_by_whichever_resource_it_was_granted_and_so_are_its_pods() -> None:
    amounts = {"amd.com/gpu": QuotaAmount(nominal=4, used=4), PODS: QuotaAmount(nominal=2, used=2)}
    full = report(FlavorQuota(flavor="a", resources=amounts))
    either = Ask(PodSet(), ({GPU: 2}, {"amd.com/gpu": 2}))
    assert not Quotas([full]).answer("q", [either]).now
    assert Quotas([without(full, [Gone(either)])]).answer("q", [either]).now
    assert without(full, [Gone(either), Gone(either)]).flavors[0].resources == {
        "amd.com/gpu": QuotaAmount(nominal=4, used=0),
        PODS: QuotaAmount(nominal=2, used=0),
    }


def test_what_has_gone_gives_back_the_flavor_that_it_had_as_far_as_that_is_known() -> None:
    def flavors(*used: int) -> tuple[FlavorQuota, ...]:
        return tuple(
            FlavorQuota(
                flavor=name,
                node_labels={"kind": name},
                resources={
                    GPU: QuotaAmount(nominal=8, used=gpus),
                    "cpu": QuotaAmount(nominal=8_000, used=4_000),
                },
            )
            for name, gpus in zip(("a", "b", "c"), used, strict=True)
        )

    def left(**gone: Any) -> list[int]:
        found = without(report(*flavors(4, 4, 4)), [Gone(ask, **gone)])
        cpu = [flavor.resources["cpu"].used for flavor in found.flavors]
        gpus = [flavor.resources[GPU].used for flavor in found.flavors]
        assert [used < 4_000 for used in cpu] == [used < 4 for used in gpus]  # of the same one
        return gpus

    ask = Ask(PodSet(), ({GPU: 2, "cpu": 1_000},))
    assert left() == [2, 4, 4]
    assert left(flavors={GPU: "c", "cpu": "c"}, nodes=[{"kind": "b"}]) == [4, 4, 2]
    assert left(nodes=[{"kind": "b", "zone": "1"}]) == [4, 2, 4]
    ask = Ask(PodSet(node_labels={"kind": "c"}), ask.ways)
    assert left() == [4, 4, 2]

    # What the report does not count any more is not given back by another.
    gone = Gone(Ask(PodSet(), ({GPU: 2},)), {GPU: "b"})
    assert without(report(*flavors(4, 0, 4)), [gone]).flavors == flavors(4, 0, 4)
    nowhere = Gone(gone.ask, nodes=[{"kind": "a"}, {"kind": "b"}])
    assert without(report(*flavors(4, 4, 4)), [nowhere]).flavors == flavors(4, 4, 4)
    # CPU is counted with what containers have by default.
    little = Gone(Ask(PodSet(), ({GPU: 2, "cpu": 5_000},)))
    [first, *_] = without(report(*flavors(4, 4, 4)), [little]).flavors
    assert {name: one.used for name, one in first.resources.items()} == {GPU: 2, "cpu": 4_000}


def test_gpus_may_be_asked_for_in_one_of_several_ways() -> None:
    amd = FlavorQuota(flavor="a", resources={"amd.com/gpu": QuotaAmount(nominal=4, used=1)})
    either = Ask(PodSet(), ({GPU: 3}, {"amd.com/gpu": 3}))
    answer = Quotas([report(amd)]).answer("q", [either])
    assert (answer.flavors, answer.left) == (({"amd.com/gpu": "a"},), {"amd.com/gpu": 3})
    more = Ask(PodSet(), ({GPU: 4}, {"amd.com/gpu": 4}))
    answer = Quotas([report(amd)]).answer("q", [more])
    assert answer.lacks == "no quota left: needs 4 amd.com/gpu, 3 left"
    most = Ask(PodSet(), ({GPU: 5}, {"amd.com/gpu": 5}))
    never = "ClusterQueue q grants 4 amd.com/gpu at most, 5 are asked for"
    assert Quotas([report(amd)]).answer("q", [most]).never == never


def test_reports_of_different_moments_that_make_a_circle_of_cohorts_end_nothing() -> None:
    quotas = Quotas(
        [
            report(flavor(), queue="q", cohort="x", cohorts=(CohortQuota(cohort="x", parent="y"),)),
            report(flavor(), queue="r", cohort="y", cohorts=(CohortQuota(cohort="y", parent="x"),)),
        ]
    )
    assert quotas.answer("q", [of_gpus(8)]).now
    assert not quotas.answer("q", [of_gpus(17)]).now


def test_of_two_reports_of_a_cohort_the_newer_one_counts() -> None:
    def said(queue: str, nominal: int, counter: int) -> QueueReport:
        quota = CohortQuota(cohort="x", flavors=(flavor(nominal=nominal),))
        told = report(flavor(), queue=queue, cohort="x", cohorts=(quota,))
        return msgspec.structs.replace(told, stamp=Stamp(epoch=1, counter=counter))

    old, new = said("q", 0, 1), said("r", 4, 2)
    for order in ([old, new], [new, old]):
        assert Quotas(order).answer("q", [of_gpus(20)]).now
        assert Quotas(order).answer("q", [of_gpus(21)]).never


def test_a_flavor_that_says_so_has_what_pods_ask_of_a_node() -> None:
    zone = {"zone": "a"}
    t4 = {"nvidia.com/gpu.product": "Tesla-T4"}
    assert promises(report(flavor(labels=zone)), of_gpus(1, node_labels=zone))
    assert not promises(report(flavor()), of_gpus(1, node_labels=zone))
    assert promises(report(flavor(labels=t4)), of_gpus(1, gpu_models=("T4",)))
    assert not promises(report(flavor()), of_gpus(1, gpu_models=("T4",)))
    assert not promises(report(flavor(labels=t4)), of_gpus(1, gpu_models=("H100",)))
    cpus = FlavorQuota(flavor="c", node_labels=zone, resources={"cpu": QuotaAmount(nominal=1)})
    assert not promises(report(cpus), of_gpus(1, node_labels=zone))


def test_where_a_local_queue_leads_and_why_it_is_shut() -> None:
    local = LocalQueueReport(namespace="team", name="main")
    open_ = report(flavor(), local_queues=(local,))
    assert queue_of([report(queue="other"), open_], "team", "main") == (open_, local)
    assert queue_of([open_], "team", "mine") is None
    assert queue_of([open_], "others", "main") is None

    def why(local_active: bool = True, **more: object) -> str:
        door = LocalQueueReport(namespace="team", name="main", active=local_active, reason="held")
        return closed(report(**more), door)  # type: ignore[arg-type]

    assert why() == ""
    stopped = {"stopped": True, "active": False}
    assert why(local_active=False, **stopped, stop_policy="Hold") == (
        "its ClusterQueue q is stopped (stopPolicy Hold)"
    )
    held = LocalQueueReport(
        namespace="team", name="main", active=False, reason="Stopped", stopped="HoldAndDrain"
    )
    assert closed(open_, held) == "its LocalQueue main is stopped (stopPolicy HoldAndDrain)"
    assert why(active=False) == "its ClusterQueue q is not active"
    assert why(local_active=False) == "its LocalQueue main is not active: held"


def test_the_rows_pin_what_runs_to_flavors_by_a_label_that_changes_nothing() -> None:
    for row in ROWS:
        assert all(PIN not in pods.labels for pods in row.asks)
