"""Fitting against its slow, obviously right twin."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.fitting.fit import bind_gang
from berthmaster.lib.engine.fleet.cluster_filters import tolerates
from berthmaster.lib.engine.fleet.fleet import Fleet, Holding
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.engine.scoring.value import NOT_HERE, pick_gpus, score_all, worth_of
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import NodeReport, Taint
from berthmaster.lib.messages.workload import PodSet, Toleration
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import UNHURRIED, mixed

MODELS = ("A100", "T4")


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    fleet = Fleet()
    for index in range(draw(st.integers(1, 6))):
        gpus = draw(st.integers(0, 4))
        report = node(
            draw(st.sampled_from(["c1", "c2"])),
            f"n{index}",
            gpus=gpus,
            model=draw(st.sampled_from(MODELS)),
            memory_mib=draw(st.sampled_from([16_384, 81_920])),
            cpu_milli=draw(st.integers(0, 8)) * 1000,
            node_memory_mib=draw(st.integers(0, 8)) * 1024,
            foreign_milli=tuple(draw(st.integers(0, 1000)) for _ in range(gpus)),
            unhealthy=tuple(draw(st.sets(st.integers(0, 3), max_size=2))),
            schedulable=draw(st.booleans()),
            taints=draw(st.sampled_from([(), (Taint(key="spot"),)])),
            labels=draw(st.sampled_from([{}, {"zone": "a"}])),
        )
        fleet.put_node(mixed(report) if draw(st.booleans()) else report)
    fleet.arrange()
    return fleet


@st.composite
def pods(draw: st.DrawFn) -> PodSet:
    gpus = draw(st.integers(0, 3))
    return pod_set(
        gpus=gpus,
        gpu_milli=draw(st.integers(1, 1000)) if gpus == 1 else 1000,
        cpu_milli=draw(st.integers(0, 6)) * 1000,
        memory_mib=draw(st.integers(0, 6)) * 1024,
        gpu_models=draw(st.sampled_from([(), ("T4",), MODELS])),
        gpu_memory_mib=draw(st.sampled_from([0, 40_000])),
        node_labels=draw(st.sampled_from([{}, {"zone": "a"}])),
        tolerations=draw(st.sampled_from([(), (Toleration(operator="Exists"),)])),
    )


def has_room(report: NodeReport, used: list[Holding], need: PodSet) -> bool:
    """Return whether one more pod of the set fits on a node."""
    free = {
        g.index: 1000
        - g.foreign_milli
        - sum(
            max(h.gpu_milli, math.ceil(1000 * h.gpu_memory_mib / g.memory_mib))
            if h.gpu_milli < 1000
            else h.gpu_milli
            for h in used
            if g.index in h.gpus
        )
        for g in report.gpus
        if g.healthy
    }
    cpu = report.allocatable.cpu_milli - report.foreign.cpu_milli - sum(h.cpu_milli for h in used)
    memory = report.allocatable.memory_mib - sum(h.memory_mib for h in used)
    if not (report.ready and report.schedulable) or cpu < need.cpu_milli:
        return False
    if memory < need.memory_mib or not need.node_labels.items() <= report.labels.items():
        return False
    if not all(tolerates(need.tolerations, taint) for taint in report.taints):
        return False
    acceptable = {
        g.index: free[g.index]
        for g in report.gpus
        if g.index in free
        and (not need.gpu_models or g.model in need.gpu_models)
        and g.memory_mib >= need.gpu_memory_mib
    }
    if not need.gpus:
        return True
    if need.gpu_milli < 1000:
        # A part is as large as its memory asks for, if that is more.
        memories = [g.memory_mib for g in report.gpus if g.memory_mib >= need.gpu_memory_mib]
        part = need.gpu_milli
        if need.gpu_memory_mib and memories:
            part = max(part, math.ceil(1000 * need.gpu_memory_mib / min(memories)))
        return any(milli >= part for milli in acceptable.values())
    return sum(milli >= 1000 for milli in acceptable.values()) >= need.gpus


@UNHURRIED
@given(fleets(), pods())
def test_score_all_scores_the_nodes_that_have_room(fleet: Fleet, need: PodSet) -> None:
    scores = score_all(fleet, need, suitable_nodes(fleet, need), worth_of(()))
    room = [has_room(report, [], need) for report in fleet.reports()]
    assert (scores > NOT_HERE).tolist() == room


@UNHURRIED
@given(fleets(), pods())
def test_chosen_gpus_are_acceptable_and_have_the_room(fleet: Fleet, need: PodSet) -> None:
    suitable = suitable_nodes(fleet, need)
    for slot in np.flatnonzero(score_all(fleet, need, suitable, worth_of(())) > NOT_HERE):
        chosen = pick_gpus(fleet, int(slot), need, suitable, worth_of(()))
        devices = {g.index: g for g in fleet.report_at(int(slot)).gpus}
        assert len(chosen) == len(set(chosen)) == need.gpus
        for index in chosen:
            assert devices[index].healthy
            assert 1000 - devices[index].foreign_milli >= need.gpu_milli
            assert not need.gpu_models or devices[index].model in need.gpu_models


@UNHURRIED
@given(fleets(), pods(), st.integers(1, 6))
def test_gang_is_seated_whole_or_untraced(fleet: Fleet, need: PodSet, count: int) -> None:
    need = pod_set(**{f: getattr(need, f) for f in need.__struct_fields__} | {"count": count})
    before = (
        fleet.arrays.cpu.copy(),
        fleet.arrays.memory.copy(),
        fleet.arrays.gpu.copy(),
        fleet.arrays.whole.copy(),
    )
    suitable = suitable_nodes(fleet, need)
    bound = room_of(fleet, need, suitable, slice(None))
    for number in range(len(fleet.clusters)):
        seating = bind_gang(fleet, number, [need], [suitable])
        np.testing.assert_array_equal(fleet.arrays.cpu, before[0])
        np.testing.assert_array_equal(fleet.arrays.memory, before[1])
        np.testing.assert_array_equal(fleet.arrays.gpu, before[2])
        np.testing.assert_array_equal(fleet.arrays.whole, before[3])
        room = int(bound[fleet.arrays.cluster_of == number].sum())
        if seating is None:
            continue
        assert len(seating.bindings) == count <= room  # the bound is never too low
        used: dict[str, list[Holding]] = {}
        for held in seating.holdings:  # one by one, each fits beside those before it
            report = fleet.node(held.cluster, held.node)
            assert report is not None
            mine = used.setdefault(held.node, [])
            assert has_room(report, mine, need)
            mine.append(held)


@UNHURRIED
@given(fleets(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=8))
def test_released_room_restores_arrays(fleet: Fleet, holds: list[tuple[int, int]]) -> None:
    kept: dict[str, Holding] = {}
    for number, (at, gpu) in enumerate(holds):
        cluster, name = fleet.names[at % len(fleet.names)]
        held = Holding(cluster, name, 500, 256, 250, (gpu,))
        fleet.hold(key("t", f"job-{number}"), [held])
        kept[f"job-{number}"] = held
        if number % 3 == 2:
            fleet.release(key("t", f"job-{number - 1}"))
            del kept[f"job-{number - 1}"]
    fresh = Fleet()
    for job, held in kept.items():
        fresh.hold(key("t", job), [held])
    for report in reversed(list(fleet.reports())):
        fresh.put_node(report)
    fresh.arrange()
    for name in ("cpu", "memory", "gpu", "whole", "milli", "open", "starts", "cluster_of"):
        np.testing.assert_array_equal(
            getattr(fleet.arrays, name), getattr(fresh.arrays, name), err_msg=name
        )


def test_tolerations_follow_kubernetes() -> None:
    spot = Taint(key="spot", value="yes", effect="NoSchedule")
    assert not tolerates((), spot)
    assert tolerates((), Taint(key="spot", effect="PreferNoSchedule"))
    assert tolerates((Toleration(operator="Exists"),), spot)
    assert tolerates((Toleration(key="spot", operator="Exists"),), spot)
    assert tolerates((Toleration(key="spot", value="yes"),), spot)
    assert not tolerates((Toleration(key="spot", value="no"),), spot)
    assert not tolerates((Toleration(key="spot", value="yes", effect="NoExecute"),), spot)
    assert not tolerates((Toleration(value="yes"),), spot)  # an empty key needs Exists
