import pytest

from berthmaster.hub.members.core.membership import HubKind, HubMembership
from berthmaster.lib.kube.controller.problems import Problem
from berthmaster.lib.kube.mirror import Added, Deleted, Listed, Unreadable, Updated
from berthmaster.lib.kube.wire import Undecodable
from berthmaster.lib.messages.fleet import Membership, Taint
from berthmaster.lib.nats import subjects
from tests.unit.hub.members.objects import cluster_profile, managed_cluster
from tests.unit.worker.inventory.objects import FALSE, NOW_S, STAMP, UNKNOWN, Json, condition

EAST = subjects.membership("east")
AVAILABLE = condition("ManagedClusterConditionAvailable")
HEALTHY = condition("ControlPlaneHealthy")


def told(hub: HubMembership) -> Membership:
    fact = hub.fact(EAST, STAMP, NOW_S)
    assert fact is not None
    assert isinstance(fact[0], Membership)
    return fact[0]


def membership(**more: object) -> Membership:
    return Membership(cluster="east", stamp=STAMP, observed_at_s=NOW_S, **more)  # type: ignore[arg-type]


def test_a_profile_and_a_managed_cluster_of_one_name_are_one_membership() -> None:
    hub = HubMembership()
    profile = cluster_profile(
        "east",
        labels={"region": "eu", "tier": "old"},
        properties={"gpu": "t4", "zone": "a"},
        conditions=[HEALTHY],
        version="v1.36.3",
    )
    hub.take(HubKind.PROFILES, Added(profile))
    assert hub.changes() == {EAST: True}
    assert told(hub) == membership(
        labels={"region": "eu", "tier": "old"},
        properties={"gpu": "t4", "kubernetes-version": "v1.36.3", "zone": "a"},
        healthy=True,
        sources=("ClusterProfile",),
    )
    managed = managed_cluster(
        "east",
        labels={"tier": "gold"},
        taints=[
            {"key": "drain", "value": "now", "effect": "NoSelect"},
            {"key": "new", "effect": "NoSelectIfNew"},
            {"key": "soft", "effect": "PreferNoSelect"},
        ],
        claims={"zone": "b"},
        conditions=[AVAILABLE],
    )
    hub.take(HubKind.MANAGED, Added(managed))
    assert hub.changes() == {EAST: True}
    assert told(hub) == membership(
        labels={"region": "eu", "tier": "gold"},
        taints=(
            Taint(key="drain", value="now"),
            Taint(key="new"),
            Taint(key="soft", effect="PreferNoSchedule"),
        ),
        properties={"gpu": "t4", "kubernetes-version": "v1.36.3", "zone": "b"},
        healthy=True,
        sources=("ClusterProfile", "ManagedCluster"),
    )
    # Told again unchanged, it is no change; the one gone, the other is left; both gone, nothing.
    hub.take(HubKind.MANAGED, Updated(managed, managed))
    assert hub.changes() == {}
    hub.take(HubKind.MANAGED, Deleted(managed, managed))
    assert (hub.changes(), told(hub).sources) == ({EAST: True}, ("ClusterProfile",))
    hub.take(HubKind.PROFILES, Deleted(profile, profile))
    assert hub.changes() == {EAST: True}
    assert hub.fact(EAST, STAMP, NOW_S) == (membership(gone=True), 7 * 86_400.0)
    assert list(hub.everything()) == []


@pytest.mark.parametrize(
    ("conditions", "accepted", "healthy", "reason"),
    [
        ([AVAILABLE], True, True, ""),
        ([], True, None, ""),
        ([AVAILABLE], False, False, "the hub has not accepted it"),
        (
            [condition("ManagedClusterConditionAvailable", FALSE, "Down", "its API is down")],
            True,
            False,
            "ManagedClusterConditionAvailable: its API is down",
        ),
        (
            [condition("ManagedClusterConditionAvailable", UNKNOWN, "LeaseUpdateStopped")],
            True,
            None,
            "ManagedClusterConditionAvailable: LeaseUpdateStopped",
        ),
    ],
)
def test_health_is_what_the_hub_says_and_unknown_where_it_does_not_know(
    conditions: list[Json], accepted: bool, healthy: bool | None, reason: str
) -> None:
    hub = HubMembership()
    hub.take(
        HubKind.MANAGED, Added(managed_cluster("east", conditions=conditions, accepted=accepted))
    )
    assert (told(hub).healthy, told(hub).reason) == (healthy, reason)


def test_one_source_that_says_no_outweighs_one_that_says_yes() -> None:
    hub = HubMembership()
    sick = condition("ControlPlaneHealthy", FALSE, "Timeout", "no answer")
    hub.take(HubKind.PROFILES, Added(cluster_profile("east", conditions=[sick])))
    hub.take(HubKind.MANAGED, Added(managed_cluster("east", conditions=[AVAILABLE])))
    assert (told(hub).healthy, told(hub).reason) == (False, "ControlPlaneHealthy: no answer")


def test_absurd_properties_are_cut_and_a_property_says_how() -> None:
    hub = HubMembership()
    absurd = {f"p{n:04}": "x" for n in range(3000)} | {"p0001": "y" * 5000}
    hub.take(HubKind.PROFILES, Added(cluster_profile("east", properties=absurd, version="v1.36.3")))
    properties = told(hub).properties
    why = "2801 of 3001 properties left out; 1 values cut to 1024 characters"
    assert len(properties) == 201
    assert properties["kubernetes-version"] == "v1.36.3"
    assert (properties["p0000"], properties["p0001"]) == ("x", "y" * 1024)
    assert properties["berthmaster.io/cut"] == why
    assert hub.problems.take_new() == [Problem("cluster", "east", why)]
    # All of them long: together they must still fit into a message.
    long = {f"q{n:03}": "z" * 1024 for n in range(150)}
    hub.take(HubKind.PROFILES, Added(cluster_profile("east", properties=long)))
    assert sum(len(value) for value in told(hub).properties.values()) <= 64 * 1024
    assert told(hub).properties["berthmaster.io/cut"] == "87 of 150 properties left out"


def test_what_we_have_written_there_ourselves_is_no_news() -> None:
    hub = HubMembership()
    hub.take(HubKind.PROFILES, Added(cluster_profile("east", properties={"zone": "a"})))
    hub.take(HubKind.MANAGED, Added(managed_cluster("east", claims={"id": "x"})))
    assert hub.changes() == {EAST: True}
    scores = {"berthmaster.io/gpu-free": "7", "berthmaster.io/score.gpuIdle": "3"}
    claims = {"gpu-free.berthmaster.io": "7", "score-freshness.berthmaster.io": "fresh"}
    profile = cluster_profile("east", properties={"zone": "a"} | scores)
    managed = managed_cluster("east", claims={"id": "x"} | claims)
    hub.take(HubKind.PROFILES, Updated(profile, profile))
    hub.take(HubKind.MANAGED, Updated(managed, managed))
    assert hub.changes() == {}
    assert told(hub).properties == {"id": "x", "zone": "a"}


def test_what_cannot_be_right_is_told_and_the_rest_counts() -> None:
    hub = HubMembership()
    odd = [{"key": "a", "effect": "Never"}, {"key": "b", "effect": "NoSelect"}]
    hub.take(HubKind.MANAGED, Added(managed_cluster("east", taints=odd)))
    assert told(hub).taints == (Taint(key="b"),)
    hub.take(HubKind.PROFILES, Added(cluster_profile("east", namespace="a", labels={"x": "1"})))
    hub.take(HubKind.PROFILES, Added(cluster_profile("east", namespace="b", labels={"x": "2"})))
    assert told(hub).labels == {"x": "1"}
    bad = Undecodable("fleet", "west", "7", "expected `str`, got `int`")
    hub.take(HubKind.PROFILES, Unreadable(bad, None))
    assert hub.problems.take_new() == [
        Problem("cluster", "east", "taint a: unknown effect 'Never'"),
        Problem("clusterprofiles", "a/east", "1 more of this name; only that in a counts"),
        Problem("unreadable clusterprofiles", "fleet/west", "expected `str`, got `int`"),
    ]
    hub.unreadable(HubKind.PROFILES, [])
    assert hub.problems.count() == {"cluster": 1, "clusterprofiles": 1}


def test_clusters_of_earlier_lives_are_gone_once_all_was_listed() -> None:
    hub = HubMembership()
    hub.earlier([membership(), Membership(cluster="west", stamp=STAMP, observed_at_s=1.0)])
    hub.take(HubKind.PROFILES, Added(cluster_profile("east")))
    hub.take(HubKind.PROFILES, Listed("5"))
    assert hub.changes() == {EAST: True}
    hub.listed(HubKind.MEMBERS)  # the hub serves no such kind
    assert hub.changes() == {}
    hub.listed(HubKind.MANAGED)
    assert hub.changes() == {subjects.membership("west"): True}
    hub.listed(HubKind.MANAGED)
    assert hub.changes() == {}
