"""No accelerator that a Workload asks for is dropped in silence, however it asks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.multikueue.core.known.requests import read_asks, read_request, read_required
from berthmaster.lib.accelerators.table import How, how_of
from berthmaster.lib.engine.fleet.pieces import pieces_of
from berthmaster.lib.kueue.podsets.templates import (
    Container,
    PodSpec,
    PodTemplate,
    ResourceClaim,
    Resources,
    TemplateMetadata,
    TemplateSet,
)
from berthmaster.lib.kueue.workloads import Admission, PodSetAssignment, WorkloadStatus
from berthmaster.lib.messages.fleet import Amounts, Share
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node
from tests.support.pod_asks import ANNOTATIONS, SPECS, Document, names_asked
from tests.unit.hub.multikueue.hub_objects import pods, queue_report, workload
from tests.unit.hub.multikueue.test_choosing import granting, sent
from tests.unit.hub.multikueue.world import World

TPU = "google.com/tpu"
SHARED = "nvidia.com/gpu.shared"


def asking(
    requests: dict[str, str] | None = None,
    first: tuple[Container, ...] = (),
    annotations: dict[str, str] | None = None,
    claims: tuple[ResourceClaim, ...] = (),
) -> TemplateSet:
    container = Container(resources=Resources(requests=dict(requests or {})))
    spec = PodSpec(containers=(container,), init_containers=first, resource_claims=claims)
    metadata = TemplateMetadata(annotations=annotations)
    return TemplateSet(template=PodTemplate(metadata=metadata, spec=spec))


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


def test_thousandths_make_a_part_of_a_gpu_and_are_required_as_they_are() -> None:
    made = workload(pod_sets=(asking({"berthmaster.io/gpu-milli": "250"}),))
    read = read_request(made)
    one = read.request.pod_sets[0]
    assert (one.gpus, one.gpu_milli, read.problems) == (1, 250, ())
    assert dict(read_required(made, ())) == {"berthmaster.io/gpu-milli": 250}


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
    gaudi, dra = read_request(made).problems
    by_name = "not known by name here, so nodes must have it and queues grant it as it is"
    assert gaudi == f"pod set main: 8 habana.ai/gaudi a pod: {by_name}"
    assert dra.startswith("pod set main: resource claim one-gpu: a Workload does not tell its")


@given(st.lists(st.tuples(SPECS, ANNOTATIONS), min_size=1, max_size=3))
def test_no_accelerator_is_dropped_in_silence(templates: list[tuple[Document, Document]]) -> None:
    sets = tuple(
        TemplateSet(
            name=f"set-{n}",
            template=PodTemplate(
                spec=msgspec.convert(spec, PodSpec),
                metadata=TemplateMetadata(annotations=annotations),
            ),
        )
        for n, (spec, annotations) in enumerate(templates)
    )
    made = workload(pod_sets=sets)
    read = read_request(made)
    asks = read_asks(made, read.request)
    required = {name for name, _ in read_required(made, asks)}
    rows = zip(sets, templates, asks, read.request.pod_sets, strict=True)
    for one, (spec, annotations), ask, ranked in rows:
        told = [problem for problem in read.problems if problem.startswith(f"pod set {one.name}:")]
        counted = {name for name, _ in pieces_of(ranked)}
        if ranked.gpus:
            counted.add(
                f"nvidia.com/mig-{ranked.mig_profile}"
                if ranked.mig_profile
                else ranked.gpu_resource or "nvidia.com/gpu"
            )
        for name in names_asked(spec):
            assert ask.ways[0][name] > 0  # asked of quota by its name, in any case
            assert name in counted or name in required
            in_part = ranked.gpus and ranked.gpu_milli < 1000 and not ranked.mig_profile
            limit = in_part and how_of(name) in (How.LIMIT, How.MILLI)
            assert name in counted or limit or any(f" {name} " in problem for problem in told)
        for claim in spec.get("resourceClaims", ()):
            of = claim.get("resourceClaimTemplateName") or claim.get("resourceClaimName")
            assert any(f"claim {of or claim['name']}:" in problem for problem in told)
        if annotations.keys() & {"gpu-fraction", "gpu-memory"}:
            assert "gpu-fraction" in required
            assert (ranked.gpus and ranked.gpu_milli < 1000) or told


def test_tpus_and_unknown_names_are_pieces_and_a_selector_tells_their_slice() -> None:
    def read(count: int, topology: str, **asks: str) -> PodSet:
        one = asking({name.replace("__", "/").replace("_", "."): n for name, n in asks.items()})
        assert one.template is not None
        assert one.template.spec is not None
        selector = {"cloud.google.com/gke-tpu-topology": topology}
        spec = msgspec.structs.replace(one.template.spec, node_selector=selector)
        template = msgspec.structs.replace(one.template, spec=spec)
        made = workload(pod_sets=(TemplateSet(count=count, template=template),))
        return read_request(made).request.pod_sets[0]

    slice_ = read(4, "4x4", google_com__tpu="4", rdma__hca="1")
    assert (slice_.tpus, slice_.tpu_topology, slice_.resources) == (4, "4x4", {"rdma/hca": 1})
    assert read(1, "2x4", google_com__tpu="8").tpu_topology == "2x4"
    # Two slices in one set, and no topology at all: nodes must have the label, and no more is said.
    assert read(8, "4x4", google_com__tpu="4").tpu_topology == ""
    assert read(1, "large", google_com__tpu="4").tpu_topology == ""
    # More than any pod has, and TPUs beside GPUs, are only required.
    assert read(1, "2x4", google_com__tpu="1k").tpus == 0
    assert read(1, "2x4", google_com__tpu="4", nvidia_com__gpu="1").tpus == 0


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


def test_tpus_and_unknown_pieces_are_ranked_by_what_is_free_of_them() -> None:
    gaudi = "habana.ai/gaudi"
    cases: tuple[tuple[str, Amounts, Amounts], ...] = (
        (TPU, Amounts(tpus=8), Amounts(tpus=6)),
        (gaudi, Amounts(pieces={gaudi: 8}), Amounts(pieces={gaudi: 6})),
    )
    for resource, pieces, taken in cases:
        world = World(workers=("busy", "free"))
        world.all_workers()
        for name in ("busy", "free"):
            host = msgspec.structs.replace(pieces, cpu_milli=96_000, memory_mib=786_432)
            report = node(name, "n1", gpus=0, counter=2)
            foreign = taken if name == "busy" else Amounts()
            told = msgspec.structs.replace(report, allocatable=host, foreign=foreign)
            world.fact(f"{name}/node", told)
            world.fact(f"{name}/queue", granting(queue_report(name), resource))
        world.begin()
        asks = (pods(gpus=4, resource=resource),)
        assert sent(world, "first", pod_sets=asks) == ("free",)
        (choice,) = world.decisions()[-1].placements
        tiers = {r.cluster: round(r.parts["tier"]) for r in choice.ranking}
        assert tiers == {"free": 100, "busy": 67}
        # What is on its way takes room: four of eight are left for the next, none after it.
        assert sent(world, "second", pod_sets=asks) == ("free",)
        assert sent(world, "third", pod_sets=(pods(gpus=2, resource=resource),)) == ("busy",)


def test_a_slice_fits_where_a_whole_pool_of_it_is_free() -> None:
    world = World(workers=("mixed", "pool"))
    world.all_workers()
    for cluster, pools in (("mixed", "ab"), ("pool", "cc")):
        for at, pool in enumerate(pools):
            labels = {
                "cloud.google.com/gke-tpu-topology": "2x4",
                "cloud.google.com/gke-nodepool": pool,
            }
            host = Amounts(cpu_milli=96_000, memory_mib=786_432, tpus=4)
            report = node(cluster, f"n{at + 1}", gpus=0, counter=2, labels=labels)
            world.fact(f"{cluster}/{at}", msgspec.structs.replace(report, allocatable=host))
        world.fact(f"{cluster}/queue", granting(queue_report(cluster), TPU))
    world.begin()
    one = pods(count=2, gpus=4, resource=TPU)
    assert one.template is not None
    assert one.template.spec is not None
    selector = {"cloud.google.com/gke-tpu-topology": "2x4"}
    spec = msgspec.structs.replace(one.template.spec, node_selector=selector)
    template = msgspec.structs.replace(one.template, spec=spec)
    asks = (msgspec.structs.replace(one, template=template),)
    assert sent(world, pod_sets=asks) == ("pool",)
    (choice,) = world.decisions()[-1].placements
    assert [(r.cluster, round(r.parts["tier"])) for r in choice.ranking] == [
        ("pool", 100),
        ("mixed", 67),
    ]


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
    assert any("not known by name here" in note for note in notes)


def test_parts_of_gpus_under_a_name_of_their_own_go_where_a_node_hands_them_out() -> None:
    turns = "nvidia.com/turns"
    world = World(workers=("quota", "has"))
    world.all_workers()
    for name in ("quota", "has"):
        report = node(name, "n1", gpus=1, counter=2)
        if name == "has":
            share = Share(resource=turns, milli=250, count=4, kind="shared")
            report = msgspec.structs.replace(report, fractions=True, shares=(share,))
        world.fact(f"{name}/node", report)
        world.fact(f"{name}/queue", granting(queue_report(name), turns))
    world.begin()
    assert sent(world, pod_sets=(pods(gpus=1, resource=turns),)) == ("has",)
    (choice,) = world.decisions()[-1].placements
    assert [(r.cluster, round(r.parts["tier"])) for r in choice.ranking] == [
        ("has", 100),
        ("quota", 33),
    ]


def test_a_name_that_the_hubs_kueue_leaves_out_keeps_no_workload_from_its_place() -> None:
    made = workload(pod_sets=(pods(resource="rdma/hca"),))
    usage = PodSetAssignment(resource_usage={"cpu": "1"})
    status = WorkloadStatus(admission=Admission(pod_set_assignments=(usage,)))
    admitted = msgspec.structs.replace(made, status=status)
    request = read_request(made).request
    assert read_required(made, read_asks(made, request)) == (("rdma/hca", 1),)
    assert read_required(admitted, read_asks(admitted, request)) == ()
