"""Rows of clusters: a cluster with two names counts once, and says so."""

from typing import NamedTuple

from msgspec.structs import replace

from berthmaster.cli.fleet.screen import clusters
from berthmaster.control.dashboard.core.figures import fleet_document
from berthmaster.lib.engine.fleetview.fleet_problems import Problem, of_cluster
from berthmaster.lib.engine.fleetview.rows import ClusterRow, FleetView
from berthmaster.lib.messages.control import ClusterLost
from berthmaster.lib.messages.fleet import ClusterScore, FleetFact, Freshness, Stamp, UnlistedKind
from tests.support.builders import alive, profile
from tests.unit.cli.screens import screen

NOW_S = 200_000.0
KUEUE = UnlistedKind(
    kind="workloads.kueue.x-k8s.io", why="conversion webhook failed (500)", since_s=NOW_S - 120.0
)


class Seen(NamedTuple):
    fact: FleetFact
    stored_at_s: float = NOW_S


def two_names(lost: bool = False) -> list[ClusterRow]:
    """One API server with eight GPUs, as `east` and, later, as `copy`."""
    view = FleetView()
    for name, since_s in (("east", 1.0), ("copy", 2.0)):
        told = replace(profile(name), uid="5c1e", uid_since_s=since_s, nodes=2, gpus={"T4": 8})
        freshness: Freshness = "fresh"
        score = ClusterScore(
            cluster=name,
            stamp=Stamp(epoch=1, counter=1),
            freshness=freshness,
            input_age_s=0.0,
            free_gpus=8.0,
        )
        for fact in (told, alive(name), score):
            view.take(Seen(fact))
    if lost:
        view.set_control([ClusterLost(cluster="east", lost=True, reason="renamed")])
    return view.rows(NOW_S)


def test_gpus_of_a_server_with_two_names_are_counted_once() -> None:
    copy, east = two_names()
    assert (east.cluster, east.gpus, east.nodes, east.free_gpus, east.same_as) == (
        "east",
        8,
        2,
        8.0,
        "",
    )
    assert (copy.gpus, copy.nodes, copy.free_gpus, copy.same_as) == (0, 0, None, "east")
    totals = fleet_document((copy, east), {})
    assert (totals["clusters"], totals["nodes"], totals["models"]) == (1, 2, {"T4": 8})
    shown = screen(clusters((copy, east)))
    assert "1 cluster, 2 nodes, 8 GPUs, 8 free" in shown
    assert "copy is the API server of east, which counts" in shown
    [problem] = of_cluster(copy, 1.0)
    assert (problem.level, problem.cluster) == ("broken", "copy")
    assert problem.text.startswith("is the API server of cluster east, which counts")
    assert list(of_cluster(east, 1.0)) == []


def test_second_name_counts_once_the_first_is_declared_lost() -> None:
    copy, east = two_names(lost=True)
    assert (copy.same_as, copy.gpus, east.lost) == ("", 8, "renamed")


def test_kind_that_cannot_be_listed_is_a_problem_with_its_words_and_time() -> None:
    view = FleetView()
    view.take(Seen(replace(profile("east"), unlisted=(KUEUE,))))
    view.take(Seen(alive("east")))
    [row] = view.rows(NOW_S)
    assert list(of_cluster(row, 1.0)) == [
        Problem(
            "broken",
            "its API server cannot list workloads.kueue.x-k8s.io, so what is known of them may "
            "be old",
            "east",
            NOW_S - 120.0,
            "conversion webhook failed (500)",
        )
    ]
    assert "its API server cannot list workloads.kueue.x-k8s.io: conv" in screen(clusters([row]))
