"""A part of a divided gang: its pods are made once all parts are claimed, whatever is killed."""

import pytest
from msgspec.structs import replace

from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.workload import Committed, Evicted, EvictionRequested, Part
from berthmaster.worker.executor.core.cluster_protocol import CreatePods
from tests.support.one_cluster import SPEC, TENANT, Play, job

PART = replace(
    job("train--1-1"),
    part=Part(job="train", attempt=1, number=1, clusters=("c0", SPEC.name), pods=(2, 1)),
)


def created(play: Play) -> bool:
    return any(isinstance(each, CreatePods) for each in play.performed)


def claimed(*, told: bool = True) -> Play:
    play = Play()
    play.start(PART)
    assert play.log.load(PART.id).state is State.CLAIMED
    commit = Committed(
        tenant=TENANT,
        id=PART.id,
        after=play.log.load(PART.id).sequence,
        at_s=play.now_s,
        by="resolver",
        cluster=SPEC.name,
        attempt=1,
        decision=2,
    )
    play.after(500)  # nothing is too late: no pods were asked for
    assert (created(play), play.log.load(PART.id).state) == (False, State.CLAIMED)
    if told:
        assert isinstance(play.log.append(commit), Stored)
        play.tell(commit)
    return play


def test_it_starts_once_all_parts_are_claimed() -> None:
    play = claimed()
    play.after(1)
    assert play.log.load(PART.id).state is State.RUNNING
    play.after(200)
    assert play.log.load(PART.id).state is State.SUCCEEDED


@pytest.mark.parametrize("instructions", range(4))
def test_whenever_its_executor_is_killed_it_starts_once(instructions: int) -> None:
    play = claimed()
    play.kill_after = instructions
    play.run()
    play.restart()
    play.after(1)
    assert play.log.load(PART.id).state is State.RUNNING


def test_what_is_told_to_go_before_that_makes_no_pods() -> None:
    play = claimed(told=False)
    order = EvictionRequested(
        tenant=TENANT,
        id=PART.id,
        after=play.log.load(PART.id).sequence,
        at_s=play.now_s,
        by="resolver",
        cluster=SPEC.name,
        attempt=1,
        reason="part train--1-0 goes",
        decision=2,
    )
    assert isinstance(play.log.append(order), Stored)
    play.tell(order)
    play.run()
    last = play.log.last(PART.id)
    assert isinstance(last, Evicted)
    assert (last.blameless, last.reason, created(play)) == (True, "part train--1-0 goes", False)
