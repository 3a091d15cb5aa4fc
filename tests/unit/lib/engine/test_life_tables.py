"""What is left of jobs that say nothing: counted by size and age."""

from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.life_tables import (
    FADES_AT,
    NO_LIVES,
    STEPS,
    LivesSeen,
    Rests,
    begins_s,
    is_due,
    size_of,
    step_of,
)
from berthmaster.lib.messages.placement import Lives

ages = st.floats(0.0, 2.0**26, exclude_max=True)


def seen(*endings: tuple[float, float, int]) -> LivesSeen:
    lives = LivesSeen()
    for gpus, ran_s, count in endings:
        for _ in range(count):
            lives.learn(gpus, ran_s)
    return lives


def rest_s(lives: LivesSeen, gpus: float, age_s: float) -> float:
    return Rests(lives.tabulated()).rest_s(gpus, age_s)


@given(ages)
def test_every_age_is_in_the_step_that_begins_before_it(age_s: float) -> None:
    step = step_of(age_s)
    assert begins_s(step) <= age_s
    assert age_s < begins_s(step + 1)


def test_sizes_are_powers_of_two() -> None:
    assert [size_of(gpus) for gpus in (0.0, 0.3, 1.0, 3.0, 8.0, 9.0)] == [1 / 16, 0.5, 1, 4, 8, 16]


def test_surviving_job_is_expected_to_last() -> None:
    lives = seen((8, 90.0, 90), (8, 9000.0, 10))
    new_s, old_s = rest_s(lives, 8, 0.0), rest_s(lives, 8, 150.0)
    assert 60 < new_s < 130  # to the end of the first step, once for each ninth tenth
    assert 6000 < old_s < 12_000
    # Whoever has come as far as the long ones do is about to end.
    assert rest_s(lives, 8, 8000.0) < 3000


def test_where_all_take_about_as_long_the_rest_shrinks_with_age() -> None:
    lives = seen((1, 5000.0, 200))
    rests = [rest_s(lives, 1, age_s) for age_s in (0.0, 1000.0, 2000.0, 4000.0)]
    assert rests == sorted(rests, reverse=True)
    assert rests[-1] < rests[0] / 3


def test_where_anything_is_possible_the_rest_grows_with_age_and_sizes_are_apart() -> None:
    nothing = [rest_s(LivesSeen(), 1, 60.0 * 4**n) for n in range(6)]
    assert nothing == sorted(nothing)
    short = seen((1, 90.0, 50))
    assert rest_s(short, 1, 0.0) < 130
    assert rest_s(short, 2, 0.0) == rest_s(LivesSeen(), 2, 0.0)


def test_those_that_are_open_yet_count_as_having_run_for_so_long() -> None:
    lives = seen((4, 100.0, 10), (4, 50_000.0, 2))
    without = Rests(lives.tabulated()).rest_s(4, 1000.0)
    some = Rests(lives.tabulated([(4.0, 40_000.0)] * 20)).rest_s(4, 1000.0)
    assert some > 1.5 * without
    every = Rests(lives.tabulated([(4.0, 40_000.0)] * 10, 2))
    assert every.rest_s(4, 1000.0) == some


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 8.0]), ages), max_size=40), ages)
def test_restored_table_continues_equally(
    endings: list[tuple[float, float]], more_s: float
) -> None:
    lives = LivesSeen()
    for gpus, ran_s in endings:
        lives.learn(gpus, ran_s)
    told = lives.tabulated()
    kept, heard = LivesSeen(told), LivesSeen()
    heard.told(told)
    for each in (lives, kept, heard):
        each.learn(1.0, more_s)
    assert lives.tabulated() == kept.tabulated() == heard.tabulated()
    assert all(rest > 0 for age_s in range(0, 10**6, 99_999) for rest in [rest_s(kept, 1, age_s)])


def test_what_was_seen_here_is_more_than_what_was_told() -> None:
    lives = seen((1, 100.0, 3))
    lives.told(Lives(endings=2))
    assert lives.tabulated() == seen((1, 100.0, 3)).tabulated()


def test_counts_fade_and_tables_are_renewed_when_there_are_a_tenth_more() -> None:
    lives = seen((1, 100.0, FADES_AT + 1), (2, 100.0, 10))
    ended = {table.gpus: sum(table.ended) for table in lives.tabulated().tables}
    assert ended == {1.0: FADES_AT // 2, 2.0: 10}
    assert lives.endings == FADES_AT + 11
    assert is_due(seen((1, 1.0, 1)), NO_LIVES)
    assert not is_due(seen((1, 1.0, 11)), Lives(endings=10))
    assert is_due(seen((1, 1.0, 12)), Lives(endings=10))
    assert len(lives.tabulated().tables[0].ended) < STEPS
