"""Spans of a job's phases, made from its events."""

from itertools import pairwise

import pytest

from berthmaster.control.usage.core import traces as subject
from berthmaster.control.usage.core.traces import Span, Traces
from berthmaster.control.usage.core.usage import Progress, Usage
from tests.unit.control.usage.stories import Story

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spans_of(story: Story, *, seen: int = 0, until: int | None = None) -> list[Span]:
    """Return the spans of a story of which an earlier process had seen some events."""
    traces = Traces()
    usage = Usage("owner", traces)
    usage.begin(Progress(0, seen, 0), [])
    for one in story.events[:until]:
        usage.on_event(one.event, one.sequence, one.stored_at_s)
    return traces.take()


def story(**how: dict[str, str]) -> Story:
    found = Story(**how).submitted(100.0).placed(103.0).claimed(104.0).running(110.0)  # type: ignore[arg-type]
    found.evicted(150.0).placed(151.0, "c2").claimed(152.0).running(153.0)
    return found.succeeded(200.0)


def test_spans_cover_each_phase_of_a_job_without_gaps() -> None:
    *phases, root = spans_of(story())
    assert [(span.name, span.begin_s, span.end_s) for span in phases] == [
        ("decision", 100.0, 103.0),
        ("claim", 103.0, 104.0),
        ("start", 104.0, 110.0),
        ("run", 110.0, 150.0),
        ("decision", 150.0, 151.0),
        ("claim", 151.0, 152.0),
        ("start", 152.0, 153.0),
        ("run", 153.0, 200.0),
    ]
    assert all(one.end_s == other.begin_s for one, other in pairwise(phases))
    assert (root.name, root.begin_s, root.end_s, root.parent_id) == ("job", 100.0, 200.0, 0)
    assert {span.parent_id for span in phases} == {root.span_id}
    assert {span.trace_id for span in phases} == {root.trace_id}
    assert len({span.span_id for span in (*phases, root)}) == 9
    assert phases[0].attributes == {
        "berthmaster.tenant": "acme",
        "berthmaster.job": "train-1",
        "berthmaster.attempt": 1,
        "berthmaster.cluster": "c1",
        "berthmaster.cause": "decision/all/1",
        "berthmaster.by": "test",
        "berthmaster.sequence": 2,
        "berthmaster.event": "workload.placed",
    }
    assert root.attributes == {
        "berthmaster.tenant": "acme",
        "berthmaster.job": "train-1",
        "berthmaster.attempt": 2,
        "berthmaster.cluster": "c2",
        "berthmaster.outcome": "succeeded",
        "berthmaster.evictions": 1,
    }


def test_spans_of_a_second_reader_have_the_same_ids() -> None:
    assert spans_of(story()) == spans_of(story())


def test_spans_of_events_seen_before_a_restart_are_not_made_again() -> None:
    whole = spans_of(story())
    before = spans_of(story(), until=4)
    after = spans_of(story(), seen=4)
    assert before + after == whole
    assert [span.name for span in before] == ["decision", "claim", "start"]


def test_root_span_of_a_failed_job_names_the_reason() -> None:
    failed = Story().submitted(1.0).placed(2.0).claimed(3.0).failed(4.0)
    *_, start, root = spans_of(failed)
    assert (start.name, start.error) == ("start", "over")
    assert (root.error, root.attributes["berthmaster.outcome"]) == ("over", "failed")


@pytest.mark.parametrize("label", ["", "nonsense", PARENT.replace("00-", "zz-"), PARENT[:-1]])
def test_traceparent_that_is_malformed_is_ignored(label: str) -> None:
    *_, root = spans_of(story(labels={"traceparent": label}))
    assert root.parent_id == 0


def test_traceparent_of_the_submitter_is_the_parent_of_the_job() -> None:
    found = spans_of(story(labels={"traceparent": PARENT}))
    assert {span.trace_id for span in found} == {0x0AF7651916CD43DD8448EB211C80319C}
    assert found[-1].parent_id == 0xB7AD6B7169203331


def test_submitter_that_samples_nothing_gets_no_spans() -> None:
    assert spans_of(story(labels={"traceparent": PARENT[:-2] + "00"})) == []


def test_spans_beyond_the_bound_are_counted_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_WAITING", 3)
    traces = Traces()
    usage = Usage("owner", traces)
    usage.begin(Progress(0, 0, 0), [])
    for one in story().events:
        usage.on_event(one.event, one.sequence, one.stored_at_s)
    assert (len(traces.take()), traces.dropped) == (3, 6)
