"""Errors of requests, for the sender: field, value and accepted values.

Example: ``{"pod_sets": [{"gpus": 65}]}`` becomes field ``pod_sets[0].gpus``, value ``65``, expected
``a whole number from 0 to 64``.

msgspec reports the path ``$.pod_sets[0].gpus`` and no value. The types give the accepted values for
the path, and the same bytes decoded without types give the value. Bytes that are not JSON are read
again by a lenient decoder, because "NaN at expected_duration_s" helps more than "invalid character
at byte 32".
"""

import difflib
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, inspect

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.families import UNREADABLE, Reader

T = TypeVar("T", bound=msgspec.Struct)

# `placed` carries the request and the pods' places, and must stay below the server's 1 MiB.
MAX_REQUEST_BYTES: Final = 256 * 1024
VALUE_CHARS: Final = 80
FIELD_CHARS: Final = 200
EXPECTED_CHARS: Final = 600
_NAME_PATTERN_START: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_KEY_PATTERN_START: Final = "^[-._a-zA-Z0-9]+$"
_PLACE: Final = re.compile(
    r" - at (?P<key>`key` in )?`\$(?P<path>(?:\.\w+|\[\d+\]|\[\.\.\.\])*)`\Z"
)
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]|\[(\.\.\.)\]")
_JSON: Final = "one JSON object (RFC 8259, UTF-8)"

Step = str | int  # a field or key, or an index


class _Missing:
    """Nothing was sent there."""


MISSING: Final = _Missing()


def shorten(value: object, limit: int = VALUE_CHARS) -> str:
    """A value as JSON, cut to what a person wants to read."""
    if value is MISSING:
        return "(missing)"
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = ascii(value)  # such as a float without a JSON form, or a lone surrogate
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    """Return the text, shortened to ``limit`` with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def spell(path: Iterable[Step]) -> str:
    """A path as people write it: ``pod_sets[0].node_labels["gpu.model"]``."""
    spelled = ""
    for step in path:
        if isinstance(step, int):
            spelled += f"[{step}]"
        elif re.fullmatch(r"\w+", step, re.ASCII):
            spelled += f".{step}" if spelled else step
        else:
            spelled += f"[{shorten(step, FIELD_CHARS // 2)}]"
    return cut(spelled, FIELD_CHARS)


def invalid(path: Iterable[Step], value: object, expected: str) -> Refusal:
    """A value that is of the right shape and still cannot be."""
    return Refusal(
        code="invalid",
        field=spell(path),
        value=shorten(value),
        expected=cut(expected, EXPECTED_CHARS),
    )


def decoded(kind: type[T], decoder: Reader[T], data: bytes) -> T | Refusal:
    """Decode a request, or return the error."""
    if len(data) > MAX_REQUEST_BYTES:
        return Refusal(
            code="too_large",
            field="",
            value=f"{len(data)} bytes",
            expected=f"at most {MAX_REQUEST_BYTES} bytes",
        )
    try:
        raw = msgspec.json.decode(data)
        plain = plain_lists(raw, kind)
        if isinstance(plain, Refusal):
            return plain
        request = decoder.decode(data if plain is raw else msgspec.json.encode(plain))
        return twice_named(data, raw) or request
    except msgspec.ValidationError as error:
        return explain_validation(kind, data, error)
    except UNREADABLE as error:
        return explain_malformed(data, error)


# Lists of texts

# Words of a command are the program's own: a blank one may be an argument, and blanks count.
_VERBATIM: Final = ("command", "args")


class _Blank(Exception):
    """An empty member of a list, with its path from inside out."""

    def __init__(self, value: str, index: int) -> None:
        super().__init__(value)
        self.value = value
        self.way: list[Step] = [index]


_Plain = Callable[[Any], Any]  # from a raw value to the same with its lists trimmed


def plain_lists(raw: Any, kind: type[msgspec.Struct]) -> Any | Refusal:
    """Trim each member of each list of texts in a request or setting, and refuse an empty one.

    The result is ``raw`` itself where nothing changes. Example: ``{"clusters": [" a "]}`` becomes
    ``{"clusters": ["a"]}``, and of ``{"clusters": ["a", ""]}`` the field ``clusters[1]`` is
    refused: the job would wait for ever for a cluster without a name. A queue that allows
    tolerations of "" would allow that of every taint.
    """
    plain = _plain_struct(kind)
    if plain is None:
        return raw
    try:
        return plain(raw)
    except _Blank as blank:
        path = list(reversed(blank.way))
        return invalid(path, blank.value, "a text with more than blanks, or no such member")


def _plain(info: inspect.Type) -> _Plain | None:
    """Return a function that trims the lists in values of a type; None if the type has no lists."""
    match info:
        case inspect.VarTupleType(item_type=inspect.StrType() | inspect.LiteralType()):
            return _trimmed
        case inspect.VarTupleType():
            inner = _plain(info.item_type)
            return functools.partial(_plain_each, inner) if inner is not None else None
        case inspect.DictType():
            inner = _plain(info.value_type)
            return functools.partial(_plain_values, inner) if inner is not None else None
        case inspect.StructType():
            return _plain_struct(info.cls)
        case inspect.UnionType():
            return _plain(_member(info, MISSING))
        case _:
            return None


@functools.cache
def _plain_struct(kind: type[msgspec.Struct]) -> _Plain | None:
    info = type_of(kind)
    assert isinstance(info, inspect.StructType)
    found = [
        (field.encode_name, plain)
        for field in info.fields
        if field.encode_name not in _VERBATIM and (plain := _plain(field.type)) is not None
    ]
    return functools.partial(_plain_fields, found) if found else None


def _plain_fields(fields: list[tuple[str, _Plain]], raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw  # the decoder reports the error
    made = raw
    for name, plain in fields:
        if each := raw.get(name):
            made = _put(made, raw, name, each, plain)
    return made


def _plain_values(plain: _Plain, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    made = raw
    for name, each in raw.items():
        made = _put(made, raw, name, each, plain)
    return made


def _plain_each(plain: _Plain, raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw
    made = raw
    for at, each in enumerate(raw):
        made = _put(made, raw, at, each, plain)
    return made


def _put(made: Any, raw: Any, step: Step, each: Any, plain: _Plain) -> Any:
    """``made``, or a copy of ``raw`` from the first change on, with one member trimmed."""
    try:
        trimmed = plain(each)
    except _Blank as blank:
        blank.way.append(step)
        raise
    if trimmed is not each:
        made = made if made is not raw else raw.copy()
        made[step] = trimmed
    return made


def _trimmed(raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw
    made = [each.strip() if isinstance(each, str) else each for each in raw]
    if "" in made:
        at = made.index("")
        raise _Blank(raw[at], at)
    return raw if made == raw else made


class _Twice(Exception):
    """A name that occurs twice in an object."""


def twice_named(data: bytes, raw: object) -> Refusal | None:
    """Find a name that occurs twice in one object, because readers disagree about the value.

    ``raw`` is the decoded form of ``data``. Our clients' bytes equal the encoder's output and need
    no further check. Other bytes are parsed again by a slower reader. Raises one of UNREADABLE.
    """
    if msgspec.json.encode(raw) == data:
        return None
    try:
        json.loads(data, object_pairs_hook=_once)
    except _Twice as twice:
        name = shorten(twice.args[0])
        return _malformed(spell([twice.args[0]]), name, "each name once in an object, this one too")
    except ValueError as error:  # very long whole numbers, which msgspec accepts
        return explain_malformed(data, error)
    return None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return made


def explain_validation(
    kind: type[msgspec.Struct], data: bytes, error: msgspec.ValidationError
) -> Refusal:
    """Return the error for a ValidationError of decoding ``kind`` from ``data``."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as worse:
        return explain_malformed(data, worse)  # not even JSON: report that first
    message = str(error)
    place = _PLACE.search(message)
    steps = _STEP.findall(place["path"]) if place else []
    path, value, info = _walk(type_of(kind), raw, steps)
    if place and place["key"] and isinstance(info, inspect.DictType) and isinstance(value, dict):
        wrong = _first_unfit(info.key_type, value, by_key=True)
        return invalid([*path, wrong], wrong, f"as a name there: {words(info.key_type)}")
    if isinstance(value, dict) and (fields := _fields_of(info)) is not None:
        if message.startswith("Object contains unknown field"):
            return unknown_field(path, value, fields)
        if message.startswith("Object missing required field"):
            absent = next(f for f in fields.fields if f.required and f.encode_name not in value)
            return invalid([*path, absent.encode_name], MISSING, f"{words(absent.type)} (required)")
    right = words(info)
    if isinstance(value, bool | int | float):  # YAML reads 0.1 and yes as such
        right = re.sub("^text", "text in quotes", right)
    return invalid(path, value, right)


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the most similar name, ignoring case; "" if none is similar."""
    spelt = {name.casefold(): name for name in names}
    found = difflib.get_close_matches(word[:64].casefold(), spelt, n=1, cutoff=0.7)
    return spelt[found[0]] if found else ""


def unknown_field(path: list[Step], value: dict[str, object], info: inspect.StructType) -> Refusal:
    """Return the error for the first field of ``value`` unknown to its type."""
    known = [field.encode_name for field in info.fields]
    name = next((name for name in value if name not in known), "")
    inner = _inner_fields(info)
    near = difflib.get_close_matches(name[:64], [*known, *inner], n=1)
    if near:
        hint = f"did you mean {inner.get(near[0], near[0])}?"
    else:
        hint = f"the fields are {', '.join(known)}"
    return invalid([*path, name], value.get(name), f"no field of this name; {hint}")


def _inner_fields(info: inspect.StructType) -> dict[str, str]:
    """Return fields one level below by path: ``gpus`` belongs in a pod set."""
    found: dict[str, str] = {}
    for field in info.fields:
        inner = field.type
        where = f"{field.encode_name}."
        if isinstance(inner, inspect.VarTupleType):
            inner, where = inner.item_type, f"{field.encode_name}[0]."
        if isinstance(inner, inspect.StructType):
            for deep in inner.fields:
                found.setdefault(deep.encode_name, where + deep.encode_name)
    return {name: where for name, where in found.items() if name not in _names(info)}


def _names(info: inspect.StructType) -> set[str]:
    return {field.encode_name for field in info.fields}


def first_unknown_field(kind: type[msgspec.Struct], data: bytes) -> Refusal | None:
    """Return the error for the first unknown field at any depth, for types that tolerate unknown
    fields in messages.
    """
    return _first_unknown([], msgspec.json.decode(data), type_of(kind))


def _first_unknown(path: list[Step], raw: object, info: inspect.Type) -> Refusal | None:
    below: list[tuple[Step, object, inspect.Type]] = []
    match info, raw:
        case inspect.StructType(), dict():
            known = _names(info) | {info.tag_field}
            if any(name not in known for name in raw):
                untagged = {name: raw[name] for name in raw if name != info.tag_field}
                return unknown_field(path, untagged, info)
            types = {field.encode_name: field.type for field in info.fields}
            below = [(name, raw[name], types[name]) for name in raw if name in types]
        case inspect.DictType(), dict():
            below = [(name, each, info.value_type) for name, each in raw.items()]
        case inspect.ListType() | inspect.VarTupleType(), list():
            below = [(at, each, info.item_type) for at, each in enumerate(raw)]
        case inspect.UnionType(), _:
            return next(filter(None, (_first_unknown(path, raw, one) for one in info.types)), None)
        case _:
            return None
    found = (_first_unknown([*path, step], each, kind) for step, each, kind in below)
    return next(filter(None, found), None)


def explain_malformed(data: bytes, error: Exception) -> Refusal:
    """Return the error for bytes that are not strict JSON."""
    if isinstance(error, RecursionError):
        return _malformed("", shorten_bytes(data, 0), f"{_JSON} without such deep nesting")
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return _malformed("", shorten_bytes(data, wrong.start), f"UTF-8 (at byte {wrong.start})")
    if found := _not_quite_json(data):
        path, value, expected = found
        return _malformed(spell(path), value, expected)
    at = re.search(r"\(byte (\d+)\)", str(error))
    offset = int(at[1]) if at else len(data)
    where = f"at byte {offset}" if at else "it ends too early"
    return _malformed("", shorten_bytes(data, offset), f"{_JSON}; {where}")


def shorten_bytes(data: bytes, offset: int) -> str:
    """Return the text around a byte, escaped where unreadable."""
    start = max(0, offset - VALUE_CHARS // 2)
    text = data[start : start + VALUE_CHARS].decode(errors="backslashreplace")
    return cut(("…" if start else "") + text, VALUE_CHARS)


def _malformed(field: str, value: str, expected: str) -> Refusal:
    return Refusal(code="malformed", field=field, value=value, expected=expected)


def _not_quite_json(data: bytes) -> tuple[list[Step], str, str] | None:
    """Locate a fault that only a strict reader refuses: NaN, Infinity, half a character."""
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError):
        return None
    todo: list[tuple[list[Step], object]] = [([], loaded)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path, json.dumps(value), "a finite number (JSON has no NaN and no Infinity)"
        if isinstance(value, str) and not _is_unicode(value):
            return path, shorten(value), "whole Unicode characters, no lone surrogates"
        if isinstance(value, dict):
            if odd := next((name for name in value if not _is_unicode(name)), None):
                return path, shorten(odd), "names of whole Unicode characters"
            todo += [([*path, name], inner) for name, inner in reversed(value.items())]
        elif isinstance(value, list):
            todo += [([*path, at], inner) for at, inner in reversed(list(enumerate(value)))]
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Types in words


@functools.cache
def type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    """Return msgspec's description of a type, without the descriptions of fields."""
    info: inspect.Type = _undescribed(inspect.type_info(kind))
    return info


def _undescribed(info: Any) -> Any:
    match info:
        case inspect.Metadata():
            return _undescribed(info.type)
        case tuple():
            return tuple(map(_undescribed, info))
        case inspect.Type() | inspect.Field():
            return msgspec.structs.replace(
                info, **{name: _undescribed(getattr(info, name)) for name in info.__struct_fields__}
            )
        case _:
            return info


def _walk(
    info: inspect.Type, value: Any, steps: list[tuple[str, str, str]]
) -> tuple[list[Step], Any, inspect.Type]:
    """Follow a path through types and values at once."""
    path: list[Step] = []
    for name, index, rest in steps:
        info = _member(info, value)
        if name and isinstance(info, inspect.StructType):
            info = next((f.type for f in info.fields if f.encode_name == name), inspect.AnyType())
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
            path.append(name)
        elif index and isinstance(info, inspect.VarTupleType):
            info = info.item_type
            value = value[int(index)] if isinstance(value, list) else MISSING
            path.append(int(index))
        elif rest and isinstance(info, inspect.DictType) and isinstance(value, dict):
            key = _first_unfit(info.value_type, value, by_key=False)
            info, value = info.value_type, value.get(key, MISSING)
            path.append(key)
    return path, value, info


def _member(info: inspect.Type, value: Any) -> inspect.Type:
    """Return the member type of a union for a value: by its tag, else the first that is
    not None.
    """
    if not isinstance(info, inspect.UnionType):
        return info
    kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
    if not isinstance(value, dict):
        return kinds[0]
    tagged = [each for each in kinds if isinstance(each, inspect.StructType) and each.tag_field]
    return next((each for each in tagged if value.get(each.tag_field) == each.tag), kinds[0])


def _fields_of(info: inspect.Type) -> inspect.StructType | None:
    """Return the only struct type of a type or union, None included; None if there are several."""
    kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
    found = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    return found[0] if len(found) == 1 else None


def _first_unfit(info: inspect.Type, value: dict[str, object], *, by_key: bool) -> str:
    """Return the first key of a map whose key or value has the wrong type, since msgspec names
    none; "" if all fit.
    """
    kind = _kind_of(info)
    for key, inner in value.items():
        try:
            msgspec.convert(key if by_key else inner, kind, str_keys=True, strict=not by_key)
        except msgspec.ValidationError:
            return key
    return ""


def _kind_of(info: inspect.Type) -> Any:
    """Build the type that ``info`` describes, bounds included."""
    of_tuples: Any = tuple  # built at run time, beyond a type checker
    of_maps: Any = dict
    match info:
        case inspect.StructType():
            return info.cls
        case inspect.UnionType():
            return functools.reduce(operator.or_, map(_kind_of, info.types))
        case inspect.NoneType():
            return None
        case inspect.LiteralType():
            return Literal[info.values]
        case inspect.VarTupleType():
            members = of_tuples[_kind_of(info.item_type), ...]
            return _bounded(members, info, "min_length", "max_length")
        case inspect.DictType():
            members = of_maps[_kind_of(info.key_type), _kind_of(info.value_type)]
            return _bounded(members, info, "min_length", "max_length")
        case inspect.StrType():
            return _bounded(str, info, "pattern", "min_length", "max_length")
        case inspect.IntType():
            return _bounded(int, info, "gt", "ge", "lt", "le")
        case inspect.FloatType():
            return _bounded(float, info, "gt", "ge", "lt", "le")
        case inspect.BoolType():
            return bool
        case _:
            return Any


def _bounded(kind: Any, info: inspect.Type, *names: str) -> Any:
    bounds = {name: bound for name in names if (bound := getattr(info, name)) is not None}
    return Annotated[kind, Meta(**bounds)] if bounds else kind


def words(info: inspect.Type) -> str:
    """Describe the accepted values of a type, to follow the word "expected"."""
    match info:
        case inspect.IntType():
            return f"a whole number{_range(info)}"
        case inspect.FloatType():
            return f"a number{_range(info)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return _text(info)
        case inspect.LiteralType():
            return "one of " + ", ".join(f'"{value}"' for value in sorted(info.values, key=str))
        case inspect.VarTupleType():
            return f"a list{_length(info)}, each {words(info.item_type)}"
        case inspect.DictType():
            most = f"at most {info.max_length} " if info.max_length else ""
            number = isinstance(info.value_type, inspect.FloatType | inspect.IntType)
            what = "numbers" if number else "texts"
            return f"an object of {most}names and {what}: {words(info.value_type)}"
        case inspect.StructType():
            return f"an object with the fields {', '.join(f.encode_name for f in info.fields)}"
        case inspect.UnionType():
            kinds = [words(kind) for kind in info.types if not isinstance(kind, inspect.NoneType)]
            return ", ".join(kinds) + (", or null" if len(kinds) < len(info.types) else "")
        case _:
            return "a value of another type"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    low = f" of at least {info.ge}" if info.ge is not None else ""
    low = f" greater than {info.gt:g}" if info.gt is not None else low
    high = f"at most {info.le:.0f}" if info.le is not None else ""
    return f"{low} and {high}" if low and high else low or (f" of {high}" if high else "")


def _text(info: inspect.StrType) -> str:
    if info.pattern is not None and info.pattern.startswith(_NAME_PATTERN_START):
        return (
            f"1 to {info.max_length} lower-case letters, digits or '-', "
            "the first and the last a letter or digit"
        )
    if info.pattern is not None and info.pattern.startswith(_KEY_PATTERN_START):
        return f"1 to {info.max_length} letters, digits, '-', '_' and '.'"
    if info.max_length is None:
        return "text"
    if info.min_length:
        return f"text of {info.min_length} to {info.max_length} characters"
    return f"text of at most {info.max_length} characters"


def _length(info: inspect.VarTupleType) -> str:
    if info.min_length and info.max_length:
        return f" of {info.min_length} to {info.max_length}"
    return f" of at most {info.max_length}" if info.max_length else ""
