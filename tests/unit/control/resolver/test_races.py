"""What two replicas may see of each other, each a race that the simulation has found."""

from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.messages.fleet import ClusterAlive, FleetFact, Stamp
from berthmaster.lib.messages.placement import Decision
from tests.support.builders import alive, job, node
from tests.support.deciding import World


def store(world: World, plan: Plan, others: tuple[Resolver, ...] = ()) -> int:
    """Store a commit without telling the world's own resolver; the decision's sequence."""
    world.sequence += 1
    sequence = world.sequence
    world.decisions.append((sequence, plan.decision))
    world.resolver.on_decision(plan.decision, sequence)
    for event in plan.events:
        world.append(event)
        for other in others:
            other.on_event(event, world.sequence, world.now_s)
    world.resolver.on_outcome(Stored(world.sequence), 0)
    return sequence


def is_behind(resolver: Resolver) -> bool:
    return resolver.behind


def test_nothing_is_decided_between_a_decision_and_its_events() -> None:
    world = World()
    follower = Resolver("all", "resolver/follower", world.policy)
    facts: tuple[FleetFact, ...] = (alive(), node(gpus=1))
    for number, fact in enumerate(facts, 1):
        world.fact(fact)
        follower.on_fact(fact, number, world.now_s)

    # A replica gives the only GPU to the first job; before that is stored, a more urgent one comes.
    world.submit(job("first"))
    plan = world.resolver.decide(world.now_s)
    assert plan is not None
    world.submit(job("urgent", priority=9))
    for sequence, stored_at_s, event in world.events:
        follower.on_event(event, sequence, stored_at_s)
    sequence = store(world, plan)

    # The other takes over when it has read the decision, and not yet that the GPU is taken. It
    # would give it to the urgent one, and neither the chain's guard nor that job's would object.
    follower.on_decision(plan.decision, sequence)
    assert is_behind(follower)
    follower.commits.waited_long_enough()
    assert follower.decide(world.now_s) is None

    follower.on_event(plan.events[0], sequence + 1, world.now_s)
    assert not is_behind(follower)
    assert follower.decide(world.now_s) is None  # and now it sees that there is no room


def test_a_decision_of_a_replica_that_has_seen_less_of_the_fleet_repeats_bit_for_bit() -> None:
    world = World()
    late = Resolver("all", "resolver/late", world.policy)
    world.fact(alive(), node(gpus=4))
    late.on_fact(alive(), 1, world.now_s)
    late.on_fact(node(gpus=4), 2, world.now_s)
    world.submit(job("first"))
    world.now_s += 5
    again = ClusterAlive(
        cluster="c1", stamp=Stamp(epoch=1, counter=2), observed_at_s=0.0, interval_s=1.0
    )
    world.fact(again)  # which the late one does not hear of before it decides
    plan = world.resolver.decide(world.now_s)
    assert plan is not None
    first = store(world, plan)
    world.submit(job("second"))

    for sequence, stored_at_s, entry in sorted(
        [*world.events, *((s, 0.0, d) for s, d in world.decisions)], key=lambda e: e[0]
    ):
        if isinstance(entry, Decision):
            late.on_decision(entry, sequence)
        else:
            late.on_event(entry, sequence, stored_at_s)
    other = late.decide(world.now_s)
    assert other is not None
    assert (other.decision.after, other.decision.saw.fleet) == (first, 2)
    store(world, other)
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (2, None)


def test_interleaved_claim_repeats_in_place() -> None:
    world = World()
    world.fact(alive("c1"), node("c1", gpus=2), alive("c2"), node("c2", gpus=2))
    world.submit(job("unclaimed", clusters=("c1",)))
    world.settle()
    world.now_s += 5
    prompt = world.submit(job("prompt", clusters=("c1",)))
    world.settle()
    world.now_s += 6
    world.fact(alive("c1", counter=2), alive("c2", counter=2))

    # The first was not claimed in time; before that is stored, the second one is.
    plan = world.resolver.decide(world.now_s)
    assert plan is not None
    assert [r.id for r in plan.decision.withdrawals] == ["unclaimed"]
    world.claim(prompt)
    store(world, plan)

    # In the log the claim came first: the cluster is passed over for a while.
    world.submit(job("next"))
    world.settle()
    [choice] = world.decisions[-1][1].placements
    assert (choice.id, choice.cluster) == ("next", "c2")
    assert choice.filtered == {"c1": "does not claim"}
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def test_a_restored_resolver_withdraws_in_the_order_in_which_was_placed() -> None:
    """One commit's placements have one time; a later event of one of them changes no order."""
    world = World()
    world.fact(alive(), node(gpus=4))
    first = world.submit(job("first"))
    world.submit(job("second"))
    assert len(world.settle()) == 1
    world.append(world.reprioritized(first, 5))
    restored = Resolver("all", "resolver/test", world.policy)
    restore(restored.know, snapshot_of(world.resolver.know))
    facts: tuple[FleetFact, ...] = (alive(), node(gpus=4))
    for number, fact in enumerate(facts, 1):
        restored.on_fact(fact, number, world.now_s)
    world.now_s += 20
    plan, again = world.resolver.decide(world.now_s), restored.decide(world.now_s)
    assert plan is not None
    assert again is not None
    assert [r.id for r in again.decision.withdrawals] == ["first", "second"]
    assert again.decision == plan.decision
