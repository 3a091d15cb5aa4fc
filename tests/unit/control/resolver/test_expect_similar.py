"""Reservations and backfill by estimates from similar jobs, under the usual order."""

import msgspec
import pytest

from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import ESTIMATED_WAITS, Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.queueing.similar import Estimate
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import Expected, Reservation
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

SIMILAR = Policy(stale_after_s=1e9, expect="similar")
SHORT_S, LONG_S = 30.0, 1000.0


def labelled(name: str, kind: str, gpus: int = 1) -> JobRequest:
    return msgspec.structs.replace(job(name, gpus=gpus), labels={"kind": kind})


def experienced(policy: Policy = SIMILAR, gpus: int = 4) -> World:
    """A fleet on which 20 short and 20 long jobs have run."""
    world = World(policy)
    world.fact(profile(), alive(), node(gpus=gpus))
    for number in range(20):
        for kind, took_s in (("short", SHORT_S), ("long", LONG_S)):
            world.submit(labelled(f"past-{kind}-{number}", kind))
            world.start_placed()
            world.now_s += took_s
            world.succeed(Key(f"{TENANT}/past-{kind}-{number}"))
    return world


def wide_job_behind_a_long_one(policy: Policy = SIMILAR) -> tuple[World, float]:
    """One of four GPUs is taken for long; a job that wants all of them waits. And when the long one
    began."""
    world = experienced(policy)
    world.submit(labelled("runs", "long"))
    began_s = world.now_s
    assert world.start_placed() == ["runs"]
    world.now_s += 10.0
    world.submit(labelled("wide", "wide", gpus=4))
    return world, began_s


def kept(world: World) -> Reservation:
    [reservation] = world.resolver.know.reservations.values()
    return reservation


def all_repeat(world: World) -> None:
    report = replay(world.inputs(), "all")
    assert report.first_difference is None
    assert (report.equal, report.not_repeatable) == (report.decisions, 0)


def test_short_job_runs_beside_a_reservation_and_a_long_one_does_not() -> None:
    world, began_s = wide_job_behind_a_long_one()
    world.submit(labelled("long", "long"))
    world.submit(labelled("short", "short"))
    assert world.start_placed() == ["short"]
    reservation = kept(world)
    assert (reservation.id, reservation.estimated) == ("wide", True)
    assert reservation.expected_at_s == pytest.approx(began_s + LONG_S, rel=0.1)
    all_repeat(world)


def test_stated_durations_are_all_that_counts_unless_the_setting_says_otherwise() -> None:
    world, _ = wide_job_behind_a_long_one(Policy(stale_after_s=1e9))
    world.submit(labelled("short", "short"))
    world.now_s += 400.0  # beyond reserve_wait_s
    world.submit(labelled("more", "short"))
    assert world.start_placed() == []
    assert "expect" not in Policy().as_record()
    assert all(not decision.expected for _, decision in world.decisions)
    assert all("expect" not in decision.settings for _, decision in world.decisions)


def test_decision_records_the_estimates_that_it_used() -> None:
    world, _ = wide_job_behind_a_long_one()
    world.submit(labelled("short", "short"))
    world.start_placed()
    recorded: dict[str, Expected] = {}
    for _, decision in world.decisions:
        recorded |= {each.id: each for each in decision.expected}
    assert recorded["runs"].expected_s == pytest.approx(LONG_S, rel=0.01)
    assert recorded["short"].expected_s == pytest.approx(SHORT_S, rel=0.01)
    assert recorded["short"].high_s > SHORT_S
    assert recorded["short"].jobs >= 20
    assert world.decisions[-1][1].settings["expect"] == "similar"
    all_repeat(world)


def test_resolver_that_begins_with_a_snapshot_goes_on_with_recorded_estimates() -> None:
    world, _ = wide_job_behind_a_long_one()
    world.submit(labelled("short", "short"))
    world.start_placed()
    raw = msgspec.msgpack.encode(snapshot_of(world.resolver.know))
    world.resolver = Resolver("all", "resolver/later", world.policy)
    restore(world.resolver.know, msgspec.msgpack.decode(raw, type=Snapshot))
    for sequence, stored_at_s, _, fact in world.facts:
        world.resolver.on_fact(fact, sequence, stored_at_s)
    world.submit(labelled("short-2", "short"))
    world.submit(labelled("long-2", "long"))
    assert world.start_placed() == ["short-2"]
    all_repeat(world)


@pytest.mark.parametrize("factor", [0.0, 0.1, 10.0, 1e12])
def test_wide_job_begins_within_the_bound_however_wrong_estimates_are(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is estimated too long, and what wants to pass too short: by that factor."""
    policy = msgspec.structs.replace(SIMILAR, reserve_wait_s=5.0)
    bound_s = ESTIMATED_WAITS * policy.reserve_wait_s
    world = experienced(policy)

    def wrong(_: str, request: JobRequest) -> Estimate:
        right_s = LONG_S if request.labels["kind"] == "long" else SHORT_S
        if request.labels["kind"] == "long":
            return Estimate(right_s * factor, right_s * factor, right_s * factor, 20)
        return Estimate(1.0, 1.0, 1.0, 20)

    monkeypatch.setattr(world.resolver.know.derived.foresight, "estimate", wrong)
    monkeypatch.setattr(world.resolver.know.expectations.durations, "estimate", wrong)
    for number in range(4):
        world.submit(labelled(f"runs-{number}", "long"))
    ends_s = (world.now_s + LONG_S + 100.0 * number for number in range(4))
    running = dict(zip(world.start_placed(), ends_s, strict=True))
    wide = world.submit(labelled("wide", "wide", gpus=4))
    came_s, number, last_passed_s = world.now_s, 0, 0.0
    while not world.placed_on(wide):
        world.now_s += 5.0
        for name in [n for n, ends_s in running.items() if ends_s <= world.now_s]:
            world.succeed(Key(f"{TENANT}/{name}"))
            del running[name]
        number += 1
        world.submit(labelled(f"passes-{number}", "passing"))
        for name in world.start_placed():
            if name != "wide":
                last_passed_s = world.now_s
                running[name] = world.now_s + 300.0  # ten times what was estimated, and more
        assert world.now_s < came_s + LONG_S + bound_s + 300.0 + 60.0
    assert last_passed_s < came_s + LONG_S + bound_s
    if factor > 1.0:
        assert last_passed_s > came_s + LONG_S  # it was passed until then
    all_repeat(world)
