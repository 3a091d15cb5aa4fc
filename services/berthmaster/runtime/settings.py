"""Settings of a service: one frozen dataclass, read from flags and environment in one way.

A field declares its default, its unit, why that default, and its bounds, so that help texts and
complaints come from one place. A flag wins over `BERTH_<SERVICE>_<FIELD>`, that one over
`BERTH_<FIELD>` for settings that all services share, and that one over the default.

::

    @dataclass(frozen=True, kw_only=True)
    class ScorerSettings(CommonSettings):
        dead_band: float = setting(0.5, least=0, help="points a score moves before it is told")
"""

import argparse
import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from berthmaster.runtime.errors import SettingsError
from berthmaster.runtime.log import Format, Level
from berthmaster.runtime.parse import EmptyMember, expectation, parse
from berthmaster.runtime.redact import HIDDEN, redact

T = TypeVar("T")
C = TypeVar("C", bound="CommonSettings")

PREFIX = "BERTH_"
_DECLARED = "berth.setting"


@dataclass(frozen=True)
class _Declared:
    help: str
    least: float | None
    most: float | None
    check: Callable[[Any], str] | None
    secret: bool


def setting(
    default: T,
    *,
    help: str,
    least: float | None = None,
    most: float | None = None,
    check: Callable[[T], str] | None = None,
    secret: bool = False,
) -> T:
    """A field with a default. `check` returns what is expected, or "" if the value is right."""
    declared = _Declared(help, least, most, check, secret)
    made: Any = dataclasses.field(default=default, repr=not secret, metadata={_DECLARED: declared})
    return typing.cast("T", made)


def required(
    *,
    help: str,
    least: float | None = None,
    most: float | None = None,
    check: Callable[[Any], str] | None = None,
    secret: bool = False,
) -> Any:
    """A field that has no sensible default and must be given."""
    declared = _Declared(help, least, most, check, secret)
    return dataclasses.field(repr=not secret, metadata={_DECLARED: declared})


def _nats_urls(text: str) -> str:
    schemes = ("nats://", "tls://", "ws://", "wss://")
    if all(url.strip().startswith(schemes) for url in text.split(",")):
        return ""
    return "nats://HOST:PORT (or tls, ws, wss), several with commas between them"


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """What every service can be told."""

    nats_url: str = setting(
        "nats://127.0.0.1:4222",
        check=_nats_urls,
        help="NATS servers, with commas between them; the default is where `berth up` puts one",
    )
    nats_creds_file: Path | None = setting(
        None,
        secret=True,
        help="file with this service's JWT and seed, read anew at each connection; none = no "
        "authentication",
    )
    nats_ca_file: Path | None = setting(
        None,
        help="file with the authority (PEM) that a tls:// server's certificate must be from; "
        "none = those that the system trusts",
    )
    nats_plaintext: bool = setting(
        False,
        help="true: a NATS server of another machine may be without TLS, so that whoever is in "
        "between can read all and say anything; for networks that nobody else is in",
    )
    inbox_prefix: str = setting(
        "_INBOX",
        help="first token of reply subjects; each user of a NATS with permissions has its own",
    )
    http_host: str = setting(
        "127.0.0.1", help="where health and metrics listen; 0.0.0.0 only inside a container"
    )
    http_port: int = setting(
        0,
        least=-1,
        most=65535,
        help="port of /healthz, /readyz and /metrics; 0 = any free one (the log says which), "
        "-1 = none",
    )
    log_level: Level = setting("info", help="the least that is logged")
    log_format: Format = setting("json", help="json: a line an event; text: for people")
    stall_limit_s: float = setting(
        10.0,
        least=0.1,
        most=3600,
        help="seconds without a turn of the event loop until /healthz says 503; several times "
        "the longest pause that a loaded machine causes",
    )


@dataclass(frozen=True)
class _Field:
    """One setting of one service, under all its names."""

    name: str
    kind: Any
    declared: _Declared
    default: Any
    flag: str
    variables: tuple[str, ...]  # the first that is set counts

    def read(self, source: str, text: str) -> Any:
        """The value, or ValueError with a sentence for people."""
        value: Any = None
        try:
            value = parse(self.kind, text)
            right = self._bounds(value)
        except EmptyMember as error:
            right = f"{self.expected()}, none of them empty: [{error.index}] is"
        except ValueError:
            right = self.expected()
        if right:
            shown = HIDDEN if self.declared.secret else redact(text)
            name = source if source == self.flag else f"{source} ({self.flag})"
            raise ValueError(f"{name}: {shown!r} is not right, expected {right}")
        return value

    def expected(self) -> str:
        """What would be right, in words."""
        return expectation(self.kind, self.declared.least, self.declared.most)

    def _bounds(self, value: Any) -> str:
        if value is None:
            return ""
        low, high = self.declared.least, self.declared.most
        each = value if isinstance(value, tuple) else (value,)
        if any(
            (low is not None and one < low) or (high is not None and one > high) for one in each
        ):
            return self.expected()
        return self.declared.check(value) if self.declared.check else ""

    def help(self) -> str:
        """The flag's line in --help."""
        if self.default is dataclasses.MISSING:
            default = "required"
        elif self.default is None:
            default = "none by default"
        else:
            default = f"default {self.default}"
        text = f"{self.declared.help} [{default}; {' or '.join(self.variables)}]"
        return text.replace("%", "%%")


def load(cls: type[C], name: str, argv: Sequence[str], env: Mapping[str, str]) -> C:
    """Read the settings of service `name`; SettingsError tells all that is wrong with them."""
    fields = _fields(cls, name)
    given, problems = _flags(fields, name, argv)
    values: dict[str, Any] = {}
    for field in fields:
        source, raw = _pick(field, given, env)
        if isinstance(raw, bool):
            values[field.name] = raw
        elif raw is not None:
            try:
                values[field.name] = field.read(source, raw)
            except ValueError as error:
                problems.append(str(error))
        elif field.default is dataclasses.MISSING:
            problems.append(
                f"{field.flag}: missing, expected {field.expected()}; "
                f"give the flag or set {field.variables[0]}"
            )
    if problems:
        raise SettingsError(problems)
    return cls(**values)


def unknown_variables(cls: type[CommonSettings], name: str, env: Mapping[str, str]) -> list[str]:
    """Variables that look like this service's settings and are none: most often a slip.

    Not an error, since an orchestrator may set variables that begin like ours.
    """
    known = {variable for field in _fields(cls, name) for variable in field.variables}
    ours = _own_prefix(name)
    return sorted(key for key in env if key.startswith(ours) and key not in known)


def describe(settings: CommonSettings) -> dict[str, object]:
    """The settings as they may be shown: without secrets."""
    shown: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        declared = field.metadata.get(_DECLARED)
        if declared is not None and declared.secret and value is not None:
            value = HIDDEN
        shown[field.name] = str(value) if isinstance(value, Path) else value
    return shown


def _own_prefix(name: str) -> str:
    return f"{PREFIX}{name.upper().replace('-', '_')}_"


def _fields(cls: type[CommonSettings], name: str) -> list[_Field]:
    common = {field.name for field in dataclasses.fields(CommonSettings)}
    kinds = typing.get_type_hints(cls)
    found: list[_Field] = []
    for field in dataclasses.fields(cls):
        declared = field.metadata.get(_DECLARED)
        if declared is None:
            raise TypeError(f"{cls.__name__}.{field.name}: declare it with setting() or required()")
        upper = field.name.upper()
        shared = (PREFIX + upper,) if field.name in common else ()
        variables = (_own_prefix(name) + upper, *shared)
        flag = f"--{field.name.replace('_', '-')}"
        kind = kinds[field.name]
        found.append(_Field(field.name, kind, declared, field.default, flag, variables))
    return found


def _pick(
    field: _Field, given: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[str, str | bool | None]:
    if given.get(field.name) is not None:
        return field.flag, given[field.name]
    for variable in field.variables:
        if variable in env:
            return variable, env[variable]
    return field.flag, None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError([f"{message}; see --help"])


def _flags(
    fields: Sequence[_Field], name: str, argv: Sequence[str]
) -> tuple[Mapping[str, Any], list[str]]:
    parser = _Parser(prog=f"berth serve {name}", allow_abbrev=False)
    for field in fields:
        if field.kind is bool:
            parser.add_argument(
                field.flag, help=field.help(), default=None, action=argparse.BooleanOptionalAction
            )
        else:
            parser.add_argument(field.flag, help=field.help(), metavar=field.name.upper())
    given, rest = parser.parse_known_args(list(argv))
    problems: list[str] = []
    flags = [field.flag for field in fields]
    for index, word in enumerate(rest):
        if word.startswith("-"):
            flag = word.partition("=")[0]
            near = difflib.get_close_matches(flag, flags, n=1)
            hint = f"did you mean {near[0]}?" if near else "see --help"
            problems.append(f"{redact(flag)}: no such flag; {hint}")
        elif index == 0 or not rest[index - 1].startswith("-"):
            problems.append(f"{redact(word)!r}: settings are given as --flag value; see --help")
    return vars(given), problems
