"""Every cell of the table, through the fold."""

import copy
from typing import get_args

import pytest

from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.states import (
    ENDED,
    LIVE,
    TRANSITIONS,
    NoSuchTransition,
    State,
    after,
)
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Carried,
    Checkpointed,
    Claimed,
    Committed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Held,
    HoldReleased,
    IdleChanged,
    LimitExceeded,
    MoveRequested,
    Placed,
    Progressed,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.lives import fitting, lived

EVENTS: tuple[type[WorkloadEvent], ...] = get_args(WorkloadEvent)
PATHS: dict[State, tuple[type[WorkloadEvent], ...]] = {
    State.NEW: (),
    State.QUEUED: (Submitted, Placed, Withdrawn),
    State.DIVIDED: (Submitted, Divided),
    State.PLACED: (Submitted, Placed),
    State.CLAIMED: (Submitted, Placed, Claimed),
    State.ADMITTED: (Submitted, Placed, Claimed, Admitted),
    State.RUNNING: (Submitted, Placed, Claimed, Running, ResizeRequested),
    State.SUCCEEDED: (Submitted, Placed, Claimed, Running, Succeeded),
    State.FAILED: (Submitted, Failed),
    State.CANCELLED: (Submitted, Cancelled),
}

# Of a job that ends with the report of its trials, before any attempt.
NEVER_PLACED: dict[tuple[State, type[WorkloadEvent]], tuple[type[WorkloadEvent], ...]] = {
    (State.QUEUED, Succeeded): (Submitted,)
}

# The table once more, for the eye: a change of the law has to be made in both places.
COLUMNS: tuple[type[WorkloadEvent], ...] = (
    Submitted,
    Released,
    Reprioritized,
    Held,
    HoldReleased,
    IdleChanged,
    LimitExceeded,
    CancelRequested,
    MoveRequested,
    EvictionRequested,
    ResizeRequested,
    Checkpointed,
    Progressed,
    Placed,
    Divided,
    Withdrawn,
    Claimed,
    Committed,
    Admitted,
    Running,
    Resized,
    Evicted,
    Succeeded,
    Failed,
    Cancelled,
)
GRID = """
    new       queued .      .        .        .        .       .       .        .        .        .       .        .       .      .       .      .       .       .        .       .       .      .         .      .
    queued    .      queued queued   queued   queued   .       .       .        .        .        .       queued   .       placed divided .      .       .       .        .       .       .      succeeded failed cancelled
    divided   .      .      divided  divided  divided  .       .       divided  divided  .        .       divided  .       .      .       .      .       divided .        .       .       queued succeeded failed cancelled
    placed    .      .      placed   placed   placed   .       .       .        placed   .        .       .        .       .      .       queued claimed .       .        .       .       .      .         .      cancelled
    claimed   .      .      claimed  claimed  claimed  .       .       claimed  claimed  claimed  .       claimed  .       .      .       .      .       claimed admitted running .       queued succeeded failed cancelled
    admitted  .      .      admitted admitted admitted .       .       admitted admitted admitted .       admitted .       .      .       .      .       .       .        running .       queued succeeded failed cancelled
    running   .      .      running  running  running  running running running  running  running  running running  running .      .       .      .       .       .        running running queued succeeded failed cancelled
    succeeded .      .      .        .        .        .       .       .        .        .        .       .        .       .      .       .      .       .       .        .       .       .      .         .      .
    failed    .      .      .        .        .        .       .       .        .        .        .       .        .       .      .       .      .       .       .        .       .       .      .         .      .
    cancelled .      .      .        .        .        .       .       .        .        .        .       .        .       .      .       .      .       .       .        .       .       .      .         .      .
"""  # noqa: E501 (a table is read across)
CELLS = {
    (State(line.split()[0]), event): None if cell == "." else State(cell)
    for line in GRID.strip().splitlines()
    for event, cell in zip(COLUMNS, line.split()[1:], strict=True)
}


@pytest.mark.parametrize(
    ("state", "event"), CELLS, ids=[f"{state}-{event.__name__}" for state, event in CELLS]
)
def test_each_event_in_each_state_does_what_the_grid_says(
    state: State, event: type[WorkloadEvent]
) -> None:
    workload = lived(*NEVER_PLACED.get((state, event), PATHS[state]))
    assert workload.state is state
    before = copy.deepcopy(workload)

    verdict = offer(workload, fitting(event, workload), 1000, 99.0)

    follows = CELLS[state, event]
    if follows is None:
        before.sequence = 1000  # it is stored, so the next event comes after it
        assert (verdict, workload) == (Verdict.IMPOSSIBLE, before)
        with pytest.raises(NoSuchTransition):
            after(state, event)
    else:
        assert (verdict, workload.state, workload.sequence) == (Verdict.COUNTED, follows, 1000)
        assert workload.changed_at_s == 99.0
        assert after(state, event) is follows


def test_requeued_job_does_not_succeed_without_an_attempt() -> None:
    workload = lived(*PATHS[State.QUEUED])
    assert offer(workload, fitting(Succeeded, workload), 1000, 99.0) is Verdict.IMPOSSIBLE
    assert workload.state is State.QUEUED


def test_the_grid_covers_every_state_and_event() -> None:
    events = [event for event in EVENTS if event is not Carried]  # whatever the state
    assert set(CELLS) == {(state, event) for state in State for event in events}
    assert {s: {e for e in events if CELLS[s, e]} for s in State} == {
        state: set(row) for state, row in TRANSITIONS.items()
    }


def test_nothing_follows_an_ending_and_every_other_state_can_reach_one() -> None:
    for state in State:
        reached, todo = {state}, [state]
        while todo:
            for follower in TRANSITIONS[todo.pop()].values():
                if follower not in reached:
                    reached.add(follower)
                    todo.append(follower)
        assert reached == {state} if state in ENDED else reached >= ENDED


def test_a_placement_is_live_from_placed_until_its_attempt_is_over() -> None:
    assert {s for s in State if lived(*PATHS[s]).live} == LIVE
    assert {s for s in State if lived(*PATHS[s]).ended} == ENDED
