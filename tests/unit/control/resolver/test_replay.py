"""Decisions repeated: the first that differs with its inputs, other settings, other code."""

from msgspec.structs import replace

from berthmaster.control.resolver.core.counterfactual import Compared, Figures, Would
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import ENGINE_VERSION, Policy
from berthmaster.control.resolver.replay import Input, Inputs, replay
from berthmaster.lib.engine.scoring.pod_mix import FIRST_SAMPLE, told_as
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import Ending, WorkloadEvent
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def story() -> World:
    """Four decisions: two jobs on the large cluster, two that leave the small one's node whole."""
    world = World()
    world.fact(profile("large"), alive("large"), node("large", gpus=8))
    world.fact(profile("small"), alive("small"), node("small", gpus=4))
    for number, cluster in enumerate(("large", "large", "", "")):
        name = world.submit(job(f"j{number}", gpus=2, clusters=(cluster,) if cluster else ()))
        world.now_s += 0.5
        world.settle()
        world.claim(name)
    return world


def forged(inputs: Inputs, at: int, **changes: object) -> Inputs:
    decisions = list(inputs.decisions)
    sequence, decision = decisions[at]
    decisions[at] = (sequence, replace(decision, **changes))
    return inputs._replace(decisions=decisions)


def begin_anew_from_what_is_left(world: World) -> None:
    """A new life without a snapshot, of whose log but decisions and endings all is purged."""
    resolver = Resolver("all", "resolver/later", world.policy)
    for sequence, stored_at_s, _, fact in world.facts:
        resolver.on_fact(fact, sequence, stored_at_s)
    left: list[tuple[int, Decision | WorkloadEvent]] = [*world.decisions]
    left += [(sequence, e) for sequence, _, e in world.events if isinstance(e, Ending)]
    for sequence, entry in sorted(left, key=lambda each: each[0]):
        if isinstance(entry, Decision):
            resolver.on_decision(entry, sequence)
        else:
            resolver.on_event(entry, sequence, world.now_s)
    world.resolver = resolver


def test_the_first_difference_names_what_was_seen_of_each_input_and_what_is_here() -> None:
    world = story()
    inputs = world.inputs()
    last = inputs.decisions[-1][1]
    report = replay(forged(inputs, 3, now_s=last.now_s + 1), "all")
    assert (report.decisions, report.equal, report.different) == (4, 3, 1)
    first = report.first_difference
    assert first is not None
    assert (first.number, first.lacking) == (4, "")
    assert first.field.startswith("placements[0].ranking[0]")
    assert first.inputs == (
        Input(name="workloads", seen=last.saw.workloads, here=last.saw.workloads),
        Input(name="fleet", seen=6, here=6),
        Input(name="control", seen=0, here=0),
        Input(name="decision before", seen=last.after, here=last.after),
    )


def test_an_input_that_is_lacking_is_named() -> None:
    world = story()
    inputs = world.inputs()
    report = replay(inputs._replace(facts=inputs.facts[:3]), "all")
    first = report.first_difference
    assert first is not None
    assert (first.number, first.lacking) == (1, "fleet")
    assert [i for i in first.inputs if i.seen != i.here] == [Input(name="fleet", seen=6, here=3)]


def test_a_chain_that_is_broken_in_its_middle_is_a_difference_and_a_gap_is_not() -> None:
    inputs = story().inputs()
    broken = replay(forged(inputs, 2, after=1), "all")
    assert broken.first_difference is not None
    assert broken.first_difference.lacking == "decision before"
    gap = replay(inputs._replace(decisions=[*inputs.decisions[:1], *inputs.decisions[2:]]), "all")
    assert gap.not_repeatable >= 1
    assert gap.why_not == "what it was made on is not kept any more"


def test_those_asked_for_are_repeated_and_all_that_exist_are_counted() -> None:
    inputs = story().inputs()
    newest = replay(inputs, "all", last=2)
    assert (newest.decisions, newest.repeated, newest.equal, newest.not_repeatable) == (4, 2, 2, 0)
    third = inputs.decisions[2][1]
    later = replay(inputs, "all", since_s=third.now_s)
    assert (later.repeated, later.equal) == (2, 2)
    both = replay(inputs, "all", since_s=third.now_s, last=1)
    assert (both.repeated, both.equal) == (1, 1)
    nothing = replay(inputs, "all", since_s=third.now_s + 1000)
    assert (nothing.decisions, nothing.repeated, nothing.different) == (4, 0, 0)
    assert replay(inputs, "another").decisions == 0
    assert (
        replay(inputs._replace(archived=frozenset({inputs.decisions[0][0]})), "all").archived == 1
    )


def test_other_settings_show_who_would_have_gone_elsewhere_and_the_sums() -> None:
    world = story()

    def spread(policy: Policy) -> Policy:
        return replace(policy, fit=0.0, room=1.0)

    report = replay(world.inputs(), "all", change=spread)
    assert report.different == 0  # nothing should have come out equal
    assert report.otherwise is not None
    otherwise = report.otherwise
    assert otherwise.compared == Compared(decisions=4, same=3, would_differ=1)
    assert otherwise.kinds == {"elsewhere": 1}
    assert otherwise.first == (
        Would(decision=4, tenant=TENANT, id="j3", was="small", would="large", how="elsewhere"),
    )
    assert otherwise.was == Figures(
        placements=4, clusters={"large": 2, "small": 2}, mean_wait_s=0.5, longest_wait_s=0.5
    )
    assert otherwise.would.clusters == {"large": 3, "small": 1}
    assert report.first_difference is not None
    assert report.first_difference.number == 4


def test_a_setting_that_matters_to_nobody_changes_nothing_but_the_record() -> None:
    report = replay(story().inputs(), "all", change=lambda p: replace(p, deadline_grace_s=1.0))
    assert report.otherwise is not None
    assert (report.equal, report.otherwise.compared.would_differ) == (0, 0)
    assert report.first_difference is None
    assert report.otherwise.first == ()


def test_a_job_that_would_have_gone_sooner_counts_once() -> None:
    world = World(Policy(stale_after_s=1.0))
    world.fact(profile("a"), alive("a"), node("a", gpus=1))
    world.submit(job("waits", clusters=("b",)))
    world.fact(profile("b"), alive("b"), node("b", gpus=1))
    world.now_s += 2.0  # both are silent for too long
    world.fact(alive("a", counter=2))
    first = world.submit(job("first", clusters=("a",)))
    world.settle()
    world.claim(first)
    world.now_s += 10.0
    world.fact(alive("b", counter=2))
    world.settle()
    report = replay(
        world.inputs(), "all", change=lambda p: replace(p, stale_after_s=100.0), first=5
    )
    assert report.otherwise is not None
    assert report.otherwise.kinds == {"sooner": 1}
    assert report.otherwise.first[0].id == "waits"
    assert report.otherwise.was.longest_wait_s == 12.0
    assert report.otherwise.would.longest_wait_s == 2.0


def test_only_so_many_differences_are_listed_and_all_are_counted() -> None:
    world = story()
    report = replay(world.inputs(), "all", change=lambda p: replace(p, fit=0.0, room=1.0), first=0)
    assert report.otherwise is not None
    assert (report.otherwise.first, report.otherwise.kinds) == ((), {"elsewhere": 1})


def test_decisions_of_another_engine_are_named_and_compared_and_never_failed() -> None:
    world = story()
    inputs = world.inputs()
    older = forged(inputs, 0, engine="0")
    older = forged(older, 3, engine="1", placements=())
    report = replay(older, "all")
    assert (report.decisions, report.equal, report.not_repeatable, report.different) == (4, 2, 0, 0)
    assert report.engine == ENGINE_VERSION
    assert report.other_engines == {
        "0": Compared(decisions=1, same=1, would_differ=0),
        "1": Compared(decisions=1, same=0, would_differ=1),
    }
    assert report.first_difference is None


def test_a_decision_that_would_not_be_made_at_all_would_differ() -> None:
    world = story()
    inputs = world.inputs()
    report = replay(inputs, "all", change=lambda p: replace(p, stale_after_s=0.1))
    assert report.otherwise is not None
    assert report.otherwise.compared == Compared(decisions=4, same=0, would_differ=4)
    assert report.otherwise.kinds == {"not then": 4}
    assert report.otherwise.would == Figures()
    assert all(isinstance(d, Decision) for _, d in inputs.decisions)


def test_a_decider_that_began_after_a_purge_scores_by_what_the_chain_told_and_is_repeated() -> None:
    world = World()
    world.fact(profile("c"), alive("c"), *(node("c", f"n{n}", gpus=8) for n in range(20)))
    for number in range(FIRST_SAMPLE + 8):
        name = world.submit(job(f"j{number}", gpu_milli=(470, 530)[number % 2], gpus=1))
        world.settle()
        world.claim(name)
        world.succeed(name)
    told = [decision.mix for _, decision in world.decisions if decision.mix is not None]
    assert [mix.pods for mix in told] == [FIRST_SAMPLE]
    # Stories that ended are purged from the log, decisions are not yet: a new life reads those.
    begin_anew_from_what_is_left(world)
    assert world.resolver.know.view.mix.newest.pods == 0
    assert told_as(world.resolver.know.sampled()) == told[0]
    world.submit(job("late", gpu_milli=470, gpus=1))
    world.settle()
    last = world.decisions[-1][1]
    assert (last.mix, last.mix_pods) == (None, FIRST_SAMPLE)
    report = replay(world.inputs(), "all")
    assert (report.equal, report.decisions) == (len(world.decisions), len(world.decisions))


def test_a_decision_whose_mix_was_told_in_one_that_is_gone_is_not_repeatable() -> None:
    world = World()
    world.fact(profile("c"), alive("c"), *(node("c", f"n{n}", gpus=8) for n in range(20)))
    for number in range(FIRST_SAMPLE + 2):
        world.submit(job(f"j{number}", gpu_milli=470, gpus=1))
        world.settle()
    inputs = world.inputs()
    (at,) = (i for i, (_, d) in enumerate(inputs.decisions) if d.mix is not None)
    report = replay(forged(inputs, at, mix=None), "all")
    lost = len(inputs.decisions) - at
    assert (report.not_repeatable, report.different) == (lost, 0)
    assert report.why_not == "the mix of pods that it was scored for was told too long ago"


def test_pressure_is_told_now_and_then_and_a_decision_is_repeated_with_what_was_told() -> None:
    world = World()
    world.fact(profile("c"), alive("c"))
    for number in range(24):
        world.fact(node("c", f"n{number:02}", gpus=4, model="T4" if number < 4 else "V100"))
    for number in range(FIRST_SAMPLE + 17):
        models = ("T4",) if number % 2 else ()
        name = world.submit(job(f"j{number}", gpus=1, cpu_milli=500, gpu_models=models))
        world.settle()
        world.claim(name)
        if number % 3:
            world.succeed(name)
    told = {d.number: d.pressure for _, d in world.decisions if d.pressure is not None}
    assert 2 < len(told) < len(world.decisions)
    newest = max(told)
    assert [pool.price_milli > 500 for pool in told[newest].pools] == [True]
    assert world.decisions[-1][1].pressed_by == newest
    placed_on = {d.placements[0].pods[0].node for _, d in world.decisions[FIRST_SAMPLE + 2 :: 2]}
    assert not placed_on & {f"n0{at}" for at in range(4)}  # who could go elsewhere did
    report = replay(world.inputs(), "all")
    assert (report.equal, report.decisions) == (len(world.decisions), len(world.decisions))
    # Who begins when that decision is gone from the log cannot repeat those that went by it.
    inputs = world.inputs()
    without = forged(inputs, newest - 1, pressure=None, pressed_by=0)
    after = replay(without, "all", last=len(inputs.decisions) - newest)
    assert after.not_repeatable == len(inputs.decisions) - newest
    assert after.why_not == "which nodes were scarce when it was made was told too long ago"
