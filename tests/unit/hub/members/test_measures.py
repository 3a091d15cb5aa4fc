"""What KubeFleet's MemberCluster tells: properties as of their time, room, taints and health."""

from typing import Any

import msgspec
import pytest

from berthmaster.hub.members.core.measures import measures
from berthmaster.hub.members.core.membership import HubKind, HubMembership
from berthmaster.hub.members.core.objects import MemberCluster
from berthmaster.lib.kube.controller.problems import Problem
from berthmaster.lib.kube.mirror import Added, Deleted, Listed, Updated
from berthmaster.lib.messages.fleet import Amounts, HubRoom, Membership, Taint
from berthmaster.lib.nats import subjects
from tests.unit.hub.members.objects import managed_cluster
from tests.unit.worker.inventory.objects import FALSE, NOW_S, STAMP, condition

AT: Any = "2026-11-25T00:10:00Z"
AT_S = 1_795_565_400.0
COST = "kubernetes.azure.com/per-cpu-core-cost"
NODES = "kubernetes-fleet.io/node-count"
EAST = subjects.membership("east")


def member(
    properties: dict[str, tuple[str, Any]] | None = None,
    *,
    available: dict[str, Any] | None = None,
    observed: Any = AT,
    **spec: Any,
) -> MemberCluster:
    usage = {
        "allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": 8, "pods": "110"},
        "available": available,
        "observationTime": observed,
    }
    told = {name: {"value": v, "observationTime": t} for name, (v, t) in (properties or {}).items()}
    conditions = spec.pop("conditions", [])
    return msgspec.convert(
        {
            "metadata": {"name": "east", "labels": {"region": "eu"}},
            "spec": spec,
            "status": {
                "properties": told,
                "resourceUsage": usage if available is not None else None,
                "conditions": conditions,
            },
        },
        MemberCluster,
    )


def told(hub: HubMembership) -> Membership:
    fact = hub.fact(EAST, STAMP, NOW_S)
    assert fact is not None
    assert isinstance(fact[0], Membership)
    return fact[0]


def test_room_is_what_is_available_of_what_is_allocatable_as_of_its_observation() -> None:
    left = {"cpu": "1500m", "memory": "100Gi", "nvidia.com/gpu": "3", "amd.com/gpu": "1"}
    found = measures(member(available=left, heartbeatPeriodSeconds=30))
    assert found.room == HubRoom(
        allocatable=Amounts(cpu_milli=64_000, memory_mib=512 * 1024, gpu_milli=8000),
        available=Amounts(cpu_milli=1500, memory_mib=100 * 1024, gpu_milli=4000),
        observed_at_s=AT_S,
        interval_s=30.0,
    )
    assert found.problems == []


@pytest.mark.parametrize(
    ("available", "observed", "why"),
    [
        ({"cpu": "-1"}, AT, "resourceUsage: '-1' is negative, which no resource can be"),
        ({"cpu": "many"}, AT, "resourceUsage: 'many' is no quantity"),
        ({"cpu": "1"}, None, "resourceUsage: no observationTime, but None"),
        ({"cpu": "1"}, "today", "resourceUsage: no observationTime, but 'today'"),
    ],
)
def test_half_of_an_amount_or_one_of_no_time_is_none(
    available: dict[str, Any], observed: Any, why: str
) -> None:
    found = measures(member(available=available, observed=observed))
    assert found.room is None
    [problem] = found.problems
    assert problem.startswith(why)


def test_a_property_that_lags_three_heartbeats_behind_is_no_longer_told() -> None:
    early = "2026-11-25T00:06:59Z"
    found = measures(member({NODES: ("4", AT), COST: ("0.07", early), "odd": ("1", "never")}))
    assert [(each.name, each.value) for each in found.properties] == [(NODES, "4")]
    assert found.problems == ["2 properties left out: not observed for 3 heartbeats"]
    slow = measures(member({NODES: ("4", AT), COST: ("0.07", early)}, heartbeatPeriodSeconds=120))
    assert [each.name for each in slow.properties] == [NODES, COST]
    # None of them has any time: then none is older than another.
    assert len(measures(member({NODES: ("4", None), COST: ("1", None)})).properties) == 2


def test_a_member_is_told_with_what_the_hub_knows_of_it_otherwise() -> None:
    hub = HubMembership()
    hub.take(HubKind.MANAGED, Added(managed_cluster("east", labels={"gpu": "t4"})))
    taints = [{"key": "drain", "effect": "NoSchedule"}, {"key": "odd", "effect": "NoSelect"}]
    sick = condition("Healthy", FALSE, "NoHeartbeat", "no heartbeat")
    found = member({NODES: ("4", AT)}, available={"cpu": "1"}, taints=taints, conditions=[sick])
    hub.take(HubKind.MEMBERS, Added(found))
    assert hub.changes() == {EAST: True}
    both = told(hub)
    assert (both.labels, both.properties) == ({"gpu": "t4", "region": "eu"}, {NODES: "4"})
    assert both.taints == (Taint(key="drain"),)
    assert (both.healthy, both.reason) == (False, "Healthy: no heartbeat")
    assert both.sources == ("ManagedCluster", "MemberCluster")
    assert both.room is not None
    assert both.room.available == Amounts(cpu_milli=1000)
    assert hub.problems.take_new() == [
        Problem("cluster", "east", "taint odd: unknown effect 'NoSelect'")
    ]

    # Each observation is news; without any it has no room.
    later = member({NODES: ("4", AT)}, available={"cpu": "1"}, observed="2026-11-25T00:11:00Z")
    hub.take(HubKind.MEMBERS, Updated(later, found))
    assert told(hub).room == msgspec.structs.replace(both.room, observed_at_s=AT_S + 60)
    hub.take(HubKind.MEMBERS, Deleted(later, later))
    assert told(hub).room is None
    assert told(hub).sources == ("ManagedCluster",)


def test_what_an_earlier_life_told_is_gone_once_all_kinds_are_listed() -> None:
    hub = HubMembership()
    hub.earlier([Membership(cluster="east", stamp=STAMP, observed_at_s=NOW_S)])
    for kind in (HubKind.PROFILES, HubKind.MANAGED):
        hub.take(kind, Listed("1"))
        assert hub.changes() == {}
    hub.take(HubKind.MEMBERS, Listed("1"))
    assert hub.changes() == {EAST: True}
    assert told(hub).gone
