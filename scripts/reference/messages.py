"""Pages of all messages: where each travels, its fields, and the objects inside.

A page has the messages of one family. Fields that all of them share stand once at its top.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scripts.reference.fields import Schema, fields_table
from scripts.reference.markdown import MADE_BY, wrapped
from scripts.schema_tools.asyncapi import channels
from scripts.schema_tools.json_schema import MESSAGES, Message, file_name, schema_of

Addresses = Mapping[type[msgspec.Struct], Iterable[str]]


class Family(NamedTuple):
    """One page. ``prefixes``: first parts of the names of its messages."""

    title: str
    head: str
    prefixes: tuple[str, ...]


FAMILIES: Final[Mapping[str, Family]] = {
    "events": Family(
        "Workload events",
        "Each step of a job is one event in the stream WORKLOADS. A decision is stored together "
        "with the placements that it makes.",
        ("workload", "decision"),
    ),
    "facts": Family(
        "Facts, settings and telemetry",
        "Facts and settings are last values: the newest message of a subject is the state. "
        "Telemetry is not stored.",
        ("fleet", "control", "telemetry", "quality"),
    ),
    "requests": Family(
        "Requests and answers",
        "Tenants and operators send requests, services answer. See [API](../api.md) for the verbs.",
        ("api", "login"),
    ),
    "agents": Family(
        "Messages of agents",
        "Services in worker clusters speak to the door only, in these messages.",
        ("door", "held"),
    ),
    "records": Family(
        "Records",
        "Archive, dead letters, leases, marks of the log, and ends of job logs.",
        ("dead", "archive", "lease", "log"),
    ),
}
READ: Final = (
    "The field `type` has the name and version of a message; requests have none. Readers skip "
    "unknown fields. JSON Schemas are in `schemas/json`."
)
TAG: Final = "type"
# The schema of a request has a page of its own, with examples.
ELSEWHERE: Final = {"api.submit_request": "[request fields](../request.md)"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of each page. Raises ValueError for a message without a page."""
    by_page = {
        name: [each for each in MESSAGES if each.name.partition(".")[0] in family.prefixes]
        for name, family in FAMILIES.items()
    }
    known = {
        each.type.__name__: f"{name}.md#{each.name.replace('.', '')}"
        for name, inside in by_page.items()
        for each in inside
    }
    if left := {each.name for each in MESSAGES if each.type.__name__ not in known}:
        raise ValueError(f"no page has these messages: {sorted(left)}")
    addresses = _addresses()
    for name, inside in by_page.items():
        yield name, _page(name, FAMILIES[name], inside, known, addresses)


def _page(
    page: str,
    family: Family,
    inside: Sequence[Message],
    known: dict[str, str],
    addresses: Addresses,
) -> str:
    """Return a page. ``known``: links to the descriptions of objects, extended by this page's."""
    schemas = {message.name: schema_of(message) for message in inside}
    first = [each for name, each in schemas.items() if name.startswith(f"{family.prefixes[0]}.")]
    shared = _shared(first)
    parts = [
        f"# {family.title}\n",
        f"{MADE_BY}\n",
        wrapped(family.head) + "\n",
        wrapped(READ) + "\n",
    ]
    if shared:
        parts.append(f"## Fields of all `{family.prefixes[0]}` messages\n")
        parts.append(fields_table({"properties": shared, "required": first[0]["required"]}))
    objects: dict[str, Schema] = {}
    for message in inside:
        schema = schemas[message.name]
        is_first = message.name.startswith(f"{family.prefixes[0]}.")
        without = frozenset(shared if is_first else ())
        parts += _section(message, schema, without, addresses.get(message.type, ()))
        if message.name not in ELSEWHERE:
            objects |= schema.get("$defs", {})
    if objects:
        parts.append("## Objects inside\n")
    if links := [f"[{each}]({known[each]})" for each in objects if each in known]:
        parts.append(wrapped(f"Described elsewhere: {', '.join(sorted(links))}.") + "\n")
    for name in sorted(objects.keys() - known.keys()):
        parts += [f"### {name}\n", *_described(objects[name]), _inside(objects[name])]
        known[name] = f"{page}.md#{name.lower()}"
    return "\n".join(parts)


def _section(
    message: Message, schema: Schema, shared: frozenset[str], addresses: Iterable[str]
) -> Iterator[str]:
    yield f"## {message.name}\n"
    if message.name in ELSEWHERE:
        yield f"See {ELSEWHERE[message.name]}.\n"
        return
    yield from _described(schema)
    for address in addresses:
        yield f"- `{address}`"
    yield f"- Schema: `schemas/json/{file_name(message.name)}`\n"
    without = shared | {TAG}
    if set(schema["properties"]) - without:
        yield fields_table(schema, without=without)


def _inside(schema: Schema) -> str:
    """Return the table of an object's fields, or the values of an enumeration."""
    if "enum" in schema:
        return wrapped(", ".join(f"`{each}`" for each in schema["enum"])) + "\n"
    return fields_table(schema)


def _described(schema: Schema) -> Iterator[str]:
    if text := schema.get("description", ""):
        yield wrapped(text.replace("<", "&lt;")) + "\n"


def _addresses() -> Addresses:
    """Return the subjects of each message. Answers have none of their own."""
    found: dict[type[msgspec.Struct], dict[str, None]] = {}
    for channel in channels():
        if channel.address is not None:
            for message in channel.messages:
                found.setdefault(message, {})[channel.address] = None
    return found


def _shared(schemas: Sequence[Schema]) -> dict[str, Any]:
    """Return the fields, but for the tag, that are the same in each of these schemas."""
    first, *rest = (schema["properties"] for schema in schemas)
    return {
        name: field
        for name, field in first.items()
        if name != TAG and all(each.get(name) == field for each in rest)
    }
