"""Whether a message may change as it did: two schemas in, what would break out.

Old and new services run side by side, and the log keeps what old ones wrote. So of a message that
our services keep, new readers must accept all that old writers wrote, and old readers all that new
writers write. A request is only read by us, a reply only written, and half of the rules fall away.

In every role: no field is removed, re-typed or made required, a new one has a default, a default
never changes (writers leave defaults out, so a reader fills in its own), and a tag stays with its
type. What may happen: new messages, new fields with a default, and a union of tagged messages may
gain a member, since a reader sets aside what has a tag that it does not know. Another meaning under
the same name is beyond this module: it needs a new tag.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from scripts.schema_tools.json_schema import Role, Schema


class Rule(StrEnum):
    """What was broken."""

    MESSAGE_REMOVED = "a message never goes away"
    ROLE_CHANGED = "a message keeps its role"
    TAG_MOVED = "a tag stays with its type"
    FIELD_REMOVED = "a field is never removed"
    FIELD_WITHOUT_DEFAULT = "a new field needs a default"
    FIELD_MADE_REQUIRED = "a field is never made required"
    FIELD_MADE_OPTIONAL = "old readers demand the field"
    FIELD_REFUSED = "old readers refuse unknown fields here"
    CLOSED = "fields that old writers sent would be refused"
    DEFAULT_CHANGED = "a default never changes"
    RETYPED = "a field is never re-typed"
    NARROWED = "old writers' values would be refused"
    WIDENED = "old readers would refuse new values"


class Break(NamedTuple):
    """One rule broken at one place."""

    where: str  # message and path, such as workload.placed.v1/pods[]/gpus
    rule: Rule
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule} ({self.detail})"


class Published(NamedTuple):
    """A message as readers know it."""

    role: Role
    schema: Schema


def contract_breaks(old: Mapping[str, Published], new: Mapping[str, Published]) -> list[Break]:
    """What the new generation of all messages breaks for those who know the old one."""
    found: list[Break] = []
    for name, was in old.items():
        now = new.get(name)
        if now is None:
            found.append(Break(name, Rule.MESSAGE_REMOVED, was.schema.get("title", "")))
        elif now.role is not was.role:
            found.append(Break(name, Rule.ROLE_CHANGED, f"{was.role} became {now.role}"))
        else:
            found += message_breaks(name, was.schema, now.schema, was.role)
    return found


def message_breaks(name: str, old: Schema, new: Schema, role: Role) -> list[Break]:
    """What changing one message from ``old`` to ``new`` breaks."""
    judge = _Judge(old, new, role)
    if old.get("title") != new.get("title"):
        judge.say(name, Rule.TAG_MOVED, f"{old.get('title')} became {new.get('title')}")
    judge.compare(name, old, new)
    return judge.found


_LOWER: Final = (("minimum", "exclusiveMinimum"), ("minLength",), ("minItems",), ("minProperties",))
_UPPER: Final = (("maximum", "exclusiveMaximum"), ("maxLength",), ("maxItems",), ("maxProperties",))
_Bound = tuple[float, bool]
_NO_DEFAULT: Final = object()


class _Judge:
    def __init__(self, old: Schema, new: Schema, role: Role) -> None:
        self._old = old
        self._new = new
        self._new_reads_old = role is not Role.REPLY
        self._old_reads_new = role is not Role.REQUEST
        self._seen: set[tuple[str, str]] = set()  # pairs of $refs, as types may hold themselves
        self.found: list[Break] = []

    def say(self, where: str, rule: Rule, detail: str) -> None:
        self.found.append(Break(where, rule, detail))

    def _narrower(self, where: str, detail: str) -> None:
        if self._new_reads_old:
            self.say(where, Rule.NARROWED, detail)

    def _wider(self, where: str, detail: str) -> None:
        if self._old_reads_new:
            self.say(where, Rule.WIDENED, detail)

    def compare(self, where: str, old: Schema, new: Schema) -> None:
        """Any two schemas."""
        pair = (_ref(old), _ref(new))
        if all(pair):
            if (where_pair := (f"{pair[0]}", f"{pair[1]}")) in self._seen:
                return
            self._seen.add(where_pair)
        olds, news = _kinds(old, self._old), _kinds(new, self._new)
        if not olds.keys() & news.keys():
            self.say(where, Rule.RETYPED, f"{_spell(olds)} became {_spell(news)}")
            return
        for kind in olds.keys() - news.keys():
            self._narrower(where, f"{kind} is gone")
        for kind in sorted(news.keys() - olds.keys()):
            if not (kind.startswith(_TAGGED) and any(k.startswith(_TAGGED) for k in olds)):
                self._wider(where, f"{kind} is new")
        for kind in olds:
            if kind in news:
                self._compare_kind(where, olds[kind], news[kind])

    def _compare_kind(self, where: str, old: Schema, new: Schema) -> None:
        self._compare_values(where, old, new)
        self._compare_bounds(where, old, new)
        if "items" in old and "items" in new:
            self.compare(f"{where}[]", old["items"], new["items"])
        if "properties" in old or "properties" in new:
            self._compare_fields(where, old, new)
        else:
            self._compare_maps(where, old, new)

    def _compare_values(self, where: str, old: Schema, new: Schema) -> None:
        olds, news = _values(old), _values(new)
        if gone := sorted(olds - news):
            self._narrower(where, f"no longer {', '.join(gone)}")
        if come := sorted(news - olds):
            self._wider(where, f"now also {', '.join(come)}")
        for word in ("pattern", "not"):
            before, after = old.get(word), new.get(word)
            if before != after:  # which of two patterns takes more cannot be told
                if after is not None:
                    self._narrower(where, f"{word} {after}")
                if before is not None:
                    self._wider(where, f"no longer only {word} {before}")

    def _compare_bounds(self, where: str, old: Schema, new: Schema) -> None:
        for sign, groups in ((1, _LOWER), (-1, _UPPER)):
            for keys in groups:
                before, after = _bound(old, keys, sign), _bound(new, keys, sign)
                if before == after:
                    continue
                detail = f"{keys[0]} {_spell_bound(old, keys)} became {_spell_bound(new, keys)}"
                if after is not None and (before is None or after > before):
                    self._narrower(where, detail)
                else:
                    self._wider(where, detail)

    def _compare_maps(self, where: str, old: Schema, new: Schema) -> None:
        for keyword, place in (("additionalProperties", "{}"), ("propertyNames", "{name}")):
            before, after = old.get(keyword), new.get(keyword)
            if isinstance(before, dict) and isinstance(after, dict):
                text = {"type": "string"} if keyword == "propertyNames" else {}
                self.compare(f"{where}{place}", text | before, text | after)
            elif isinstance(after, dict):
                self._narrower(f"{where}{place}", "now has rules")
            elif isinstance(before, dict):
                self._wider(f"{where}{place}", "no longer has rules")

    def _compare_fields(self, where: str, old: Schema, new: Schema) -> None:
        olds, news = old.get("properties", {}), new.get("properties", {})
        was_required, is_required = set(old.get("required", ())), set(new.get("required", ()))
        was_closed = old.get("additionalProperties") is False
        if not was_closed and new.get("additionalProperties") is False and self._new_reads_old:
            self.say(where, Rule.CLOSED, "unknown fields are refused from now on")
        for name, field in news.items():
            if name in olds:
                continue
            if name in is_required:
                self.say(f"{where}/{name}", Rule.FIELD_WITHOUT_DEFAULT, "it is required")
            if was_closed and self._old_reads_new:
                self.say(f"{where}/{name}", Rule.FIELD_REFUSED, _spell(_kinds(field, self._new)))
        for name, field in olds.items():
            inner = f"{where}/{name}"
            if name not in news:
                self.say(inner, Rule.FIELD_REMOVED, _spell(_kinds(field, self._old)))
                continue
            if name in is_required - was_required:
                self.say(inner, Rule.FIELD_MADE_REQUIRED, "its default is gone")
            elif name in was_required - is_required:
                if self._old_reads_new:
                    self.say(inner, Rule.FIELD_MADE_OPTIONAL, "new writers may leave it out")
            else:
                self._compare_defaults(inner, field, news[name])
            self.compare(inner, field, news[name])

    def _compare_defaults(self, where: str, old: Schema, new: Schema) -> None:
        before, after = old.get("default", _NO_DEFAULT), new.get("default", _NO_DEFAULT)
        if before != after or isinstance(before, bool) is not isinstance(after, bool):
            detail = " became ".join(
                "none" if d is _NO_DEFAULT else f"{d!r}" for d in (before, after)
            )
            self.say(where, Rule.DEFAULT_CHANGED, detail)


# Reading schemas

_TAGGED: Final = "object "  # + tag: a member of a union of tagged messages


def _ref(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"])
    return _ref(schema["allOf"][0]) if len(schema.get("allOf", ())) == 1 else ""


def _resolve(schema: Schema, root: Schema) -> Schema:
    while ref := _ref(schema):
        target: Any = root
        for part in ref.removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema


def _kinds(schema: Schema, root: Schema) -> dict[str, Schema]:
    """The alternatives that a schema allows, by a name of their kind."""
    schema = _resolve(schema, root)
    if "anyOf" in schema:
        return {
            kind: part for inner in schema["anyOf"] for kind, part in _kinds(inner, root).items()
        }
    if "enum" in schema and None in schema["enum"]:
        rest = [value for value in schema["enum"] if value is not None]
        return {"null": {"type": "null"}, "enum": schema | {"enum": rest}}
    if "enum" in schema:
        return {"enum": schema}
    if "const" in schema:
        return {f"tag {schema['const']}": schema}
    kind = schema.get("type", "any")
    if kind == "object" and "properties" in schema:
        tag = schema["properties"].get("type", {}).get("const")
        return {f"{_TAGGED}{tag}" if tag else "object": schema}
    return {"map" if kind == "object" else kind: schema}


def _values(schema: Schema) -> set[str]:
    return {str(value) for value in schema.get("enum", ())}


def _bound(schema: Schema, keys: tuple[str, ...], sign: int) -> _Bound | None:
    """The strictest of these bounds; larger is narrower, whichever end it bounds."""
    bounds = [(sign * schema[key], key.startswith("excl")) for key in keys if key in schema]
    return max(bounds, default=None)


def _spell_bound(schema: Schema, keys: tuple[str, ...]) -> str:
    return " and ".join(f"{schema[key]}" for key in keys if key in schema) or "none"


def _spell(kinds: Mapping[str, Schema]) -> str:
    return " or ".join(kinds) or "nothing"
