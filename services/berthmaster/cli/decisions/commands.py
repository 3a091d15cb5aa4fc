"""`berth replay-decisions`: repeats every decision, as made or under other settings."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from berthmaster.cli.audit.commands import read
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage

if TYPE_CHECKING:
    from berthmaster.control.resolver.policy import Policy


@click.command("replay-decisions")
@click.option("--cell", default="all", show_default=True, help="Cell whose decisions are repeated.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Repeat with another value of a setting and list the differences; may be repeated.",
)
@click.option("--profile", metavar="NAME", help="Repeat with another scoring profile.")
@click.option(
    "--first",
    type=click.IntRange(0, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of listed differences.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Only decisions since this time: 2h ago, or 2026-11-23T08:00:00Z.",
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N decisions.")
@bus_command
async def replay_decisions(
    session: Session,
    cell: str,
    settings: tuple[str, ...],
    profile: str | None,
    first: int,
    since: str | None,
    last: int | None,
) -> int:
    """Repeat every decision on the resolver's input at that time. Results must be equal bit for
    bit.

    Archived decisions are included if their input is kept. If no decision could be repeated, the
    command fails.

    With --set or --profile, repeat each decision with other settings on the same history, and list
    the differences.
    """
    from berthmaster.cli.decisions import screen
    from berthmaster.control.resolver.replay import read_inputs, replay

    named = (*settings, *((f"profile={profile}",) if profile is not None else ()))
    change = change_of(named) if named else None
    async with session.client() as berth:
        since_s = float("-inf") if since is None else time_of(since, berth.now())
        inputs = await read(read_inputs(berth.connection))
    with progress_bar(session) as progress:
        report = replay(
            inputs,
            cell,
            change=change,
            first=first,
            since_s=since_s,
            last=last,
            progress=progress,
        )
    session.out.document(report, lambda: screen.repeated(report))
    return EXIT_FAILED if report.different or not report.repeated else 0


def time_of(text: str, now_s: float) -> float:
    """Return the time of a past duration, or of a time with its zone. Invalid text is a usage
    error."""
    from berthmaster.cli.values import WrongInput, parse_duration_s

    try:
        return now_s - parse_duration_s(text)
    except WrongInput:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min  # noqa: DTZ901 # says no time zone
    if moment.tzinfo is None:
        usage(f"--since {text!r} is no time; right are 2h, 90m, 2026-11-23T08:00:00Z")
    return moment.timestamp()


def change_of(texts: tuple[str, ...]) -> "Callable[[Policy], Policy]":
    """Return a change of a policy from several name=value texts. Invalid text is a usage error."""
    from berthmaster.control.resolver.policy import Policy

    known = [field.name for field in msgspec.structs.fields(Policy)]
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            usage(f"{text!r} is no setting; right is NAME=VALUE with one of {', '.join(known)}")
        values[name] = value
    try:
        checked = msgspec.structs.asdict(Policy.from_record(values))
    except msgspec.ValidationError as error:
        usage(f"{' '.join(texts)}: {error}")
    changes = {name: checked[name] for name in values}
    return lambda policy: msgspec.structs.replace(policy, **changes)


@contextmanager
def progress_bar(session: Session) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, except with JSON."""
    if session.out.as_json or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("decisions"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("")
        yield lambda done, total: bars.update(task, completed=done, total=total)
