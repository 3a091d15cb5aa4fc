"""Stories of deciding: who goes first, where, what waits and why, what is taken back."""

from typing import Any

import pytest

from berthmaster.control.resolver.core.deciding.draft import TRIES
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.queueing.queues import GPU
from berthmaster.lib.lifecycle.workload import key, request_digest
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import ClusterLost, Cordon, QueueSetting
from berthmaster.lib.messages.fleet import ClusterScore, Membership, Stamp, Taint
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    CarriedWorkload,
    Evicted,
    Failed,
    State,
    Submitted,
    Succeeded,
    Toleration,
    Withdrawn,
)
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World, placements


@pytest.fixture
def world() -> World:
    """Two clusters with one node each: c1 has two T4s, c2 four A100s."""
    world = World()
    world.fact(profile("c1", labels={"region": "north"}), alive("c1"), node("c1", gpus=2))
    world.fact(
        profile("c2", labels={"region": "south"}),
        alive("c2"),
        node("c2", gpus=4, model="A100", memory_mib=81_920),
    )
    return world


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def test_a_job_goes_to_the_node_that_it_fills_best_and_its_record_says_so(world: World) -> None:
    world.submit(job("two", gpus=2))
    plan = world.decide()
    assert placements(plan) == {"two": "c1"}
    assert plan is not None
    [choice] = plan.decision.placements
    assert [r.cluster for r in choice.ranking] == ["c1", "c2"]
    assert choice.ranking[0].parts == {"fit": 49.85, "room": 100.0, "idle": 0.0}
    assert choice.pods[0].gpus == (0, 1)
    assert plan.decision.saw.workloads == 1
    assert plan.decision.saw.fleet == 6
    assert "c1" in why(world, "two").summary


def test_the_higher_priority_goes_first_then_the_older(world: World) -> None:
    for name, priority in (("old", 0), ("older-but-low", -1), ("young", 0), ("urgent", 5)):
        world.submit(job(name, priority=priority, gpus=4))
    # Four GPUs are on c2 only: one at a time, and each ending lets in the next.
    order = []
    for _ in range(4):
        [(name, cluster)] = placements(world.decide()).items()
        assert cluster == "c2"
        assert world.decide() is None
        order.append(name)
        key = world.resolver.know.open
        running = next(k for k in key if key[k].live)
        world.claim(running)
        world.succeed(running)
    assert order == ["urgent", "old", "young", "older-but-low"]


def test_a_new_priority_changes_the_order(world: World) -> None:
    first, second = world.submit(job("first", gpus=4)), world.submit(job("second", gpus=4))
    world.append(world.reprioritized(second, 10))
    assert placements(world.decide()) == {"second": "c2"}
    assert why(world, "first").position == 1
    assert world.placed_on(first) == ""


@pytest.mark.parametrize(
    ("pods", "allowed"),
    [
        ({"gpu_models": ("A100",)}, {"c2"}),
        ({"gpu_models": ("A100", "T4")}, {"c1", "c2"}),
        ({"gpu_memory_mib": 40_000}, {"c2"}),
        ({"gpus": 3}, {"c2"}),
        ({"gpus": 5}, set()),
        ({"gpu_models": ("H100",)}, set()),
        ({"gpu_milli": 300}, {"c1", "c2"}),
        ({"cpu_milli": 97_000}, set()),
        ({"memory_mib": 800_000}, set()),
        ({"node_labels": {"zone": "a"}}, set()),
        ({"gpus": 0}, {"c1", "c2"}),
    ],
)
def test_filters_by_what_the_pods_ask_for(
    world: World, pods: dict[str, object], allowed: set[str]
) -> None:
    reply = world.dry_run(TENANT, job(**pods), world.now_s)  # type: ignore[arg-type]
    assert {r.cluster for r in reply.ranking} == allowed
    assert set(reply.filtered) == {"c1", "c2"} - allowed
    assert reply.placed == bool(allowed)


def test_filters_by_cluster_name_label_and_taint(world: World) -> None:
    world.fact(profile("c3", taints=(Taint(key="spot"),)), alive("c3"), node("c3"))

    def goes_to(**request: object) -> set[str]:
        reply = world.dry_run(TENANT, job(**request), world.now_s)  # type: ignore[arg-type]
        return {r.cluster for r in reply.ranking}

    assert goes_to() == {"c1", "c2"}
    assert goes_to(clusters=("c2",)) == {"c2"}
    assert goes_to(cluster_labels={"region": "north"}) == {"c1"}
    tolerant = pod_set(tolerations=(Toleration(key="spot", operator="Exists"),))
    assert goes_to(pod_sets=(tolerant,)) == {"c1", "c2", "c3"}


def test_cordon_closes_and_uncordon_admits(world: World) -> None:
    world.control(Cordon(cluster="c1", cordoned=True, reason="firmware"))
    world.control(Cordon(cluster="c2", node="n1", cordoned=True, reason="fan"))
    waiting = world.submit(job())
    assert world.decide() is None
    assert why(world, "train-1").filtered == {"c1": "cordoned: firmware", "c2": "busy: no room now"}
    world.control(Cordon(cluster="c2", node="n1", cordoned=False))
    world.decide()
    assert world.placed_on(waiting) == "c2"


def test_a_silent_cluster_gets_nothing_new_keeps_what_it_has_and_comes_back(world: World) -> None:
    runs = world.submit(job("runs", clusters=("c1",)))
    world.settle()
    world.claim(runs)
    world.run(runs)
    world.now_s += 11  # longer than stale_after_s
    world.fact(alive("c2", counter=2))
    waits = world.submit(job("waits", clusters=("c1",)))
    assert world.settle() == []
    assert world.placed_on(runs) == "c1"
    assert why(world, "waits").filtered["c1"] == "silent"
    world.fact(alive("c1", counter=2))
    world.settle()
    assert world.placed_on(waits) == "c1"


def test_withdrawn_cluster_is_out(world: World) -> None:
    def score(cluster: str, counter: int, **fields: object) -> ClusterScore:
        stamp = Stamp(epoch=1, counter=counter)
        return ClusterScore(cluster=cluster, stamp=stamp, input_age_s=0.0, **fields)  # type: ignore[arg-type]

    def idle(cluster: str) -> float:
        reply = world.dry_run(TENANT, job(), world.now_s)
        return next(r.parts["idle"] for r in reply.ranking if r.cluster == cluster)

    assert idle("c1") == 0.0  # unknown is the worst, not the best
    world.fact(score("c1", 1, freshness="fresh", idle_gpu_percent=80.0))
    assert idle("c1") == 80.0
    world.fact(score("c1", 2, freshness="stale", idle_gpu_percent=80.0))
    assert idle("c1") == 0.0
    world.fact(score("c1", 3, freshness="withdrawn"))
    reply = world.dry_run(TENANT, job(), world.now_s)
    assert reply.filtered == {"c1": "withdrawn by the scorer"}


def test_a_gang_is_placed_whole_on_one_cluster_or_not_at_all(world: World) -> None:
    gang = job(
        "gang",
        pod_sets=(pod_set(name="worker", count=3), pod_set(name="boss", gpus=0, cpu_milli=4000)),
    )
    whole = world.submit(gang)
    world.settle()
    assert world.placed_on(whole) == "c2"  # c1 has two GPUs only
    assert [b.pod for b in world.workloads[whole].pods] == [
        "worker-0",
        "worker-1",
        "worker-2",
        "boss-0",
    ]
    too_much = world.submit(job("more", pod_sets=(pod_set(name="worker", count=3),)))
    assert world.settle() == []
    assert world.placed_on(too_much) == ""
    assert "fewer pods: 2 of 3 would fit now, 2 GPUs, on c1" in why(world, "more").hints


def test_what_nobody_claims_is_withdrawn_and_placed_elsewhere(world: World) -> None:
    name = world.submit(job(gpus=2))
    world.settle()
    assert world.placed_on(name) == "c1"
    assert world.resolver.wake_at_s() == world.now_s + 10
    world.now_s += 9.9
    world.fact(alive("c1", counter=2), alive("c2", counter=2))
    assert world.settle() == []
    world.now_s += 0.1
    first, second = world.settle()
    assert isinstance(first.events[0], Withdrawn)
    assert placements(second) == {"train-1": "c2"}  # c1 does not claim: passed over for a while
    assert second.decision.placements[0].filtered == {"c1": "does not claim"}
    assert world.workloads[name].attempt == 2


def test_the_only_cluster_gets_another_chance_after_its_pause(world: World) -> None:
    name = world.submit(job(clusters=("c1",)))
    world.settle()
    world.now_s += 10
    world.fact(alive("c1", counter=2))
    assert len(world.settle()) == 1  # withdrawn, and nowhere else to go
    assert world.resolver.wake_at_s() == world.now_s + 30
    world.now_s += 30
    world.fact(alive("c1", counter=3))
    world.settle()
    assert world.placed_on(name) == "c1"
    world.claim(name)
    assert world.resolver.know.clusters.get("c1").unclaimed_at_s is None


def test_who_does_not_claim_is_tried_with_a_few_however_many_wait(world: World) -> None:
    """Its executor is away for an hour. All that wait have their place at once when it is back."""
    world.fact(node("c1", name="large", gpus=64, cpu_milli=1_000_000, memory_mib=10_000_000))
    names = [world.submit(job(f"job-{n}", clusters=("c1",))) for n in range(40)]
    tried = 0
    for counter in range(1, 900):
        for plan in world.settle():
            tried += len(plan.decision.placements)
        world.now_s += 4.0
        world.fact(alive("c1", counter=counter))
    assert len(names) < tried <= len(names) + 4 * 3600 / 40
    world.now_s = world.resolver.wake_at_s()
    world.fact(alive("c1", counter=1000))
    [plan] = world.settle()
    some = [key(TENANT, choice.id) for choice in plan.decision.placements]
    assert len(some) == TRIES
    world.claim(some[0])
    world.settle()
    assert {world.placed_on(name) for name in names} == {"c1"}
    report = replay(world.inputs(), "all")
    assert (report.different, report.repeated) == (0, len(world.decisions))


def test_who_claims_again_is_told_by_decisions_since_stories_of_ended_jobs_go(world: World) -> None:
    """Read without them, the log does not say that there was a claim."""
    first = world.submit(job("first", clusters=("c1",)))
    world.settle()
    world.now_s += 10.0
    world.fact(alive("c1", counter=2))
    world.settle()  # not claimed
    world.now_s += 30.0
    world.fact(alive("c1", counter=3), node("c1", name="large", gpus=16))
    world.settle()
    assert world.decisions[-1][1].unclaimed == {"c1": world.now_s - 30.0}
    world.claim(first)
    world.run(first)
    world.succeed(first)
    for n in range(8):
        world.submit(job(f"job-{n}", clusters=("c1",)))
    [plan] = world.settle()
    assert (len(plan.decision.placements), plan.decision.unclaimed) == (8, {})
    inputs = world.inputs()
    left = [one for one in inputs.events if isinstance(one[2], Succeeded) or one[2].id != "first"]
    assert len(left) < len(inputs.events)
    for events in (inputs.events, left):
        report = replay(inputs._replace(events=events), "all", last=1)
        assert (report.equal, report.first_difference) == (1, None)


def test_a_pause_that_is_over_keeps_nobody_awake(world: World) -> None:
    world.submit(job(clusters=("c1",)))
    world.settle()
    world.now_s += 10
    world.fact(alive("c1", counter=2))
    world.settle()  # withdrawn
    world.control(Cordon(cluster="c1", cordoned=True, reason="firmware"))
    world.now_s += 30
    assert world.settle() == []
    assert world.resolver.wake_at_s() == float("inf")  # until something happens


def test_what_is_claimed_and_silent_is_left_alone_for_ever(world: World) -> None:
    name = world.submit(job())
    world.settle()
    world.claim(name)
    world.now_s += 30 * 86_400
    assert world.settle() == []
    assert world.resolver.endings(world.now_s) == []
    assert world.placed_on(name) == "c1"


def test_a_person_declares_a_cluster_lost_and_what_was_there_is_placed_anew(world: World) -> None:
    claimed = world.submit(job("claimed", gpus=2))
    world.settle()
    world.claim(claimed)
    wished = world.submit(job("wished", clusters=("c2",)))
    world.settle()
    world.claim(wished)
    world.control(ClusterLost(cluster="c1", lost=True, reason="fire"))
    [append] = world.resolver.endings(world.now_s)
    assert world.resolver.endings(world.now_s) == []  # asked for once, until answered
    assert isinstance(append.event, Evicted)
    assert append.event.reason == "cluster declared lost"
    world.append(append.event)
    world.settle()
    assert world.placed_on(claimed) == "c2"
    assert world.placed_on(wished) == "c2"


def test_a_lost_job_that_may_not_be_evicted_again_fails(world: World) -> None:
    name = world.submit(job(max_evictions=0))
    world.settle()
    world.claim(name)
    world.control(ClusterLost(cluster="c1", lost=True, reason="fire"))
    [append] = world.resolver.endings(world.now_s)
    assert isinstance(append.event, Failed)
    assert not isinstance(append.event, Cancelled)


def test_a_deadline_frees_a_job_from_a_silent_cluster_only(world: World) -> None:
    name = world.submit(job(deadline_s=60, clusters=("c1",)))
    world.settle()
    world.claim(name)
    world.now_s += 95
    world.fact(alive("c1", counter=2))
    assert world.resolver.endings(world.now_s) == []  # its own executor is there to end it
    world.now_s += 11
    world.fact(alive("c2", counter=2))  # others are heard, so the silence is c1's
    [append] = world.resolver.endings(world.now_s)
    assert isinstance(append.event, Evicted)


def test_a_clock_that_is_ahead_ends_no_job_by_its_deadline(world: World) -> None:
    name = world.submit(job(deadline_s=60, clusters=("c1",)))
    world.settle()
    world.claim(name)
    world.fact(alive("c1", counter=2))
    # Our clock is set forward by five minutes. It runs: the pods are there for another 50 s.
    assert world.resolver.endings(world.now_s + 300) == []
    assert world.resolver.wake_at_s() == world.now_s + 301  # and is not looked at all the time
    # Only when the server's own time stamps are beyond the deadline is it over.
    world.now_s += 120
    world.fact(alive("c2", counter=2))
    [append] = world.resolver.endings(world.now_s + 300)
    assert isinstance(append.event, Evicted)


def test_earlier_cancel_refuses_whole_commit(world: World) -> None:
    gone, stays = world.submit(job("gone")), world.submit(job("stays"))
    world.decide(before_storing=world.cancelled(gone))
    assert world.placed_on(stays) == ""
    assert placements(world.decide()) == {"stays": "c1"}


def test_nothing_is_decided_while_a_commit_is_under_way_or_not_yet_read(world: World) -> None:
    world.submit(job("a"))
    plan = world.resolver.decide(world.now_s)
    assert plan is not None
    world.submit(job("b"))
    assert world.resolver.decide(world.now_s) is None


def test_a_commit_has_a_limit_and_the_rest_follows() -> None:
    world = World(Policy(commit_limit=3))
    world.fact(profile(), alive(), node(gpus=8))
    for number in range(8):
        world.submit(job(f"j{number}"))
    assert [len(plan.events) for plan in world.settle()] == [3, 3, 2]


def test_queues_hold_limit_and_go_before_each_other(world: World) -> None:
    world.control(QueueSetting(queue="held", held=True))
    world.control(QueueSetting(queue="small", capability_gpu_milli=1500))
    world.control(QueueSetting(queue="first", priority=10))
    held = world.submit(job("held-job", queue="held"))
    small = [world.submit(job(f"small-{i}", queue="small", gpus=1)) for i in range(2)]
    world.submit(job("first-job", queue="first"))
    plan = world.decide()
    assert plan is not None
    assert [c.id for c in plan.decision.placements] == ["first-job", "small-0"]
    assert why(world, "held-job").summary == "waits: its queue is held"
    assert why(world, "small-1").summary == "waits: its queue is at its capability of 1.5 GPUs"
    world.claim(small[0])
    world.succeed(small[0])
    world.settle()
    assert world.placed_on(small[1]) != ""
    world.control(QueueSetting(queue="held"))
    world.settle()
    assert world.placed_on(held) != ""


def test_a_new_queue_priority_moves_those_who_wait(world: World) -> None:
    world.submit(job("a", queue="qa", gpus=4))
    world.submit(job("b", queue="qb", gpus=4))
    world.control(QueueSetting(queue="qb", priority=1))
    assert placements(world.decide()) == {"b": "c2"}


def test_an_unreadable_event_freezes_its_workload_and_no_other(world: World) -> None:
    world.submit(job("strange"))
    world.resolver.on_unreadable(TENANT, "strange", 2, "unknown tag workload.submitted.v9")
    world.sequence = 2
    world.submit(job("fine"))
    assert placements(world.decide()) == {"fine": "c1"}
    assert "frozen" in why(world, "strange").summary


def test_carried_job_keeps_its_gpus(world: World) -> None:
    request = job("back", gpus=4)
    work = CarriedWorkload(
        state=State.CLAIMED,
        request=request,
        digest=request_digest(request),
        submitted_sequence=3,
        attempt=1,
        cluster="c2",
        pods=(PodBinding(pod="main-0", node="n1", gpus=(0, 1, 2, 3)),),
        decision=7,
        claimed_at_s=1.0,
        executor="executor/c2",
    )
    head = {"tenant": TENANT, "id": "back", "after": 0, "at_s": 0.0, "by": "berth recover"}
    world.append(Carried(**head, workload=work, cluster="c2"))  # type: ignore[arg-type]
    know = world.resolver.know
    assert know.derived.ledger.used("default").get(GPU, 0) == 4000
    # No other job gets them, and its end gives them back.
    world.submit(job("waits", gpus=4))
    assert placements(world.decide()) == {}
    world.evict(key(TENANT, "back"))
    assert know.derived.ledger.used("default").get(GPU, 0) == 0


def test_an_unreadable_decision_stops_this_replica_from_deciding(world: World) -> None:
    world.submit(job())
    world.resolver.on_unreadable_decision(1, "unknown tag decision.v2")
    assert world.resolver.decide(world.now_s) is None
    reply = why(world, "train-1")
    assert reply.summary == "waits: nothing is decided: unknown tag decision.v2"


def test_a_model_that_no_cluster_has_waits_and_why_says_so(world: World) -> None:
    world.submit(job(gpu_models=("H100",)))
    assert world.settle() == []
    reply = why(world, "train-1")
    assert reply.summary == "waits: of 2 clusters: 2 have no H100"
    assert reply.hints == ("another GPU model: T4 would fit now, on c1", "no cluster has H100")
    assert reply.position == 1
    assert world.why(TENANT, None, world.now_s).reasons == {  # type: ignore[union-attr]
        "of 2 clusters: 2 have no H100": 1
    }


def test_a_node_that_reports_fewer_gpus_than_run_there_promises_nothing_more(world: World) -> None:
    name = world.submit(job(gpus=2))
    world.settle()
    world.claim(name)
    world.fact(node("c1", gpus=1, counter=2))
    reply = world.dry_run(TENANT, job(clusters=("c1",)), world.now_s)
    assert not reply.placed
    world.succeed(name)
    assert world.dry_run(TENANT, job(clusters=("c1",)), world.now_s).placed


def test_pods_that_run_elsewhere_than_placed_take_their_room_there() -> None:
    world = World()
    world.fact(profile(), alive(), node(name="n1", gpus=1), node(name="n2", gpus=1))
    name = world.submit(job())
    world.settle()
    world.claim(name)
    placed_on = world.workloads[name].pods[0].node
    other = "n2" if placed_on == "n1" else "n1"
    moved = world.workloads[name].pods[0].__class__(pod="main-0", node=other)  # which GPU is untold
    world.workloads[name].pods = (moved,)
    world.run(name)
    second = world.submit(job("second"))
    world.settle()
    assert world.workloads[second].pods[0].node == placed_on


def test_a_wish_to_cancel_outlives_an_eviction(world: World) -> None:
    name = world.submit(job())
    world.settle()
    world.claim(name)
    head = {"tenant": TENANT, "id": "train-1", "at_s": 0.0, "by": "gateway"}
    after = world.workloads[name].sequence
    world.append(CancelRequested(**head, after=after, cluster="c1"))  # type: ignore[arg-type]
    world.evict(name)
    assert world.settle() == []
    [append] = world.resolver.endings(world.now_s)
    assert isinstance(append.event, Cancelled)
    world.append(append.event)
    assert world.workloads[name].state == "cancelled"


def test_plans_that_are_too_large_become_smaller_and_a_single_one_fails(world: World) -> None:
    for number in range(4):
        world.submit(job(f"j{number}"))
    resolver = world.resolver
    sizes = []
    append = None
    while (plan := resolver.decide(world.now_s)) is not None:
        sizes.append(len(plan.events))
        append = resolver.on_too_large(world.now_s)
        if append is not None:
            break
    assert sizes == [4, 2, 1]
    assert append is not None
    assert isinstance(append.event, Failed)
    assert append.event.reason == "a placement of 1 pods does not fit into one message"
    world.append(append.event)
    assert len(placements(world.decide())) == 1
    assert len(placements(world.decide())) == 2  # back to normal after one that was stored


# What a hub says, and what is another decider's


def membership(cluster: str, counter: int = 1, **said: Any) -> Membership:
    return Membership(
        cluster=cluster, stamp=Stamp(epoch=1, counter=counter), observed_at_s=0.0, **said
    )


def test_labels_and_taints_of_the_hub_count_beside_the_clusters_own(world: World) -> None:
    wanted = {"region": "north", "tier": "gold"}
    name = world.submit(job("picky", gpus=1, cluster_labels=wanted))
    assert world.decide() is None
    world.fact(membership("c1", labels={"tier": "gold"}))
    assert placements(world.decide()) == {"picky": "c1"}
    world.claim(name)

    world.fact(membership("c1", 2, labels={"tier": "gold", "region": "moved"}))
    world.submit(job("picky-too", gpus=1, cluster_labels=wanted))
    assert world.decide() is None  # where both name a label, the hub's counts

    world.fact(membership("c1", 3, gone=True), membership("c2", taints=(Taint(key="reserved"),)))
    world.submit(job("anywhere", gpus=1))
    assert placements(world.decide()) == {"anywhere": "c1"}
    assert why(world, "picky-too").filtered["c2"] == "lacks the labels asked for"


def test_a_cluster_that_its_hub_calls_unhealthy_gets_nothing_new(world: World) -> None:
    world.fact(membership("c1", healthy=False, reason="ControlPlaneHealthy is False"))
    world.submit(job("two", gpus=2))
    plan = world.decide()
    assert placements(plan) == {"two": "c2"}
    assert plan is not None
    assert plan.decision.placements[0].filtered == {
        "c1": "not healthy, says its hub: ControlPlaneHealthy is False"
    }
    world.fact(membership("c1", 2, healthy=None))  # the hub does not say: no reason to shut it
    world.submit(job("next", gpus=2))
    assert placements(world.decide()) == {"next": "c1"}


def test_what_another_cells_decider_places_is_not_ours_to_decide_or_explain(world: World) -> None:
    request = job("on-the-hub", gpus=1)
    submitted = Submitted(
        tenant=TENANT,
        id=request.id,
        after=0,
        at_s=world.now_s,
        by="multikueue/test",
        request=request,
        digest=request_digest(request),
        cell="hub",
    )
    world.append(submitted)
    assert world.decide() is None
    assert set(world.resolver.know.elsewhere) == {key(TENANT, "on-the-hub")}

    restored = Knowledge("all")
    restore(restored, snapshot_of(world.resolver.know))
    assert restored.elsewhere == world.resolver.know.elsewhere

    ended = Failed(
        tenant=TENANT,
        id=request.id,
        after=world.sequence,
        at_s=world.now_s,
        by="multikueue/test",
        digest=submitted.digest,
        submitted_at_s=world.now_s,
    )
    world.append(ended)
    assert world.resolver.know.elsewhere == set()
