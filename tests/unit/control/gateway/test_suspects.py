"""Nodes that fail everybody's jobs: which are cordoned, by which evidence, and which are not."""

from berthmaster.control.gateway.core.suspects import Suspects
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import FAILING_NODE_BY, Cordon
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Evicted, Failed, Fault, Succeeded


def bad(
    suspects: Suspects,
    workload: str,
    node: str = "n1",
    fault: Fault = "gpu_lost",
    *,
    at_s: float = 100.0,
    tenant: str = "ann",
    cluster: str = "berlin",
) -> None:
    head = {"tenant": tenant, "id": workload, "after": 1, "at_s": 0.0, "by": "x"}
    event = Evicted(**head, cluster=cluster, attempt=1, reason="r", fault=fault, node=node)  # type: ignore[arg-type]
    suspects.take(event, Workload(tenant=tenant, id=workload), at_s)


def well(suspects: Suspects, node: str, at_s: float) -> None:
    event = Succeeded(
        tenant="ann",
        id="good",
        after=1,
        at_s=0.0,
        by="x",
        cluster="berlin",
        digest="d",
        submitted_at_s=0.0,
    )
    pods = (PodBinding(pod="main-0", node=node),)
    suspects.take(event, Workload(tenant="ann", id="good", pods=pods), at_s)


def nodes(suspects: Suspects, now_s: float = 200.0) -> list[str | None]:
    return [each.node for each in suspects.due(now_s)]


def test_a_node_that_fails_several_workloads_is_cordoned_once_with_the_evidence() -> None:
    suspects = Suspects(3, 3600.0)
    for workload in ("a", "b", "b", "b"):
        bad(suspects, workload)
    assert nodes(suspects) == []  # two workloads, whatever they do
    bad(suspects, "c", fault="not_started", tenant="bob")
    reason = (
        "3 jobs ended badly there within 60 min, and none succeeded since: "
        "ann/a gpu_lost, ann/b gpu_lost, bob/c not_started"
    )
    cordon = Cordon(
        cluster="berlin",
        node="n1",
        cordoned=True,
        reason=reason,
        set_by=FAILING_NODE_BY,
        set_at_s=200.0,
    )
    assert suspects.due(200.0) == [cordon]
    suspects.said(cordon)
    assert suspects.due(200.0) == []
    # A person has mended it: what was before counts no more, what comes after does.
    suspects.said(Cordon(cluster="berlin", node="n1", cordoned=False, set_by="eve", set_at_s=300.0))
    bad(suspects, "d", at_s=301.0)
    assert nodes(suspects, 302.0) == []
    bad(suspects, "e", at_s=303.0)
    bad(suspects, "f", at_s=303.0)
    assert nodes(suspects, 304.0) == ["n1"]


def test_what_is_long_ago_or_was_followed_by_a_success_counts_no_more() -> None:
    suspects = Suspects(3, 3600.0)
    for workload in ("a", "b", "c"):
        bad(suspects, workload, at_s=100.0)
    assert nodes(suspects, 3700.0) == []
    for workload in ("a", "b", "c"):
        bad(suspects, workload, at_s=4000.0)
    well(suspects, "n1", 4001.0)
    assert nodes(suspects, 4002.0) == []


def test_a_job_that_ends_badly_everywhere_takes_no_node_with_it() -> None:
    suspects = Suspects(3, 3600.0)
    for node in ("n1", "n2", "n3"):
        for workload in ("a", "b", "c"):
            bad(suspects, workload, node)
    assert nodes(suspects) == []


def test_exits_count_only_where_several_tenants_had_them() -> None:
    suspects = Suspects(3, 3600.0)
    for workload in ("a", "b", "c"):
        bad(suspects, workload, fault="exit")
        bad(suspects, workload + "-oom", fault="out_of_memory", tenant="bob")
    assert nodes(suspects) == []
    bad(suspects, "d", fault="exit", tenant="bob")
    assert nodes(suspects) == ["n1"]


def test_no_more_than_two_nodes_of_a_cluster_are_taken_out_within_the_time() -> None:
    suspects = Suspects(3, 3600.0)
    for node in ("n1", "n2", "n3"):
        for number in range(3):
            bad(suspects, f"{node}-{number}", node)
            bad(suspects, f"other-{node}-{number}", node, cluster="oslo")
    found = suspects.due(200.0)
    assert [(each.cluster, each.node) for each in found] == [
        ("berlin", "n1"),
        ("berlin", "n2"),
        ("oslo", "n1"),
        ("oslo", "n2"),
    ]
    for each in found:
        suspects.said(each)
    assert nodes(suspects) == []
    off = Suspects(0, 3600.0)
    for number in range(9):
        bad(off, str(number))
    assert nodes(off) == []


def test_what_says_nothing_of_a_node_is_no_evidence() -> None:
    suspects = Suspects(1, 3600.0)
    bad(suspects, "a", fault="preempted")
    bad(suspects, "b", node="")
    event = Failed(
        tenant="ann",
        id="c",
        after=1,
        at_s=0.0,
        by="x",
        cluster="berlin",
        digest="d",
        submitted_at_s=0.0,
        fault="not_started",
        node="n7",
    )
    suspects.take(event, Workload(tenant="ann", id="c"), 100.0)
    assert nodes(suspects) == ["n7"]
