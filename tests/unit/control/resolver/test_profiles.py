"""Profiles at work: where jobs go by each, whose word counts, and that all of it is repeated."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.control.resolver.core.answers.fork import fork
from berthmaster.control.resolver.core.answers.whatif import Budget
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.fleetview.components import PRICE
from berthmaster.lib.engine.scoring.profiles import PROFILES
from berthmaster.lib.messages.api import (
    Refusal,
    SubmitRequest,
    SupposedQueue,
    WhatifReply,
    WhatifRequest,
    WhyReply,
)
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.families import DECISIONS, encode
from berthmaster.lib.messages.fleet import (
    ClusterScore,
    FlavorQuota,
    Freshness,
    LocalQueueReport,
    Membership,
    QueueReport,
    QuotaAmount,
    Stamp,
)
from berthmaster.lib.messages.placement import Choice, PartWeights
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

STAMP = Stamp(epoch=1, counter=1)


def ranked(
    name: str = "train",
    *,
    by: str = "",
    weights: PartWeights | None = None,
    data: tuple[str, ...] = (),
    **fields: Any,
) -> JobRequest:
    return replace(job(name, **fields), profile=by, weights=weights or {}, data=data)


def fleet(*names: str, policy: Policy | None = None, nodes: int = 2, **fields: Any) -> World:
    """Equal clusters of two nodes with four GPUs each."""
    world = World(policy)
    for name in names:
        world.fact(profile(name), alive(name))
        world.fact(*(node(name, f"n{n}", **({"gpus": 4} | fields)) for n in range(1, nodes + 1)))
    return world


def one_by_one(world: World, *requests: JobRequest) -> list[str]:
    """Where each goes, each being decided about by itself."""
    went = []
    for request in requests:
        name = world.submit(request)
        world.settle()
        went.append(world.placed_on(name))
    return went


def choice(world: World) -> Choice:
    return world.decisions[-1][1].placements[-1]


def repeats_itself(world: World) -> None:
    stored = [(sequence, DECISIONS.decode(encode(each))) for sequence, each in world.decisions]
    report = replay(world.inputs()._replace(decisions=stored), "all")
    assert (report.equal, report.different) == (len(world.decisions), 0), report.first_difference


# Each profile does what it is called


def test_pack_fills_one_cluster_before_it_takes_the_next_and_spread_takes_them_in_turn() -> None:
    for count in (8, 16):
        jobs = [ranked(f"j{n}", by="pack") for n in range(count)]
        went = one_by_one(fleet("c1", "c2"), *jobs)
        assert went == ["c1"] * 8 + ["c2"] * (count - 8)
    world = fleet("c1", "c2", "c3")
    went = one_by_one(world, *(ranked(f"j{n}", by="spread") for n in range(12)))
    assert went == ["c1", "c2", "c3"] * 4
    repeats_itself(world)


def test_spread_fills_clusters_by_their_size_and_in_one_commit_too() -> None:
    world = fleet("large", nodes=6)
    world.fact(profile("small"), alive("small"), node("small", gpus=8))
    for number in range(16):
        world.submit(ranked(f"j{number}", by="spread"))
    [plan] = world.settle()
    went = [choice.cluster for choice in plan.decision.placements]
    assert (went.count("large"), went.count("small")) == (12, 4)


def test_the_resolvers_own_profile_counts_where_nobody_says_anything() -> None:
    went = one_by_one(fleet("c1", "c2", policy=Policy(profile="pack")), job("a"), job("b"))
    assert went == ["c1", "c1"]
    went = one_by_one(fleet("c1", "c2", policy=Policy(profile="spread")), job("a"), job("b"))
    assert went == ["c1", "c2"]


def priced(world: World, **prices: str) -> World:
    for name, price in prices.items():
        world.fact(profile(name, labels={PRICE: price}))
    return world


def test_cheapest_takes_the_cheap_ones_first_and_who_tells_no_price_last() -> None:
    world = priced(fleet("a", "b", "c", "d"), a="4", b="1.5", d="nonsense")
    stamped = Membership(cluster="c", stamp=STAMP, observed_at_s=0.0, properties={PRICE: "1"})
    world.fact(stamped)  # the hub's word
    jobs = [ranked(f"j{n}", by="cheapest", gpus=4) for n in range(8)]
    assert one_by_one(world, *jobs) == ["c", "c", "b", "b", "a", "a", "d", "d"]
    first, last = world.decisions[0][1].placements[0], choice(world)
    assert [(r.cluster, r.parts["price"]) for r in first.ranking] == [
        ("c", 100.0),
        ("b", 66.6667),
        ("a", 25.0),
        ("d", 0.0),
    ]
    assert [(r.cluster, r.parts["price"]) for r in last.ranking] == [("d", 0.0)]
    assert (first.profile, first.weights) == ("cheapest", {})
    repeats_itself(world)


def test_a_price_is_of_the_model_that_the_job_would_get() -> None:
    world = World()
    for name, model, labels in (
        ("a", "NVIDIA-A100-SXM4-80GB", {PRICE: "1", f"{PRICE}.A100": "4"}),
        ("b", "T4", {PRICE: "2", f"{PRICE}.A100": "0.1"}),
    ):
        world.fact(profile(name, labels=labels), alive(name), node(name, model=model))
    assert one_by_one(world, ranked("any", by="cheapest")) == ["b"]
    assert one_by_one(world, ranked("cpu", by="cheapest", gpus=0)) == ["a"]


def test_without_any_price_cheapest_ranks_by_the_rest() -> None:
    world = fleet("c1", "c2")
    assert one_by_one(world, ranked(by="cheapest")) == ["c1"]
    assert set(choice(world).ranking[0].parts) == {"fit", "room"}


def test_data_draws_a_job_to_where_it_is_by_name_label_or_property() -> None:
    world = fleet("c1", "c2", "c3")
    world.fact(profile("c2", labels={"region": "eu"}))
    hub = Membership(cluster="c3", stamp=STAMP, observed_at_s=0.0, properties={"zone": "eu-1"})
    world.fact(profile("c3", labels={"region": "eu"}), hub)
    assert one_by_one(world, ranked("a", data=("c2",))) == ["c2"]
    assert one_by_one(world, ranked("b", data=("region=eu", "zone=eu-1"))) == ["c3"]
    parts = {each.cluster: each.parts["locality"] for each in choice(world).ranking}
    assert parts == {"c1": 0.0, "c2": 50.0, "c3": 100.0}
    # Nowhere: then it leaves the node whole that still is.
    assert one_by_one(world, ranked("c", data=("region=mars",))) == ["c2"]
    repeats_itself(world)


def score(
    cluster: str, counter: int = 1, freshness: Freshness = "fresh", **fields: float
) -> ClusterScore:
    return ClusterScore(
        cluster=cluster,
        stamp=Stamp(epoch=1, counter=counter),
        freshness=freshness,
        input_age_s=0.0,
        **fields,  # type: ignore[arg-type]
    )


def test_parts_of_gpus_go_where_shared_gpus_are_calm_and_whole_ones_do_not_ask() -> None:
    world = fleet("c1", "c2")
    world.fact(score("c1", calm_gpu_percent=20.0), score("c2", calm_gpu_percent=90.0))
    assert one_by_one(world, ranked("part", gpu_milli=500)) == ["c2"]
    assert choice(world).ranking[0].parts["interference"] == 90.0
    world = fleet("c1", "c2")
    world.fact(score("c1", calm_gpu_percent=20.0), score("c2", calm_gpu_percent=90.0))
    assert one_by_one(world, ranked("whole")) == ["c1"]
    assert "interference" not in choice(world).ranking[0].parts
    # What is known of one only makes that one look better, never the silent one.
    world = fleet("c1", "c2")
    world.fact(score("c2", calm_gpu_percent=10.0))
    assert one_by_one(world, ranked("part", by="spread", gpu_milli=500)) == ["c2"]


# The clusters' own queues


def governed(world: World, queue: QueueSetting | None = None) -> World:
    world.control(
        queue
        or QueueSetting(queue="gpu", via="worker", places={"*": QueuePlace(namespace="team-a")})
    )
    return world


def report(cluster: str, *, nominal: int = 8, used: int = 0, **fields: Any) -> QueueReport:
    amounts = {"cpu": 10**9, "memory": 10**9}
    return QueueReport(
        cluster=cluster,
        queue="cq",
        stamp=STAMP,
        observed_at_s=0.0,
        flavors=(
            FlavorQuota(
                flavor="t4",
                resources={name: QuotaAmount(nominal=each) for name, each in amounts.items()}
                | {"nvidia.com/gpu": QuotaAmount(nominal=nominal, used=used)},
            ),
        ),
        local_queues=(LocalQueueReport(namespace="team-a", name="gpu"),),
        **fields,
    )


def lender(cluster: str) -> QueueReport:
    """Another ClusterQueue of the cohort, with quota to lend."""
    return replace(report(cluster, cohort="all"), queue="lender", local_queues=())


def test_soonest_avoids_the_cluster_with_the_long_queue_and_goes_there_when_it_is_gone() -> None:
    world = governed(fleet("c1", "c2"))
    world.fact(report("c1", pending=30, admitted=2), report("c2", pending=1, admitted=5))
    assert one_by_one(world, ranked("a", by="soonest", queue="gpu")) == ["c2"]
    told = {each.cluster: each.parts["wait"] for each in choice(world).ranking}
    assert told == {"c2": 85.7143, "c1": 9.0909}
    world.fact(report("c1", pending=0, admitted=2))
    assert one_by_one(world, ranked("b", by="soonest", queue="gpu")) == ["c1"]
    repeats_itself(world)


def test_guaranteed_quota_goes_before_borrowed_for_everybody() -> None:
    world = governed(fleet("c1", "c2"))
    world.fact(report("c1", used=8, cohort="all"), lender("c1"), report("c2", used=6))
    went = one_by_one(world, *(ranked(f"j{n}", queue="gpu") for n in range(3)))
    assert went == ["c2", "c2", "c1"]  # two of its own are left, and then c1 borrows
    assert choice(world).ranking[0].parts["wait"] == 50.0
    repeats_itself(world)


def test_what_this_commit_sends_to_a_cluster_takes_its_quota_from_the_next() -> None:
    world = governed(fleet("c1", "c2"))
    world.fact(report("c1", used=5, cohort="all"), lender("c1"), report("c2", used=7))
    for number in range(6):
        world.submit(ranked(f"j{number}", by="soonest", queue="gpu"))
    [plan] = world.settle()
    went = [each.cluster for each in plan.decision.placements]
    assert went[:4].count("c2") == 1  # all that is left of its own; c1 has three
    assert went[4:] == ["c1", "c1"]
    first, last = plan.decision.placements[0], plan.decision.placements[-1]
    assert first.ranking[0].parts["wait"] == 100.0
    assert last.ranking[0].parts["wait"] == 50.0  # borrowed, as the one before it: nobody waits


# Whose word counts


def test_a_queues_profile_counts_from_the_next_decision_on_and_the_requests_goes_over_it() -> None:
    world = fleet("c1", "c2")
    assert one_by_one(world, job("a", queue="q"), job("b", queue="q")) == ["c1", "c2"]
    world.control(QueueSetting(queue="q", profile="pack"))
    went = one_by_one(world, *(job(f"p{n}", queue="q") for n in range(3)))
    assert went == ["c1", "c1", "c1"]
    assert (choice(world).profile, choice(world).weights) == ("pack", {})
    assert one_by_one(world, ranked("own", by="spread", queue="q")) == ["c2"]
    assert choice(world).profile == "spread"
    assert one_by_one(world, job("else", queue="other")) == ["c2"]
    assert choice(world).profile == ""
    repeats_itself(world)


def test_weights_override_profile() -> None:
    world = fleet("c1", "c2")
    world.fact(score("c1", idle_gpu_percent=10.0), score("c2", idle_gpu_percent=90.0))
    world.control(QueueSetting(queue="q", profile="pack", weights={"room": 0, "idle": 5}))
    assert one_by_one(world, job("a", queue="q")) == ["c2"]
    assert choice(world).weights == {"fit": 4.0, "idle": 5.0, "locality": 2.0}
    assert set(choice(world).ranking[0].parts) == {"fit", "idle"}
    warmest = ranked("b", weights={"idle": -10, "fit": 0}, queue="q")
    assert one_by_one(world, warmest) == ["c1"]
    assert choice(world).ranking[0].score == pytest.approx(90, abs=1e-4)
    repeats_itself(world)


def test_a_queues_weights_count_without_a_profile_of_the_queue_or_of_the_request() -> None:
    world = fleet("c1", "c2")
    world.fact(score("c1", idle_gpu_percent=10.0), score("c2", idle_gpu_percent=90.0))
    world.control(QueueSetting(queue="q", weights={"room": 0, "fit": 0, "idle": 10}))
    assert one_by_one(world, job("a", queue="q")) == ["c2"]
    assert choice(world).weights["idle"] == 10.0
    world.control(QueueSetting(queue="q", weights={"room": 0, "fit": 0, "idle": -10}))
    assert one_by_one(world, job("b", queue="q")) == ["c1"]
    repeats_itself(world)


def test_what_is_not_known_is_the_worst_whichever_way_a_part_counts() -> None:
    world = fleet("silent", "told")
    world.fact(score("told", idle_gpu_percent=100.0))
    for weight in (10.0, -10.0):
        one = fleet("silent", "told")
        one.fact(score("told", idle_gpu_percent=50.0))
        only = dict.fromkeys(PROFILES["balanced"], 0.0) | {"idle": weight}
        assert one_by_one(one, ranked(weights=only)) == ["told"]
        assert [each.parts for each in choice(one).ranking] == [{"idle": 50.0}, {"idle": 0.0}]


def test_with_no_weight_at_all_the_first_by_name_is_taken() -> None:
    world = fleet("b", "a", "c")
    nothing = dict.fromkeys(PROFILES["balanced"], 0.0)
    assert one_by_one(world, ranked(weights=nothing)) == ["a"]
    assert [(each.score, each.parts) for each in choice(world).ranking] == [(0.0, {})] * 3
    repeats_itself(world)


def test_names_of_a_newer_version_count_as_not_said() -> None:
    world = fleet("c1", "c2")
    odd = ranked("odd", by="greenest", weights={"carbon": 9.0})
    assert one_by_one(world, odd) == ["c1"]
    assert (choice(world).profile, choice(world).weights) == ("", {})
    assert set(choice(world).ranking[0].parts) == {"fit", "room", "idle"}


@pytest.mark.parametrize("by", PROFILES)
def test_every_profile_gives_scores_within_bounds_places_gangs_and_is_repeated(by: str) -> None:
    world = governed(priced(fleet("c1", "c2", "c3"), c1="3", c2="1"))
    world.fact(report("c1", pending=2), report("c2", used=8, cohort="x"), report("c3"))
    world.fact(score("c1", idle_gpu_percent=30.0, calm_gpu_percent=10.0))
    requests = [
        ranked("one", by=by, queue="gpu", data=("c1", "region=x")),
        ranked("gang", by=by, count=3, gpus=2),
        ranked("part", by=by, gpu_milli=250),
        ranked("cpu", by=by, gpus=0),
    ]
    for request in requests:
        world.submit(request)
    world.settle()
    choices = [each for _, decision in world.decisions for each in decision.placements]
    assert len(choices) == len(requests)
    for each in choices:
        assert each.profile == ("" if by == "balanced" else by)
        for found in each.ranking:
            assert 0 <= found.score <= 100
            assert all(0 <= part <= 100 for part in found.parts.values())
            counts = set(PROFILES[by]) | {"fit", "room"}
            assert set(found.parts) <= counts
        assert [r.score for r in each.ranking] == sorted(r.score for r in each.ranking)[::-1]
    repeats_itself(world)


# Questions


def test_why_a_dry_run_and_what_if_rank_as_deciding_does() -> None:
    world = priced(fleet("c1", "c2"), c1="2", c2="1")
    cheap = ranked("cheap", by="cheapest")
    dry = world.dry_run(TENANT, cheap, world.now_s)
    assert dry.choice is not None
    asked = msgspec.json.decode(msgspec.json.encode(cheap), type=SubmitRequest)
    told = supposed(world, submit=asked)
    assert isinstance(told, WhatifReply)
    assert told.job is not None
    assert told.job.choice is not None
    assert one_by_one(world, cheap) == ["c2"]
    why = world.why(TENANT, "cheap", world.now_s)
    assert isinstance(why, WhyReply)
    assert dry.choice == told.job.choice == why.choice == choice(world)
    assert why.choice.profile == "cheapest"


def supposed(world: World, **asked: Any) -> WhatifReply | Refusal:
    steps = world.whatif(TENANT, WhatifRequest(**asked), world.now_s, Budget())
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reply: WhatifReply | Refusal = done.value
            return reply


def test_what_if_refuses_a_profile_or_weight_that_nobody_knows() -> None:
    world = fleet("c1", "c2")
    known = supposed(world, queue=SupposedQueue(queue="q", profile="cheapest"))
    assert isinstance(known, WhatifReply)
    wrong = supposed(world, queue=SupposedQueue(queue="q", profile="fastest"))
    assert isinstance(wrong, Refusal)
    assert (wrong.field, wrong.value) == ("queue.profile", '"fastest"')
    odd = msgspec.json.decode(
        msgspec.json.encode(ranked("odd", weights={"speed": 1.0})), type=SubmitRequest
    )
    wrong = supposed(world, submit=odd)
    assert isinstance(wrong, Refusal)
    assert (wrong.field, wrong.value) == ("submit.weights.speed", '"speed"')
    assert wrong.expected.startswith('as a name there one of "fit", "room"')


def test_a_copy_of_what_is_known_ranks_by_itself() -> None:
    world = fleet("c1", "c2")
    one_by_one(world, job("a"))  # all that is kept for speed is made
    copy = fork(world.resolver.know)
    copy.clusters.get("c1").cordoned = "for a try"
    copy.derived.table.follow(copy.clusters, copy.fleet.clusters, copy.fleet.layout)
    rest = {"stale_after_s": 10.0, "avoid_s": 30.0}
    assert copy.derived.table.at(world.now_s, **rest).closed == {0: "cordoned: for a try"}
    assert world.resolver.know.derived.table.at(world.now_s, **rest).closed == {}
