"""The machine behind both leases: every cell of its table, and that there never are two holders."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.runtime.candidacy import Candidacy, LeaseState, LeaseStep, Record

TTL_S = 10.0
OURS = Record("5", "us#1", TTL_S, 2)
THEIRS = OURS._replace(holder="they#2")
NOBODYS = OURS._replace(holder="")


def in_state(state: LeaseState) -> Candidacy:
    """A replica that wrote at 100, or that saw another's record then."""
    found = Candidacy("us#1", TTL_S)
    if state is LeaseState.CANDIDATE:
        found.on_read(THEIRS, 100)
    else:
        found.on_written(OURS, 100)
    if state is LeaseState.DOUBTING:
        found.on_outdated()
    assert found.state is state
    return found


CANDIDATE, HOLDING, DOUBTING = LeaseState.CANDIDATE, LeaseState.HOLDING, LeaseState.DOUBTING
READ, TAKE, RENEW, REST = LeaseStep.READ, LeaseStep.TAKE, LeaseStep.RENEW, LeaseStep.REST
MOVED = THEIRS._replace(version="6")
PATIENT = THEIRS._replace(version="6", ttl_s=60)


@pytest.mark.parametrize(
    ("state", "event", "arguments", "then", "step"),
    [
        (CANDIDATE, "due", (101,), CANDIDATE, READ),
        (CANDIDATE, "on_read", (None, 101), CANDIDATE, TAKE),
        (CANDIDATE, "on_read", (NOBODYS, 101), CANDIDATE, TAKE),
        (CANDIDATE, "on_read", (OURS, 101), CANDIDATE, TAKE),
        (CANDIDATE, "on_read", (THEIRS, 109.9), CANDIDATE, REST),
        (CANDIDATE, "on_read", (THEIRS, 110), CANDIDATE, TAKE),
        (CANDIDATE, "on_read", (MOVED, 110), CANDIDATE, REST),
        (CANDIDATE, "on_written", (OURS, 101), HOLDING, REST),
        (CANDIDATE, "on_outdated", (), CANDIDATE, REST),
        (CANDIDATE, "on_time", (200,), CANDIDATE, False),
        (HOLDING, "due", (101,), HOLDING, RENEW),
        (HOLDING, "due", (110,), HOLDING, READ),  # its time is over, and nobody told it so yet
        (HOLDING, "on_read", (OURS, 101), HOLDING, RENEW),
        (HOLDING, "on_read", (THEIRS, 101), CANDIDATE, REST),
        (HOLDING, "on_written", (OURS, 101), HOLDING, REST),
        (HOLDING, "on_outdated", (), DOUBTING, READ),
        (HOLDING, "on_time", (109.9,), HOLDING, False),
        (HOLDING, "on_time", (110,), CANDIDATE, True),
        (DOUBTING, "due", (101,), DOUBTING, READ),
        (DOUBTING, "on_read", (OURS, 101), DOUBTING, RENEW),
        (DOUBTING, "on_read", (THEIRS, 101), CANDIDATE, REST),
        (DOUBTING, "on_read", (NOBODYS, 101), CANDIDATE, REST),
        (DOUBTING, "on_read", (None, 101), CANDIDATE, REST),
        (DOUBTING, "on_written", (OURS, 101), HOLDING, REST),
        (DOUBTING, "on_outdated", (), DOUBTING, REST),
        (DOUBTING, "on_time", (110,), CANDIDATE, True),
    ],
)
def test_each_cell_of_the_table(
    state: LeaseState, event: str, arguments: tuple[object, ...], then: LeaseState, step: object
) -> None:
    candidacy = in_state(state)
    assert getattr(candidacy, event)(*arguments) == step
    assert candidacy.state is then


def test_who_promised_to_be_silent_for_longer_is_waited_for_longer() -> None:
    candidacy = in_state(CANDIDATE)
    assert candidacy.on_read(PATIENT, 105) is REST
    assert candidacy.on_read(PATIENT, 164.9) is REST
    assert candidacy.on_read(PATIENT, 165) is TAKE


def test_a_holder_stops_by_the_time_it_sent_its_write_not_by_the_answer_s() -> None:
    candidacy = Candidacy("us#1", TTL_S)
    candidacy.on_read(None, 100)
    candidacy.on_written(OURS, sent_at_s=100)  # the answer came at 104
    assert (candidacy.held(109.9), candidacy.held(110)) == (True, False)


class Turn(NamedTuple):
    """One round of one replica: when, how long its calls take, and what goes wrong."""

    who: int
    after_s: float
    write_takes_s: float
    lost: str  # "", "request" or "answer"


TURNS = st.lists(
    st.builds(
        Turn,
        st.integers(0, 2),
        st.sampled_from([0.0, 0.5, 3.0, 11.0]),
        st.sampled_from([0.0, 2.0, 12.0]),
        st.sampled_from(["", "", "request", "answer"]),
    ),
    max_size=60,
)


@given(TURNS)
def test_there_never_are_two_holders(turns: list[Turn]) -> None:
    """Each has a clock of its own; the store takes a write only over what was read."""
    many = [Candidacy(f"r{number}#1", TTL_S) for number in range(3)]
    record: Record | None = None
    now_s = 0.0
    for turn in turns:
        now_s += turn.after_s
        one, skew_s = many[turn.who], 1000.0 * turn.who
        step = one.due(now_s + skew_s)
        for _ in range(4):
            if step is REST:
                break
            if step is READ:
                step = one.on_read(record, now_s + skew_s)
                continue
            if turn.lost == "request":
                break
            sent_s = now_s
            if record != one.record:
                step = one.on_outdated()
                continue
            version = int(record.version) + 1 if record is not None else 1
            record = Record(str(version), one.holder, TTL_S, 1)
            now_s += turn.write_takes_s  # for the answer
            if turn.lost == "answer":
                break
            step = one.on_written(record, sent_s + skew_s)
        held = [n for n, each in enumerate(many) if each.held(now_s + 1000.0 * n)]
        assert len(held) <= 1
