"""Every message comes back as it was sent, through its family's decoder and through its schema."""

import importlib
import json
import pkgutil
from collections import Counter
from functools import cache
from typing import Any, Final

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berthmaster.lib import messages as package
from berthmaster.lib.messages import families
from berthmaster.lib.messages.api import ApiReply, SubmitRequest
from berthmaster.lib.messages.control import ControlFact, QueueSetting
from berthmaster.lib.messages.door import DoorReply, HeldPage, LogAsk, LogChunk, Nudge
from berthmaster.lib.messages.families import (
    AGENT_REQUESTS,
    EVENTS,
    JOB_REQUESTS,
    REQUEST_TYPES,
    UNREADABLE,
    VERBS,
    Reader,
    encode,
    event_cluster,
    event_kind,
    members,
    tag_of,
)
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.login import LoginReply, LoginRequest
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.records import ArchivedStory, DeadLetter, Lease, LogEnd, LogMark
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.lib.messages.workload import JobRequest, WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.message_subjects import event_subject
from scripts.schema_tools.json_schema import MESSAGES, Message, name_of, schema_of
from tests.support.messages import messages

READERS: Final[dict[type[msgspec.Struct], Reader[msgspec.Struct]]] = {
    **dict.fromkeys(members(WorkloadEvent), EVENTS),
    **dict.fromkeys(members(FleetFact), families.FLEET_FACTS),
    **dict.fromkeys(members(ControlFact), families.CONTROL_FACTS),
    **dict.fromkeys(members(ApiReply), families.API_REPLIES),
    Decision: families.DECISIONS,
    NodeTelemetry: families.TELEMETRY,
    JobFigures: families.JOB_FIGURES,
    QualityReport: families.QUALITY,
    DeadLetter: families.DEAD_LETTERS,
    ArchivedStory: families.ARCHIVED_STORIES,
    Lease: families.LEASES,
    LogMark: families.LOG_MARKS,
    REQUEST_TYPES["hello"]: families.HELLO_REQUESTS,
    REQUEST_TYPES["cancel"]: families.CANCEL_REQUESTS,
    REQUEST_TYPES["reprioritize"]: families.REPRIORITIZE_REQUESTS,
    REQUEST_TYPES["get"]: families.GET_REQUESTS,
    REQUEST_TYPES["list"]: families.LIST_REQUESTS,
    REQUEST_TYPES["events"]: families.EVENTS_REQUESTS,
    REQUEST_TYPES["gpus"]: families.GPUS_REQUESTS,
    REQUEST_TYPES["logs"]: families.LOGS_REQUESTS,
    REQUEST_TYPES["why"]: families.WHY_REQUESTS,
    REQUEST_TYPES["whatif"]: families.WHATIF_REQUESTS,
    REQUEST_TYPES["report"]: families.USAGE_REPORT_REQUESTS,
    REQUEST_TYPES["trends"]: families.TRENDS_REQUESTS,
    REQUEST_TYPES["profile"]: families.PROFILE_REQUESTS,
    REQUEST_TYPES["suggest"]: families.SUGGEST_REQUESTS,
    REQUEST_TYPES["cordon"]: families.CORDON_REQUESTS,
    REQUEST_TYPES["lost"]: families.LOST_REQUESTS,
    REQUEST_TYPES["hold"]: families.HOLD_REQUESTS,
    REQUEST_TYPES["release"]: families.RELEASE_REQUESTS,
    REQUEST_TYPES["evict"]: families.EVICT_REQUESTS,
    REQUEST_TYPES["move"]: families.MOVE_REQUESTS,
    REQUEST_TYPES["checkpointed"]: families.CHECKPOINTED_REQUESTS,
    REQUEST_TYPES["progressed"]: families.PROGRESSED_REQUESTS,
    REQUEST_TYPES["drain"]: families.DRAIN_REQUESTS,
    REQUEST_TYPES["cordons"]: families.CORDONS_REQUESTS,
    REQUEST_TYPES["hold_job"]: families.JOB_ORDERS,
    **{request: msgspec.json.Decoder(request) for request in AGENT_REQUESTS.values()},
    **dict.fromkeys(members(DoorReply), families.DOOR_REPLIES),
    Nudge: families.NUDGES,
    LogAsk: families.LOG_ASKS,
    LogChunk: families.LOG_CHUNKS,
    LogEnd: families.LOG_ENDS,
    HeldPage: families.HELD_PAGES,
    LoginRequest: families.LOGIN_REQUESTS,
    LoginReply: families.LOGIN_ANSWERS,
}
CALM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
every_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.name)


@every_message
@CALM
@given(data=st.data())
def test_message_round_trip_fits_schema(message: Message, data: st.DataObject) -> None:
    sent = data.draw(messages(message.type))
    body = encode(sent)
    if message.type is SubmitRequest:
        assert encode(JOB_REQUESTS.decode(body)) == encode(msgspec.convert(plain(sent), JobRequest))
    else:
        assert READERS[message.type].decode(body) == sent
    validator(message).validate(json.loads(body))


def plain(message: msgspec.Struct) -> Any:
    return json.loads(encode(message))


@cache
def validator(message: Message) -> Any:
    """A reader that knows nothing but the published schema."""
    schema = schema_of(message)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("api.submit_request", {"id": "a", "gpus": 1}),
        ("api.submit_request", {"id": "a", "pod_sets": [{"gpu": 1}]}),
        ("api.submit_request", {"id": "a", "pod_sets": [{"gpus": 65}]}),
        ("api.submit_request", {"id": "a", "pod_sets": []}),
        ("api.submit_request", {"id": "A"}),
        ("api.submit_request", {"id": "a\n"}),
        ("api.submit_request", {"id": "a", "expected_duration_s": 0}),
        ("api.submit_request", {}),
        ("api.list_request", {"limit": 0}),
        ("api.list_request", {"states": ["lost"]}),
        ("control.queue.v1", {"type": "control.queue.v1", "queue": "q", "weight": 0}),
        ("workload.claimed.v1", {"type": "workload.claimed.v2"}),
        ("workload.claimed.v1", {"type": "workload.claimed.v1", "tenant": "t"}),
    ],
)
def test_what_a_decoder_refuses_the_schema_refuses_too(name: str, body: dict[str, Any]) -> None:
    (message,) = (m for m in MESSAGES if m.name == name)
    with pytest.raises(jsonschema.ValidationError):
        validator(message).validate(body)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, message.type)


# Names


def test_no_two_messages_have_one_tag() -> None:
    names = Counter(message.name for message in MESSAGES)
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_every_tagged_struct_is_part_of_the_contract() -> None:
    known = {message.type for message in MESSAGES}
    tagged = set()
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for thing in vars(importlib.import_module(module.name)).values():
            if isinstance(thing, type) and issubclass(thing, msgspec.Struct) and tag_of(thing):
                tagged.add(thing)
    assert tagged <= known
    assert {m.name for m in MESSAGES if tag_of(m.type) is None} == {
        f"api.{verb}_request"
        for verb in (
            *("hello", "submit", "cancel", "reprioritize", "get", "list", "why", "whatif"),
            *("cordon", "lost", "login", "usage_report", "trends", "profile", "suggest"),
            *("hold", "release", "evict", "move", "checkpointed", "drain", "cordons", "job_order"),
            "progressed",
            "logs",
            "events",
            "gpus",
        )
    } | {name_of(request) for request in AGENT_REQUESTS.values()}


def test_every_verb_has_its_request() -> None:
    assert set(REQUEST_TYPES) == set(VERBS)
    assert len(VERBS) == len(set(VERBS))


@pytest.mark.parametrize("kind", members(WorkloadEvent))
@CALM
@given(data=st.data())
def test_an_event_and_its_subject_say_the_same(
    kind: type[WorkloadEvent], data: st.DataObject
) -> None:
    event = data.draw(messages(kind).filter(lambda e: e.tenant and e.id))
    where = subjects.parse_workload_event(event_subject(event))
    assert where == subjects.WorkloadSubject(
        event.tenant, event.id, event_kind(event), event_cluster(event)
    )
    assert tag_of(kind) == f"workload.{where.kind}.v1"
    assert (where.cluster or "") == getattr(event, "cluster", "")


# Strangers' bytes


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"type":"workload.claimed.v2","tenant":"a"}',
        b'{"tenant":"a"}',
        b'{"type":"workload.claimed.v1","tenant":"\xff"}',
        b'{"type":"workload.claimed.v1","tenant":"\\ud800"}',
        b'{"type":"workload.claimed.v1","at_s":NaN}',
        b'{"type":"workload.claimed.v1","at_s":1e999}',
        b'{"type":"workload.claimed.v1","x":' + b"[" * 100_000,
        b'{"type":"fleet.alive.v1"}',
    ],
    ids=lambda body: ascii(body[:50]),
)
def test_bytes_that_are_no_event_raise_what_readers_expect(body: bytes) -> None:
    with pytest.raises(UNREADABLE):
        EVENTS.decode(body)


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_else(body: bytes) -> None:
    for reader in {*READERS.values(), JOB_REQUESTS}:
        try:
            reader.decode(body)
        except UNREADABLE:
            continue


def test_a_number_that_json_has_no_word_for_does_not_come_back_as_a_number() -> None:
    setting = QueueSetting(queue="q", weight=float("nan"))
    with pytest.raises(msgspec.ValidationError, match=r"weight"):
        families.CONTROL_FACTS.decode(encode(setting))
