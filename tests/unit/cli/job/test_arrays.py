"""Arrays and flows: what a person types, and what is submitted of it."""

import pytest

from berthmaster.cli.job.arrays import array_of, in_order, parse_array
from berthmaster.cli.job.requests import parse_after
from berthmaster.cli.values import WrongInput
from berthmaster.lib.messages.workload import JobRequest


def test_an_array_is_so_many_jobs_of_one_set_with_their_numbers() -> None:
    jobs = array_of(JobRequest(id="sweep", labels={"who": "ann"}), "8-11%2")
    assert [(job.id, job.array_index) for job in jobs] == [
        ("sweep-8", 8),
        ("sweep-9", 9),
        ("sweep-10", 10),
        ("sweep-11", 11),
    ]
    assert {(job.set, job.set_at_most, job.labels["who"]) for job in jobs} == {("sweep", 2, "ann")}
    assert parse_array("0-99") == (range(100), None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0-999999", "1,000,000 jobs up to index 999,999; an array has at most 10,000"),
        ("99990-100000", "indices up to 99,999"),
        ("5-4", "the last index is below the first"),
        ("0-9%0", "at once are 1 to 10,000"),
        ("ten", "right is FIRST-LAST"),
        ("0-9%", "right is FIRST-LAST"),
        ("\u0660-\u0669", "right is FIRST-LAST"),
    ],
)
def test_an_array_that_cannot_be_is_told_what_is_allowed(text: str, told: str) -> None:
    with pytest.raises(WrongInput, match=told):
        parse_array(text)


def test_whom_a_job_waits_for_is_named_with_how_it_must_end() -> None:
    assert parse_after(["a", "b:ended"]) == [{"id": "a"}, {"id": "b", "until": "ended"}]
    with pytest.raises(WrongInput, match="right is ID, ID:succeeded or ID:ended"):
        parse_after(["a:running"])


def test_jobs_of_a_file_go_behind_those_that_they_depend_on_and_circles_are_refused() -> None:
    a = b'{"id":"a","depends_on":[{"id":"b"},{"id":"elsewhere"}]}'
    b = b'{"id":"b","depends_on":[{"id":"c"}]}'
    c, odd = b'{"id":"c"}', b"[1]"
    assert in_order([a, odd, b, c]) == [c, b, a, odd]
    circle = b'{"id":"c","depends_on":[{"id":"a"}]}'
    with pytest.raises(WrongInput, match="in a circle: a -> b -> c -> a"):
        in_order([a, b, circle])
    with pytest.raises(WrongInput, match="in a circle: d -> d"):
        in_order([b'{"id":"d","depends_on":[{"id":"d"}]}'])
