"""Settings of a service: a frozen dataclass, with fields as options of `berth serve NAME`.

A field declares its default, unit, reason for the default, and bounds. click derives the flags, the
environment variables, `--help` and the errors. Precedence: the flag, then
`BERTH_<SERVICE>_<FIELD>`, then `BERTH_<FIELD>` (only settings of all services), then the default.
An empty variable is ignored.

::

    @dataclass(frozen=True, kw_only=True)
    class ScorerSettings(CommonSettings):
        stale_after_s: float = setting(15.0, least=0.1, help="seconds until a cluster is stale")

    settings = load(ScorerSettings, "scorer", ["--stale-after-s", "2"])
"""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import click

from berthmaster.lib.runtime.log import Format, Level
from berthmaster.lib.runtime.redact import HIDDEN, redact

if typing.TYPE_CHECKING:
    from msgspec import Struct

T = TypeVar("T")
C = TypeVar("C", bound="CommonSettings")
P = TypeVar("P", bound="Struct")

PREFIX: Final = "BERTH_"
_DECLARED: Final = "berth.setting"


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
    """Declare a field with a default. `check` returns the valid form, or "" if the value is
    valid.
    """
    declared = _Declared(help, least, most, check, secret)
    made: Any = dataclasses.field(default=default, repr=not secret, metadata={_DECLARED: declared})
    return typing.cast("T", made)


def required(*, help: str, check: Callable[[Any], str] | None = None) -> Any:
    """Declare a mandatory field without a default."""
    return dataclasses.field(metadata={_DECLARED: _Declared(help, None, None, check, False)})


def _nats_urls(text: str) -> str:
    schemes = ("nats://", "tls://", "ws://", "wss://")
    if all(url.strip().startswith(schemes) for url in text.split(",")):
        return ""
    return "nats://HOST:PORT (or tls, ws, wss), several with commas between them"


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """Settings of every service."""

    nats_url: str = setting(
        "nats://127.0.0.1:4222",
        check=_nats_urls,
        help="NATS servers, comma-separated; the default is that of `berth up`",
    )
    nats_creds_file: Path | None = setting(
        None,
        secret=True,
        help=(
            "file with this service's JWT and seed, read again at each connection; none = no "
            "authentication"
        ),
    )
    nats_ca_file: Path | None = setting(
        None,
        help="certificate authority (PEM) of a tls:// server; none = the system's authorities",
    )
    nats_plaintext: bool = setting(
        False,
        help=(
            "true: allow a NATS server on another machine without TLS, where any host on the "
            "path can read and forge messages; for isolated networks only"
        ),
    )
    inbox_prefix: str = setting(
        "_INBOX",
        help="first token of reply subjects, different for each NATS user with permissions",
    )
    http_host: str = setting(
        "127.0.0.1", help="address of health and metrics; 0.0.0.0 only inside a container"
    )
    http_port: int = setting(
        0,
        least=-1,
        most=65535,
        help="port of /healthz, /readyz and /metrics; 0 = any free one (see the log), -1 = none",
    )
    log_level: Level = setting(
        "info", help="minimum level of log lines: debug, info, warning or error"
    )
    log_format: Format = setting(
        "json", help="json: a JSON line per event; text: human-readable lines"
    )


class _Number(click.FloatRange):
    """A finite number. Python also parses nan, which no bound refuses."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not finite", param)


class _FilePath(click.ParamType[Any]):
    """A path that need not exist yet, with ~ as the home folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(value).expanduser() if str(value) else self.fail("the path is empty", param)


class EmptyMember(ValueError):
    """A list with an empty member. ``index`` counts from 0."""

    def __init__(self, index: int) -> None:
        super().__init__(f"member [{index}] is empty")
        self.index = index


def members(text: str) -> tuple[str, ...]:
    """Split a list at its commas and trim each member. A blank text is the empty list.

    Raises EmptyMember: ``gpu,`` and ``a,,b`` are mistakes, and an empty name may stand for every
    name.
    """
    if not text.strip():
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if "" in parts:
        raise EmptyMember(parts.index(""))
    return parts


class _CommaSeparated(click.ParamType[Any]):
    """Comma-separated values of one type. An empty text is the empty list."""

    def __init__(self, each: click.ParamType[Any]) -> None:
        self.each = each
        self.name = f"{each.name},..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        try:
            parts = members(value) if isinstance(value, str) else value
        except EmptyMember as error:
            self.fail(f"{value!r}: value [{error.index}] between the commas is empty", param)
        return tuple(self.each.convert(part, param, ctx) for part in parts)


def _type_of(kind: Any, declared: _Declared) -> click.ParamType[Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (one,) = (arg for arg in inner if arg is not types.NoneType)
        return _type_of(one, declared)
    if origin is Literal:
        return click.Choice(inner)
    if origin is tuple and inner[1:] == (Ellipsis,):
        return _CommaSeparated(_type_of(inner[0], declared))
    if kind is float:
        return _Number(declared.least, declared.most)
    if kind is int:
        low, high = declared.least, declared.most
        return click.IntRange(
            None if low is None else int(low), None if high is None else int(high)
        )
    simple: dict[Any, click.ParamType[Any]] = {
        str: click.STRING, bool: click.BOOL, Path: _FilePath(),
    }  # fmt: skip
    if kind not in simple:
        raise TypeError(f"a setting cannot be of type {kind}")
    return simple[kind]


def _checked(declared: _Declared) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        right = declared.check(value) if declared.check and value is not None else ""
        if right:
            shown = HIDDEN if declared.secret else repr(value)
            raise click.BadParameter(f"{shown} is not right, expected {right}", ctx, param)
        return value

    return check


def options(cls: type[CommonSettings], name: str) -> list[click.Option]:
    """Return the options of service `name`, first the service's own, then the common options."""
    common = {field.name for field in dataclasses.fields(CommonSettings)}
    kinds = typing.get_type_hints(cls)
    found: list[click.Option] = []
    for field in dataclasses.fields(cls):
        declared: _Declared | None = field.metadata.get(_DECLARED)
        if declared is None:
            raise TypeError(f"{cls.__name__}.{field.name}: declare it with setting() or required()")
        upper = field.name.upper()
        flag = f"--{field.name.replace('_', '-')}"
        is_flag = kinds[field.name] is bool
        is_required = field.default is dataclasses.MISSING
        default: dict[str, Any] = {} if is_required else {"default": field.default}
        option = click.Option(
            [field.name, f"{flag}/--no-{flag[2:]}" if is_flag else flag],
            type=_type_of(kinds[field.name], declared),
            envvar=[_own_prefix(name) + upper, *([PREFIX + upper] if field.name in common else [])],
            help=declared.help,
            required=is_required,
            callback=_checked(declared),
            show_default=True,
            show_envvar=True,
            **default,
        )
        found.append(option)
    return sorted(found, key=lambda option: option.name in common)


class ServiceCommand(click.Command):
    """`berth serve NAME`. Errors quote the input, which may contain a misplaced secret."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read flags and variables. Raises click.UsageError, redacted."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(redact(error.format_message()), ctx) from error


def command(cls: type[C], name: str, callback: Callable[[C], Any], doc: str = "") -> ServiceCommand:
    """Return the command that calls ``callback`` with the settings of service `name`."""
    return ServiceCommand(
        name,
        params=list(options(cls, name)),
        callback=lambda **values: callback(cls(**values)),
        help=doc,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def load(cls: type[C], name: str, argv: Sequence[str] = ()) -> C:
    """Return the settings of service `name` from these flags and the environment's variables.

    Raises click.UsageError with the flag, the variable and a valid form.
    """
    made = command(cls, name, lambda settings: settings)
    settings: C = made.main(list(argv), prog_name=f"berth serve {name}", standalone_mode=False)
    return settings


def unknown_variables(cls: type[CommonSettings], name: str) -> list[str]:
    """Return variables with the service's prefix and without a setting: usually typing errors.

    Not an error, since an orchestrator may set variables with the same prefix.
    """
    known = {variable for option in options(cls, name) for variable in option.envvar or ()}
    ours = _own_prefix(name)
    return sorted(key for key in os.environ if key.startswith(ours) and key not in known)


def describe(settings: CommonSettings) -> dict[str, object]:
    """Return the settings without secrets, for display."""
    shown: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        declared = field.metadata.get(_DECLARED)
        if declared is not None and declared.secret and value is not None:
            value = HIDDEN
        shown[field.name] = str(value) if isinstance(value, Path) else value
    return shown


def policy_from(kind: type[P], settings: CommonSettings, **fields: Any) -> P:
    """Return a core's policy: ``fields``, else the settings of the same names, else defaults."""
    found = {n: getattr(settings, n) for n in kind.__struct_fields__ if hasattr(settings, n)}
    return kind(**found | fields)


def _own_prefix(name: str) -> str:
    return f"{PREFIX}{name.upper().replace('-', '_')}_"
