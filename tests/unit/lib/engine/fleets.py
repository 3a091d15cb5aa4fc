"""Strategies for small fleets and pods of every sort: enough to disagree on, fast to look at."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.messages.fleet import NodeReport, Share, Taint
from berthmaster.lib.messages.workload import PodSet, Toleration
from tests.support.builders import node, pod_set

# Where others use the machine too, nothing is said of speed.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODELS = ("A100", "T4")
CLUSTERS = ("c1", "c2")
HCA = "rdma/hca"
SLICE = Share(resource="nvidia.com/mig-1g.10gb", kind="mig", milli=142, memory_mib=9984, count=3)
HALF = Share(resource="nvidia.com/gpu.shared", milli=500, count=2)


def mixed(report: NodeReport) -> NodeReport:
    """The node with a T4 in every second place: such a node serves some pods by some GPUs."""
    gpus = tuple(replace(gpu, model="T4") if at % 2 else gpu for at, gpu in enumerate(report.gpus))
    return replace(report, gpus=gpus)


def of_two_makers(report: NodeReport) -> NodeReport:
    """The node with AMD's GPUs behind its first two, by AMD's own numbers."""
    gpus = tuple(
        replace(gpu, index=62 + at, resource="amd.com/gpu") if at > 1 else gpu
        for at, gpu in enumerate(report.gpus)
    )
    return replace(report, gpus=gpus)


@st.composite
def reports(draw: st.DrawFn, cluster: str, name: str, counter: int = 1) -> NodeReport:
    gpus = draw(st.integers(0, 4))
    report = node(
        cluster,
        name,
        gpus=gpus,
        model=draw(st.sampled_from(MODELS)),
        memory_mib=draw(st.sampled_from([16_384, 81_920])),
        cpu_milli=draw(st.integers(0, 8)) * 1000,
        node_memory_mib=draw(st.integers(0, 8)) * 1024,
        foreign_milli=tuple(
            draw(st.sampled_from([0, 0, 0, 1, 190, 530, 1000])) for _ in range(gpus)
        ),
        unhealthy=tuple(draw(st.sets(st.integers(0, 3), max_size=1))),
        schedulable=draw(st.sampled_from([True, True, True, False])),
        taints=draw(st.sampled_from([(), (), (Taint(key="spot"),)])),
        labels=draw(st.sampled_from([{}, {"zone": "a"}])),
        counter=counter,
    )
    if draw(st.sampled_from([False, False, True])):
        report = mixed(report)
    if draw(st.sampled_from([False, False, True])):
        report = of_two_makers(report)
    allocatable = replace(
        report.allocatable,
        tpus=draw(st.sampled_from([0, 0, 4])),
        pieces=draw(st.sampled_from([{}, {}, {HCA: 2}])),
    )
    foreign = replace(report.foreign, pieces=draw(st.sampled_from([{}, {HCA: 1}])))
    report = replace(report, allocatable=allocatable, foreign=foreign)
    return replace(report, shares=draw(st.sampled_from([(), (), (SLICE,), (HALF, SLICE)])))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Up to six nodes in up to two clusters, arranged."""
    fleet = Fleet()
    for index in range(draw(st.integers(1, 6))):
        fleet.put_node(draw(reports(draw(st.sampled_from(CLUSTERS)), f"n{index}")))
    fleet.arrange()
    return fleet


@st.composite
def pods(draw: st.DrawFn) -> PodSet:
    gpus = draw(st.integers(0, 3))
    return pod_set(
        gpus=gpus,
        gpu_milli=draw(st.sampled_from([100, 140, 470, 810, 1000])) if gpus == 1 else 1000,
        cpu_milli=draw(st.integers(0, 4)) * 1000,
        memory_mib=draw(st.integers(0, 4)) * 1024,
        gpu_models=draw(st.sampled_from([(), (), ("T4",), MODELS])),
        gpu_memory_mib=draw(st.sampled_from([0, 0, 40_000])),
        node_labels=draw(st.sampled_from([{}, {}, {"zone": "a"}])),
        tpus=draw(st.sampled_from([0, 1, 4])) if not gpus else 0,
        resources=draw(st.sampled_from([{}, {}, {}, {HCA: 1}, {"none.example/x": 1}])),
        tolerations=draw(st.sampled_from([(), (Toleration(operator="Exists"),)])),
    )
