"""No accelerator that a Workload asks for is dropped in silence, however it asks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.accelerators.table import TABLE, How, how_of
from berthmaster.kueue.workloads import (
    Admission,
    Container,
    KueuePodSet,
    PodSetAssignment,
    PodSpec,
    PodTemplate,
    ResourceClaim,
    Resources,
    TemplateMetadata,
    WorkloadStatus,
)
from berthmaster.messages.fleet import Amounts, Share
from berthmaster.multikueue.known.requests import read_asks, read_request, read_required
from tests.support.builders import node
from tests.unit.multikueue.hub_objects import pods, queue_report, workload
from tests.unit.multikueue.test_choosing import granting, sent
from tests.unit.multikueue.world import World

TPU = "google.com/tpu"
SHARED = "nvidia.com/gpu.shared"


def asking(
    requests: dict[str, str] | None = None,
    first: tuple[Container, ...] = (),
    annotations: dict[str, str] | None = None,
    claims: tuple[ResourceClaim, ...] = (),
) -> KueuePodSet:
    container = Container(resources=Resources(requests=dict(requests or {})))
    spec = PodSpec(containers=(container,), init_containers=first, resource_claims=claims)
    metadata = TemplateMetadata(annotations=annotations)
    return KueuePodSet(template=PodTemplate(metadata=metadata, spec=spec))


def init(restart_policy: str | None = None, **amounts: str) -> Container:
    return Container(resources=Resources(requests=dict(amounts)), restart_policy=restart_policy)


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}, (1, 300, 0)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}, (1, 1, 4000)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, (1, 500, 0)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}, (1, 999, 0)),
    ],
)
def test_hamis_limits_make_a_part_of_a_gpu(
    asks: dict[str, str], expected: tuple[int, int, int]
) -> None:
    made = workload(pod_sets=(asking(asks),))
    read = read_request(made)
    one = read.request.pod_sets[0]
    assert (one.gpus, one.gpu_milli, one.gpu_memory_mib) == expected
    assert read.problems == ()
    limits = {name for name in asks if name != "nvidia.com/gpu"}
    assert {name for name, _ in read_required(made, ())} == limits


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"gpu-fraction": "0.25"}, (1, 250, 0)),
        ({"gpu-memory": "2000"}, (1, 1, 2000)),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, (0, 1000, 0)),
        ({"gpu-fraction": "half"}, (0, 1000, 0)),
        ({"gpu-fraction": "nan"}, (0, 1000, 0)),
        ({"gpu-memory": "-1"}, (0, 1000, 0)),
    ],
)
def test_kais_annotations_make_a_part_of_a_gpu_or_are_told(
    annotations: dict[str, str], expected: tuple[int, int, int]
) -> None:
    made = workload(pod_sets=(asking(annotations=annotations),))
    read = read_request(made)
    one = read.request.pod_sets[0]
    assert (one.gpus, one.gpu_milli, one.gpu_memory_mib) == expected
    assert bool(read.problems) == (one.gpus == 0)
    assert read_required(made, ()) == (("gpu-fraction", 1),)


def test_init_containers_count_as_kubernetes_counts_them() -> None:
    # A sidecar of 1 runs beside what starts after it, and beside the containers.
    first = (init("Always", cpu="1"), init(cpu="3"), init("Always", cpu="2"))
    one = read_request(workload(pod_sets=(asking({"cpu": "1500m"}, first),))).request.pod_sets[0]
    assert one.cpu_milli == 4500
    before = (init(cpu="3"), init("Always", cpu="1"))
    one = read_request(workload(pod_sets=(asking({"cpu": "500m"}, before),))).request.pod_sets[0]
    assert one.cpu_milli == 3000


def test_what_cannot_be_ranked_is_told_in_a_sentence() -> None:
    claim = ResourceClaim(name="gpu", resource_claim_template_name="one-gpu")
    made = workload(pod_sets=(asking({TPU: "4", "habana.ai/gaudi": "8"}, claims=(claim,)),))
    tpus, gaudi, dra = read_request(made).problems
    what_is_free = "required of a cluster, and what is free of it is not known"
    assert tpus == f"pod set main: 4 google.com/tpu a pod: {what_is_free}"
    by_queues = "nodes do not tell of it, so only queues that grant it count"
    assert gaudi == f"pod set main: 8 habana.ai/gaudi a pod: {by_queues}"
    assert dra.startswith("pod set main: resource claim one-gpu: a Workload does not tell its")


NAMES = st.sampled_from(
    [
        *(row.name for row in TABLE if row.end is None),
        SHARED,
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-3g.40gb",
        "nvidia.com/mig-huge",
        "nvidia.com/mig-1g.10gb.shared",
        "habana.ai/gaudi",
        "aws.amazon.com/neuron",
        "example.com/gpu",
    ]
)
AMOUNTS = st.dictionaries(NAMES, st.integers(0, 9).map(str), max_size=4)
CONTAINERS = st.builds(
    lambda requests, limits, restarts: Container(
        resources=Resources(requests=requests, limits=limits), restart_policy=restarts
    ),
    AMOUNTS | st.none(),
    AMOUNTS | st.none(),
    st.sampled_from([None, "Always"]),
)
SPECS = st.builds(
    PodSpec,
    containers=st.lists(CONTAINERS, max_size=3).map(tuple),
    init_containers=st.lists(CONTAINERS, max_size=3).map(tuple),
    resource_claims=st.lists(
        st.builds(ResourceClaim, name=st.sampled_from(["a", "b"])), max_size=2
    ).map(tuple),
)
TEMPLATES = st.builds(
    lambda spec, annotations: PodTemplate(
        spec=spec, metadata=TemplateMetadata(annotations=annotations)
    ),
    SPECS,
    st.none()
    | st.dictionaries(
        st.sampled_from(["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"]),
        st.sampled_from(["0.5", "2", "4000", "x"]),
    ),
)


@given(st.lists(TEMPLATES, min_size=1, max_size=3))
def test_no_accelerator_is_dropped_in_silence(templates: list[PodTemplate]) -> None:
    sets = tuple(
        KueuePodSet(name=f"set-{n}", template=template) for n, template in enumerate(templates)
    )
    made = workload(pod_sets=sets)
    read = read_request(made)
    asks = read_asks(made, read.request)
    required = {name for name, _ in read_required(made, asks)}
    for one, ask, ranked in zip(sets, asks, read.request.pod_sets, strict=True):
        template = one.template
        assert template is not None
        assert template.spec is not None
        spec = template.spec
        told = [problem for problem in read.problems if problem.startswith(f"pod set {one.name}:")]
        for container in (*(spec.containers or ()), *(spec.init_containers or ())):
            assert container.resources is not None
            limits = container.resources.limits or {}
            for name, amount in (limits | (container.resources.requests or {})).items():
                if amount == "0":
                    continue
                assert ask.ways[0][name] > 0  # asked of quota by its name, in any case
                by = ranked.gpu_resource or (
                    f"nvidia.com/mig-{ranked.mig_profile}" if ranked.mig_profile else ""
                )
                in_part = ranked.gpus and ranked.gpu_milli < 1000 and not ranked.mig_profile
                if in_part and name == "nvidia.com/gpu":
                    continue
                assert name == by or name in required
                limit = in_part and how_of(name) is How.LIMIT
                assert name == by or limit or any(f" {name} " in problem for problem in told)
        for claim in spec.resource_claims or ():
            assert any(f"claim {claim.name}:" in problem for problem in told)
        annotations = (template.metadata and template.metadata.annotations) or {}
        if annotations.keys() & {"gpu-fraction", "gpu-memory"}:
            assert "gpu-fraction" in required


def fleet_of(resource: str, *, granted: bool) -> World:
    """Cluster "has" has nodes with the resource, "quota" only quota for it, if granted there."""
    world = World(workers=("quota", "has", "none"))
    world.all_workers()
    one = node("has", "n1", counter=2)
    allocatable = Amounts(cpu_milli=96_000, memory_mib=786_432, gpu_milli=8000, tpus=8)
    shares = (Share(resource=SHARED, milli=250, count=8, kind="shared"),)
    world.fact("has/node", msgspec.structs.replace(one, allocatable=allocatable, shares=shares))
    if granted:
        for name in ("quota", "has"):
            world.fact(f"{name}/queue", granting(queue_report(name), resource))
    world.begin()
    return world


@pytest.mark.parametrize("resource", [TPU, SHARED])
def test_nodes_that_have_it_go_before_quota_that_grants_it_and_the_rest_is_out(
    resource: str,
) -> None:
    world = fleet_of(resource, granted=True)
    assert sent(world, pod_sets=(pods(gpus=4, resource=resource),)) == ("has",)
    (choice,) = world.decisions()[-1].placements
    assert [(r.cluster, round(r.parts["tier"])) for r in choice.ranking] == [
        ("has", 100),
        ("quota", 33),
    ]
    assert choice.filtered == {"none": f"ClusterQueue worker-queue grants no {resource}"}


def test_what_the_hubs_kueue_does_not_count_must_be_on_nodes() -> None:
    world = fleet_of(TPU, granted=False)
    world.submit(pod_sets=(pods(gpus=4, resource=TPU),))
    usage = PodSetAssignment(resource_usage={"cpu": "1", "memory": "1Gi"})
    world.status(admission=Admission(pod_set_assignments=(usage,)))
    world.reserve()
    world.settle()
    assert world.nominated("train") == ("has",)
    (choice,) = world.decisions()[-1].placements
    lacks = "no node has 4 google.com/tpu"
    assert choice.filtered == {"quota": lacks, "none": lacks}


def test_an_unknown_name_is_required_of_queues_and_its_workload_is_told_so() -> None:
    world = fleet_of("habana.ai/gaudi", granted=True)
    assert sent(world, pod_sets=(pods(gpus=8, resource="habana.ai/gaudi"),)) in (
        ("quota",),
        ("has",),
    )
    (choice,) = world.decisions()[-1].placements
    assert choice.filtered == {"none": "ClusterQueue worker-queue grants no habana.ai/gaudi"}
    notes = [tell.note for tell in world.told if "habana.ai/gaudi" in tell.note]
    assert any("nodes do not tell of it" in note for note in notes)


def test_a_name_that_the_hubs_kueue_leaves_out_keeps_no_workload_from_its_place() -> None:
    made = workload(pod_sets=(pods(resource="rdma/hca"),))
    usage = PodSetAssignment(resource_usage={"cpu": "1"})
    status = WorkloadStatus(admission=Admission(pod_set_assignments=(usage,)))
    admitted = msgspec.structs.replace(made, status=status)
    request = read_request(made).request
    assert read_required(made, read_asks(made, request)) == (("rdma/hca", 1),)
    assert read_required(admitted, read_asks(admitted, request)) == ()
