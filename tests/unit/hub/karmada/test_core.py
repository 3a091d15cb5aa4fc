"""Stories of bindings: held, let go, taken away, over; and what a life of the service leaves."""

import json
from typing import Any

import msgspec
import pytest

from berthmaster.hub.karmada.core.instructions import PutBinding, PutOverride
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Claimed,
    EvictionRequested,
    Failed,
    Succeeded,
    Withdrawn,
)
from tests.unit.hub.karmada.world import HUB, TEAM, World, member, policy

COMPLETE: dict[str, Any] = {"conditions": [{"type": "Complete", "status": "True"}]}


def test_a_binding_is_held_made_known_claimed_labelled_and_let_go() -> None:
    world = World()
    train = world.bind()
    world.settle()
    assert (world.held(), world.where(), world.state(train)) == (True, [], State.QUEUED)
    assert world.said()[0] == "WaitsItsTurn"
    request, origin = world.folds[train].request, world.folds[train].origin
    assert request is not None
    assert origin is not None
    assert (request.clusters, request.pod_sets[0].gpus) == (("m1", "m2"), 8)
    assert (origin.system, origin.hub, origin.owner) == ("karmada", HUB, "Job/train")

    # Its turn: nothing is let go before it is claimed and its pods' labels have stood a while.
    world.place(train)
    world.settle()
    assert (world.state(train), world.held(), world.where()) == (State.CLAIMED, True, [])
    [policy_of] = world.overrides.values()
    [rule] = policy_of["spec"]["overrideRules"]
    told = {
        one["path"].rpartition("~1")[2]: one["value"] for one in rule["overriders"]["plaintext"]
    }
    assert told == {
        "tenant": TEAM,
        "workload": train.partition("/")[2],
        "attempt": "1",
        "pod-set": "main",
    }
    world.settle(1)
    assert (world.held(), world.where()) == (False, ["m1"])
    assert world.said()[0] == "Success"

    # It runs once Karmada and the node say so, and is over once its pods are too.
    world.stands("train", active=1)
    world.settle()
    assert world.state(train) is State.CLAIMED
    world.pods(train)
    world.settle()
    assert world.state(train) is State.RUNNING
    [pod] = world.folds[train].pods
    assert (pod.pod, pod.node, pod.gpus) == ("main-0", "n1", (0,))
    world.stands("train", **COMPLETE)
    world.settle(9)
    assert world.state(train) is State.RUNNING
    world.pods(train, 0)
    world.settle()
    assert world.state(train) is State.SUCCEEDED

    # What is over is left as it is, as often as it is looked at.
    writes = len(world.writes)
    world.restart()
    world.settle(9)
    assert (len(world.writes), world.where()) == (writes, ["m1"])


def test_a_job_that_failed_says_so_in_its_own_words() -> None:
    world = World()
    train = world.runs()
    why = {"reason": "BackoffLimitExceeded", "message": "3 pods failed"}
    world.pods(train, 0)
    world.stands("train", conditions=[{"type": "Failed", "status": "True", **why}])
    world.settle()
    assert world.state(train) is State.FAILED
    [ended] = [event for _, _, event in world.log if isinstance(event, Failed)]
    assert ended.reason == "BackoffLimitExceeded: 3 pods failed"


def test_what_karmada_takes_away_waits_until_nothing_is_left_and_goes_anew() -> None:
    world = World()
    train = world.runs()
    world.merge("train", spec={"clusters": None})
    world.settle(60)
    assert (world.held(), world.state(train)) == (True, State.RUNNING)
    world.stands("train")
    world.settle(60)
    assert world.state(train) is State.RUNNING  # its pod is still reported
    world.pods(train, 0)
    world.settle(1.9)
    assert world.state(train) is State.RUNNING  # a node's report may be on its way
    world.settle(0.2)
    assert world.state(train) is State.QUEUED
    assert world.folds[train].reason == "Karmada took it from its cluster"
    world.place(train, "m2")
    world.settle(5)
    assert (world.where(), world.folds[train].attempt) == (["m2"], 2)


def test_karmada_is_told_by_which_placement_it_goes_whatever_of_it_we_read() -> None:
    # Its taint manager takes nothing from a cluster that has no such annotation.
    world = World()
    tolerated = {"key": "lost", "operator": "Exists", "tolerationSeconds": 300}
    placement = {
        "clusterAffinity": {"clusterNames": ["m1"]},
        "clusterTolerations": [tolerated],
        "replicaScheduling": {"replicaSchedulingType": "Duplicated"},
    }
    train = world.bind(placement=placement)
    world.settle()
    world.place(train)
    world.settle(5)
    told = world.bindings["train"]["metadata"]["annotations"]
    assert json.loads(told["policy.karmada.io/applied-placement"]) == placement


def test_what_karmada_takes_away_it_need_not_keep_until_it_runs_elsewhere() -> None:
    # It does so for ten minutes, unless its scheduler has seen what the binding asks for now.
    world = World()
    world.runs()
    world.merge("train", metadata={"generation": 7}, spec={"clusters": None})
    world.settle(9)
    assert world.said() == ("Leaves", "leaves m1: Karmada took it from its cluster")
    assert world.bindings["train"]["status"]["schedulerObservedGeneration"] == 7
    world.merge("train", metadata={"generation": 8})  # Karmada notes since when
    world.settle(9)
    assert world.bindings["train"]["status"]["schedulerObservedGeneration"] == 8


def test_where_a_taint_keeps_it_away_it_is_not_let_go_and_placed_anew_if_that_lasts() -> None:
    world = World()
    train = world.bind()
    world.settle()
    taint = {"key": "broken", "effect": "NoExecute"}
    world.core.on_object(member("m1", taints=[taint]))
    world.place(train)
    world.settle(50)
    why = "the policy's clusterAffinity and its taints (broken:NoExecute) keep it from m1"
    assert (world.state(train), world.where()) == (State.CLAIMED, [])
    assert world.said() == ("KeptAway", f"{why}; it goes to another cluster, or is placed anew")
    # The resolver moves it where there is room; here there is none.
    wish = world.folds[train].wish
    assert wish is not None
    assert (wish.how, wish.who, wish.to, wish.reason) == ("move", "karmada", "", why)
    world.settle(11)
    assert (world.state(train), world.folds[train].reason) == (State.QUEUED, why)

    # Placed there again, it is placed anew without the wish as soon as the taint goes.
    world.place(train)
    world.settle(9)
    assert world.where() == []
    world.core.on_object(member("m1"))
    world.settle(2)
    assert world.state(train) is State.QUEUED
    world.place(train)
    world.settle(2)
    assert world.where() == ["m1"]

    # One that waits there leaves when a decision moves it.
    world.core.on_object(member("m1", taints=[taint]))
    moved = world.bind("moved")
    world.settle()
    world.place(moved)
    world.settle(5)
    named = {"cluster": "m1", "attempt": 1, "reason": "moved to m2", "decision": 2, "to": "m2"}
    world.say(EvictionRequested, moved, **named)
    world.settle(3)
    assert (world.state(moved), world.folds[moved].reason) == (State.QUEUED, "moved to m2")
    world.core.on_object(member("m1"))

    # A selector that cannot be read any more keeps it away too, and a cancel ends that.
    world.restart()
    other = world.bind("other")
    world.settle()
    world.place(other)
    bad = {"matchExpressions": [{"key": "a", "operator": "Near"}]}
    world.merge("other", spec={"placement": {"clusterAffinity": {"labelSelector": bad}}})
    world.settle(5)
    assert (world.said("other")[0], world.where("other")) == ("KeptAway", [])
    world.say(CancelRequested, other, cluster="m1", reason="not needed")
    world.settle(5)
    assert world.state(other) is State.CANCELLED

    # What was let go is Karmada's to take away.
    world.core.on_object(member("m1", taints=[taint]))
    world.settle(90)
    assert (world.state(train), world.where()) == (State.CLAIMED, ["m1"])


def test_it_is_not_let_go_while_something_of_it_is_anywhere_else() -> None:
    world = World()
    train = world.bind()
    world.settle()
    # Somebody writes clusters by hand, and Karmada makes the Job there.
    world.merge("train", spec={"clusters": [{"name": "m2"}]})
    world.stands("train", "m2", active=1)
    world.settle()
    assert (world.held(), world.where()) == (True, [])
    world.place(train)
    world.settle(60)
    assert world.where() == []
    world.stands("train", "m2")
    world.settle()
    assert world.where() == ["m1"]


def test_a_move_takes_it_away_and_says_evicted_when_it_is_gone() -> None:
    world = World()
    train = world.runs()
    named = {"cluster": "m1", "attempt": 1, "reason": "for another", "decision": 2}
    world.say(EvictionRequested, train, **named)
    world.settle(9)
    assert (world.where(), world.held(), world.state(train)) == ([], True, State.RUNNING)
    world.stands("train")
    world.pods(train, 0)
    world.settle(3)
    assert (world.state(train), world.folds[train].reason) == (State.QUEUED, "for another")


def test_a_placement_that_was_withdrawn_before_the_claim_leaves_nothing() -> None:
    world = World()
    train = world.bind()
    world.settle()
    world.place(train)
    world.say(Withdrawn, train, cluster="m1", attempt=1, decision=2, reason="not claimed")
    world.settle(9)
    assert (world.held(), world.where(), world.overrides) == (True, [], {})


def test_cancelled_while_it_waits_it_is_told_and_never_placed_again() -> None:
    world = World()
    train = world.bind()
    world.settle()
    work = world.folds[train]
    world.say(Cancelled, train, cluster="", attempt=0, digest=work.digest, submitted_at_s=1.0)
    world.settle()
    assert world.said() == ("Over", "not placed again: cancelled")
    world.restart()
    world.settle(60)
    assert (world.held(), world.where(), world.state(train)) == (True, [], State.CANCELLED)


def test_cancelled_while_it_runs_it_is_taken_away_first() -> None:
    world = World()
    train = world.runs()
    world.say(CancelRequested, train, cluster="m1")
    world.settle(60)
    assert (world.held(), world.where(), world.state(train)) == (True, [], State.RUNNING)
    world.stands("train")
    world.pods(train, 0)
    world.settle(3)
    assert world.state(train) is State.CANCELLED
    assert world.said()[0] == "Over"


@pytest.mark.parametrize("when", ["held", "claimed", "running"])
def test_a_binding_that_is_deleted_is_over_once_nothing_is_left(when: str) -> None:
    world = World()
    if when == "running":
        train = world.runs()
    else:
        train = world.bind()
        world.settle()
        if when == "claimed":
            world.place(train)
            world.settle()
    world.drop("train")
    world.settle(1)
    assert (world.state(train) is State.CANCELLED) is (when == "held")
    world.settle(60)
    assert (world.state(train) is State.CANCELLED) is (when != "running")
    world.pods(train, 0)
    world.settle(3)
    assert world.state(train) is State.CANCELLED

    # Made anew under its name it is another one.
    world.bind("train")
    world.bindings["train"]["metadata"]["uid"] = "99999999-2"
    world.merge("train", metadata={"labels": {}})
    world.settle()
    assert world.state(train) is State.CANCELLED
    assert sum(work.state is State.QUEUED for work in world.folds.values()) == 1


@pytest.mark.parametrize("at", range(9))
def test_a_life_that_ends_anywhere_is_taken_up_by_the_next(at: int) -> None:
    """Killed after so many steps, between a write or an event and what follows on it."""
    world = World()
    train = world.bind()
    for step in range(20):
        if step == at:
            world.restart()
        world._once()
        if world.state(train) is State.QUEUED:
            world.place(train)
        world.now_s += 0.5
    assert (world.where(), world.held()) == (["m1"], False)
    assert world.folds[train].attempt == 1
    assert sum(isinstance(event, Claimed) for _, _, event in world.log) == 1


def test_of_another_control_plane_and_another_scheduler_it_touches_nothing() -> None:
    world = World()
    theirs = world.bind("theirs", schedulerName="default-scheduler")
    train = world.runs()
    world.core.know.id = "plane-two"  # the same log, seen from elsewhere
    world.merge("train", spec={"clusters": None})
    before = len(world.writes)
    world.settle(60)
    assert world.state(theirs) is None
    assert (len(world.writes), world.state(train)) == (before, State.RUNNING)


def test_what_asks_for_something_else_later_is_told_and_stays_as_it_was_submitted() -> None:
    world = World()
    train = world.bind()
    world.settle()
    asked = {"replicaRequirements": {"resourceRequest": {"nvidia.com/gpu": "4"}}}
    world.merge("train", spec=asked)
    world.settle()
    [event] = world.told
    assert (event.reason, event.warning) == ("NotAllUnderstood", True)
    assert "its pods ask for something else now" in event.note
    request = world.folds[train].request
    assert request is not None
    assert request.pod_sets[0].gpus == 8
    world.settle(60)
    assert len(world.told) == 1  # once


def test_a_write_that_is_refused_is_tried_again_after_a_pause() -> None:
    world = World()
    world.bind()
    [write] = world.core.act(world.now_s)
    assert isinstance(write, PutBinding)
    denied = Answer(Outcome.DENIED, "Forbidden", "no right to patch")
    world.core.on_answer(write, denied, world.now_s)
    assert list(world.core.trouble.values()) == ["no right to patch"]
    assert list(world.core.act(world.now_s + 1)) == []
    [again] = world.core.act(world.now_s + 15)
    assert isinstance(again, PutBinding)
    world.core.on_answer(again, Answer(), world.now_s + 15)
    assert world.core.trouble == {}


def test_labels_that_could_not_be_written_hold_it_back() -> None:
    world = World()
    train = world.bind()
    world.settle()
    world.place(train)
    world._once()  # claimed
    [write] = world.core.act(world.now_s)
    assert isinstance(write, PutOverride)
    world.core.on_answer(write, Answer(Outcome.LATER, "Timeout", "no answer"), world.now_s)
    assert list(world.core.act(world.now_s + 0.9)) == []
    world.now_s += 1
    world.settle(0.9)
    assert world.where() == []
    world.settle(0.2)
    assert world.where() == ["m1"]


def test_event_ahead_freezes_its_workload() -> None:
    world = World()
    train = world.bind()
    world.settle()
    last = len(world.log)
    work = world.folds[train]
    head: dict[str, Any] = {"tenant": TEAM, "id": work.id, "after": last + 5, "at_s": 1.0}
    head |= {"by": "x", "cluster": "m1", "attempt": 1, "executor": "x"}
    verdict = world.core.on_event(Claimed(**head), last + 9, world.now_s)
    assert verdict is Verdict.AHEAD
    assert train in world.core.know.frozen
    assert world.core.know.open[train].state is State.QUEUED


def test_the_tombstone_of_a_story_that_is_kept_elsewhere_keeps_its_id_used() -> None:
    world = World()
    train = world.runs()
    world.pods(train, 0)
    world.stands("train", **COMPLETE)
    world.settle()
    # Its story is purged down to the ending, and Karmada loses its clusters: it does not go anew.
    world.log = [one for one in world.log if isinstance(one[2], Succeeded)]
    world.merge("train", spec={"clusters": None, "suspension": None})
    world.restart()
    world.settle(60)
    assert (world.held(), world.where()) == (True, [])
    assert world.said() == ("Over", "not placed again: succeeded")


def test_a_frozen_workload_is_left_alone() -> None:
    world = World()
    train = world.bind()
    world.settle()
    world.core.on_unreadable(TEAM, train.partition("/")[2], 99, "an event of tomorrow")
    world.place(train)
    world.settle(60)
    assert (world.state(train), world.where()) == (State.PLACED, [])


def test_a_policys_labels_are_its_queue_and_priority() -> None:
    world = World()
    world.core.on_object(policy("plain", queue="research", priority="7"))
    train = world.bind()
    world.settle()
    request = world.folds[train].request
    assert request is not None
    assert (request.queue, request.priority) == ("research", 7)
    assert msgspec.structs.asdict(request)["id"] == train.partition("/")[2]


def test_it_runs_when_karmada_and_nodes_say_so_of_this_very_attempt() -> None:
    world = World()
    train = world.bind()
    world.settle()
    world.place(train)
    world.settle(5)
    world.pods(train)
    world.settle()
    assert world.state(train) is State.CLAIMED  # Karmada does not know of them yet
    world.stands("train", active=0)
    world.settle()
    assert world.state(train) is State.CLAIMED
    world.stands("train", active=1)
    world.pods(train, attempt=7)
    world.settle()
    assert world.state(train) is State.CLAIMED  # nobody knows whose those are
    world.pods(train)
    world.settle()
    assert world.state(train) is State.RUNNING


def test_nothing_is_left_only_when_karmada_says_so_too() -> None:
    world = World()
    train = world.runs()
    world.merge("train", spec={"clusters": None})
    world.pods(train, 0)
    world.settle(60)
    assert world.state(train) is State.RUNNING
    world.stands("train")
    world.settle(3)
    assert world.state(train) is State.QUEUED


def test_cancelled_before_it_was_let_go_it_says_that_it_is_over() -> None:
    world = World()
    train = world.bind()
    world.settle()
    world.place(train)
    world.settle()
    world.say(CancelRequested, train, cluster="m1")
    world.settle(5)
    assert (world.state(train), world.where()) == (State.CANCELLED, [])
    assert world.bindings["train"]["metadata"]["annotations"]["berthmaster.io/over"] == "cancelled"
    assert len([one for one in world.writes if isinstance(one, PutBinding)]) == 2
