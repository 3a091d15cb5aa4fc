"""GPUs of a node that belong together: the pick against trying all."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import bind_gang
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.gpus import UNKNOWN, Links, levels_of, links_of, pick
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.engine.scoring.value import NOT_HERE, pick_gpus, score_all, worth_of
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import PodSet, Topology
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import UNHURRIED

ONE_DOMAIN = Topology(gpu_domain="required")


def linked(
    name: str = "n1",
    nvlink: tuple[int | None, ...] = (0, 0, 0, 0, 1, 1, 1, 1),
    numa: tuple[int | None, ...] = (),
    **fields: object,
) -> NodeReport:
    report = node(name=name, gpus=len(nvlink), **fields)  # type: ignore[arg-type]
    numa = numa or (None,) * len(nvlink)
    told = zip(report.gpus, nvlink, numa, strict=True)
    return replace(report, gpus=tuple(replace(g, nvlink_domain=n, numa_node=m) for g, n, m in told))


def fleet_of(*reports: NodeReport) -> Fleet:
    fleet = Fleet()
    for report in reports:
        fleet.put_node(report)
    fleet.arrange()
    return fleet


def takes(report: NodeReport, pods: PodSet) -> tuple[int, ...] | None:
    """The GPUs that a pod gets on the node; None if it does not fit."""
    fleet = fleet_of(report)
    suitable = suitable_nodes(fleet, pods)
    if score_all(fleet, pods, suitable, worth_of(()))[0] == NOT_HERE:
        return None
    return pick_gpus(fleet, 0, pods, suitable, worth_of(()))


def busy(*indices: int, of: int = 8) -> tuple[int, ...]:
    return tuple(1000 if at in indices else 0 for at in range(of))


def test_gpus_of_one_domain_are_preferred() -> None:
    assert takes(linked(), pod_set(gpus=4)) == (0, 1, 2, 3)
    # One is taken of the first: four are left together in the second.
    assert takes(linked(foreign_milli=busy(1)), pod_set(gpus=4)) == (4, 5, 6, 7)
    # Of domains with enough, the one with fewer is opened: the other stays whole.
    assert takes(linked(foreign_milli=busy(5)), pod_set(gpus=2)) == (4, 6)
    assert takes(linked(foreign_milli=busy(5)), pod_set(gpus=1)) == (4,)
    # Nobody has five: as few as can be are mixed.
    assert takes(linked(foreign_milli=busy(0)), pod_set(gpus=5)) == (1, 4, 5, 6, 7)


def test_inside_an_nvlink_domain_gpus_of_one_numa_node_are_preferred() -> None:
    numa = (0, 1, 0, 1)
    report = linked(nvlink=(0, 0, 0, 0), numa=numa)
    assert takes(report, pod_set(gpus=2)) == (0, 2)
    assert takes(replace(report), pod_set(gpus=3)) == (0, 1, 2)
    required = pod_set(gpus=3, topology=ONE_DOMAIN)
    assert takes(report, required) == (0, 1, 2)  # the domain is NVLink's


def test_where_nothing_is_told_of_nvlink_a_numa_node_is_the_domain() -> None:
    report = linked(nvlink=(None,) * 4, numa=(0, 1, 0, 1))
    assert takes(report, pod_set(gpus=2, topology=ONE_DOMAIN)) == (0, 2)
    assert takes(report, pod_set(gpus=3)) == (0, 1, 2)
    assert takes(report, pod_set(gpus=3, topology=ONE_DOMAIN)) is None


def test_unknown_is_no_domain() -> None:
    plain = node(gpus=8)
    assert links_of(plain.gpus) == ()
    assert takes(plain, pod_set(gpus=4)) == (0, 1, 2, 3)
    required = pod_set(gpus=4, topology=ONE_DOMAIN)
    assert takes(plain, required) is None
    fleet = fleet_of(plain)
    why = "too few GPUs in one NVLink or NUMA domain"
    assert suitable_nodes(fleet, required).why_not == {"c1": why}
    # Two that tell and two that do not are no four.
    assert takes(linked(nvlink=(0, 0, None, None)), required) is None
    assert takes(linked(nvlink=(0, 0, None, None)), replace(required, gpus=2)) == (0, 1)


def test_a_domain_that_is_busy_is_waited_for_when_it_is_required() -> None:
    half = linked(foreign_milli=busy(3, 7))
    assert takes(half, pod_set(gpus=4)) == (0, 1, 2, 4)
    assert takes(half, pod_set(gpus=4, topology=ONE_DOMAIN)) is None
    assert suitable_nodes(fleet_of(half), pod_set(gpus=4, topology=ONE_DOMAIN)).why_not == {}


def test_a_gang_that_requires_domains_is_counted_by_domains() -> None:
    fleet = fleet_of(linked("n1", foreign_milli=busy(0)), linked("n2"))
    pods = pod_set(count=3, gpus=3, topology=ONE_DOMAIN)
    assert room_of(fleet, pods, suitable_nodes(fleet, pods), slice(None)).tolist() == [2, 2]
    pods = replace(pods, gpus=4)
    assert room_of(fleet, pods, suitable_nodes(fleet, pods), slice(None)).tolist() == [1, 2]
    found = bind_gang(fleet, 0, [pods], [suitable_nodes(fleet, pods)])
    assert found is not None
    groups = sorted((b.node, b.gpus) for b in found.bindings)
    assert groups == [("n1", (4, 5, 6, 7)), ("n2", (0, 1, 2, 3)), ("n2", (4, 5, 6, 7))]
    pods = replace(pods, count=4)
    assert bind_gang(fleet, 0, [pods], [suitable_nodes(fleet, pods)]) is None


# Law


LINKS = st.lists(
    st.tuples(st.sampled_from([UNKNOWN, 0, 0, 1]), st.sampled_from([UNKNOWN, 0, 1])),
    min_size=1,
    max_size=6,
).map(tuple)


def together(links: Links, chosen: tuple[int, ...], level: int) -> bool:
    """Whether all are known to be of one NVLink domain (0) or NUMA node (1)."""
    return len({links[p][level] for p in chosen}) == 1 and links[chosen[0]][level] != UNKNOWN


def allowed(links: Links, chosen: tuple[int, ...]) -> bool:
    level = 0 if any(link[0] != UNKNOWN for link in links) else 1
    return together(links, chosen, level)


@settings(UNHURRIED, max_examples=200)
@given(LINKS, st.data())
def test_a_pick_is_of_one_domain_whenever_there_is_one(links: Links, data: st.DataObject) -> None:
    free = sorted(data.draw(st.sets(st.integers(0, len(links) - 1), min_size=1)))
    count = data.draw(st.integers(1, len(free)))
    every = list(combinations(free, count))
    for required in (False, True):
        chosen = tuple(pick(links, free, count, required=required))
        able = [c for c in every if allowed(links, c)]
        if required and not able:
            assert chosen == ()
            continue
        assert chosen in every
        if able:
            assert allowed(links, chosen) or together(links, chosen, 1)
        if required:
            assert allowed(links, chosen)
        both = [c for c in every if together(links, c, 0) and together(links, c, 1)]
        if both:
            assert together(links, chosen, 0)
            assert together(links, chosen, 1)


@UNHURRIED
@given(LINKS)
def test_domains_are_groups_of_known_ones(links: Links) -> None:
    for group in levels_of(links).domains:
        assert all(allowed(links, pair) for pair in combinations(group, 2))
        assert len(group) == len(np.unique(group))
