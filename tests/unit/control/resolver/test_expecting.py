"""Jobs go by when they are due: what is told of it, who is left behind, and how long one waits."""

import random

import msgspec
import pytest

from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.queueing import due_order
from berthmaster.lib.engine.queueing.expectations import CAUTION, ENOUGH, FIRST_GUESS_S
from berthmaster.lib.engine.queueing.lines import LATE, STATED
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import Decision, Expected, PodBinding, ToldOutlook
from berthmaster.lib.messages.workload import (
    Carried,
    CarriedWorkload,
    Ending,
    JobRequest,
    State,
    WorkloadEvent,
)
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

SMALL = 100
DUE = Policy(stale_after_s=1e9, order="due", reservations=2)


def lasting(seconds: float | None, name: str, gpus: int = 1) -> JobRequest:
    return msgspec.structs.replace(job(name, gpus=gpus), expected_duration_s=seconds)


def fleet(gpus: int = 4, policy: Policy = DUE) -> World:
    world = World(policy)
    world.fact(profile(), alive(), node(gpus=gpus))
    return world


def start(world: World, *requests: JobRequest) -> list[Key]:
    names = [world.submit(request) for request in requests]
    world.start_placed()
    assert all(world.placed_on(name) for name in names)
    return names


def all_repeat(world: World) -> None:
    report = replay(world.inputs(), "all")
    assert report.first_difference is None
    assert (report.equal, report.not_repeatable) == (report.decisions, 0)


def test_carried_job_that_states_no_duration_goes_by_a_guess() -> None:
    world = fleet(gpus=1)
    request = lasting(None, "back")
    work = CarriedWorkload(
        state=State.CLAIMED,
        request=request,
        digest="d",
        submitted_at_s=world.now_s,
        attempt=1,
        cluster="c1",
        pods=(PodBinding(pod="main-0", node="n1", gpus=(0,)),),
        decision=1,
        placed_at_s=world.now_s,
        claimed_at_s=world.now_s,
        executor="executor/c1",
    )
    head = {"tenant": TENANT, "id": "back", "after": 0, "at_s": world.now_s, "by": "berth recover"}
    back = Carried(**head, workload=work, cluster="c1")  # type: ignore[arg-type]
    world.append(back)
    name = Key(f"{TENANT}/back")
    assert not world.resolver.know.expectations.is_stated(name)
    world.submit(lasting(FIRST_GUESS_S, "said"))
    world.evict(name)
    world.settle()
    assert world.decisions
    all_repeat(world)


def begin_anew_after_a_purge(world: World) -> None:
    """A new life without a snapshot. Of stories that ended the log has nothing but the ending."""
    resolver = Resolver("all", "resolver/later", world.policy)
    for sequence, stored_at_s, _, fact in world.facts:
        resolver.on_fact(fact, sequence, stored_at_s)
    ended = {f"{e.tenant}/{e.id}" for _, _, e in world.events if isinstance(e, Ending)}
    left: list[tuple[int, float, Decision | WorkloadEvent]] = [
        *((sequence, 0.0, decision) for sequence, decision in world.decisions),
        *(
            (sequence, at_s, e)
            for sequence, at_s, e in world.events
            if isinstance(e, Ending) or f"{e.tenant}/{e.id}" not in ended
        ),
    ]
    for sequence, at_s, entry in sorted(left, key=lambda each: each[0]):
        if isinstance(entry, Decision):
            resolver.on_decision(entry, sequence)
        else:
            resolver.on_event(entry, sequence, at_s)
    world.resolver = resolver


def test_a_decision_tells_the_outlook_and_what_jobs_that_say_nothing_are_expected_to_take() -> None:
    world = fleet(gpus=1)
    for number in range(ENOUGH):
        [name] = start(world, lasting(None, f"early-{number}"))
        world.now_s += 100.0
        world.succeed(name)
    told = [decision.expected for _, decision in world.decisions]
    assert told == [
        (Expected(tenant=TENANT, id=f"early-{number}", expected_s=expected_s),)
        for number, expected_s in enumerate((FIRST_GUESS_S, 100.0, 100.0))
    ]
    start(world, lasting(50.0, "says-so"))
    last = world.decisions[-1][1]
    assert last.expected == ()
    assert last.outlook is not None
    assert (last.outlook.submitted, last.outlook.late, last.outlook.gpus) == (ENOUGH + 1, 0, 1.0)
    all_repeat(world)


def test_where_jobs_go_as_they_came_nothing_of_this_is_told() -> None:
    world = fleet(policy=Policy(stale_after_s=1e9))
    start(world, lasting(None, "one"))
    last = world.decisions[-1][1]
    assert (last.outlook, last.expected) == (None, ())


def test_a_decider_that_began_after_a_purge_orders_by_what_was_told_and_is_repeated() -> None:
    world = fleet(gpus=1)
    for number in range(ENOUGH):
        [name] = start(world, lasting(None, f"early-{number}"))
        world.now_s += 100.0
        world.succeed(name)
    [running] = start(world, lasting(1000.0, "running"))
    quiet = world.submit(lasting(None, "quiet"))  # as the early ones: 100 s
    world.submit(lasting(200.0, "longer"))
    urgent = world.submit(msgspec.structs.replace(lasting(10.0, "urgent"), priority=1))
    world.now_s += 1.0
    world.succeed(running)
    assert world.start_placed() == ["urgent"]
    [told] = world.decisions[-1][1].expected
    assert told.id == "quiet"
    assert 1.0 < told.expected_s < 100.0  # what ran for a second has ended since

    begin_anew_after_a_purge(world)
    know = world.resolver.know
    assert (
        know.expectations.durations.kept().kinds == []
    )  # endings alone do not say how long it took
    assert know.derived.due_order.expected_s(quiet, lasting(None, "quiet")) == told.expected_s
    assert know.expectations.submissions == ENOUGH + 4
    world.succeed(urgent)
    # By a first guess of an hour it would come after "longer".
    assert world.start_placed() == ["quiet"]
    all_repeat(world)


def test_a_snapshot_keeps_what_was_not_told_yet_and_the_next_decision_tells_it() -> None:
    world = fleet(gpus=1)
    [running] = start(world, lasting(1000.0, "running"))
    world.submit(lasting(None, "quiet"))
    world.settle()
    restored = Resolver("all", "resolver/next", world.policy)
    restore(restored.know, snapshot_of(world.resolver.know))
    for sequence, stored_at_s, _, fact in world.facts:
        restored.on_fact(fact, sequence, stored_at_s)
    world.resolver = restored
    world.append(world.cancelled(running))  # nothing is learned of that
    assert world.start_placed() == ["quiet"]
    [told] = world.decisions[-1][1].expected
    assert (told.id, told.expected_s) == ("quiet", FIRST_GUESS_S)


def test_while_a_job_waits_what_it_is_expected_to_take_follows_its_likes_and_is_told() -> None:
    world = fleet(gpus=2)
    [long] = start(world, lasting(1e5, "long"))
    [like] = start(world, lasting(None, "like"))
    waits = [world.submit(lasting(None, f"waits-{number}")) for number in range(3)]
    world.settle()
    know = world.resolver.know
    assert {know.derived.due_order.expected_s(name, lasting(None, "x")) for name in waits} == {
        FIRST_GUESS_S
    }
    line = know.derived.lines.line_of(waits[0])
    world.now_s += 500.0
    world.succeed(like)
    assert world.start_placed() == ["waits-0"]
    told = {each.id: each.expected_s for each in world.decisions[-1][1].expected}
    assert told == {"waits-0": 500.0, "waits-1": 500.0, "waits-2": 500.0}
    assert (
        know.derived.lines.line_of(waits[1]) is not line
    )  # it stands with those that last as long
    world.now_s += 100.0
    world.succeed(waits[0])
    world.succeed(long)
    assert set(world.start_placed()) == {"waits-1", "waits-2"}
    all_repeat(world)


def test_renewed_guesses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_order, "ANEW_AT_ONCE", 2)
    world = fleet(gpus=1)
    [running] = start(world, lasting(None, "running"))
    waits = [world.submit(lasting(None, f"waits-{number}")) for number in range(5)]
    world.now_s += 70.0
    world.succeed(running)
    know = world.resolver.know
    for known in (2, 4, 5):
        world.fact(alive())  # something is new, else the same is decided by the same guesses
        for _ in range(3):
            know.snapshot(DUE, world.now_s, renew=True)
        guesses = [know.derived.due_order.expected_s(name, lasting(None, "x")) for name in waits]
        assert guesses == [70.0] * known + [FIRST_GUESS_S] * (5 - known)
    assert world.start_placed()
    all_repeat(world)


def crowd(world: World, large: int) -> None:
    """One GPU that is busy for long, many small jobs that wait, and some large ones."""
    start(world, lasting(1e6, "running"))
    for number in range(SMALL):
        world.submit(lasting(100.0, f"small-{number}"))
    for number in range(large):
        world.submit(lasting(5000.0 + number, f"large-{number}"))


def test_only_so_many_are_left_behind_the_largest_of_those_that_wait() -> None:
    world = fleet(gpus=1)
    crowd(world, large=4)
    world.settle()
    seen = world.resolver.know.derived.due_order.seen
    assert seen is not None
    assert seen.left_gpu_s == 5002.0  # one of 105 may be, and three are larger than most


def test_who_was_left_behind_for_long_leaves_one_place_less() -> None:
    world = fleet(gpus=1)
    crowd(world, large=1)
    world.settle()
    before = world.resolver.know.derived.due_order.seen
    assert before is not None
    world.now_s += LATE * before.patience_s + 1.0
    for name, workload in list(world.workloads.items()):
        if workload.id.startswith("small"):
            world.append(world.cancelled(name))
    running = next(name for name in world.workloads if name.endswith("/running"))
    world.succeed(running)
    assert world.start_placed() == ["large-0"]
    told = world.decisions[-1][1].outlook
    assert isinstance(told, ToldOutlook)
    assert (told.late, world.resolver.know.expectations.late) == (0, 1)
    all_repeat(world)


def test_a_lone_large_job_waits_no_longer_than_its_size_says_and_what_runs_then() -> None:
    longest_s, step_s, chance = 600.0, 60.0, random.Random(5)
    world = fleet(gpus=4)
    large = lasting(600.0, "large", gpus=4)
    ends: dict[str, float] = {}
    lasts: dict[str, float] = {"large": 600.0}
    submitted_s, began_s, patience_s = 0.0, 0.0, 0.0
    for step in range(400):
        if step == 20:
            submitted_s = world.now_s
            world.submit(large)
        if step % 2:  # three GPUs' worth, all the time
            name = f"small-{step}"
            lasts[name] = chance.uniform(0.2, 1.0) * longest_s
            says_s = lasts[name] * chance.uniform(0.5, 2.0)
            world.submit(lasting(min(says_s, longest_s), name))
        world.now_s += step_s
        for name in [name for name, at_s in ends.items() if at_s <= world.now_s]:
            del ends[name]
            world.succeed(Key(f"{TENANT}/{name}"))
        for name in world.start_placed():
            ends[name] = world.now_s + lasts[name]
            if name == "large":
                began_s = world.now_s
        seen = world.resolver.know.derived.due_order.seen
        if seen is not None and not began_s:
            patience_s = max(patience_s, seen.patience_s)
        if began_s:
            break
    service = 600.0 * 4
    due_s = min(STATED.stretch * service, STATED.patience * patience_s)
    assert min(STATED.keep_stretch * service, STATED.keep_patience * patience_s) <= due_s
    assert began_s, "it never began"
    # Until it is due, and then what runs there: nothing that would stay longer comes in any more.
    assert began_s - submitted_s <= due_s + 2 * longest_s + 2 * step_s
    all_repeat(world)


def begin_anew_from_a_snapshot(world: World, life: str) -> None:
    resolver = Resolver("all", life, world.policy)
    restore(resolver.know, snapshot_of(world.resolver.know))
    for sequence, stored_at_s, _, fact in world.facts:
        resolver.on_fact(fact, sequence, stored_at_s)
    world.resolver = resolver


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_decision_by_guesses_can_be_repeated(seed: int) -> None:
    chance = random.Random(seed)
    world = fleet(gpus=8)
    lasts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for step in range(80):
        for number in range(chance.choice((0, 0, 1, 4))):  # what comes together lasts alike
            name = f"job-{step}-{number}"
            lasts[name] = (10.0 ** (1 + step % 3)) * chance.uniform(0.8, 1.2)
            says_s = lasts[name] if chance.random() < 0.3 else None
            world.submit(lasting(says_s, name, gpus=chance.choice((1, 1, 2, 4, 8))))
        if chance.random() < 0.1:
            begin_anew_from_a_snapshot(world, f"resolver/{step}")
        world.now_s += chance.choice((1.0, 30.0, 300.0))
        for name in [name for name, at_s in ends.items() if at_s <= world.now_s]:
            del ends[name]
            world.succeed(Key(f"{TENANT}/{name}"))
        for name in world.start_placed():
            ends[name] = world.now_s + lasts[name]
    told = [each for _, decision in world.decisions for each in decision.expected]
    assert len(told) > len({each.id for each in told}) > 20  # some were guessed more than once
    all_repeat(world)


def stand_where_they_belong(world: World) -> None:
    """Whoever waits stands where what is known of it now puts it."""
    know = world.resolver.know
    order = know.derived.due_order
    for line in know.derived.lines.lines():
        for name, stands in line.members.items():
            if name not in order.moved:
                assert stands[2] == order.place(know.open[name]), name


@pytest.mark.parametrize("seed", range(6))
def test_who_is_stopped_waits_by_what_is_left_of_it_from_that_moment_on(seed: int) -> None:
    """Else who goes first depends on whether anybody looked meanwhile, and no decision repeats."""
    chance = random.Random(seed)
    world = fleet(gpus=8)
    names: list[Key] = []
    for step in range(60):
        request = lasting(chance.uniform(300.0, 30_000.0), f"job-{step}", gpus=1)
        pods = msgspec.structs.replace(
            request.pod_sets[0], min_count=1, max_count=chance.choice((1, 4)), count=1
        )
        saves = chance.choice((None, 5.0))
        names.append(
            world.submit(
                msgspec.structs.replace(request, pod_sets=(pods,), checkpoint_every_s=saves)
            )
        )
        world.now_s += chance.choice((1.0, 30.0, 300.0))
        world.start_placed()
        stand_where_they_belong(world)
        live = [name for name in names if world.placed_on(name)]
        for name in chance.sample(live, min(len(live), chance.choice((0, 1, 3)))):
            if world.workloads[name].resizing:
                world.resized(name)
            world.evict(name)
            stand_where_they_belong(world)
    all_repeat(world)


def test_whom_room_is_kept_for_begins_though_its_likes_have_come_to_stand_before_it() -> None:
    """Else nobody would: those before it leave its room alone, and it would never have a turn."""
    world = fleet(gpus=9, policy=msgspec.structs.replace(DUE, reservations=1))
    sooner, _ = start(world, lasting(600.0, "sooner", gpus=4), lasting(2000.0, "later", gpus=4))
    holds = world.submit(lasting(440.0, "holds", gpus=4))
    world.now_s += 1.0
    shorter = world.submit(lasting(420.0, "shorter", gpus=4))
    world.now_s += 800.0
    [tiny] = start(world, lasting(1.0, "tiny"))  # in the room that is kept, until it is needed
    world.succeed(tiny)
    know = world.resolver.know
    assert list(know.reservations) == [holds]
    for number in range(20):  # with so much to do sizes count, and the shorter one is due before
        world.submit(lasting(20_000.0, f"many-{number}"))
    world.settle()
    line = know.derived.lines.line_of(holds)
    assert line is not None
    assert line is know.derived.lines.line_of(shorter)
    assert line.is_first(shorter)
    assert list(know.reservations) == [holds]
    world.succeed(sooner)
    assert world.start_placed() == ["holds"]
    world.succeed(holds)
    assert world.start_placed()[0] == "shorter"
    all_repeat(world)


def test_only_guesses_are_taken_with_caution_where_others_must_not_wait() -> None:
    world = fleet()
    stated, unstated = lasting(100, "stated"), lasting(None, "unstated")
    names = start(world, stated, unstated)
    know = world.resolver.know.derived.due_order
    assert know.lasts_s(names[0], stated) == 100.0
    assert know.lasts_s(names[1], unstated) == CAUTION * FIRST_GUESS_S
