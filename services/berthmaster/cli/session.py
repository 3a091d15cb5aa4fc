"""Shared code of all commands: flags, connection, output as text or JSON, exit codes of errors.

::

    0  done              2  the command line is wrong
                         3  an extra is not installed
    1  refused, failed   4  no bus or no service answers: one line, within 3 s
                         5  the awaited state did not come in time
"""

import functools
import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import click

from berthmaster.cli.context.file import ContextsWrong
from berthmaster.cli.context.target import BusTarget, find_target, tenants_beside
from berthmaster.cli.output.errors import complain, did_you_mean
from berthmaster.lib.runtime.visible_text import dumps, pretty, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from berthmaster.client import Client
    from berthmaster.lib.messages.api import OperatorReply

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
EXIT_FAILED: Final = 1
EXIT_ABSENT: Final = 3
EXIT_UNREACHABLE: Final = 4
EXIT_TOO_LATE: Final = 5
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141
CONNECT_TIMEOUT_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 2.5


def caller() -> str:
    """Return the user's name for the event log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


class Output:
    """Standard output, as text for users or as JSON for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @functools.cached_property
    def console(self) -> "Console":
        """Return Rich's console. Without a terminal or with NO_COLOR, it has no colour."""
        from rich.console import Console

        return Console(highlight=False, soft_wrap=False)

    @property
    def ascii_only(self) -> bool:
        """Return whether bars need ASCII characters."""
        return not self.console.encoding.lower().startswith("utf")

    def document(self, value: object, shown: Callable[[], "RenderableType"]) -> None:
        """Write one answer: as one JSON document, or as the result of ``shown``."""
        if self.as_json:
            self.write(pretty(value))
        else:
            self.console.print(shown())

    @property
    def width(self) -> int | None:
        """Return the columns of the terminal; None = output is no terminal, and lines are not
        cut."""
        return self.console.width if self.console.is_terminal else None

    def item(self, value: object, shown: Callable[[], "RenderableType"]) -> None:
        """Write one of many: a line of JSON, or a line of text. Flush for users who watch."""
        if self.as_json:
            self.line(value)
        else:
            self.console.print(shown(), soft_wrap=True)
            sys.stdout.flush()

    def screen(self, value: object, shown: Callable[[], "RenderableType"]) -> None:
        """Write one of many with several lines, cut to the terminal's width."""
        if self.as_json:
            self.line(value)
        else:
            self.console.print(shown())
            sys.stdout.flush()

    def line(self, value: object) -> None:
        self.write(dumps(value))

    def write(self, body: bytes) -> None:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()

    def say(self, text: str) -> None:
        """Write a line beside the answer: to standard error, and not with --json."""
        if not self.as_json:
            sys.stderr.write(f"{visible(text)}\n")
            sys.stderr.flush()


class Session:
    """One command's connection and output."""

    def __init__(self, target: BusTarget, output: Output, timeout_s: float) -> None:
        self.target = target
        self.out = output
        self.timeout_s = timeout_s

    def client(self, *, timeout_s: float | None = None) -> "Client":
        """Return a client for ``async with``."""
        from berthmaster.client import Client

        try:
            return Client.connect(
                self.target.url,
                tenant=self.target.tenant,
                creds_file=self.target.creds_file or None,
                inbox_prefix=self.target.inbox_prefix,
                ca_file=self.target.ca_file or None,
                plaintext=self.target.plaintext,
                timeout_s=self.timeout_s if timeout_s is None else timeout_s,
                connect_timeout_s=CONNECT_TIMEOUT_S,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error


def option_group(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, in this order."""
    return lambda function: functools.reduce(lambda made, add: add(made), options[::-1], function)


# The flags of every command that connects to the bus.
bus_options = option_group(
    click.option(
        "--server",
        metavar="URL",
        help=(
            "Address of the NATS server. [default: BERTH_NATS_URL, else a `berth up` on this "
            "machine]"
        ),
    ),
    click.option(
        "--context",
        metavar="NAME",
        help="Context of `berth context list`. [default: BERTH_CONTEXT, else the one in use]",
    ),
    click.option("--tenant", metavar="NAME", help="Tenant to act as. [default: BERTH_TENANT]"),
    click.option(
        "--creds-file",
        metavar="FILE",
        help="Credentials file (JWT and seed). [default: BERTH_NATS_CREDS_FILE]",
    ),
    click.option(
        "--ca-file",
        metavar="FILE",
        help=(
            "Certificate authority of a tls:// server. [default: BERTH_NATS_CA_FILE, else the "
            "system's]"
        ),
    ),
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Data folder of the `berth up` to connect to. [default: BERTH_DATA]",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.1, 600),
        metavar="S",
        default=REQUEST_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for an answer to a request.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
)


def bus_command(
    function: Callable[Concatenate[Session, P], Awaitable[int | None]],
) -> Callable[..., None]:
    """Turn a coroutine function of a session into the body of a click command."""

    @bus_options
    @functools.wraps(function)
    def command(
        server: str | None,
        context: str | None,
        tenant: str | None,
        creds_file: str | None,
        ca_file: str | None,
        data: Path | None,
        timeout_s: float,
        as_json: bool,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        target = target_of(
            server=server,
            context=context,
            tenant=tenant,
            creds_file=creds_file,
            ca_file=ca_file,
            data=data,
        )
        session = Session(target, Output(as_json=as_json), timeout_s)
        sys.exit(run(function(session, *args, **kwargs), session.out, target))

    return command


def target_of(
    *,
    server: str | None,
    context: str | None,
    tenant: str | None,
    creds_file: str | None,
    ca_file: str | None,
    data: Path | None,
) -> BusTarget:
    """Return the target of a command's flags; an unknown context is a usage error."""
    try:
        return find_target(
            server=server,
            context=context,
            tenant=tenant,
            creds_file=creds_file,
            ca_file=ca_file,
            data=data,
            env=os.environ,
            cwd=Path.cwd(),
        )
    except ContextsWrong as error:
        raise click.UsageError(str(error)) from error


def run(work: Awaitable[int | None], output: Output, target: BusTarget | None = None) -> int:
    """Run a command's coroutine, and turn every error of Berthmaster into a line and an exit
    code."""
    import asyncio

    from berthmaster.client.errors import (
        BerthError,
        NotAllowedError,
        RefusedError,
        UnavailableError,
    )

    async def whole() -> int | None:
        try:
            return await work
        except BaseExceptionGroup as group:  # of several tasks: the first failure has the reason
            raise _first(group) from None

    try:
        return asyncio.run(whole()) or 0
    except UnavailableError as error:
        server = "" if target is None or target.url in str(error) else f"server {target.url}, "
        hint = f" ({server}from {target.source})" if target else ""
        return _failed(output, EXIT_UNREACHABLE, "unreachable", error, hint)
    except RefusedError as error:
        if output.as_json:
            output.line({"error": error.refusal})
        return _failed(output, EXIT_FAILED, "", error, misspelt_tenant(target))
    except NotAllowedError as error:
        hint = "" if target is None else f" (asked as tenant {target.tenant}, {_key(target)}; "
        hint += (
            "" if target is None else "what concerns all tenants takes the operator's credentials)"
        )
        return _failed(output, EXIT_FAILED, "not_allowed", error, hint)
    except BerthError as error:
        return _failed(output, EXIT_FAILED, "failed", error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED


def misspelt_tenant(target: BusTarget | None) -> str:
    """Return a hint if the tenant has no key, but a similarly named tenant has one."""
    if target is None or target.is_tenant:
        return ""
    known = tenants_beside(target.creds_file)
    hint = "" if target.tenant in known else did_you_mean(target.tenant, known)
    return f" (no tenant {target.tenant} has a key here{hint})" if hint else ""


def _key(target: BusTarget) -> str:
    return f"with {target.creds_file}" if target.creds_file else "without credentials"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _failed(output: Output, code: int, kind: str, error: Exception, hint: str = "") -> int:
    from berthmaster.lib.runtime.redact import redact

    text = redact(str(error))  # a URL may hold a password
    if output.as_json and kind:
        output.line({"error": {"code": kind, "message": text}})
    complain(f"{text}{redact(hint)}")
    return code


@contextmanager
def kubernetes_work() -> Iterator[None]:
    """Wrap a command's own calls of API servers: report a missing extra, and stop at Ctrl-C."""
    try:
        yield
    except ModuleNotFoundError as error:
        complain(f"{error.name} is not installed; pip install 'berthmaster[kubernetes]'")
        sys.exit(EXIT_ABSENT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def usage(text: str) -> NoReturn:
    """Raise a usage error."""
    raise click.UsageError(text)


HELP = ("-h", "--help")


class DefaultGroup(click.Group):
    """A group that runs its first command if the command line names none.

    Example: `berth demo --jobs 5` is the same as `berth demo run --jobs 5`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default's name before arguments that begin with no command's name."""
        first = args[0] if args else ""
        completing = ctx.resilient_parsing and not args  # a shell lists the commands
        if not completing and first not in self.commands and first not in HELP:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def operator_reply(session: Session, reply: "OperatorReply", text: str) -> None:
    """Write that an operator action is stored, with the gateway's note if any."""
    from berthmaster.cli.output.terminal import safe

    note = f"; {reply.note}" if reply.note else ""
    session.out.document(reply, lambda: safe(f"{text}{note}"))
