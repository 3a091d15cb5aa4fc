"""Without the bus: what was known last counts, nothing is done against it, and the log is told."""

from collections.abc import Sequence

import msgspec
import pytest

from berthmaster.hub.multikueue.core.deciding.blind import UNREAD
from berthmaster.hub.multikueue.core.instructions import Nominate
from berthmaster.lib.kueue.podsets.templates import TemplateSet
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.instructions import Append, Stored, Unknown
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.fleet import CopyReport
from berthmaster.lib.messages.workload import Cancelled, Succeeded
from tests.support.builders import node, profile
from tests.unit.hub.multikueue.hub_objects import (
    condition,
    config,
    copy_report,
    local_queue,
    pods,
    queue_report,
    workload,
)
from tests.unit.hub.multikueue.world import World, acted

SELECTOR = "berthmaster.io/cluster-selector"
ROOM = {"w1": 8, "w2": 4, "w3": 2}


def known(**policy: object) -> World:
    """Three workers of 8, 4 and 2 GPUs, in zones a, b and c, of which everything is known."""
    world = World(**policy)  # type: ignore[arg-type]
    for name, zone in zip(ROOM, "abc", strict=True):
        world.worker(name, gpus=ROOM[name])
        world.fact(f"{name}/profile", profile(name, labels={"zone": zone}))
    world.begin()
    return world


def told(world: World, reason: str) -> list[str]:
    return [event.note for event in world.told if event.reason == reason]


def test_it_is_sent_to_the_best_cluster_of_which_was_known_and_the_log_follows() -> None:
    world = known()
    world.submit()
    world.settle()
    world.worker("w1", gpus=8, free=0)
    world.reserve()
    world.blind(4.5)
    assert world.nominated() == ()  # the bus may be back in a moment
    world.blind(2.0)
    assert world.nominated() == ("w2",)
    assert told(world, "NominatedBlindly") == [
        "NATS is silent: w2 by what was known before (fits now, room for 4)"
    ]
    world.blind(120.0)
    assert world.nominated() == ("w2",)  # nobody sees copies now: nothing is moved, nor added
    world.admit("train", "w2")
    world.bus_is_back()
    assert world.kinds(world.name()) == ["submitted", "placed w2", "claimed w2", "admitted w2"]
    assert "nominated while NATS was silent" in world.why(world.name())
    assert world.broken == []


HARD = ("a selector", "a cordon", "no LocalQueue", "a model", "resources")


@pytest.mark.parametrize("why", HARD)
@pytest.mark.parametrize("way_out", [True, False])
def test_a_hard_constraint_is_kept_or_the_workload_stands_still(why: str, way_out: bool) -> None:
    """Only w3 will do; and where that one is closed, none does."""
    world = known()
    asked: Sequence[TemplateSet] | None = None
    match why:
        case "a selector":
            world.put(local_queue(annotations={SELECTOR: "zone=c"}))
        case "a cordon":
            for name in ("w1", "w2"):
                world.set(Cordon(cluster=name, cordoned=True))
        case "no LocalQueue":
            for name in ("w1", "w2"):
                world.fact(f"{name}/queue", queue_report(name, namespaces=("other",)))
        case "a model":
            world.fact("w3/node", node("w3", "n1", gpus=2, model="H200"))
            asked = (pods(node_selector={"nvidia.com/gpu.product": "H200"}),)
        case _:
            for name in ("w1", "w2"):
                world.fact(f"{name}/queue", queue_report(name, gpus=0))
    if not way_out:
        world.set(Cordon(cluster="w3", cordoned=True))
    world.submit(pod_sets=asked)
    world.reserve()
    world.blind(60.0)
    assert world.nominated() == (("w3",) if way_out else ())
    if not way_out:
        (note,) = told(world, "StandsStill")
        assert note.startswith("NATS is silent, and no cluster was known to be able to take it: w1")
        assert list(world.core.blindly.standing) == [world.name()]
        world.set(Cordon(cluster="w3", cordoned=False))
        world.bus_is_back()
        world.wait(1.0)
        assert world.nominated() == ("w3",)


def test_who_was_heard_of_goes_before_who_was_silent_and_who_never_spoke_gets_nothing() -> None:
    world = World(workers=("mute", "gone", "here"))
    world.worker("gone", gpus=8)
    world.worker("here", gpus=2)
    world.begin()
    world.wait(20.0, heard=("here",))
    for name in ("first", "second"):
        world.submit(name)
        world.reserve(name)
    world.blind(6.0)
    assert (world.nominated("first"), world.nominated("second")) == (("here",), ("here",))
    world.put(config("mute", "gone"))
    world.submit("third")
    world.reserve("third")
    world.blind(6.0)
    assert world.nominated("third") == ("gone",)
    assert "though it had been silent before" in told(world, "NominatedBlindly")[-1]
    world.put(config("mute"))
    world.submit("fourth")
    world.reserve("fourth")
    world.blind(60.0)
    assert world.nominated("fourth") == ()
    assert "mute: reports no queues" in told(world, "StandsStill")[-1]


def test_what_was_sent_blindly_takes_room() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=2)
    world.worker("w2", gpus=1)
    world.begin()
    for number in range(3):
        world.submit(f"j{number}")
        world.reserve(f"j{number}")
        world.blind(6.0)
    assert [world.nominated(f"j{n}") for n in range(3)] == [("w1",), ("w1",), ("w2",)]


def test_a_refused_write_is_tried_again_and_takes_no_room() -> None:
    world = known()
    refusals = [True]
    world.conflict = lambda _: bool(refusals) and refusals.pop()
    world.submit()
    world.reserve()
    world.blind(14.0)
    assert world.nominated() == ("w1",)
    assert len([w for w in world.writes if isinstance(w, Nominate)]) == 2


def test_a_cluster_with_a_copy_gets_it_or_nobody() -> None:
    world = known()
    world.submit()
    world.settle()
    world.reserve()
    world.fact("copy", copy_report("w2"))
    world.blind(6.0)
    assert world.nominated() == ("w2",)
    world.submit("other")
    world.settle()
    world.reserve("other")
    world.fact("other copy", copy_report("w2", "other"))
    world.set(Cordon(cluster="w2", cordoned=True))
    world.blind(60.0)
    assert world.nominated("other") == ()
    (note,) = told(world, "StandsStill")
    assert note.startswith("NATS is silent, and of w2, where a copy may be, no cluster was known")


def test_a_replica_that_knows_a_wish_to_end_or_an_end_leaves_it_alone() -> None:
    world = known()
    world.submit()
    world.settle()
    world.core.know.open[world.name()].cancel_requested = True
    world.submit("over")
    world.settle()
    world.core.know.ended[world.name("over")] = world.core.know.open.pop(world.name("over")).state
    for name in ("train", "over"):
        world.reserve(name)
    world.blind(60.0)
    assert (world.nominated(), world.nominated("over")) == ((), ())


# What began and ended meanwhile


def ended_unseen(world: World, *, deleted: bool, reason: str = "Succeeded") -> None:
    """A whole life while the bus is away."""
    world.submit("short")
    world.reserve("short")
    world.blind(6.0)
    world.admit("short", "w1")
    world.finish("short", reason, "it ended")
    if deleted:
        world.remove("short")


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(("reason", "kind"), [("Succeeded", "succeeded"), ("Failed", "failed")])
def test_what_began_and_ended_while_the_bus_was_away_is_written_when_it_is_back(
    deleted: bool, reason: str, kind: str
) -> None:
    world = known()
    world.submit()
    world.settle()
    short = "acme/job-short-" + workload("short").metadata.uid[:8]
    ended_unseen(world, deleted=deleted, reason=reason)
    assert world.log.story(short) == []  # type: ignore[arg-type]
    world.bus_is_back()
    kinds = world.kinds(short)  # type: ignore[arg-type]
    if kind == "succeeded":
        assert kinds == ["submitted", "placed w1", "claimed w1", "succeeded w1"]
    else:
        assert kinds == ["submitted", "failed"]
    last = world.log.story(short)[-1]  # type: ignore[arg-type]
    assert last.reason == "it ended (it began and ended while the log could not be written)"  # type: ignore[union-attr]
    world.restart()
    world.settle()
    assert world.kinds(short) == kinds  # type: ignore[arg-type]
    assert world.core.hub.lives.gone == {}


def test_one_that_ran_on_and_whose_job_was_deleted_after_its_end_has_succeeded() -> None:
    world = known()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.start()
    world.settle()
    name = world.name()
    world.finish("train")
    world.remove("train")
    world.bus_is_back()
    assert world.kinds(name)[-1] == "succeeded w1"


def test_one_that_was_deleted_before_its_end_was_cancelled() -> None:
    world = known()
    world.submit("short")
    name = world.name("short")
    world.remove("short")
    world.bus_is_back()
    assert world.kinds(name) == ["submitted", "cancelled"]


def test_after_a_restart_what_has_ended_since_the_last_written_word_is_told() -> None:
    world = known()
    world.submit()
    world.settle()  # 1970-01-01T00:16:40Z

    def ended(name: str, at: str) -> KueueWorkload:
        found = workload(name)
        meta = msgspec.structs.replace(found.metadata, creation_timestamp="1970-01-01T00:01:00Z")
        finished = msgspec.structs.replace(
            condition("Finished", True, "Succeeded", "it ended"), last_transition_time=at
        )
        status = msgspec.structs.replace(
            found.status,  # type: ignore[type-var]
            conditions=(finished,),
            cluster_name="w2",
        )
        return msgspec.structs.replace(found, metadata=meta, status=status)

    # "unsure" had ended when the last word was written, by one who perhaps was killed in between.
    for name, at in (("before", "00:05:00"), ("unsure", "00:16:00"), ("after", "00:20:00")):
        thing = ended(name, f"1970-01-01T{at}Z")
        world.hub["KueueWorkload", "team", thing.metadata.name] = thing
        world.submit_job(name)
    world.restart()
    world.settle()
    assert world.kinds(world.name("before")) == []
    assert world.kinds(world.name("unsure"))[-1] == "succeeded w2"
    assert world.kinds(world.name("after"))[-1] == "succeeded w2"
    assert isinstance(world.log.story(world.name("after"))[-1], Succeeded)


def test_what_a_worker_says_of_a_copy_before_the_silence_is_no_matter_once_quota_is_new() -> None:
    """Kueue removes all copies when it takes the hub's quota back."""
    world = known()
    world.submit()
    world.settle()
    world.fact("copy", copy_report("w2", admitted=True))
    reserved = msgspec.structs.replace(
        condition("QuotaReserved"), last_transition_time="1970-01-01T01:00:00Z"
    )
    world.reserve()
    world.status(conditions=(reserved,))
    world.blind(6.0)
    assert world.nominated() == ("w1",)
    assert isinstance(world.core.know.copies["w2", "team", "job-train"], CopyReport)


LATE = "(it began and ended while the log could not be written)"


def submitted_into_silence(world: World) -> Append:
    """The reconciler sends an event to a server that is silent from just now on."""
    world.settle()
    world.submit("short")
    [append] = [one for one in acted(world.core, world.now_s) if isinstance(one, Append)]
    return append


@pytest.mark.parametrize("deleted", [False, True])
def test_a_life_that_ends_while_its_submission_waits_in_the_server_is_told_so(
    deleted: bool,
) -> None:
    """The server keeps what it was sent before it fell silent, and stores that first."""
    world = known()
    append = submitted_into_silence(world)
    event = append.event
    world.reserve("short")
    world.blind(6.0)
    world.admit("short", "w1")
    world.finish("short", "Succeeded", "it ended")
    if deleted:
        world.remove("short")
    world.core.on_appended(append.ref, Unknown("no answer"), world.now_s)
    world.write_event(event)
    world.bus_is_back()
    name = key(event.tenant, event.id)
    assert world.kinds(name)[-1] == "succeeded w1"
    last = world.log.story(name)[-1]
    assert isinstance(last, Succeeded)
    assert last.reason == f"it ended {LATE}"


def test_a_life_that_ends_within_its_submission_on_a_bus_that_answers_is_not_late() -> None:
    world = known()
    append = submitted_into_silence(world)
    event = append.event
    world.reserve("short")
    world.admit("short", "w1")
    world.finish("short", "Succeeded", "it ended")
    world.now_s += 0.3
    world.write_event(event)
    world.core.on_appended(append.ref, Stored(world.log.last), world.now_s)
    world.settle()
    last = world.log.story(key(event.tenant, event.id))[-1]
    assert isinstance(last, Succeeded)
    assert last.reason == "it ended"


@pytest.mark.parametrize("owner_gone", [False, True])
def test_a_job_that_was_made_and_deleted_while_the_bus_was_away_is_told_so(
    owner_gone: bool,
) -> None:
    world = known()
    world.submit("short")
    name = world.name("short")
    if owner_gone:
        world.finish("short", "OwnerNotFound", "it has no owner")
    else:
        world.remove("short")
    world.bus_is_back()
    last = world.log.story(name)[-1]
    assert isinstance(last, Cancelled)
    assert last.reason == f"it was deleted on the hub {LATE}"


def test_a_start_reads_old_submissions_of_ended_workloads_as_history() -> None:
    world = known()
    world.submit()
    world.settle()
    world.reserve()
    world.settle()
    world.core = world._new()
    for thing in world.hub.values():
        world.core.on_object(thing)
    world.now_s += 60.0
    world.admit("train", "w1")
    world.finish("train", "Succeeded", "it ended")
    world._folded = 0
    world.bus_is_back()
    last = world.log.story(world.name())[-1]
    assert isinstance(last, Succeeded)
    assert last.reason == "it ended"


# Started while the bus is silent


@pytest.mark.parametrize("mode", ["dispatch", "observe"])
def test_a_reconciler_that_starts_without_the_bus_says_why_workloads_stand_still(
    mode: str,
) -> None:
    world = World(mode)
    world.core.hub.complete = True
    world.submit()
    world.reserve()
    world.submit("queued")
    world.blind(30.0, has_read=False)
    assert world.writes == []
    notes = told(world, "StandsStill")
    if mode != "dispatch":
        assert notes == []
        return
    assert notes == [UNREAD]
    assert list(world.core.blindly.standing) == [world.name()]
    world.all_workers()
    world.bus_is_back()
    assert world.nominated() == ("w1",)
    assert not world.core.blindly.standing
