"""What is broken or not as it should be, on the page and in `berth problems` alike."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from berthmaster.cli.problems.screen import problem_lines
from berthmaster.control.dashboard.core.known import Known
from berthmaster.control.dashboard.core.problems import MOST, problems
from berthmaster.lib.engine.fleetview.fleet_problems import (
    LETTERS_S,
    SILENT_LEAST_S,
    Problem,
    of_cluster,
    of_cordons,
    of_gpus,
    of_letters,
    of_nodes,
)
from berthmaster.lib.engine.fleetview.rows import ClusterRow, FleetView
from berthmaster.lib.event_log.damage import REMEDY
from berthmaster.lib.messages.control import FAILING_NODE_BY, Cordon, GpuCordon
from berthmaster.lib.messages.fleet import ClosedGpu, ClusterScore, FleetFact, NodeGone, Stamp
from berthmaster.lib.messages.quality import QualityReport
from tests.support.builders import node, profile
from tests.unit.cli.screens import screen

NOW_S = 200_000.0
SILENT = Problem("broken", "is silent", "c1")


def row(**told: object) -> ClusterRow:
    return ClusterRow(**{"cluster": "c1", "freshness": "fresh", "seen_s": 1.0} | told)  # type: ignore[arg-type]


CLUSTERS = {
    "as it should be": (row(), 2.0, []),
    "seen no longer than the least limit ago": (row(seen_s=SILENT_LEAST_S), 2.0, []),
    "silent for longer": (row(seen_s=SILENT_LEAST_S + 0.1), 2.0, [SILENT]),
    "silent for less than three of its own intervals": (row(seen_s=59.0), 20.0, []),
    "silent for more than three of them": (row(seen_s=61.0), 20.0, [SILENT]),
    "silent, whose interval nobody knows": (row(seen_s=11.0), 0.0, [SILENT]),
    "never seen": (row(seen_s=None), 2.0, [Problem("note", "has given no sign of life yet", "c1")]),
    "lost, which says that it is silent": (
        row(lost="fire", seen_s=9e9),
        2.0,
        [Problem("broken", "declared lost: fire", "c1")],
    ),
    "whose scores are old, with cordons": (
        row(freshness="stale", note="nothing for 9 s", cordoned="racks", cordoned_nodes=2),
        2.0,
        [
            Problem("note", "scores are stale: nothing for 9 s", "c1"),
            Problem("note", "cordoned: racks", "c1"),
            Problem("note", "2 nodes cordoned", "c1"),
        ],
    ),
}


@pytest.mark.parametrize("what", CLUSTERS)
def test_a_cluster(what: str) -> None:
    shown, interval_s, expected = CLUSTERS[what]
    assert list(of_cluster(shown, interval_s)) == expected


def test_letters_of_the_last_day_are_told_once_a_service() -> None:
    letters = {
        "scorer": (NOW_S - LETTERS_S - 1, "too old"),
        "resolver": (NOW_S - 60, "no such type"),
        "gateway": (NOW_S - LETTERS_S, "bad bytes"),
    }
    text = "{} could not handle a message, or deliver a letter (see `berth problems dead`)"
    assert list(of_letters(letters, NOW_S)) == [
        Problem("note", text.format("gateway"), "", NOW_S - LETTERS_S, "bad bytes"),
        Problem("note", text.format("resolver"), "", NOW_S - 60, "no such type"),
    ]


def test_the_page_tells_the_broken_first_and_nothing_that_may_name_what_is_others() -> None:
    known = Known()
    known.letters = {"resolver": (NOW_S - 60, "acme/secret-job: no such type")}
    known.damage = ("WORKLOADS ends at 7",)
    known.quality = {"all": (QualityReport(cell="all", decider="r", observed_at_s=0), NOW_S - 21)}
    services = [
        {"service": "gateway", "heard": False, "last_at_s": NOW_S - 30},
        {"service": "scorer", "heard": True, "last_at_s": NOW_S},
    ]
    found = problems(
        [row(cordoned="racks"), row(cluster="c2", lost="fire")], known, services, NOW_S
    )
    assert [(one["level"], one["cluster"], one["text"], one["since_s"]) for one in found] == [
        ("broken", "", f"WORKLOADS ends at 7; {REMEDY}", None),
        ("broken", "", "gateway does not answer", NOW_S - 30),
        ("broken", "", "the decider of cell all is silent", None),
        ("broken", "c2", "declared lost: fire", None),
        ("note", "c1", "cordoned: racks", None),
        (
            "note",
            "",
            "resolver could not handle a message, or deliver a letter (see `berth problems dead`)",
            NOW_S - 60,
        ),
    ]
    assert {tuple(one) for one in found} == {("level", "cluster", "text", "since_s")}

    many = [row(cluster=f"c{n}", cordoned="racks") for n in range(MOST)]
    found = problems([*many, row(cluster="last", lost="fire")], Known(), [], NOW_S)
    assert len(found) == MOST
    assert found[0]["cluster"] == "last"  # what is left out are notes


def test_the_screen_shows_one_a_line_its_detail_below_and_what_could_not_be_looked_at() -> None:
    found = [
        Problem("broken", "is silent", "c1"),
        Problem("note", "resolver could not read it", "", NOW_S - 90, "404 \x1b[31mred"),
    ]
    assert screen(problem_lines(found, ["streams: no answer within 5 s"], NOW_S)) == (
        "broken  c1: is silent\n"
        "note    resolver could not read it, 1m30s ago\n"
        "        404 \\x1b[31mred\n"
        "not looked at: streams: no answer within 5 s"
    )
    assert screen(problem_lines([], [], NOW_S)) == "No problems."
    assert screen(problem_lines([], ["streams: forbidden"], NOW_S)) == (
        "No problems were seen.\nnot looked at: streams: forbidden"
    )


def test_of_nodes_names_the_nodes_of_each_problem_once() -> None:
    odd = "labels count 8 GPUs and resources 4: the resources count"
    reports = [replace(node("c1", f"n{at}"), problems=(odd,)) for at in range(5)]
    reports += [node("c1", "n5"), replace(node("c1", "n6"), problems=("unlike", "alike"))]
    assert [one.text for one in of_nodes("c1", reports)] == [
        f"nodes n0, n1, n2 and 2 more: {odd}",
        "node n6: alike",
        "node n6: unlike",
    ]
    assert list(of_nodes("c1", [node("c1", "n1")])) == []


def test_of_nodes_tells_so_many_problems_of_a_cluster_and_counts_the_rest() -> None:
    reports = [replace(node("c1", "n1"), problems=tuple(f"problem {at:02}" for at in range(23)))]
    found = list(of_nodes("c1", reports))
    assert len(found) == 21
    assert found[-1] == Problem("note", "3 other problems of nodes", "c1")


class Stored(NamedTuple):
    fact: FleetFact
    stored_at_s: float = NOW_S


def test_used_share_leaves_out_what_no_pod_can_have() -> None:
    """An H100 in two slices of 3g: a seventh of it is cut into nothing."""
    report = node("c1", "n1", gpus=1)
    report = replace(report, gpus=(replace(report.gpus[0], withheld_milli=143),))
    score = ClusterScore(
        cluster="c1",
        stamp=Stamp(epoch=1, counter=1),
        freshness="fresh",
        input_age_s=0.0,
        free_gpus=0.857,
    )
    view = FleetView()
    for fact in (replace(profile("c1"), gpus={"H100": 1}), score, report, report):
        view.take(Stored(fact))
    (row,) = view.rows(NOW_S)
    assert row.withheld_gpus == 0.143
    assert row.used_share == pytest.approx(0.0)
    (shown,) = view.node_rows("c1")
    assert shown.gpu_milli_used == (0,)
    view.take(Stored(NodeGone(cluster="c1", node="n1", stamp=report.stamp, observed_at_s=0.0)))
    assert view.rows(NOW_S)[0].withheld_gpus == 0.0


def test_of_gpus_names_each_faulty_gpu_with_the_command_that_opens_it() -> None:
    view = FleetView()
    faulty = (
        ClosedGpu(index=3, fault="lost", since_s=90.0, reason="XID 79: the GPU has fallen off"),
        ClosedGpu(index=1, fault="throttled", since_s=95.0, reason="slowed down by heat"),
        ClosedGpu(index=0, fault="ecc", since_s=99.0, reason="2 uncorrected memory errors"),
    )
    score = ClusterScore(
        cluster="c1",
        stamp=Stamp(epoch=1, counter=1),
        freshness="fresh",
        input_age_s=0.0,
        closed_gpus={"n1": faulty},
    )
    view.take(Stored(score))
    opened = GpuCordon(cluster="c1", node="n1", gpu=0, cordoned=False, set_at_s=99.5)
    view.set_control([opened])
    how = "gets no new pods ({}) until it was well for a while, or: berth uncordon c1 n1 --gpu {}"
    assert list(of_gpus("c1", view.faulty_gpus("c1"))) == [
        Problem(
            "note",
            "GPU 1 of node n1 " + how.format("throttled: slowed down by heat", 1),
            "c1",
            95.0,
        ),
        Problem(
            "broken",
            "GPU 3 of node n1 " + how.format("lost: XID 79: the GPU has fallen off", 3),
            "c1",
            90.0,
        ),
    ]
    many = [(f"n{at}", faulty[0]) for at in range(23)]
    assert [one.text for one in of_gpus("c1", many)][20:] == [
        "3 other GPUs get no new pods: faulty"
    ]


def test_of_cordons_proposes_a_drain_of_nodes_that_fail_jobs() -> None:
    def cordon(node: str, **fields: object) -> Cordon:
        told = {"cluster": "c1", "node": node, "cordoned": True, "set_at_s": 50.0}
        return Cordon(**(told | fields))  # type: ignore[arg-type]

    reason = "3 jobs ended badly there within 60 min, and none succeeded since: acme/a exit"
    proposed = cordon("n1", set_by=FAILING_NODE_BY, reason=reason)
    others = [cordon("n2", set_by="eve"), cordon("n3", set_by=FAILING_NODE_BY, drain=True)]
    assert list(of_cordons([*others, proposed])) == [
        Problem(
            "note",
            "node n1 fails jobs of several owners and gets nothing new; to move away what runs "
            "there: berth drain c1 n1",
            "c1",
            50.0,
            reason,
        )
    ]
