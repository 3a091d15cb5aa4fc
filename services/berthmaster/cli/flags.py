"""Options of commands, built from the fields of message structs.

A field gives its option a name, a type, a help text and a default. Example: ``memory_mib`` of
PodSet becomes ``--memory MEM  Memory of each pod. Example: 16Gi. [default: 1Gi]``. A `Flag` holds
settings that do not follow from the field. A new field of a struct gets its option without further
code.

::

    OPTIONS = FieldOptions(JobRequest, {"expected_duration_s": Flag("--duration")})

    @click.command()
    @OPTIONS
    def submit(**flags: Any) -> None:
        OPTIONS.values(flags)  # --duration 2h -> {"expected_duration_s": 7200.0}
"""

import re
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import click
import msgspec

from berthmaster.cli.session import option_group
from berthmaster.cli.values import (
    WrongInput,
    exactly,
    parse_cpu_milli,
    parse_duration_s,
    parse_memory_mib,
    parse_pairs,
    parse_weights,
)
from berthmaster.lib.runtime.settings import EmptyMember, members

F = TypeVar("F", bound=Callable[..., Any])
Read = Callable[[Any], Any]  # from click's value to the field's value; raises WrongInput
_BOUNDS: Final = ("gt", "ge", "lt", "le")
_YES_NO: Final = {"yes": True, "no": False, "none": None}
_GPU_HOURS: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(?:h/day)?")
_MEANING: Final = re.compile(r'[;.] (None|""|empty|0) = ([^.;]+)')


class Flag(NamedTuple):
    """Settings of an option that do not follow from its field."""

    name: str = ""  # such as --limit or --hold/--release; for a struct, the prefix of its options
    type: click.ParamType[Any] | None = None
    metavar: str | None = None
    read: Read | None = None
    help: str = ""  # replaces the field's description
    note: str = ""  # a sentence after the description
    switch: Any = None  # field value of an option that takes no value


class FieldType(NamedTuple):
    """The type of a field without wrappers."""

    kind: Any  # int, Literal["a", "b"], tuple[str, ...] and so on
    optional: bool  # True if None is a value
    bounds: Mapping[str, Any]  # gt, ge, lt, le
    text: str  # the description


class Unit(NamedTuple):
    """The notation of a quantity on the command line."""

    suffix: str  # suffix of the field's name, omitted in the option's name
    metavar: str
    # function of the option's name, its text and its field
    read: Callable[[str, str, FieldType], Any]
    example: str = ""
    shown: Callable[[Any], str] = str  # shows a default


class Option(NamedTuple):
    """One option, and the field that it fills."""

    path: tuple[str, ...]
    name: str
    parameter: str  # the name of its value in the command
    decorate: Callable[[Any], Any]
    read: Read


def _seconds(_: str, text: str, field: FieldType) -> float:
    return parse_duration_s(text, zero="ge" in field.bounds)


def _cpu_milli(_: str, text: str, __: FieldType) -> int:
    return parse_cpu_milli(text)


def _memory_mib(_: str, text: str, __: FieldType) -> int:
    return parse_memory_mib(text)


def _gpu_milli(name: str, text: str, _: FieldType) -> int:
    milli = exactly(text, 1000)
    if milli is None:
        raise WrongInput(f"{name} {text!r}: right is a number of GPUs such as 8 or 2.5, or 'none'")
    return milli


def _gpu_h_a_day(name: str, text: str, _: FieldType) -> float:
    found = _GPU_HOURS.fullmatch(text)
    if found is None:
        raise WrongInput(f"{name} {text!r}: right is GPU hours a day such as 20h/day, or 'none'")
    return float(found[1])


def _jobs(name: str, text: str, _: FieldType) -> int:
    if not text.isdecimal() or not text.isascii():
        raise WrongInput(f"{name} {text!r}: right is a number of jobs, or 'none'")
    return int(text)


def _number(name: str, text: str, _: FieldType) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongInput(f"{name} {text!r}: right is a number, or 'none'") from None


UNITS: Final = (
    Unit("_gpu_milli", "GPUS", _gpu_milli),
    Unit("_gpu_h_a_day", "HOURS", _gpu_h_a_day, "20h/day"),
    Unit("_milli", "N", _cpu_milli, "250m", lambda milli: f"{milli / 1000:g}"),
    Unit("_mib", "MEM", _memory_mib, "16Gi", lambda mib: f"{mib >> 10}Gi" if mib else "0"),
    Unit("_s", "TIME", _seconds, "5m", lambda seconds: f"{seconds:g}s"),
    Unit("_jobs", "JOBS", _jobs),
    Unit("_per_hour", "N", _jobs),
)
_NUMBER: Final = Unit("", "N", _number)


# From a field to the settings of its option and the reader of its value: _create or _edit.
Style = Callable[[str, FieldType, Flag, Unit | None, Any], tuple[dict[str, Any], Read]]


class FieldOptions:
    """The options of a struct's fields and of its inner structs, in order."""

    def __init__(
        self,
        struct: type[msgspec.Struct],
        flags: Mapping[str, Flag | None],
        *,
        edits: bool = False,
    ) -> None:
        """Build the options.

        ``flags``: by field, such as "topology.nodes"; None = no option. ``edits``: the options
        change an existing message, and 'none' or 'any' clears a field.
        """
        style = _edit if edits else _create
        self._options = tuple(_options_of(struct, flags, style, (), "--"))

    def __call__(self, function: F) -> F:
        return option_group(*(option.decorate for option in self._options))(function)

    def values(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given fields, with inner structs as dictionaries. Raises WrongInput."""
        found: dict[str, Any] = {}
        for option in self._options:
            if (value := flags.get(option.parameter)) in (None, ()):
                continue
            inner = found
            for name in option.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[option.path[-1]] = option.read(value)
        return found

    def name_of(self, field: str) -> str:
        """Return the option that fills a field: pod_sets[0].topology.nodes -> --fewest-nodes."""
        path = tuple(re.sub(r"\[.*?\]", "", field).split("."))
        names = (each.name for each in self._options if each.path == path[: len(each.path)])
        return next(names, f"--{path[-1]}")


def _options_of(
    struct: type[msgspec.Struct],
    flags: Mapping[str, Flag | None],
    style: Style,
    path: tuple[str, ...],
    prefix: str,
) -> Iterator[Option]:
    for info in msgspec.structs.fields(struct):
        here = (*path, info.name)
        flag = flags.get(".".join(here), Flag())
        if flag is None:
            continue
        field = _type_of(info.type)
        inner = get_args(field.kind)[0] if get_origin(field.kind) is tuple else field.kind
        if flag.read is None and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            below = f"{flag.name}-" if flag.name else prefix
            yield from _options_of(inner, flags, style, here, below)
            continue
        unit = next((each for each in UNITS if info.name.endswith(each.suffix)), None)
        stem = info.name.removesuffix(unit.suffix if unit else "")
        if style is _create and _is_repeated(field):
            stem = stem.removesuffix("s")
        name = flag.name or f"{prefix}{stem.replace('_', '-')}"
        parameter = info.name if "/" in name else name[2:].replace("-", "_")
        given, read = style(name, field, flag, unit, info.default)
        settings: dict[str, Any] = {"type": flag.type, "metavar": flag.metavar}
        option = click.option(name, parameter, **settings | given)
        yield Option(here, name, parameter, option, flag.read or read)


def _type_of(annotation: Any) -> FieldType:
    bounds: dict[str, Any] = {}
    text, optional = "", False
    while True:
        if get_origin(annotation) is Annotated:
            for meta in annotation.__metadata__:
                text = text or meta.description or ""
                found = {name: getattr(meta, name) for name in _BOUNDS}
                bounds |= {name: bound for name, bound in found.items() if bound is not None}
            annotation = annotation.__origin__
        elif NoneType in get_args(annotation):
            optional = True
            (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
        else:
            return FieldType(annotation, optional, bounds, text)


def _is_repeated(field: FieldType) -> bool:
    return get_origin(field.kind) in (tuple, dict, Mapping)


def _create(
    name: str, field: FieldType, flag: Flag, unit: Unit | None, default: Any
) -> tuple[dict[str, Any], Read]:
    """Return the option of a new message.

    The conversion into the message checks ranges, because its error names the field.
    """
    repeated = _is_repeated(field)
    found: dict[str, Any] = {"multiple": True} if repeated else {}
    read: Read = list if repeated else lambda value: value
    if flag.switch is not None or field.kind is bool:
        found = {"is_flag": True, "default": None}
        read = lambda _: not default if flag.switch is None else flag.switch  # noqa: E731
    elif get_origin(field.kind) in (dict, Mapping):
        is_weights = _type_of(get_args(field.kind)[1]).kind is float
        found["metavar"] = flag.metavar or ("PART=N" if is_weights else "K=V")
        read = parse_weights if is_weights else parse_pairs
    elif unit is not None:
        found["metavar"] = flag.metavar or unit.metavar
        read = lambda text: unit.read(name, text, field)  # noqa: E731
    elif get_origin(field.kind) is Literal and "" not in get_args(field.kind):
        found["type"] = click.Choice(get_args(field.kind))
    elif int in (field.kind, _type_of((get_args(field.kind) or (str,))[0]).kind):
        found |= {"type": flag.type or int, "metavar": flag.metavar or "N"}
    text = flag.help or field.text
    shown = ""
    if meaning := _MEANING.search(text):
        text = text.replace(meaning[0], "", 1)
        shown = meaning[2]
    elif isinstance(default, int | float | str) and not (flag.help or field.kind is bool):
        shown = (unit.shown if unit else str)(default)
    sentences = (text, flag.note, _example(unit), "May be repeated." if repeated else "")
    found["help"] = " ".join(filter(None, (*sentences, f"[default: {shown}]" if shown else "")))
    return found, read


def _edit(
    name: str, field: FieldType, flag: Flag, unit: Unit | None, _: Any
) -> tuple[dict[str, Any], Read]:
    """Return the option of a change."""
    found: dict[str, Any] = {}
    read: Read = lambda value: value  # noqa: E731
    cleared = "'none'"
    unit = unit or (_NUMBER if field.optional and field.kind is int else None)
    if "/" in name:
        found["default"] = None
    elif field.kind is bool:
        found["type"] = click.Choice(("yes", "no", "none") if field.optional else ("yes", "no"))
        read = _YES_NO.__getitem__
    elif get_origin(field.kind) is Literal:
        found["type"] = click.Choice(get_args(field.kind))
    elif unit is not None:
        found["metavar"] = unit.metavar
        read = lambda text: None if text == "none" else unit.read(name, text, field)  # noqa: E731
    elif get_origin(field.kind) is tuple and field.optional:
        cleared = "'any'"
        found["metavar"] = "A,B,…"
        read = lambda text: _listed(name, text)  # noqa: E731
    elif _is_repeated(field):
        found["multiple"] = True
        read = tuple
    elif field.kind is int or field.kind is float:
        found["type"] = _range(field)
    else:
        read = lambda text: "" if text == "none" else text  # noqa: E731
    text = re.sub('(None|"")(?= = )', cleared, flag.help or field.text)
    text = text.replace("empty = ", "'' = " if cleared == "'any'" else f"{cleared} = ")
    again = "May be repeated, and replaces all that were set." if "multiple" in found else ""
    found["help"] = " ".join(filter(None, (text, flag.note, _example(unit), again)))
    return found, read


def _example(unit: Unit | None) -> str:
    return f"Example: {unit.example}." if unit and unit.example else ""


def _range(field: FieldType) -> Any:
    least, most = field.bounds.get("ge"), field.bounds.get("le")
    ranges: Any = click.IntRange if field.kind is int else click.FloatRange
    strict = {"min_open": "gt" in field.bounds, "max_open": "lt" in field.bounds}
    low, high = field.bounds.get("gt", least), field.bounds.get("lt", most)
    return ranges(low, high, **strict) if field.bounds else field.kind


def _listed(name: str, text: str) -> tuple[str, ...] | None:
    if text == "any":
        return None
    try:
        return members(text)
    except EmptyMember as error:
        raise WrongInput(f"{name} {text!r}: {error}; right is A,B, '' or 'any'") from error
