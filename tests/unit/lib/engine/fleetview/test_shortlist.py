"""What is found out for one request is right for each other that shares its key."""

import inspect
from typing import Any

import msgspec
import pytest

from berthmaster.lib.engine.fleet import needs
from berthmaster.lib.engine.fleet.cluster_filters import (
    FILTERS,
    NO_JOB_SETS,
    NO_LABELS,
    NOT_ASKED,
    READS,
    ClusterFilter,
    fields_read,
)
from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleet.needs import Shape, Suitables, kind_of, shape_of
from berthmaster.lib.engine.fleetview import shortlist
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest, PodSet, Toleration, Topology
from tests.support.builders import job, node, pod_set, profile
from tests.support.deciding import World

OTHERS: dict[str, Any] = {
    "pod_sets": (pod_set(gpus=2),),
    "clusters": ("c1",),
    "cluster_labels": {"tier": "gold"},
}


def test_key_of_a_shape_has_every_field_that_filters_read() -> None:
    usual = shape_of(job("usual"))
    assert set(OTHERS) == set(READS)
    for name, value in OTHERS.items():
        assert shape_of(msgspec.structs.replace(job("other"), **{name: value})).key != usual.key
    changed = msgspec.structs.replace(
        job("other"), priority=5, queue="q", max_evictions=1, weights={"fit": 1.0}
    )
    assert shape_of(changed).key == usual.key


@pytest.mark.parametrize("row", FILTERS, ids=lambda row: row.why_not.__name__)
def test_filter_takes_the_fields_that_it_declares(row: ClusterFilter) -> None:
    cluster, via, *fields = inspect.signature(row.why_not).parameters.values()
    assert (cluster.annotation, via.annotation) == (Cluster, Via)
    assert tuple(each.name for each in fields) == row.reads
    assert set(row.reads) <= set(JobRequest.__struct_fields__)


def why_not_urgent(_cluster: Cluster, _via: Via, priority: int) -> str:
    return "takes urgent jobs only" if priority < 5 else ""


def test_a_filter_of_another_field_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, urgent = job("usual"), job("urgent", priority=5)
    assert shape_of(usual).key == shape_of(urgent).key
    rows = (*FILTERS, ClusterFilter(("priority",), why_not_urgent))
    monkeypatch.setattr(shortlist, "FILTERS", rows)
    monkeypatch.setattr(needs, "READS", fields_read(rows))
    assert shape_of(usual).key != shape_of(urgent).key
    world = World()
    world.fact(profile("c1"), node("c1"))
    for request, why in ((usual, "takes urgent jobs only"), (urgent, "silent")):
        assert filtered(world, request)["c1"].startswith(why)


def test_a_filter_of_an_undeclared_field_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.fact(profile("c1"), node("c1"))
    monkeypatch.setattr(shortlist, "FILTERS", (ClusterFilter((), why_not_urgent),))
    with pytest.raises(TypeError, match="priority"):
        filtered(world, job("usual"))
    monkeypatch.setattr(shortlist, "FILTERS", (ClusterFilter(("priority",), why_not_urgent),))
    with pytest.raises(KeyError, match="priority"):  # the key was made of other rows
        filtered(world, job("usual"))


def filtered(world: World, request: JobRequest, *, by_hub: bool = False) -> dict[str, str]:
    know = world.resolver.know
    snapshot = know.snapshot(world.policy, world.now_s, renew=False)
    shape = shape_of(request)
    return shortlist.filtered_for(know.view, snapshot, shape, by_hub=by_hub).why


def test_filtered_clusters_depend_on_who_makes_the_pods() -> None:
    """Two pod sets need JobSets where we make the object, and nothing where a hub copies it."""
    world = World()
    plain = msgspec.structs.replace(profile("c1"), job_kinds=("Job",))
    world.fact(plain, node("c1"))
    two = job("two", pod_sets=(pod_set(name="a"), pod_set(name="b")))
    for by_hub in (False, True, False):
        why = filtered(world, two, by_hub=by_hub).get("c1", "")
        assert (why == NO_JOB_SETS) is not by_hub


def test_filtered_clusters_follow_each_field() -> None:
    world = World()
    for name, labels in (("c1", {"tier": "gold"}), ("c2", {})):
        world.fact(profile(name, labels=labels), node(name))
    out = {
        name: {cluster for cluster, why in filtered(world, each).items() if why != "silent"}
        for name, each in {
            "usual": job("usual"),
            "clusters": job("a", clusters=("c2",)),
            "labels": job("b", cluster_labels={"tier": "gold"}),
        }.items()
    }
    assert out["clusters"] - out["usual"] <= {"c1"}
    assert filtered(world, job("a", clusters=("c2",)))["c1"] == NOT_ASKED
    assert filtered(world, job("b", cluster_labels={"tier": "gold"}))["c2"] == NO_LABELS


# Pods of one kind share a card, and pods that differ in CPU and memory alone the nodes that suit.

PODS = (
    PodSet(gpus=1),
    PodSet(gpus=1, count=4, name="other", prefer_gpu_models=("T4",)),
    PodSet(gpus=1, min_count=1, max_count=8, topology=Topology(max_pods_a_node=1)),
    PodSet(gpus=1, cpu_milli=5, memory_mib=7),
    PodSet(gpus=1, gpu_milli=250),
    PodSet(gpus=1, gpu_models=("T4",)),
    PodSet(gpus=1, node_labels={"a": "b"}),
    PodSet(gpus=1, tolerations=(Toleration(key="gpu"),)),
    PodSet(gpus=2, topology=Topology(gpu_domain="required")),
)


def test_pods_of_a_key_are_all_that_the_key_tells() -> None:
    suitables = Suitables()
    found: dict[bytes, PodSet] = {}
    for number, pods in enumerate(PODS):
        key, told = suitables.kind(Shape({"pod_sets": (PodSet(name="first"), pods)}), 1)
        assert key == kind_of(pods) == kind_of(told)
        assert found.setdefault(key, told) == told, number
    assert len(found) == len(PODS) - 2
