"""What proves that a log is not the one that services remember."""

import msgspec
import pytest

from berthmaster.lib.event_log.damage import (
    StreamState,
    by_service,
    damage,
    digest_of,
    is_another,
    is_replaced,
    may_be_removed,
    to_compare,
)
from berthmaster.lib.messages.records import LogMark, StreamMark
from berthmaster.lib.nats.subjects import decision, workload_event

LOG = "WORKLOADS"
SEEN = StreamState("a3", 930)


def mark(
    sequence: int = 930, incarnation: str = "a3", digest: str = "", stream: str = LOG
) -> tuple[StreamMark, str]:
    one = StreamMark(stream=stream, incarnation=incarnation, sequence=sequence, digest=digest)
    return one, "resolver.all"


@pytest.mark.parametrize(
    ("seen", "marks", "why"),
    [
        (SEEN, [], ""),
        (SEEN, [mark()], ""),
        (SEEN, [mark(sequence=12)], ""),
        (None, [], ""),
        (None, [mark()], "WORKLOADS is not there"),
        (None, [mark(stream="CONTROL")], ""),
        (
            SEEN._replace(last=512),
            [mark(sequence=500), mark()],
            "WORKLOADS ends at 512; it went up to 930 (resolver.all)",
        ),
        (SEEN._replace(last=512), [mark(stream="CONTROL")], ""),
        (
            StreamState("b4", 2000),
            [mark()],
            "WORKLOADS was made anew; the one before went up to 930 (resolver.all)",
        ),
        (StreamState("b4", 3, frozenset({"a3"})), [mark()], ""),
        (
            StreamState("b4", 3, frozenset({"a3"})),
            [mark(), mark(sequence=4, incarnation="b4")],
            "WORKLOADS ends at 3; it went up to 4 (resolver.all)",
        ),
        (
            SEEN._replace(recovering=True),
            [],
            "WORKLOADS is being recovered: `berth recover` has not ended",
        ),
        (
            SEEN._replace(lost_bytes=70_000),
            [],
            "the server could not read 70,000 bytes of WORKLOADS",
        ),
    ],
)
def test_damage_is_told_by_marks(
    seen: StreamState | None, marks: list[tuple[StreamMark, str]], why: str
) -> None:
    assert damage(LOG, seen, marks) == why


def test_messages_of_this_incarnation_are_compared_once() -> None:
    newest, older = mark(digest="5f"), mark(sequence=12, digest="cc")
    marks = [
        newest,
        mark(sequence=20),  # its message is not known
        mark(sequence=30, incarnation="a2", digest="aa"),
        mark(sequence=40, stream="CONTROL", digest="bb"),
        older,
        newest,  # another service remembers the same
    ]
    assert to_compare(LOG, SEEN, marks) == [older[0], newest[0]]


def test_another_message_under_a_remembered_sequence_is_told() -> None:
    one, _ = mark(sequence=20, digest=digest_of(20, "berth.a", b"x"))
    assert not is_another(one, "berth.a", b"x")
    assert is_another(one, "berth.a", b"z")
    assert is_another(one, "berth.c", b"x")


@pytest.mark.parametrize(
    ("subject", "newer", "removed"),
    [
        (workload_event("acme", "train", "placed", "red"), "", False),
        (workload_event("acme", "train", "placed", "red"), "running", False),
        (workload_event("acme", "train", "placed", "red"), "failed", True),
        (workload_event("acme", "train", "placed", "red"), "cancelled", True),
        (decision("all"), "", False),
        (decision("all"), "decision", True),
    ],
)
def test_archivist_removes_what_stands_behind_an_ending_or_decision(
    subject: str, newer: str, removed: bool
) -> None:
    one, _ = mark(digest="5f")
    behind = newer and (
        decision("all") if newer == "decision" else workload_event("acme", "train", newer, "red")
    )
    assert may_be_removed(msgspec.structs.replace(one, subject=subject), behind) is removed


def test_digest_is_of_sequence_subject_and_content() -> None:
    assert len({digest_of(1, "a", b"x"), digest_of(2, "a", b"x"), digest_of(1, "b", b"x")}) == 3
    assert digest_of(1, "a", b"x") == digest_of(1, "a", b"x") != digest_of(1, "a", b"y")


def test_stream_is_replaced_by_one_that_names_its_incarnation() -> None:
    own = [mark()[0]]
    assert not is_replaced({LOG: SEEN}, own)
    assert not is_replaced({}, own)
    assert not is_replaced({LOG: StreamState("b4", 3)}, own)
    assert not is_replaced({"CONTROL": StreamState("b4", 3, frozenset({"a3"}))}, own)
    assert is_replaced({LOG: StreamState("b4", 3, frozenset({"a2", "a3"}))}, own)


def test_marks_are_told_with_their_service() -> None:
    marks = [
        LogMark(service=name, at_s=1.0, streams=(mark(sequence=at)[0],))
        for name, at in (("gateway", 3), ("usage", 5))
    ]
    assert [(one.sequence, by) for one, by in by_service(marks)] == [(3, "gateway"), (5, "usage")]
