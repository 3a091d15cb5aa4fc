import json
from typing import Any

from berthmaster.control.dashboard.core.board import (
    ALL,
    WATCHERS,
    Audience,
    Board,
    Scope,
    tenant_alone,
)

EVERYTHING = Scope(True)
ACME = Scope(False, frozenset({"acme"}))


def told(update: bytes) -> tuple[str, dict[str, Any]]:
    head, data, *_ = update.decode().split("\n")
    body = json.loads(data.removeprefix("data: "))
    assert body.pop("now_s") == 5.0
    return head.removeprefix("id: "), body


def test_a_reader_is_sent_what_changed_since_it_read_and_as_it_is_now() -> None:
    board = Board("life")
    board.put("fleet", {"gpus": 1})
    board.put("cluster/a", {"free": 3})
    assert board.turn()
    name, body = told(board.update(0, EVERYTHING, 5.0))
    assert (name, body) == (
        "life-1",
        {"whole": True, "documents": {"fleet": {"gpus": 1}, "cluster/a": {"free": 3}}, "gone": []},
    )
    cursor = board.cursor_of(name)

    # Twice while nobody reads: the reader is sent the last of both, and what went.
    board.put("fleet", {"gpus": 2})
    assert board.turn()
    board.put("fleet", {"gpus": 3})
    board.put("cluster/a", {"free": 3})  # the same again is no change
    board.drop("cluster/a")
    assert board.turn()
    assert not board.turn()
    name, body = told(board.update(cursor, EVERYTHING, 5.0))
    assert (name, body) == (
        "life-3",
        {"whole": False, "documents": {"fleet": {"gpus": 3}}, "gone": ["cluster/a"]},
    )


def test_a_cursor_of_another_life_or_of_nobody_begins_from_the_beginning() -> None:
    board = Board("life")
    board.put("fleet", 1)
    board.turn()
    assert [
        board.cursor_of(said) for said in ("life-1", "other-1", "life-2", "life--1", "", "x")
    ] == [1, 0, 0, 0, 0, 0]


def test_who_was_away_for_longer_than_is_remembered_is_sent_all_of_it() -> None:
    board = Board("life")
    for number in range(10_002):
        board.put(f"k/{number}", 1)
    board.put("fleet", 1)
    board.turn()
    for number in range(10_002):
        board.drop(f"k/{number}")
    board.turn()
    _, body = told(board.update(1, EVERYTHING, 5.0))
    assert body == {"whole": True, "documents": {"fleet": 1}, "gone": []}


def test_a_tenant_sees_its_own_and_what_is_everybodys_and_nothing_else() -> None:
    board = Board("life")
    board.put("fleet", 1, ALL)
    board.put("jobs", 2, WATCHERS)
    board.put("jobs/acme", 3, tenant_alone("acme"))
    board.put("jobs/rival", 4, tenant_alone("rival"))
    board.put("queue/shared", 5, Audience(True, frozenset({"acme", "rival"})))
    board.put("queue/rival", 6, Audience(True, frozenset({"rival"})))
    board.turn()
    _, body = told(board.update(0, ACME, 5.0))
    assert body["documents"] == {"fleet": 1, "jobs/acme": 3, "queue/shared": 5}
    _, body = told(board.update(0, EVERYTHING, 5.0))
    assert body["documents"] == {"fleet": 1, "jobs": 2, "queue/shared": 5, "queue/rival": 6}

    # What goes is told to those who saw it.
    board.drop("queue/rival")
    board.turn()
    assert told(board.update(1, ACME, 5.0))[1]["gone"] == []
    assert told(board.update(1, EVERYTHING, 5.0))[1]["gone"] == ["queue/rival"]
