"""The auditor finds what must not be, and nothing where all is well."""

from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.cli.audit.core import Auditor, AuditReport
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import NodeReport, PodUse
from berthmaster.lib.messages.placement import HUB_CELL, MAIN_CELL, PodBinding
from berthmaster.lib.messages.workload import Carried, CarriedWorkload, Claimed, Placed, Succeeded
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World


@pytest.fixture
def world() -> World:
    """One node of two GPUs on which a gang of two has run, and a job waits."""
    world = World()
    world.fact(profile(), alive(), node(gpus=2))
    gang = world.submit(job("gang", pod_sets=(pod_set(count=2),)))
    world.settle()
    world.claim(gang)
    world.run(gang)
    world.submit(job("waits"))
    world.settle()
    return world


def audited(world: World, *reports: tuple[float, NodeReport]) -> AuditReport:
    auditor = Auditor()
    at = {sequence: (at_s, event) for sequence, at_s, event in world.events}
    decisions = dict(world.decisions)
    for sequence in sorted([*at, *decisions]):
        if sequence in decisions:
            auditor.on_decision(decisions[sequence], sequence)
        else:
            auditor.on_event(at[sequence][1], sequence, at[sequence][0])
    for number, (at_s, report) in enumerate(reports, 1):
        auditor.on_node(report, number, at_s)
    return auditor.report(final_s=world.now_s)


def rules(report: AuditReport) -> list[str]:
    return [finding.rule for finding in report.findings]


def use(name: str, attempt: int = 1, gpus: tuple[int, ...] = (0,), **fields: Any) -> PodUse:
    return PodUse(
        tenant=TENANT,
        workload=name,
        attempt=attempt,
        pod="main-0",
        gpu_milli=1000,
        gpus=gpus,
        **fields,
    )


def test_pods_of_a_job_that_no_log_knows_are_found_once_the_log_must_know_it(world: World) -> None:
    shown = replace(node(gpus=2), pods=(use("gone"),))
    (found,) = audited(world, (world.now_s - 10, shown)).findings
    assert (found.rule, found.where) == ("the logs are whole", "c1/n1")
    assert found.what == "pods of team-a/gone attempt 1, of which no log tells"
    assert rules(audited(world, (world.now_s - 1, shown))) == []  # perhaps submitted just now


def test_unreadable_event_is_found(world: World) -> None:
    auditor = Auditor()
    for sequence, at_s, event in world.events:
        auditor.on_event(event, sequence, at_s)
    last = max(sequence for sequence, _, _ in world.events)
    auditor.on_frozen(TENANT, "waits", last + 1, "torn")
    report = auditor.report(final_s=world.now_s)
    (found,) = report.findings
    assert (found.rule, found.where) == ("no workload is frozen", f"{TENANT}/waits")
    assert (report.frozen, report.submitted, report.accounted) == (1, 2, True)


def test_a_good_story_is_clean_and_adds_up(world: World) -> None:
    shown = replace(node(gpus=2), pods=(use("gang"), use("gang", gpus=(1,))))
    report = audited(world, (world.now_s, shown))
    assert report.findings == ()
    assert report.clean
    assert report.accounted
    assert (report.submitted, report.running, report.waiting) == (2, 1, 1)
    assert report.peak_gpu_milli == 1000
    counted = (report.decisions, report.placements, report.withdrawals, report.evictions)
    assert counted == (len(world.decisions), 1, 0, 0)
    assert report.node_reports == 1


def test_a_gpu_promised_twice_is_found(world: World) -> None:
    waiting = world.workloads[next(k for k in world.workloads if k.endswith("waits"))]
    world.append(
        Placed(
            tenant=TENANT,
            id="waits",
            after=waiting.sequence,
            at_s=0.0,
            by="a resolver that cannot count",
            cluster="c1",
            attempt=1,
            pods=(PodBinding(pod="main-0", node="n1", gpus=(1,)),),
            request=job("waits"),
            decision=99,
        )
    )
    report = audited(world)
    assert rules(report) == ["no GPU is promised twice"]
    assert report.findings[0].where == "c1/n1/1"
    assert report.peak_gpu_milli == 2000


def test_a_gang_that_was_torn_is_found(world: World) -> None:
    [(sequence, at_s, placed)] = [e for e in world.events if isinstance(e[2], Placed)]
    assert isinstance(placed, Placed)
    world.events[world.events.index((sequence, at_s, placed))] = (
        sequence,
        at_s,
        replace(placed, pods=placed.pods[:1]),
    )
    assert "gangs are whole" in rules(audited(world))


def test_a_second_ending_is_found(world: World) -> None:
    gang = world.workloads[next(k for k in world.workloads if k.endswith("gang"))]
    ending = Succeeded(
        tenant=TENANT,
        id="gang",
        after=gang.sequence,
        at_s=0.0,
        by="x",
        cluster="c1",
        attempt=1,
        digest="",
        submitted_at_s=0.0,
    )
    world.events.append((100, 0.0, ending))
    world.events.append((101, 0.0, replace(ending, after=100)))
    assert rules(audited(world)) == ["one ending"]


def test_missing_event_is_found_until_workload_is_carried(world: World) -> None:
    gang = world.workloads[next(k for k in world.workloads if k.endswith("gang"))]
    world.events = [
        one for one in world.events if not (one[2].id == "gang" and isinstance(one[2], Claimed))
    ]
    report = audited(world)
    assert (rules(report), report.frozen) == (["none is lost"], 1)
    fields = {name: getattr(gang, name) for name in CarriedWorkload.__struct_fields__}
    carried = Carried(
        tenant=TENANT,
        id="gang",
        after=0,
        at_s=0.0,
        by="berth recover",
        workload=CarriedWorkload(**fields),
        cluster=gang.cluster,
    )
    world.events.append((1_000_100, 0.0, carried))
    report = audited(world)
    assert (rules(report), report.carried, report.running, report.frozen) == ([], 1, 1, 0)


def test_an_event_that_lost_a_race_is_counted_as_void_and_is_no_finding(world: World) -> None:
    late = world.events[0][2]
    world.events.append((100, 0.0, late))
    report = audited(world)
    assert report.void == 1
    assert report.clean


def test_gaps_and_forks_of_the_chain_are_found(world: World) -> None:
    sequence, decision = world.decisions[0]
    world.decisions.append((100, replace(decision, number=3, after=sequence)))
    assert rules(audited(world)) == ["decision chain"]
    world.decisions[-1] = (100, replace(decision, number=2, after=0))
    assert rules(audited(world)) == ["decision chain"]


def test_a_placement_that_its_decision_does_not_name_is_found(world: World) -> None:
    sequence, decision = world.decisions[0]
    world.decisions[0] = (sequence, replace(decision, placements=()))
    assert rules(audited(world)) == ["decision chain"]


def test_a_node_that_holds_more_than_it_has_is_found(world: World) -> None:
    over = replace(node(gpus=2, foreign_milli=(500,)), pods=(use("gang"),))
    report = audited(world, (world.now_s, over))
    assert rules(report) == ["no GPU is over-committed"]
    heavy = replace(node(cpu_milli=1000), pods=(use("gang", cpu_milli=2000),))
    assert rules(audited(world, (world.now_s, heavy))) == ["no node is over-filled"]


def test_two_attempts_at_once_are_found_unless_reports_only_crossed(world: World) -> None:
    old = replace(node(name="n1"), pods=(use("waits", attempt=1),))
    new = replace(node(name="n2"), pods=(use("waits", attempt=2),))
    now_s = world.now_s
    assert rules(audited(world, (now_s, old), (now_s + 1, new), (now_s + 2, node(name="n1")))) == []
    report = audited(world, (now_s, old), (now_s + 1, new), (now_s + 5, new))
    assert rules(report) == ["none runs twice at once"]


def test_pods_that_outlast_their_attempt_are_found(world: World) -> None:
    shown = replace(node(gpus=2), pods=(use("gang"),))
    gang = next(k for k in world.workloads if k.endswith("gang"))
    world.succeed(gang)
    assert audited(world, (world.now_s, shown)).clean  # its report may still be on the way
    world.now_s += 7
    assert rules(audited(world, (world.now_s - 1, shown))) == ["what ended is gone"]
    # A report from after the log was read may show an attempt that is not in what was read.
    assert audited(world, (world.now_s + 1, shown)).clean


def test_only_kueue_knows_the_pods_of_what_goes_by_way_of_the_hub(world: World) -> None:
    [(at, placed)] = [
        (number, (sequence, at_s, event))
        for number, (sequence, at_s, event) in enumerate(world.events)
        if isinstance(event, Placed) and event.id == "gang"
    ]
    sequence, at_s, event = placed
    assert isinstance(event, Placed)
    nameless = replace(event, pods=(), cell=HUB_CELL)
    world.events[at] = (sequence, at_s, nameless)
    assert "gangs are whole" not in rules(audited(world))
    world.events[at] = (sequence, at_s, replace(nameless, cell=MAIN_CELL))
    assert "gangs are whole" in rules(audited(world))


def parts(*charged: int) -> tuple[World, NodeReport]:
    """Pods of 8 GiB on the first GPU of a node, whatever the decision says that they cost."""
    world = World()
    report = node(gpus=2)
    world.fact(profile(), alive(), report)
    for number, milli in enumerate(charged):
        request = job(f"p{number}", gpu_milli=1, gpu_memory_mib=8192)
        world.submit(request)
        binding = PodBinding(pod="main-0", node="n1", gpus=(0,), charged_milli=milli)
        workload = world.workloads[key(TENANT, f"p{number}")]
        world.append(
            Placed(
                tenant=TENANT,
                id=workload.id,
                after=workload.sequence,
                at_s=world.now_s,
                by="resolver",
                cluster="c1",
                attempt=1,
                pods=(binding,),
                request=request,
                decision=1,
            )
        )
    return world, report


def test_memory_promised_twice_is_found_by_what_the_node_charges() -> None:
    world, report = parts(500, 500, 1)  # the third placement claims to cost nothing
    found = audited(world, (world.now_s - 1, report))
    assert rules(found) == ["no GPU is promised twice"]
    assert found.findings[0].what == "1500 milli promised, the last to team-a/p2"
    assert found.peak_gpu_milli == 1500


def test_memory_within_a_gpu_is_clean_and_counted() -> None:
    world, report = parts(500, 500)
    found = audited(world, (world.now_s - 1, report))
    assert (rules(found), found.peak_gpu_milli) == ([], 1000)


def test_what_the_decision_stored_counts_where_no_report_is_left() -> None:
    world, report = parts(500, 500, 500)
    assert rules(audited(world)) == ["no GPU is promised twice"]
    later = replace(report, gpus=tuple(replace(gpu, memory_mib=1 << 20) for gpu in report.gpus))
    assert rules(audited(world, (world.now_s + 60, later))) == ["no GPU is promised twice"]


def test_node_that_gets_other_gpus_changes_no_older_promise() -> None:
    world, report = parts(500, 500)
    smaller = replace(report, gpus=tuple(replace(gpu, memory_mib=8192) for gpu in report.gpus))
    reports = ((world.now_s - 1, report), (world.now_s + 60, smaller))
    assert rules(audited(world, *reports)) == []
