"""JSON Schema of each message, from its type, its docstrings and the comments of its fields.

The schema is msgspec's, with four changes for other readers:

- a tag is a ``const``;
- a reference with a description stands in ``allOf``, since older drafts ignore its siblings;
- the OpenAPI word ``discriminator`` is left out, since each tag is a ``const``;
- a pattern that ends in the lookahead ``$(?!\\n)`` loses the lookahead, because Go's RE2 has none.
  Python needs the lookahead, since its ``$`` also matches before a last line end. A ``not`` with
  the same meaning replaces the lookahead.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from berthmaster.lib.messages import door
from berthmaster.lib.messages.api import ApiReply, Refusal
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.door import DoorReply, HeldPage, LogAsk, LogChunk, Nudge
from berthmaster.lib.messages.explain import type_of
from berthmaster.lib.messages.families import AGENT_REQUESTS, REQUEST_TYPES, members, tag_of
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.login import LoginReply, LoginRequest
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.records import ArchivedStory, DeadLetter, Lease, LogEnd, LogMark
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.lib.messages.workload import WorkloadEvent
from scripts.schema_tools.comments import description, field_comments

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
TAG_WORDS: Final = "Name and version of the message type."
_STRICT_END: Final = r"$(?!\n)"
_NO_LINE_END: Final = {"pattern": "\\n"}
_WORDS_OF_JSON: Final = {"None": "null", "True": "true", "False": "false"}


class Message(NamedTuple):
    """One message of the contract."""

    name: str  # its tag; of a request, which has none, api.<what it is>
    type: type[msgspec.Struct]


def name_of(message: type[msgspec.Struct]) -> str:
    """The tag, or ``api.cancel_request`` for CancelRequest, or ``door.take_request``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.__name__).lower()
    family = "door" if message.__module__ == door.__name__ else "api"
    return tag_of(message) or f"{family}.{words}"


def _messages() -> Iterator[Message]:
    kept: tuple[type[msgspec.Struct], ...] = (
        *members(WorkloadEvent),
        Decision,
        NodeTelemetry,
        JobFigures,
        QualityReport,
        *members(FleetFact),
        *members(ControlFact),
        DeadLetter,
        ArchivedStory,
        Lease,
        LogMark,
        LogEnd,
        *AGENT_REQUESTS.values(),
        *(reply for reply in members(DoorReply) if reply is not Refusal),
        Nudge,
        HeldPage,
        LogAsk,
        LogChunk,
    )
    for message in kept:
        yield Message(name_of(message), message)
    for message in dict.fromkeys(REQUEST_TYPES.values()):
        if message not in kept:
            yield Message(name_of(message), message)
    yield Message(name_of(LoginRequest), LoginRequest)
    for message in members(ApiReply):
        yield Message(name_of(message), message)
    yield Message(name_of(LoginReply), LoginReply)


MESSAGES: Final = tuple(_messages())


def file_name(message: str) -> str:
    """Where the schema of a message is, inside schemas/json."""
    return f"{message}.schema.json"


@cache
def schema_of(message: Message) -> Schema:
    """Return the whole schema of one message, without references outside. Shared: do not change."""
    parts = components((message.type,), "#/$defs/{name}")
    root = parts.pop(message.type.__name__)
    schema = {"$schema": DIALECT, "$id": file_name(message.name), **root}
    if parts:
        schema["$defs"] = parts
    return schema


def components(types: tuple[type[msgspec.Struct], ...], ref_template: str) -> dict[str, Schema]:
    """The schema of each type and of all that they hold, by name."""
    _, made = msgspec.json.schema_components(types, ref_template=ref_template)
    structs = {struct.__name__: struct for struct in _structs_in(types)}
    # Through JSON and back: defaults come as the types' own tuples.
    made = json.loads(json.dumps(made))
    return {name: portable(_readable(made[name], structs.get(name))) for name in sorted(made)}


def _structs_in(types: tuple[type[msgspec.Struct], ...]) -> set[type[msgspec.Struct]]:
    found: set[type[msgspec.Struct]] = set()
    todo: list[inspect.Type] = [type_of(message) for message in types]
    while todo:
        match todo.pop():
            case inspect.StructType() as struct:
                if struct.cls not in found:
                    found.add(struct.cls)
                    todo += [field.type for field in struct.fields]
            case inspect.UnionType() as union:
                todo += union.types
            case inspect.VarTupleType() as items:
                todo.append(items.item_type)
            case inspect.DictType() as mapping:
                todo += [mapping.key_type, mapping.value_type]
            case inspect.TupleType() | inspect.CollectionType() as other:
                raise TypeError(f"{other} has no schema here yet; messages use tuples of one type")
    return found


def _readable(made: Schema, struct: type[msgspec.Struct] | None) -> Schema:
    schema: Schema = _without_discriminator(made)
    if struct is None:
        return schema
    if "description" in schema:
        # Python 3.13 takes the indentation out of docstrings by itself, older ones do not.
        schema["description"] = plain(cleandoc(schema["description"]))
    words = field_comments(struct)
    tag_field = struct.__struct_config__.tag_field
    for name, field in schema["properties"].items():
        if name == tag_field:
            (tag,) = field["enum"]
            schema["properties"][name] = {"const": tag, "description": TAG_WORDS}
        else:
            text = field.get("description") or words.get(name, "")
            schema["properties"][name] = _described(field, plain(description(name, text)))
    return schema


def _described(field: Schema, words: str) -> Schema:
    beside: Schema = {key: value for key, value in field.items() if key != "$ref"}
    if words:
        beside["description"] = words
    if "$ref" not in field or not beside:
        return {**field, **beside}
    return {"allOf": [{"$ref": field["$ref"]}], **beside}


def _without_discriminator(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_discriminator(inner)
            for key, inner in value.items()
            if not (key == "discriminator" and isinstance(inner, dict) and "mapping" in inner)
        }
    if isinstance(value, list):
        return [_without_discriminator(inner) for inner in value]
    return value


def portable(value: Any) -> Any:
    """The same schema with patterns that engines without looking ahead can compile."""
    if isinstance(value, list):
        return [portable(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {key: portable(inner) for key, inner in value.items()}
    pattern = found.get("pattern")
    if isinstance(pattern, str) and pattern.endswith(_STRICT_END):
        found |= {"pattern": pattern.removesuffix(_STRICT_END) + "$", "not": _NO_LINE_END}
    return found


def plain(words: str) -> str:
    """Words of Python's own in those of JSON and Markdown."""
    words = re.sub(r"\b(None|True|False)\b", lambda m: _WORDS_OF_JSON[m[1]], words)
    return words.replace("``", "`")
