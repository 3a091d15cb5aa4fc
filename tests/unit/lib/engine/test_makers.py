"""Nodes with GPUs of two makers, or with GPUs that only some offers are a part of."""

from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import assumed_gpus, bind_one, holding
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import NodeReport, Share
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.test_shares import fleet_of, part, room

AMD = "amd.com/gpu"
NVIDIA = "nvidia.com/gpu"


def of_two_makers(nvidia: int = 2, amd: int = 2) -> NodeReport:
    labels = {"amd.com/gpu.product-name": "MI300X", "nvidia.com/gpu.product": "A100"}
    ours = node(gpus=nvidia, model="A100", labels=labels)
    theirs = node(gpus=amd, model="MI300X", resource=AMD).gpus
    gpus = (*ours.gpus, *(replace(gpu, index=64 + gpu.index) for gpu in theirs))
    return replace(ours, gpus=gpus)


def seat(fleet: Fleet, pods: PodSet) -> tuple[int, ...]:
    suitable = suitable_nodes(fleet, pods)
    return bind_one(fleet, 0, pods, suitable)[0].gpus


def why_not(report: NodeReport, pods: PodSet) -> str:
    return suitable_nodes(fleet_of(report), pods).why_not.get("c1", "")


def test_a_pod_gets_gpus_of_the_maker_that_it_names() -> None:
    fleet = fleet_of(of_two_makers())
    assert seat(fleet, pod_set(gpus=2, gpu_models=("A100",))) == (0, 1)
    assert seat(fleet, pod_set(gpus=2, gpu_models=("MI300X",))) == (64, 65)
    assert seat(fleet, pod_set(gpus=2, gpu_resource=AMD)) == (64, 65)
    assert seat(fleet, pod_set(gpus=2, gpu_resource=NVIDIA)) == (0, 1)


def test_nothing_of_a_maker_is_placed_where_its_number_is_zero() -> None:
    gone = of_two_makers(amd=0)
    assert why_not(gone, pod_set(gpu_models=("MI300X",))) == "no such GPU model"
    assert why_not(gone, pod_set(gpu_resource=AMD)) == f"no GPUs of that resource ({AMD})"
    assert why_not(of_two_makers(nvidia=0), pod_set(gpu_resource=NVIDIA)) == (
        f"no GPUs of that resource ({NVIDIA})"
    )


def test_the_gpus_of_one_pod_are_of_one_maker() -> None:
    report = of_two_makers(nvidia=1, amd=2)
    assert seat(fleet_of(report), pod_set(gpus=2)) == (64, 65)
    assert why_not(report, pod_set(gpus=3)) == "too few GPUs a node"
    assert room(fleet_of(of_two_makers()), pod_set(gpus=2, count=9)) == [1]


def test_what_is_held_of_one_maker_is_never_charged_to_another() -> None:
    fleet = fleet_of(of_two_makers())
    pods = pod_set(gpus=2, gpu_resource=AMD)
    held = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(64, 65)), pods)
    fleet.hold(key("a", "train"), [held])

    def free() -> list[int]:
        fleet.arrange()
        return [int(milli) for milli in fleet.arrays.gpu[0]]

    assert free() == [1000, 1000, 0, 0]
    fleet.put_node(of_two_makers(amd=0))
    assert free() == [1000, 1000]
    fleet.put_node(of_two_makers(nvidia=1))
    assert free() == [1000, 0, 0]
    fleet.put_node(of_two_makers())
    fleet.release(key("a", "train"))
    assert free() == [1000] * 4


def test_gpus_that_nobody_tells_are_those_of_the_maker() -> None:
    assert assumed_gpus(fleet_of(of_two_makers()), "c1", "n1", pod_set(gpu_resource=AMD)) == (64,)
    gone = fleet_of(of_two_makers(amd=0))
    assert assumed_gpus(gone, "c1", "n1", pod_set(gpu_models=("MI300X",))) == ()


SLICE = Share(
    resource="nvidia.com/mig-3g.40gb", kind="mig", milli=428, memory_mib=40_960, count=2, gpus=(1,)
)


def beside_a_whole_one() -> NodeReport:
    """An A100 that is whole, one in two slices, and one of AMD's."""
    report = of_two_makers(nvidia=2, amd=1)
    cut = tuple(replace(gpu, withheld_milli=143) if gpu.index == 1 else gpu for gpu in report.gpus)
    return replace(report, gpus=cut, shares=(SLICE,), fractions=True)


def test_a_slice_is_on_the_gpu_that_is_cut() -> None:
    fleet = fleet_of(beside_a_whole_one())
    pods = part(428, mig_profile="3g.40gb", count=9)
    assert seat(fleet, pods) == (1,)
    assert room(fleet, pods) == [2]
    assert seat(fleet, part(300)) == (1,)
    assert seat(fleet, pod_set()) == (0,)
    assert why_not(beside_a_whole_one(), part(300, gpu_models=("MI300X",))) == (
        "no such part of a GPU"
    )


def test_a_profile_is_found_by_any_of_its_spellings() -> None:
    for offered in ("1g.10gb.me", "1g.10gb-me"):
        share = Share(resource=f"nvidia.com/mig-{offered}", kind="mig", milli=142, count=1)
        report = replace(node(gpus=1), shares=(share,))
        for asked in ("1g.10gb.me", "1g.10gb-me", "1g.10gb+me"):
            pods = part(142, mig_profile=asked)
            assert room(fleet_of(report), pods) == [1], (offered, asked)
            held = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(0,)), pods)
            assert held.mig_profile == "1g.10gb.me"
        assert why_not(report, part(142, mig_profile="1g.10gb")) == "no such MIG profile"


def test_a_slice_of_a_quarter_serves_a_request_that_counts_sevenths() -> None:
    quarter = Share(
        resource="nvidia.com/mig-1g.6gb", kind="mig", milli=250, memory_mib=6144, count=4
    )
    gpu = replace(node(gpus=1).gpus[0], withheld_milli=1)
    report = replace(node(gpus=1), gpus=(gpu,), shares=(quarter,))
    assert room(fleet_of(report), part(142, mig_profile="1g.6gb", count=9)) == [4]
