"""What is found out for one request is right for each other that shares its key."""

import ast
import inspect
from types import ModuleType
from typing import Any

import msgspec
import pytest

from berthmaster.lib.engine.fleet import needs
from berthmaster.lib.engine.fleet.needs import Asks, Shape, Suitables, kind_of, shape_of
from berthmaster.lib.engine.fleetview import filters
from berthmaster.lib.messages.workload import JobRequest, PodSet, Toleration, Topology
from tests.support.builders import job, node, pod_set, profile
from tests.support.deciding import World

OTHERS: dict[str, Any] = {
    "pod_sets": (pod_set(gpus=2),),
    "clusters": ("c1",),
    "cluster_labels": {"tier": "gold"},
}


def test_every_field_of_asks_is_part_of_the_key() -> None:
    usual = shape_of(job("usual"))
    assert set(OTHERS) == set(Asks._fields)
    for name, value in OTHERS.items():
        assert Shape(usual.asks._replace(**{name: value})).key != usual.key, name
    changed = msgspec.structs.replace(
        job("other"), priority=5, queue="q", max_evictions=1, weights={"fit": 1.0}
    )
    assert shape_of(changed).key == usual.key


@pytest.mark.parametrize("module", [filters, needs], ids=lambda module: module.__name__)
def test_no_filter_receives_a_whole_request(module: ModuleType) -> None:
    """Else it could read what the key does not tell. The maker of shapes alone gets one."""
    tree = ast.parse(inspect.getsource(module))
    readers = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for arg in [*function.args.args, *function.args.kwonlyargs]
        if arg.annotation is not None and "JobRequest" in ast.unparse(arg.annotation)
    ]
    assert readers in ([], ["shape_of", "gpu_milli"])


def filtered(world: World, request: JobRequest, *, by_hub: bool = False) -> dict[str, str]:
    know = world.resolver.know
    snapshot = know.snapshot(world.policy, world.now_s, renew=False)
    shape = shape_of(request)
    return filters.filtered_for(know.view, snapshot, shape, by_hub=by_hub).why


def test_filtered_clusters_depend_on_who_makes_the_pods() -> None:
    """Two pod sets need JobSets where we make the object, and nothing where a hub copies it."""
    world = World()
    plain = msgspec.structs.replace(profile("c1"), job_kinds=("Job",))
    world.fact(plain, node("c1"))
    two = job("two", pod_sets=(pod_set(name="a"), pod_set(name="b")))
    for by_hub in (False, True, False):
        why = filtered(world, two, by_hub=by_hub).get("c1", "")
        assert (why == filters.NO_JOB_SETS) is not by_hub


def test_filtered_clusters_follow_each_field_of_asks() -> None:
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
    assert filtered(world, job("a", clusters=("c2",)))["c1"] == filters.NOT_ASKED
    assert filtered(world, job("b", cluster_labels={"tier": "gold"}))["c2"] == filters.NO_LABELS


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
        key, told = suitables.kind(Shape(Asks((PodSet(name="first"), pods))), 1)
        assert key == kind_of(pods) == kind_of(told)
        assert found.setdefault(key, told) == told, number
    assert len(found) == len(PODS) - 2
