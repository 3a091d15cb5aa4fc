"""The rows of all clusters beside their slow twin: one cluster's view after the other."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from berthmaster.lib.engine.fleet.clusters import Clusters
from berthmaster.lib.engine.scoring.cluster_table import NOTES_KEPT, ClusterTable
from berthmaster.lib.messages.fleet import ClusterScore, Membership, Stamp, Taint
from tests.support.builders import profile

NAMES = ["a", "b", "c", "d"]
STALE_S, AVOID_S = 10.0, 30.0
STAMP = Stamp(epoch=1, counter=1)
names = st.sampled_from(NAMES)


class Beside(RuleBasedStateMachine):
    """Whatever is told of clusters in whatever order, rows and views say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clusters = Clusters()
        self.roster = ClusterTable()
        self.with_nodes = ["a", "b"]
        self.layout = 1
        self.now_s = 1000.0

    @rule(name=names)
    def is_alive(self, name: str) -> None:
        self.clusters.get(name).alive_at_s = self.now_s

    @rule(name=names, reason=st.sampled_from([None, "", "firmware"]))
    def cordon(self, name: str, reason: str | None) -> None:
        self.clusters.get(name).cordoned = reason

    @rule(name=names, lost=st.booleans())
    def lose(self, name: str, lost: bool) -> None:
        self.clusters.get(name).lost = lost

    @rule(name=names, at=st.none() | st.floats(-40, 0))
    def unclaimed(self, name: str, at: float | None) -> None:
        self.clusters.left_unclaimed(name, None if at is None else self.now_s + at)

    @rule(
        name=names,
        freshness=st.sampled_from(["fresh", "stale", "withdrawn"]),
        idle=st.none() | st.floats(0, 100),
        calm=st.none() | st.floats(0, 100),
    )
    def score(self, name: str, freshness: str, idle: float | None, calm: float | None) -> None:
        self.clusters.get(name).score = ClusterScore(
            cluster=name,
            stamp=STAMP,
            freshness=freshness,  # type: ignore[arg-type]
            input_age_s=0.0,
            idle_gpu_percent=idle,
            calm_gpu_percent=calm,
        )

    @rule(name=names, tainted=st.booleans(), region=st.sampled_from(["north", "south"]))
    def profile(self, name: str, tainted: bool, region: str) -> None:
        taints = (Taint(key="spot"),) if tainted else ()
        self.clusters.get(name).profile = profile(name, labels={"region": region}, taints=taints)

    @rule(name=names, healthy=st.none() | st.booleans(), gone=st.booleans())
    def membership(self, name: str, healthy: bool | None, gone: bool) -> None:
        fact = Membership(
            cluster=name, stamp=STAMP, observed_at_s=0.0, healthy=healthy, gone=gone,
            properties={"price": "1"},
        )  # fmt: skip
        self.clusters.get(name).take_membership(fact)

    @rule(with_nodes=st.sets(names))
    def nodes(self, with_nodes: set[str]) -> None:
        self.with_nodes = sorted(with_nodes)
        self.layout += 1

    @rule(by_s=st.sampled_from([0.5, 9.5, 10.0, 31.0]))
    def wait(self, by_s: float) -> None:
        self.now_s += by_s

    @invariant()
    def same(self) -> None:
        roster, clusters = self.roster, self.clusters
        roster.follow(clusters, self.with_nodes, self.layout)
        seen = roster.at(self.now_s, stale_after_s=STALE_S, avoid_s=AVOID_S)
        views = [
            clusters.view(name, self.now_s, stale_after_s=STALE_S, avoid_s=AVOID_S)
            for name in self.with_nodes
        ]
        assert roster.names == self.with_nodes
        assert seen.age_s.tolist() == [view.age_s for view in views]
        assert seen.closed == {n: view.closed for n, view in enumerate(views) if view.closed}
        assert list(seen.closed) == sorted(seen.closed)
        assert roster.open == {view.name for view in views if not view.closed}
        found = [None if math.isnan(each) else each for each in roster.idle.tolist()]
        assert found == [view.idle_percent for view in views]
        known = {cluster.name: cluster for cluster in clusters.known()}
        fresh = [known[name].fresh_score for name in self.with_nodes]
        calm = [None if math.isnan(each) else each for each in roster.calm.tolist()]
        assert calm == [score.calm_gpu_percent if score is not None else None for score in fresh]
        assert roster.told == [known[name].tells for name in self.with_nodes]
        assert roster.tainted == any(known[name].taints for name in self.with_nodes)
        assert roster.without_nodes == [
            name for name in sorted(known) if known[name].profile and name not in self.with_nodes
        ]
        assert roster.note("labels", lambda: list(roster.told)) == roster.told


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_notes_are_kept_until_a_cluster_is_another_and_are_bounded() -> None:
    clusters, roster = Clusters(), ClusterTable()
    clusters.get("a").alive_at_s = 1.0
    roster.follow(clusters, ["a"], 1)
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [roster.note("x", make), roster.note("x", make)] == [1, 1]
    clusters.get("a").alive_at_s = 2.0  # which nothing that is noted follows from
    roster.follow(clusters, ["a"], 1)
    assert roster.note("x", make) == 1
    clusters.get("a").profile = profile("a")
    roster.follow(clusters, ["a"], 1)
    assert roster.note("x", make) == 2
    for number in range(NOTES_KEPT + 5):
        roster.note(number, make)
    assert len(roster.notes) <= NOTES_KEPT


def test_what_a_property_says_goes_over_a_label_and_the_hub_over_the_cluster() -> None:
    cluster = Clusters().get("a")
    assert cluster.tells == {}
    cluster.profile = profile("a", labels={"x": "own", "y": "own", "z": "own"})
    cluster.membership = Membership(
        cluster="a",
        stamp=STAMP,
        observed_at_s=0.0,
        labels={"y": "hub", "z": "hub"},
        properties={"z": "said"},
    )
    assert cluster.tells == {"x": "own", "y": "hub", "z": "said"}
