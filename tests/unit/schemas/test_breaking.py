"""What may change in a published message, and what its readers make of it."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from scripts.schema_tools import __main__ as command
from scripts.schema_tools import contract
from scripts.schema_tools.breaking import Break, Published, Rule, contract_breaks, message_breaks
from scripts.schema_tools.json_schema import MESSAGES, Message, Role, Schema, schema_of
from tests.support.messages import messages
from tests.support.old_reader import old_reader

KEPT, REQUEST, REPLY = Role.KEPT, Role.REQUEST, Role.REPLY
EVERY_ROLE = (KEPT, REQUEST, REPLY)


class Inner(msgspec.Struct):
    a: int


class InnerMore(msgspec.Struct):
    a: int
    b: int = 0


class InnerLess(msgspec.Struct):
    pass


class InnerOther(msgspec.Struct):
    a: str


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class ClosedMore(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    b: int = 0


class One(msgspec.Struct, tag="one.v1"):
    a: int


class Two(msgspec.Struct, tag="two.v1"):
    b: int


class Three(msgspec.Struct, tag="three.v1"):
    c: int


Small = Annotated[int, Meta(ge=0, le=10)]
Large = Annotated[int, Meta(ge=-5, le=20)]
F = [("f", int)]

# what -> (fields before, fields after, rule by role; a role that is not named is unharmed)
CHANGES: dict[str, tuple[list[Any], list[Any], dict[Role, Rule]]] = {
    "nothing": (F, F, {}),
    "a new field with a default": (F, [*F, ("g", int, 0)], {}),
    "a new field that may be null": (F, [*F, ("g", int | None, None)], {}),
    "a new map": (F, [*F, ("g", dict[str, int], msgspec.field(default_factory=dict))], {}),
    "fields in another order": (
        [("f", int), ("g", str)],
        [("g", str), ("f", int)],
        {},
    ),
    "a new field without a default": (
        F,
        [*F, ("g", int)],
        dict.fromkeys(EVERY_ROLE, Rule.FIELD_WITHOUT_DEFAULT),
    ),
    "a field removed": (
        [*F, ("g", int, 0)],
        F,
        dict.fromkeys(EVERY_ROLE, Rule.FIELD_REMOVED),
    ),
    "a field made required": (
        [("f", int, 0)],
        F,
        dict.fromkeys(EVERY_ROLE, Rule.FIELD_MADE_REQUIRED),
    ),
    "a field made optional": (
        F,
        [("f", int, 0)],
        {KEPT: Rule.FIELD_MADE_OPTIONAL, REPLY: Rule.FIELD_MADE_OPTIONAL},
    ),
    "another default": (
        [("f", int, 0)],
        [("f", int, 1)],
        dict.fromkeys(EVERY_ROLE, Rule.DEFAULT_CHANGED),
    ),
    "false for zero": (
        [("f", int | bool, 0)],
        [("f", int | bool, False)],
        dict.fromkeys(EVERY_ROLE, Rule.DEFAULT_CHANGED),
    ),
    "another type": (F, [("f", str)], dict.fromkeys(EVERY_ROLE, Rule.RETYPED)),
    "a float for an integer": (F, [("f", float)], dict.fromkeys(EVERY_ROLE, Rule.RETYPED)),
    "a list for one": (F, [("f", tuple[int, ...])], dict.fromkeys(EVERY_ROLE, Rule.RETYPED)),
    "a struct for a map": (
        [("f", dict[str, int])],
        [("f", Inner)],
        dict.fromkeys(EVERY_ROLE, Rule.RETYPED),
    ),
    "null is new": (F, [("f", int | None)], {KEPT: Rule.WIDENED, REPLY: Rule.WIDENED}),
    "null is gone": ([("f", int | None)], F, {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED}),
    "a smaller range": (
        [("f", Large)],
        [("f", Small)],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "a larger range": (
        [("f", Small)],
        [("f", Large)],
        {KEPT: Rule.WIDENED, REPLY: Rule.WIDENED},
    ),
    "a range where there was none": (
        F,
        [("f", Small)],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "no range any more": ([("f", Small)], F, {KEPT: Rule.WIDENED, REPLY: Rule.WIDENED}),
    "zero is out": (
        [("f", Annotated[int, Meta(ge=0)])],
        [("f", Annotated[int, Meta(gt=0)])],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "shorter texts": (
        [("f", Annotated[str, Meta(max_length=9)])],
        [("f", Annotated[str, Meta(max_length=8)])],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "longer lists": (
        [("f", Annotated[tuple[int, ...], Meta(max_length=8)])],
        [("f", Annotated[tuple[int, ...], Meta(max_length=9)])],
        {KEPT: Rule.WIDENED, REPLY: Rule.WIDENED},
    ),
    "a pattern where there was none": (
        [("f", str)],
        [("f", Annotated[str, Meta(pattern="^a")])],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "one more word": (
        [("f", Literal["a", "b"])],
        [("f", Literal["a", "b", "c"])],
        {KEPT: Rule.WIDENED, REPLY: Rule.WIDENED},
    ),
    "one word less": (
        [("f", Literal["a", "b"])],
        [("f", Literal["a"])],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "one more word beside null": (
        [("f", Literal["a"] | None)],
        [("f", Literal["a", "b"] | None)],
        {KEPT: Rule.WIDENED, REPLY: Rule.WIDENED},
    ),
    "another type in a list": (
        [("f", tuple[int, ...])],
        [("f", tuple[str, ...])],
        dict.fromkeys(EVERY_ROLE, Rule.RETYPED),
    ),
    "another type in a map": (
        [("f", dict[str, int])],
        [("f", dict[str, str])],
        dict.fromkeys(EVERY_ROLE, Rule.RETYPED),
    ),
    "shorter names in a map": (
        [("f", dict[str, int])],
        [("f", dict[Annotated[str, Meta(max_length=3)], int])],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "a new field inside": ([("f", Inner)], [("f", InnerMore)], {}),
    "a new field inside a list that may be null": (
        [("f", tuple[Inner, ...] | None)],
        [("f", tuple[InnerMore, ...] | None)],
        {},
    ),
    "a field removed inside": (
        [("f", tuple[Inner, ...])],
        [("f", tuple[InnerLess, ...])],
        dict.fromkeys(EVERY_ROLE, Rule.FIELD_REMOVED),
    ),
    "another type inside a map": (
        [("f", dict[str, Inner])],
        [("f", dict[str, InnerOther])],
        dict.fromkeys(EVERY_ROLE, Rule.RETYPED),
    ),
    "unknown fields refused from now on": (
        [("f", Inner)],
        [("f", Closed)],
        {KEPT: Rule.CLOSED, REQUEST: Rule.CLOSED},
    ),
    "a new field where old readers refuse it": (
        [("f", Closed)],
        [("f", ClosedMore)],
        {KEPT: Rule.FIELD_REFUSED, REPLY: Rule.FIELD_REFUSED},
    ),
    "one more message in a union": ([("f", One | Two)], [("f", One | Two | Three)], {}),
    "one message less in a union": (
        [("f", One | Two)],
        [("f", One)],
        {KEPT: Rule.NARROWED, REQUEST: Rule.NARROWED},
    ),
    "another message under the same field": (
        [("f", One)],
        [("f", Two)],
        dict.fromkeys(EVERY_ROLE, Rule.RETYPED),
    ),
}


def schema(fields: list[Any], *, title: str = "Thing", tag: str = "thing.v1") -> Schema:
    """Of a message with these fields."""
    made = msgspec.defstruct(title, fields, tag=tag, kw_only=True)
    return schema_of(Message(tag, made, KEPT))


@pytest.mark.parametrize("role", EVERY_ROLE)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_judged_by_who_has_to_read_what(change: str, role: Role) -> None:
    before, after, rules = CHANGES[change]
    found = message_breaks("thing.v1", schema(before), schema(after), role)
    assert {broken.rule for broken in found} == ({rules[role]} if role in rules else set()), found


@pytest.mark.parametrize("change", CHANGES)
def test_the_judgement_is_what_real_readers_do(change: str) -> None:
    """A change that breaks nothing: old readers read new messages, and the other way round."""
    before, after, rules = CHANGES[change]
    if KEPT in rules:
        return
    old, new = (
        msgspec.defstruct("Thing", fields, tag="thing.v1", kw_only=True, omit_defaults=True)
        for fields in (before, after)
    )

    @settings(max_examples=20, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        msgspec.convert(msgspec.to_builtins(data.draw(messages(old))), new)
        told = msgspec.to_builtins(data.draw(messages(new)))
        if "one more message" not in change:  # which a reader sets aside, as its tag is unknown
            msgspec.convert(told, old)

    check()


def test_a_break_says_where_and_what() -> None:
    inner = [("pods", tuple[Inner, ...])]
    found = message_breaks(
        "thing.v1", schema(inner), schema([("pods", tuple[InnerOther, ...])]), KEPT
    )
    assert found == [Break("thing.v1/pods[]/a", Rule.RETYPED, "integer became string")]
    assert str(found[0]) == ("thing.v1/pods[]/a: a field is never re-typed (integer became string)")


def test_messages_may_come_but_not_go_nor_change_their_role_or_type() -> None:
    one = Published(KEPT, schema(F, title="One", tag="one.v1"))
    two = Published(KEPT, schema(F, title="Two", tag="two.v1"))
    assert contract_breaks({"one.v1": one}, {"one.v1": one, "two.v1": two}) == []
    assert contract_breaks({"one.v1": one, "two.v1": two}, {"one.v1": one}) == [
        Break("two.v1", Rule.MESSAGE_REMOVED, "Two")
    ]
    assert contract_breaks({"one.v1": one}, {"one.v1": one._replace(role=REPLY)}) == [
        Break("one.v1", Rule.ROLE_CHANGED, "kept became reply")
    ]
    other = Published(KEPT, schema(F, title="Other", tag="one.v1"))
    assert contract_breaks({"one.v1": one}, {"one.v1": other}) == [
        Break("one.v1", Rule.TAG_MOVED, "One became Other")
    ]


def test_a_type_that_holds_itself_is_judged_once() -> None:
    one = {
        "title": "Thing",
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Node"}, "a": {"type": "integer"}},
                "required": ["next", "a"],
            }
        },
    }
    other = json.loads(json.dumps(one).replace("integer", "string"))
    found = message_breaks("thing.v1", one, other, KEPT)
    assert [broken.where for broken in found] == ["thing.v1/a"]


# What is published


PUBLISHED = contract.published(command.ROOT)


def test_no_reader_of_what_was_published_is_broken() -> None:
    assert PUBLISHED
    assert contract.breaks_since(command.ROOT) == []


def test_what_breaks_readers_is_not_published_by_mistake(tmp_path: Path) -> None:
    assert command.main(["--publish"], tmp_path) == 0
    path = tmp_path / contract.PUBLISHED
    entries = json.loads(path.read_bytes())
    entries["lease.v1"]["schema"]["properties"]["ttl_s"] = {"type": "integer"}
    path.write_text(json.dumps(entries))

    assert command.main(["--check"], tmp_path) == 1
    assert command.main([], tmp_path) == 1
    assert command.main(["--publish"], tmp_path) == 1
    assert contract.published(tmp_path) != contract.current()

    assert command.main(["--publish", "--despite-breaks"], tmp_path) == 0
    assert contract.published(tmp_path) == contract.current()


def test_only_requests_refuse_unknown_fields() -> None:
    for name, known in contract.current().items():
        closed = [s.get("additionalProperties") is False for s in structs_in(known.schema)]
        assert set(closed) == {known.role is REQUEST}, name


def structs_in(schema: Schema) -> list[Schema]:
    """The message and every struct that it holds."""
    return [s for s in (schema, *schema.get("$defs", {}).values()) if "properties" in s]


@pytest.mark.parametrize(
    "message", [m for m in MESSAGES if m.name in PUBLISHED], ids=lambda m: m.name
)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_reader_of_the_published_generation_reads_todays_messages_with_fields_of_tomorrow(
    message: Message, data: st.DataObject
) -> None:
    sent = data.draw(messages(message.type))
    body = msgspec.json.encode(with_news(sent))

    read = old_reader(PUBLISHED[message.name].schema).decode(body)

    assert msgspec.convert(msgspec.to_builtins(read), message.type, str_keys=True) == sent


def with_news(value: Any) -> Any:
    """Plain values, with a field that nobody knows in each struct that tolerates one."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        told = {f: with_news(getattr(value, f)) for f in value.__struct_fields__}
        if config.tag is not None:
            told[config.tag_field or "type"] = config.tag
        if not config.forbid_unknown_fields:
            told["of_tomorrow"] = {"nested": [1, None]}
        return told
    if isinstance(value, tuple):
        return [with_news(item) for item in value]
    if isinstance(value, dict):
        return {key: with_news(item) for key, item in value.items()}
    return value
