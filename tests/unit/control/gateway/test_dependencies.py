"""Jobs that wait for others: who may, when they are released, and what becomes of a vain wait."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.gateway.core.events import CaughtUp, Logged, QueueSet, StoryRead, Tick
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.gateway.core.instructions import ReadStory
from berthmaster.lib.lifecycle.fold import offer
from berthmaster.lib.lifecycle.instructions import Answered, Append, Reload, Reloaded, Reply, Stored
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import RecordedEvent, Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import (
    Cancelled,
    Dependency,
    JobRequest,
    Released,
    WorkloadEvent,
)
from tests.unit.control.gateway.stories import (
    ask,
    cancelled,
    claimed,
    fresh,
    job,
    log,
    placed,
    submitted,
    succeeded,
)


def after(*others: str, until: Any = "succeeded") -> JobRequest:
    return job("b", depends_on=tuple(Dependency(id=other, until=until) for other in others))


def refused(gateway: Gateway, request: JobRequest, *stories: Reloaded) -> Refusal:
    """What a submit comes to; what it reads on the way is told."""
    (step,) = gateway.handle(ask("submit", request), 1.0)
    for story in stories:
        (step,) = gateway.handle(story, 1.0)
    assert isinstance(step, Reply)
    assert isinstance(step.reply, Refusal), step.reply
    return step.reply


NOTHING = Reloaded(ref="r1", workload=None)


def test_a_job_waits_only_for_what_was_submitted_before_by_its_tenant() -> None:
    gateway = fresh()
    log(gateway, submitted(job("a")))
    unknown = refused(gateway, after("a", "of-another-tenant"), NOTHING, NOTHING)
    assert (unknown.code, unknown.field) == ("not_found", "depends_on[1].id")
    assert unknown.expected == "the id of a workload of this tenant that was submitted before"

    circle = refused(gateway, after("b"), NOTHING)
    assert (circle.code, circle.field) == ("invalid", "depends_on[0].id")
    assert "in a circle" in circle.expected

    gateway.handle(QueueSet(setting=QueueSetting(queue="hub", via="hub"), sequence=9), 1.0)
    assert refused(gateway, job("b", queue="hub", set="s", set_at_most=2), NOTHING).field == (
        "set_at_most"
    )
    assert refused(gateway, job("b", set_at_most=2), NOTHING).field == "set_at_most"

    # What another gateway has taken a moment ago is in the log.
    (step,) = gateway.handle(ask("submit", after("new")), 1.0)
    assert step == Reload(ref="r1", tenant="ann", id="new")
    (step,) = gateway.handle(reloaded(submitted(job("new"))), 1.0)
    assert isinstance(step, Append)


def reloaded(*events: WorkloadEvent, ref: str = "r1") -> Reloaded:
    work = Workload(tenant="ann", id=events[0].id)
    for sequence, event in enumerate(events, 1):
        offer(work, event, sequence, float(sequence))
    return Reloaded(ref=ref, workload=work)


def told(gateway: Gateway, event: WorkloadEvent, sequence: int) -> list[Any]:
    """What an event of the log sets going."""
    return gateway.handle(Logged(event=event, sequence=sequence, stored_at_s=2.0), 2.0)


REF = "wish/after/ann/b"
LOOK = [Reload(ref=REF, tenant="ann", id="b")]


def waiting(until: str = "succeeded") -> tuple[Gateway, JobRequest]:
    """a is claimed, b waits for it; nothing is to be done."""
    gateway, request = fresh(), after("a", until=until)
    a = job("a")
    log(gateway, submitted(a), placed(a, 1), claimed(a, 2))
    assert told(gateway, submitted(request), 10) == LOOK
    assert gateway.handle(reloaded(submitted(request), ref=REF), 2.0) == []
    return gateway, request


def test_it_is_released_when_what_it_waits_for_has_succeeded() -> None:
    gateway, request = waiting()
    assert told(gateway, succeeded(job("a"), 3), 11) == LOOK
    (step,) = gateway.handle(reloaded(submitted(request), ref=REF), 3.0)
    assert isinstance(step, Append)
    assert isinstance(step.event, Released)
    assert (step.event.id, step.event.after) == ("b", 1)
    assert gateway.handle(Answered(ref=REF, outcome=Stored(12)), 3.0) == []


@pytest.mark.parametrize("until", ["succeeded", "ended"])
def test_what_it_waits_for_in_vain_ends_it_with_a_reason(until: str) -> None:
    gateway, request = waiting(until)
    ended = msgspec.structs.replace(cancelled(job("a"), 3), attempt=1)
    assert told(gateway, ended, 11) == LOOK
    steps = gateway.handle(reloaded(submitted(request), ref=REF), 3.0)
    while isinstance(steps[0], Reload):
        steps = gateway.handle(reloaded(submitted(request), ref=REF), 3.0)
    (step,) = steps
    assert isinstance(step, Append)
    if until == "ended":
        assert isinstance(step.event, Released)
    else:
        assert isinstance(step.event, Cancelled)
        assert step.event.reason == "it depends on a, which was cancelled and was to succeed"


def test_a_gateway_that_begins_looks_at_all_who_wait() -> None:
    gateway, request = fresh(caught_up=False), after("a")
    a = job("a")
    log(gateway, submitted(a), placed(a, 1), claimed(a, 2), succeeded(a, 3))
    log(gateway, submitted(request), start=10)
    assert gateway.handle(CaughtUp(), 4.0) == LOOK


@pytest.mark.parametrize(
    ("archived", "until", "comes_to"),
    [
        ("succeeded", "succeeded", Released),
        ("cancelled", "succeeded", "it depends on a, which was cancelled and was to succeed"),
        ("cancelled", "ended", Released),
        ("", "ended", Released),
        ("", "succeeded", "it depends on a, which was to succeed and is no longer known"),
        ("open", "succeeded", None),
    ],
)
def test_forgotten_dependency_is_read_from_archive(
    archived: str, until: Any, comes_to: Any
) -> None:
    gateway, request, a = fresh(), after("a", until=until), job("a")
    assert told(gateway, submitted(request), 10) == LOOK
    read = ReadStory(ref=REF, tenant="ann", id="a")
    assert gateway.handle(reloaded(submitted(request), ref=REF), 2.0) == [read]
    assert gateway.handle(StoryRead(ref=REF, failed="no answer"), 2.0) == []  # and again later
    assert gateway.handle(Tick(), 3.0) == LOOK
    assert gateway.handle(reloaded(submitted(request), ref=REF), 3.0) == [read]

    story: list[WorkloadEvent] = [submitted(a)] if archived else []
    if archived == "succeeded":
        story += [placed(a, 1), claimed(a, 2), succeeded(a, 3)]
    elif archived == "cancelled":
        story += [cancelled(a, 1)]
    events = tuple(
        RecordedEvent(sequence=at, stored_at_s=0.0, event=event)
        for at, event in enumerate(story, 1)
    )
    steps = gateway.handle(StoryRead(ref=REF, archived=events), 4.0)
    if comes_to is None:
        assert steps == []  # what becomes of it, the log will say
        return
    if isinstance(steps[0], Reload):
        steps = gateway.handle(reloaded(submitted(request), ref=REF), 4.0)
    (step,) = steps
    assert isinstance(step, Append)
    if isinstance(comes_to, str):
        assert isinstance(step.event, Cancelled)
        assert step.event.reason == comes_to
    else:
        assert isinstance(step.event, comes_to)
