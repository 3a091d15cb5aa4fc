"""Pressure: what of a fleet is scarce, told by what some pods cannot do without."""

import numpy as np
import pytest
from msgspec.structs import replace

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet, Holding
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.pod_mix import Mix, accepted, accepting, sampled_from, told_as
from berthmaster.lib.engine.scoring.pressure import (
    DEAR_KEPT,
    MOVES_MILLI,
    NO_PRESSURE,
    NOTHING_DEAR,
    Dear,
    Gauge,
    Laid,
    Pools,
    is_due,
)
from berthmaster.lib.engine.scoring.value import NOT_HERE, Appraiser, score_all, worth_of
from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.placement import PressedPool, Pressure, WholeBlock
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node, pod_set

ANY = pod_set(gpus=1, cpu_milli=0)
T4 = pod_set(gpus=1, cpu_milli=0, gpu_models=("T4",))
PLAIN = worth_of(())
NOWHERE_SCARCE = PLAIN.hole, 0.0


def fleet_of(*nodes: tuple[str, int, str]) -> Fleet:
    fleet = Fleet()
    for name, gpus, model in nodes:
        fleet.put_node(node("c", name, gpus=gpus, model=model, cpu_milli=96_000))
    fleet.arrange()
    return fleet


def takes(name: str, gpus: tuple[int, ...], cpu_milli: int = 0) -> Holding:
    return Holding("c", name, cpu_milli, 0, WHOLE, gpus)


def learned(*arrivals: tuple[PodSet, int]) -> Mix:
    mix = Mix()
    for pods, times in arrivals:
        mix.add(replace(pods, count=times))
    return mix


def priced(fleet: Fleet, mix: Mix, before: Pressure = NO_PRESSURE) -> Pressure:
    return Gauge().made(fleet, mix.newest, before, *NOWHERE_SCARCE)


def test_who_could_go_elsewhere_leaves_a_scarce_model_until_that_costs_more_than_it_saves() -> None:
    # The example of pressure.py: 80 GPUs of G2, 20 of T4; 6 of 10 accept any, 4 T4 alone.
    nodes = [(f"g{n}", 8, "G2") for n in range(10)] + [(f"t{n}", 2, "T4") for n in range(10)]
    fleet, mix = fleet_of(*nodes), learned((ANY, 60), (T4, 40))
    made = priced(fleet, mix)
    [t4] = made.pools  # G2 costs nothing beyond itself
    assert len(t4.wanted_by) == 2
    assert t4.price_milli == 1140
    # One GPU of T4 is as dear to those who name it as to all others: they have no choice.
    dear = Dear(Gauge().dear(fleet, mix.newest, made).factor, None)
    worth = PLAIN._replace(dear=dear)
    for need, first in ((ANY, "g0"), (T4, "t0")):
        scores = score_all(fleet, need, suitable_nodes(fleet, need), worth)
        assert fleet.names[int(scores.argmax())][1] == first
    # Where G2 has room for it only at the price of a fragment that costs less, it stays there …
    scores = score_all(fleet, ANY, suitable_nodes(fleet, ANY), worth)
    assert scores[0] - scores[-1] == pytest.approx(1.14, abs=0.08)
    # … and as T4 is used up by others, its price rises; as G2 is, both come closer.
    fleet.charge([takes(f"t{n}", (0,)) for n in range(10)], +1)
    assert priced(fleet, mix).pools[0].price_milli > 2000
    fleet.charge([takes(f"g{n}", tuple(range(8))) for n in range(8)], +1)
    assert priced(fleet, mix).pools[0].price_milli < 1140


def test_nothing_is_dear_where_all_pods_accept_the_same_or_nothing_was_learned() -> None:
    fleet = fleet_of(("a", 8, "G2"), ("b", 8, "T4"))
    assert priced(fleet, learned((ANY, 50))).pools == ()
    assert priced(fleet, Mix()).pools == ()
    assert priced(Fleet(), learned((T4, 50))) == Pressure(pods=50)


@pytest.mark.parametrize(
    "need",
    [
        pod_set(gpus=1, node_labels={"zone": "a"}),
        pod_set(gpu_milli=100, gpus=1, mig_profile="1g.10gb"),
        pod_set(gpus=1, gpu_memory_mib=60_000),
    ],
)
def test_whatever_some_pods_cannot_do_without_makes_a_pool(need: PodSet) -> None:
    fleet = Fleet()
    for at in range(6):
        fleet.put_node(node("c", f"n{at}", gpus=4, memory_mib=16_384))
    rare = node("c", "rare", gpus=4, labels={"zone": "a"}, memory_mib=81_920)
    share = Share(
        resource="nvidia.com/mig-1g.10gb", kind="mig", milli=142, memory_mib=10_240, count=4
    )
    if need.mig_profile:
        rare = replace(rare, shares=(share,))
    fleet.put_node(rare)
    fleet.arrange()
    mix = learned((ANY, 30), (need, 300))
    pools = Pools(fleet, mix.newest, Laid(fleet))
    prices = dict(zip(pools.wanted_by, pools.prices(np.full(7, 4.0)), strict=True))
    dearest = max(prices, key=lambda by: prices[by])
    assert len(dearest) >= 1
    assert prices[dearest] > 0.5
    assert [
        fleet.names[at][1] for at in np.flatnonzero(pools.of_node == pools.wanted_by.index(dearest))
    ] == ["rare"]


def test_prices_stay_until_one_of_them_moves_by_enough() -> None:
    nodes = [(f"g{n}", 8, "G2") for n in range(40)] + [(f"t{n}", 2, "T4") for n in range(40)]
    fleet, mix = fleet_of(*nodes), learned((ANY, 60), (T4, 40))
    first = priced(fleet, mix)
    fleet.charge([takes("g0", (0,))], +1)
    assert priced(fleet, mix, first) is first
    fleet.charge([takes(f"t{n}", (0,)) for n in range(20)], +1)
    moved = priced(fleet, mix, first)
    assert moved.pools[0].price_milli - first.pools[0].price_milli >= MOVES_MILLI


def test_it_is_worked_out_anew_with_each_sample_and_after_so_many_pods() -> None:
    sampled = learned((ANY, 40)).newest
    of_it = Pressure(pods=sampled.pods)
    assert is_due(NO_PRESSURE, sampled, 0, 1200)
    assert not is_due(of_it, sampled, 99, 1200)
    assert is_due(of_it, sampled, 100, 1200)
    assert not is_due(of_it, sampled, 1, 3)
    assert is_due(of_it, sampled, 2, 3)


def costs(fleet: Fleet, mix: Mix, need: PodSet) -> list[float]:
    """Of each node where it fits, what one pod costs there by the blocks that it breaks."""
    worth = PLAIN._replace(dear=Gauge().dear(fleet, mix.newest, priced(fleet, mix)))
    suitable = suitable_nodes(fleet, need)
    scores, plain = (score_all(fleet, need, suitable, each) for each in (worth, PLAIN))
    both = zip(plain, scores, strict=True)
    return [round(float(p - s), 4) for p, s in both if s != NOT_HERE]


def test_the_fewer_blocks_are_left_the_dearer_they_are_and_a_pod_pays_for_what_it_breaks() -> None:
    fleet = fleet_of(*((f"n{at}", 8, "G2") for at in range(4)), ("single", 1, "G2"))
    mix = learned((pod_set(gpus=1), 40))
    assert priced(fleet, mix).whole == (WholeBlock(gpus=8, price_milli=4000),)
    fleet.charge([takes("n0", (3,))], +1)
    assert priced(fleet, mix).whole == (WholeBlock(gpus=8, price_milli=5333),)
    assert costs(fleet, mix, pod_set(gpus=1)) == [0.7187, 3.7693, 3.7693, 3.7693, 0.0]
    assert costs(fleet, mix, pod_set(gpus=1, gpu_milli=300)) == costs(fleet, mix, pod_set(gpus=1))
    assert costs(fleet, mix, pod_set(gpus=0, cpu_milli=500)) == [0.0] * 5
    fleet.charge([takes("n0", (3,))], -1)
    assert costs(fleet, mix, pod_set(gpus=8)) == [0.0] * 4  # it takes a block, and breaks none
    fleet.charge([takes(f"n{at}", (3,)) for at in range(4)], +1)
    assert priced(fleet, mix).whole == (WholeBlock(gpus=8, price_milli=16_000),)  # the next


def test_blocks_are_dearer_the_more_of_the_demand_takes_so_many_or_more() -> None:
    # The example of pressure.py: 40 of 100 GPUs are asked for by eight, 24 by four.
    fleet = fleet_of(*((f"n{at}", 8, "G2") for at in range(4)))
    mix = learned((pod_set(gpus=8), 5), (pod_set(gpus=4), 6), (pod_set(gpus=1), 36))
    four, eight = (block.price_milli for block in priced(fleet, mix).whole)
    assert eight == 15_200  # 4000 x (1 + 7 x 0.4)
    assert four == 5_480  # 1000 x (1 + 7 x 0.64)
    parts = learned((pod_set(gpus=1, gpu_milli=500), 40))
    assert [block.price_milli for block in priced(fleet, parts).whole] == [4000]


def test_what_is_nearly_a_block_is_left_alone_before_what_is_far_from_one() -> None:
    fleet = fleet_of(("seven", 8, "G2"), ("three", 8, "G2"), ("none", 8, "G2"))
    taken = [takes("seven", (7,)), takes("three", (0, 1, 2, 3, 4)), takes("none", tuple(range(8)))]
    fleet.charge(taken, +1)
    near, far = costs(fleet, learned((pod_set(gpus=8), 40)), pod_set(gpus=1))
    assert near > 10 * far > 0.0


def test_common_blocks_stay_together() -> None:
    fleet = fleet_of(("five", 8, "G2"), ("four", 8, "G2"), ("three", 8, "G2"))
    taken = [takes("five", (0, 1, 2)), takes("four", (0, 1, 2, 3)), takes("three", (0, 1, 2, 3, 4))]
    fleet.charge(taken, +1)
    mix = learned((pod_set(gpus=1), 20), (pod_set(gpus=4), 20))
    prices = (WholeBlock(gpus=4, price_milli=26_400), WholeBlock(gpus=8, price_milli=16_000))
    assert priced(fleet, mix).whole == prices  # 80 of 100 GPUs are asked for by four
    assert costs(fleet, mix, pod_set(gpus=1)) == [0.7188, 22.5117, 3.425]
    assert costs(fleet, mix, pod_set(gpus=2)) == [22.4813, 25.1875, 3.425]
    closed = node("c", "four", gpus=8, cpu_milli=96_000, model="G2", schedulable=False)
    fleet.put_node(closed)
    assert priced(fleet, mix).whole[0] == WholeBlock(gpus=4, price_milli=52_800)  # one less
    larger = learned((pod_set(gpus=16), 40))  # of which no node has one
    assert [block.gpus for block in priced(fleet, larger).whole] == [8]


def test_pressure_of_another_sample_or_of_none_counts_for_nothing() -> None:
    fleet, mix = fleet_of(("a", 8, "G2"), ("b", 8, "T4")), learned((ANY, 30), (T4, 60))
    gauge, made = Gauge(), priced(fleet, mix)
    assert gauge.dear(fleet, mix.newest, made) is not NOTHING_DEAR
    later = learned((ANY, 30), (T4, 600)).newest
    assert gauge.dear(fleet, later, made) is NOTHING_DEAR
    assert gauge.dear(fleet, mix.newest, NO_PRESSURE) is NOTHING_DEAR


def test_prices_that_come_back_are_what_they_were_and_few_are_kept() -> None:
    fleet, newest, gauge = fleet_of(("a", 8, "G2")), learned((ANY, 40)).newest, Gauge()

    def at(price_milli: int) -> Dear:
        whole = (WholeBlock(gpus=2, price_milli=price_milli),)
        return gauge.dear(fleet, newest, Pressure(pods=newest.pods, whole=whole))

    usual = at(100)
    assert at(200) is not usual
    assert at(100) is usual  # so cards that were made for it still hold
    for price_milli in range(300, 300 + DEAR_KEPT):
        at(price_milli)
    assert at(100) is not usual


def test_what_was_told_comes_to_the_same_on_a_fleet_that_is_laid_out_anew() -> None:
    fleet, mix = fleet_of(("a", 8, "G2"), ("b", 8, "T4")), learned((ANY, 30), (T4, 60))
    appraiser, made = Appraiser(), priced(fleet, mix)
    worth = appraiser.under(made, fleet, mix.newest, 12_000.0)
    assert appraiser.under(made, fleet, mix.newest, 12_000.0) is worth
    assert sampled_from(told_as(mix.newest)) == mix.newest
    fleet.put_node(node("c", "aa", gpus=8, model="T4"))
    fleet.put_node(node("c", "odd", gpus=0, model=""))
    fleet.arrange()
    factor = appraiser.under(made, fleet, mix.newest, 12_000.0).dear.factor
    assert factor is not None
    [price] = [pool.price_milli for pool in made.pools if pool != PressedPool(price_milli=0)]
    assert factor.tolist() == [1.0, 1 + price * 1e-3, 1 + price * 1e-3, 1.0]


def test_what_pods_accept_leaves_out_how_much_they_take() -> None:
    one = pod_set(gpus=2, cpu_milli=3000, gpu_models=("V100", "T4"), count=3)
    other = pod_set(gpus=1, memory_mib=9000, gpu_models=("T4", "V100"), name="other")
    assert accepted(one) == accepted(other)
    assert accepted(one) != accepted(T4)
    assert accepted(pod_set(gpu_milli=300, gpus=1)) == accepted(pod_set(gpu_milli=500, gpus=1))
    assert accepted(accepting(accepted(one))) == accepted(one)


def test_pools_group_equally_acceptable_nodes() -> None:
    models = ("G2", "T4", "P100", "V100M16")
    fleet = fleet_of(*((f"n{at:02}", 1 + at % 3, models[at % 4]) for at in range(30)))
    laid = Laid(fleet)
    several = [tuple(m for at, m in enumerate(models) if bits >> at & 1) for bits in range(1, 16)]
    for start in range(0, len(several), 5):  # each sample knows others than the one before
        wants = [replace(ANY, gpu_models=each) for each in several[start : start + 5]]
        mix = learned(*((each, 40) for each in wants))
        pools = Pools(fleet, mix.newest, laid)
        masks = [suitable_nodes(fleet, accepting(each)).nodes for each, _ in mix.newest.wants]
        by_node = [
            tuple(at for at, mask in enumerate(masks) if mask[slot])
            for slot in range(len(fleet.names))
        ]
        assert [pools.wanted_by[pool] for pool in pools.of_node] == by_node
        assert len(set(pools.wanted_by)) == len(pools.wanted_by)
