"""Parts of GPUs as nodes offer them: what a pod takes, what that costs, how many there are."""

import pytest
from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import (
    assumed_gpus,
    bind_gang,
    bind_one,
    holding,
)
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import Shape, Suitable, Suitables, suitable_nodes
from berthmaster.lib.engine.fleet.shares import (
    Part,
    least_milli,
    profile_milli,
    share_for,
    takes_milli,
)
from berthmaster.lib.engine.scoring.pod_mix import PodType
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.engine.scoring.value import worth_of
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import DeviceClaim, NodeReport, Share
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node, pod_set

SMALL = Share(resource="nvidia.com/mig-1g.5gb", milli=142, memory_mib=5120, count=4, kind="mig")
LARGE = Share(resource="nvidia.com/mig-3g.20gb", milli=428, memory_mib=20_480, count=1, kind="mig")
HAMI = Share(resource="nvidia.com/gpucores", milli=10, count=100, kind="hami")
SLICED = 1000 - 4 * 142 - 428  # what no slice offers, charged by the inventory


def sliced(name: str = "n1", **fields: object) -> NodeReport:
    """One GPU cut into four small slices and a large one."""
    report = node(name=name, gpus=1, memory_mib=40_960, foreign_milli=(SLICED,))
    return replace(report, shares=(SMALL, LARGE), **fields)


def fleet_of(*reports: NodeReport) -> Fleet:
    fleet = Fleet()
    for report in reports:
        fleet.put_node(report)
    fleet.arrange()
    return fleet


def room(fleet: Fleet, pods: PodSet) -> list[int]:
    suitable = suitable_nodes(fleet, pods)
    found = room_of(fleet, pods, suitable, slice(None))
    return [min(int(number), pods.count) for number in found]


def part(milli: int, memory_mib: int = 0, count: int = 1, **fields: object) -> PodSet:
    return pod_set(gpu_milli=milli, gpu_memory_mib=memory_mib, count=count, **fields)


def test_a_pod_takes_the_smallest_piece_that_is_enough_in_compute_and_memory() -> None:
    offers = (LARGE, SMALL)
    assert share_for(offers, part(100)) == SMALL
    assert share_for(offers, part(142, 5120)) == SMALL
    assert share_for(offers, part(143)) == LARGE
    assert share_for(offers, part(100, 6000)) == LARGE
    assert share_for(offers, part(429)) is None
    assert share_for(offers, part(100, 30_000)) is None
    assert share_for((), part(100)) is None
    # Where software divides, any size is had, and memory is what the GPU has.
    assert share_for((HAMI,), part(730, 30_000)) == HAMI


def test_a_piece_costs_all_of_it_and_there_are_only_so_many() -> None:
    fleet = fleet_of(sliced())
    assert room(fleet, part(100, count=9)) == [4]
    assert room(fleet, part(400, count=9)) == [1]  # 1000 milli would hold two, the node has one
    taken = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(0,)), part(100))
    fleet.hold(key("a", "small"), [taken])
    assert int(fleet.arrays.milli[0]) == 1000 - SLICED - 142
    assert room(fleet, part(100, count=9)) == [3]
    large = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(0,)), part(300))
    fleet.hold(key("a", "large"), [large])
    assert room(fleet, part(300)) == [0]
    assert int(fleet.arrays.milli[0]) == 3 * 142
    for name in ("small", "large"):
        fleet.release(key("a", name))
    assert room(fleet, part(300)) == [1]
    assert int(fleet.arrays.milli[0]) == 1000 - SLICED


def test_a_gpu_with_room_but_without_a_piece_is_no_place() -> None:
    fleet = fleet_of(sliced())
    assert room(fleet, part(100)) == [1]
    bound = tuple(PodBinding(pod=f"main-{at}", node="n1", gpus=(0,)) for at in range(4))
    fleet.hold(key("a", "small"), [holding("c1", binding, part(100)) for binding in bound])
    assert int(fleet.arrays.gpu[0, 0]) == 428  # three small ones by milli, but all four are taken
    assert room(fleet, part(100)) == [0]


def test_what_suits_a_part_is_not_taken_for_what_suits_a_whole_gpu() -> None:
    fleet, known = fleet_of(sliced(), node(name="n2")), Suitables()
    offers = {
        (milli, gpus): known.of(fleet, Shape({"pod_sets": (each,)}), 0).offered is not None
        for milli, gpus in ((100, 1), (1000, 1), (1000, 2))
        for each in [pod_set(gpu_milli=milli, gpus=gpus)]
    }
    assert offers == {(100, 1): True, (1000, 1): False, (1000, 2): False}


def test_what_is_charged_does_not_depend_on_whether_node_or_placement_was_heard_of_first() -> None:
    taken = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(0,)), part(100))
    late, early = Fleet(), Fleet()
    late.hold(key("a", "train"), [taken])
    late.put_node(sliced())
    early.put_node(sliced())
    early.arrange()
    early.hold(key("a", "train"), [taken])
    late.arrange()
    assert late.arrays.milli.tolist() == early.arrays.milli.tolist() == [1000 - SLICED - 142]
    assert {r: p.tolist() for r, p in late.arrays.pieces.items()} == {
        SMALL.resource: [3],
        LARGE.resource: [1],
    }
    assert {r: p.tolist() for r, p in early.arrays.pieces.items()} == {
        SMALL.resource: [3],
        LARGE.resource: [1],
    }


def test_a_gang_of_parts_takes_pieces_until_there_are_none() -> None:
    fleet = fleet_of(sliced("n1"), sliced("n2"))
    for count, fits in ((8, True), (9, True), (10, True), (11, False)):
        pods = part(100, count=count)
        suitable = suitable_nodes(fleet, pods)
        seating = bind_gang(fleet, 0, [pods], [suitable])
        # A small part takes a small slice; none is left for the ninth, though a large one is.
        assert (seating is not None) is (fits and count <= 8)
    assert room(fleet, part(100, count=9)) == [4, 4]  # all was given back


def test_the_last_replica_of_a_gpu_can_be_had_too() -> None:
    quarter = Share(resource="nvidia.com/gpu.shared", milli=250, count=4)
    report = replace(node(gpus=1, foreign_milli=(1,)), shares=(quarter,))  # never whole: charged 1
    fleet = fleet_of(report)
    assert room(fleet, part(250, count=9)) == [4]
    for number in range(4):
        suitable = suitable_nodes(fleet, part(250))
        seating = bind_gang(fleet, 0, [part(250)], [suitable])
        assert seating is not None, number
        fleet.hold(key("team-a", f"job-{number}"), seating.holdings)
    assert room(fleet, part(100)) == [0]
    assert room(fleet, pod_set(gpus=1)) == [0]


def why(report: NodeReport, pods: PodSet) -> dict[str, str]:
    suitable: Suitable = suitable_nodes(fleet_of(report), pods)
    return suitable.why_not


def test_parts_go_nowhere_but_where_they_are_offered_and_the_reason_is_told() -> None:
    whole = replace(node(), fractions=False)
    assert why(whole, part(500)) == {"c1": "GPUs are handed out whole only"}
    assert why(whole, pod_set(gpus=2)) == {}
    assert why(sliced(), part(500)) == {"c1": "no such part of a GPU"}
    assert why(sliced(), part(400)) == {}
    assert why(node(), part(500)) == {}  # says nothing of shares: in any size


def test_where_kai_divides_a_part_is_on_the_fullest_gpu_with_room() -> None:
    report = replace(node(gpus=3, memory_mib=81_559), shares=(replace(KAI, memory_mib=81_500),))
    fleet = fleet_of(report)
    # Of such a mix a small part would rather begin another GPU.
    mix = worth_of(((PodType(1, 470, 0), 5), (PodType(1, 810, 0), 9), (PodType(1, 140, 0), 3)))
    asked = [
        part(100),
        part(100),
        part(100),
        part(100, 20_375),
        part(500),
        part(450),
        part(550),
        part(240),
        part(700),
    ]
    got = []
    for pods in asked:
        binding, held = bind_one(fleet, 0, pods, suitable_nodes(fleet, pods), mix)
        fleet.lend((held,), +1)
        got.append(binding.gpus)
    assert got == [(0,), (0,), (0,), (0,), (1,), (0,), (2,), (2,), ()]
    assert fleet.arrays.gpu[0].tolist() == [0, 500, 210]
    # The same where it is only known that one is there.
    unsaid = [assumed_gpus(fleet, "c1", "n1", part(milli)) for milli in (200, 250)]
    assert unsaid == [(2,), (1,)]


def test_hami_is_told_to_pack_and_is_taken_to_have_done_so() -> None:
    fleet = fleet_of(replace(node(gpus=2), shares=(HAMI,)))
    pods = part(300)
    _, held = bind_one(fleet, 0, pods, suitable_nodes(fleet, pods))
    fleet.lend((held,), +1)
    assert fleet.arrays.gpu[0].tolist() == [700, 1000]
    unsaid = [assumed_gpus(fleet, "c1", "n1", part(milli)) for milli in (100, 800)]
    assert unsaid == [(0,), (1,)]


def test_our_device_plugin_packs_thousandths() -> None:
    thousandths = Share(resource="berthmaster.io/gpu-milli", milli=1, count=2000, kind="milli")
    fleet = fleet_of(replace(node(gpus=2), shares=(thousandths,)))
    pods = part(333)
    _, held = bind_one(fleet, 0, pods, suitable_nodes(fleet, pods))
    fleet.lend((held,), +1)
    assert fleet.arrays.gpu[0].tolist() == [667, 1000]
    unsaid = [assumed_gpus(fleet, "c1", "n1", part(milli)) for milli in (667, 668)]
    assert unsaid == [(0,), (1,)]


REPLICA = Share(resource="nvidia.com/gpu.shared", milli=500, count=2)
MPS = replace(REPLICA, resource="nvidia.com/mps", isolation="memory", memory_mib=8192)
KAI = Share(resource="gpu-fraction", milli=10, count=100, kind="kai")
CLAIM = DeviceClaim(driver="gpu.nvidia.com", device_class="gpu.nvidia.com", divisible=True)
BY_CLAIM = Share(resource="gpu.nvidia.com", milli=0, count=1, claim=CLAIM)


@pytest.mark.parametrize(
    ("share", "isolation"),
    [
        (LARGE, "hardware"),
        (HAMI, "memory"),
        (MPS, "memory"),
        (REPLICA, "none"),
        (KAI, "none"),
        (BY_CLAIM, "none"),
        (None, "none"),  # emulated: in any size
    ],
)
def test_softer_part_is_never_given(share: Share | None, isolation: str) -> None:
    report = node() if share is None else replace(node(), shares=(share,))
    order = ["", "none", "memory", "hardware"]
    for least in order:
        pods = part(400, isolation=least)
        enough = order.index(least) <= order.index(isolation)
        told = {} if enough else {"c1": f"no part of a GPU with so hard a limit ({least})"}
        assert why(report, pods) == told, least
        # A whole GPU is nobody else's.
        assert why(replace(report, fractions=False), pod_set(gpus=1, isolation=least)) == {}


@pytest.mark.parametrize(
    ("share", "isolation"), [(LARGE, "hardware"), (HAMI, "memory"), (REPLICA, "none"), (None, "")]
)
def test_placement_states_limit_of_part(share: Share | None, isolation: str) -> None:
    fleet = fleet_of(node(gpus=2) if share is None else replace(node(gpus=2), shares=(share,)))
    binding, _ = bind_one(fleet, 0, part(400), suitable_nodes(fleet, part(400)))
    assert binding.isolation == isolation
    whole = pod_set(gpus=1)
    assert bind_one(fleet, 0, whole, suitable_nodes(fleet, whole))[0].isolation == ""


def test_a_placed_part_is_charged_to_the_offer_whose_limit_it_accepted() -> None:
    report = replace(node(gpus=1), shares=(replace(REPLICA, milli=250, count=4), MPS))
    fleet = fleet_of(report)
    assert [fleet.kinds[0].shares, room(fleet, part(200, count=9))] == [report.shares, [4]]
    pods = part(200, isolation="memory")
    seating = bind_gang(fleet, 0, [pods], [suitable_nodes(fleet, pods)])
    assert seating is not None
    fleet.hold(key("team-a", "hard"), seating.holdings)
    assert fleet.arrays.gpu[0].tolist() == [1000 - 499]


def test_what_several_claims_may_have_is_parted_in_any_size() -> None:
    fleet = fleet_of(replace(node(gpus=1), shares=(BY_CLAIM,)))
    assert room(fleet, part(333, count=9)) == [3]
    assert fleet.arrays.pieces == {}
    assert room(fleet, pod_set(gpus=1)) == [1]


def test_hundredths_are_charged_whole() -> None:
    fleet = fleet_of(replace(node(gpus=1), shares=(HAMI,)))
    assert room(fleet, part(331, count=9)) == [2]  # 34 % each


def test_a_gpu_that_is_cut_up_is_not_had_whole() -> None:
    assert room(fleet_of(sliced()), pod_set(gpus=1)) == [0]


def test_hami_gives_what_is_asked_for() -> None:
    fleet = fleet_of(replace(node(gpus=1), shares=(HAMI,)))
    assert room(fleet, part(300, count=9)) == [3]
    assert fleet.arrays.pieces == {}


@pytest.mark.parametrize(
    ("parts", "least"),
    [(0, 0), (1, 1000), (2, 500), (3, 330), (7, 140), (10, 100), (20, 50), (64, 20), (1000, 10)],
)
def test_hami_part_has_minimum_size(parts: int, least: int) -> None:
    share = replace(HAMI, parts=parts)
    assert least_milli(share) == least
    fleet = fleet_of(replace(node(gpus=1), shares=(share,)))
    small = room(fleet, part(10, count=2000, cpu_milli=1, memory_mib=1))[0]
    assert small <= (parts or 100)
    assert small == 1000 // max(least, 10)
    # What is larger takes what it asks for.
    assert takes_milli(share, Part(990, 0)) == max(990, least)


def profile(name: str, milli: int = 142, **fields: object) -> PodSet:
    return pod_set(gpu_milli=milli, mig_profile=name, **fields)


def test_a_mig_profile_is_that_slice_and_nothing_else() -> None:
    fleet = fleet_of(sliced())
    assert room(fleet, profile("1g.5gb", count=9)) == [4]
    assert room(fleet, profile("3g.20gb", 428, count=9)) == [1]
    for name, milli in (("1g.10gb", 142), ("2g.10gb", 285), ("7g.40gb", 999)):
        assert room(fleet, profile(name, milli)) == [0]
        assert why(sliced(), profile(name, milli)) == {"c1": "no such MIG profile"}
    assert why(node(), profile("1g.5gb")) == {"c1": "no such MIG profile"}  # hands out any part
    assert why(replace(node(gpus=1), shares=(HAMI,)), profile("1g.5gb")) == {
        "c1": "no such MIG profile"
    }


def test_a_small_profile_leaves_the_large_one_alone_where_milli_would_not() -> None:
    """By milli the ninth small pod would be refused as well: a large slice is not cut."""
    fleet = fleet_of(sliced("n1"), sliced("n2"))
    for count, fits in ((8, True), (9, False)):
        pods = profile("1g.5gb", count=count)
        seating = bind_gang(fleet, 0, [pods], [suitable_nodes(fleet, pods)])
        assert (seating is not None) is fits
    large = profile("3g.20gb", 428)
    seating = bind_gang(fleet, 0, [large], [suitable_nodes(fleet, large)])
    assert seating is not None
    fleet.hold(key("a", "large"), seating.holdings)
    assert sorted(fleet.arrays.pieces[LARGE.resource].tolist()) == [0, 1]
    assert fleet.arrays.pieces[SMALL.resource].tolist() == [
        4,
        4,
    ]  # though a small one would do for 142
    fleet.release(key("a", "large"))
    assert fleet.arrays.pieces[LARGE.resource].tolist() == [1, 1]


def test_a_resource_that_does_not_name_its_profile_tells_it() -> None:
    single = Share(
        resource="nvidia.com/gpu",
        milli=142,
        memory_mib=10_240,
        count=7,
        kind="mig",
        profile="1g.10gb",
    )
    fleet = fleet_of(replace(node(gpus=1, foreign_milli=(6,)), shares=(single,)))
    assert room(fleet, profile("1g.10gb", count=9)) == [7]
    assert room(fleet, profile("1g.5gb")) == [0]


def test_profiles_come_to_their_share_of_a_gpu() -> None:
    names = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "1g.10gb+me", "1c.3g.40gb", "7g.80gb")
    assert [profile_milli(n) for n in names] == [142, 285, 428, 571, 142, 428, 999]
    for wrong in ("", "1g", "8g.80gb", "0g.5gb", "1g.10GB", "1g.10gb\n", "mig-1g.10gb"):
        assert profile_milli(wrong) is None


def test_a_part_is_as_large_as_its_memory_asks_for() -> None:
    """Eight GiB of a T4 are half of it, of an A100 a tenth."""
    fleet = fleet_of(node(name="a100", gpus=1, memory_mib=81_920), node(name="t4", gpus=1))
    assert room(fleet, part(1, 8192, count=99)) == [10, 2]
    assert room(fleet, part(300, 8192, count=99)) == [3, 2]
    assert room(fleet, part(1, 20_000, count=99)) == [4, 0]
    # Where HAMi divides, it is the same.
    fleet = fleet_of(replace(node(gpus=1), shares=(HAMI,)))
    assert room(fleet, part(1, 8192, count=99)) == [2]


def test_memory_of_a_part_is_charged_whatever_was_heard_of_first_and_given_back() -> None:
    pods = part(1, 8192)
    taken = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(0,)), pods)
    other = holding("c1", PodBinding(pod="main-0", node="n1", gpus=(0,)), part(100))
    late, early = Fleet(), Fleet()
    late.hold(key("a", "train"), [taken])
    late.put_node(node(gpus=2))
    early.put_node(node(gpus=2))
    early.arrange()
    early.hold(key("a", "train"), [taken])
    late.arrange()
    assert late.arrays.gpu.tolist() == early.arrays.gpu.tolist() == [[500, 1000]]
    for fleet in (late, early):
        fleet.hold(key("a", "other"), [other])
        assert fleet.arrays.gpu.tolist() == [[400, 1000]]
        fleet.put_node(node(gpus=2, counter=2))  # told again: nothing moves
        assert fleet.arrays.gpu.tolist() == [[400, 1000]]
        fleet.release(key("a", "train"))
        assert fleet.arrays.gpu.tolist() == [[900, 1000]]
        fleet.release(key("a", "other"))
        assert fleet.arrays.gpu.tolist() == [[1000, 1000]]


def test_a_gang_of_parts_by_memory_shares_gpus_as_far_as_their_memory_goes() -> None:
    fleet = fleet_of(node(name="n1", gpus=2), node(name="n2", gpus=1))
    for count, fits in ((6, True), (7, False)):
        pods = part(1, 8192, count=count)
        seating = bind_gang(fleet, 0, [pods], [suitable_nodes(fleet, pods)])
        assert (seating is not None) is fits
        if seating is not None:
            places = [(b.node, b.gpus) for b in seating.bindings]
            assert {place: places.count(place) for place in places} == {
                ("n1", (0,)): 2,
                ("n1", (1,)): 2,
                ("n2", (0,)): 2,
            }


def test_new_shares_of_a_node_are_taken_over() -> None:
    fleet = fleet_of(sliced())
    changed = replace(sliced(), shares=(replace(SMALL, count=2),))
    assert fleet.put_node(changed)
    fleet.arrange()
    assert room(fleet, part(100, count=9)) == [2]
    assert room(fleet, part(300)) == [0]
