"""`berth repair`: what only a person may decide about damage, shown first, kept with a reason."""

from typing import TYPE_CHECKING

import click

from berthmaster.cli.audit import read
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command
from berthmaster.client import BerthError
from berthmaster.messages.api import AcceptLogRequest, GiveUpRequest, VoidRequest

if TYPE_CHECKING:
    from berthmaster.audit.story import Line
    from berthmaster.logcheck.core import Damage


@click.group()
def repair() -> None:
    """Go on after damage: say what is to be done about it."""


@repair.command("accept-log")
@click.option(
    "--stream",
    type=click.Choice(["WORKLOADS", "CONTROL", "ARCHIVE"]),
    default="WORKLOADS",
    show_default=True,
)
@click.option("--reason", default="", help="Why; needed with --yes, and kept.")
@click.option("--yes", is_flag=True, help="Accept it; without this it is only shown.")
@bus_command
async def accept_log(session: Session, stream: str, reason: str, yes: bool) -> int:
    """Go on with what a stream holds, although it has lost some.

    With --yes it is accepted as it is, also where only one service remembers that it was another.
    What is missing stays missing: services fold the log as it is now. What runs of jobs that the
    log has lost goes on running, and `berth audit` names it.
    """
    from berthmaster.cli.render.terminal import safe
    from berthmaster.logcheck import core
    from berthmaster.logcheck.examine import all_of, look, newest_digests, with_jobs

    if yes and not reason:
        raise click.UsageError("--reason is missing: why it is accepted, for those who come later")
    async with session.client() as berth:
        looked = (await read(look(berth.connection)))[stream]
        found = await read(all_of(berth.connection, looked))
        damage = await read(with_jobs(berth.connection, [looked], found))
        # With nothing found here it may still be what one service remembers, and nobody else does.
        if not yes or looked.seen is None:
            session.out.document(damage, lambda: safe(_lines(stream, damage)))
            return EXIT_FAILED if damage else 0
        before = core.heard(looked.accepted.missing) if looked.accepted is not None else ()
        last = looked.seen.last
        gaps = core.together([*before, *(gap for each in damage for gap in each.missing)])
        accepting = core.accepting(gaps, last)
        digests = await read(newest_digests(berth.connection, looked, core.heard(accepting)))
        request = AcceptLogRequest(
            stream=stream,  # type: ignore[arg-type]  # click has checked it
            created=looked.seen.making,
            sequence=last,
            missing=accepting,
            digests=digests,
            reason=reason,
            after=looked.accepted_sequence,
        )
        reply = await berth.accept_log(request)
    session.out.document(reply, lambda: f"{stream} is accepted up to {last}: {reply.note}")
    return 0


@repair.command("inspect")
@click.argument("workload", metavar="TENANT/ID")
@bus_command
async def inspect_story(session: Session, workload: str) -> int:
    """Show a workload's story as the log has it, and what readers make of each message.

    Ends with 1 if one of them cannot be read, is impossible, or has lost what it follows on.
    """
    from berthmaster.audit.story import GOOD, inspect
    from berthmaster.cli.render.terminal import safe

    tenant, name = _named(workload)
    async with session.client() as berth:
        lines = await read(inspect(berth.connection, tenant, name))
    session.out.document(lines, lambda: safe(_story(workload, lines)))
    return 0 if lines and all(line.verdict in GOOD for line in lines) else EXIT_FAILED


@repair.command("void")
@click.argument("sequences", metavar="SEQUENCE...", type=click.IntRange(1), nargs=-1, required=True)
@click.option("--reason", default="", help="Why; needed with --yes, and kept.")
@click.option("--yes", is_flag=True, help="Declare it; without this they are only shown.")
@bus_command
async def void(session: Session, sequences: tuple[int, ...], reason: str, yes: bool) -> int:
    """Let messages of WORKLOADS that no version can read count for nothing.

    Such a message freezes its workload, or a whole cell where it is a decision, since a newer
    version may have written it. Once it is void, services read the log anew and pass over it. What
    it said is lost for them; it stays in the log, and `berth audit` counts it.
    """
    from berthmaster.audit.story import unread
    from berthmaster.bus.streams import WORKLOADS
    from berthmaster.cli.render.terminal import safe
    from berthmaster.logcheck.marks import declared_void, seen_of

    if yes and not reason:
        raise click.UsageError("--reason is missing: why they are void, for those who come later")
    async with session.client() as berth:
        conn = berth.connection
        lines = [(one, await read(unread(conn, one))) for one in sorted(set(sequences))]
        if readable := [one for one, line in lines if line is None]:
            told = ", ".join(str(one) for one in readable)
            raise BerthError(f"this version reads {told}, or there is no such message in WORKLOADS")
        found = [line for _, line in lines if line is not None]
        if not yes:
            note = "Nothing is changed. --yes --reason … lets them count for nothing."
            session.out.document(found, lambda: safe(f"{_story('', found)}\n{note}"))
            return EXIT_FAILED
        seen = await read(seen_of(conn, WORKLOADS))
        before, number = await read(declared_void(conn, WORKLOADS))
        if seen is None:
            raise BerthError("there is no WORKLOADS")
        known = before.sequences if before is not None else ()
        request = VoidRequest(
            created=seen.making,
            sequences=tuple(sorted({*known, *sequences})),
            reason=reason,
            after=number,
        )
        reply = await berth.void(request)
    told = ", ".join(str(one) for one in sorted(set(sequences)))
    session.out.document(reply, lambda: f"{told} of WORKLOADS count for nothing: {reply.note}")
    return 0


@repair.command("give-up")
@click.argument("workload", metavar="TENANT/ID")
@click.option("--reason", default="", help="Why; needed with --yes, and kept.")
@click.option("--yes", is_flag=True, help="End it; without this its story is only shown.")
@bus_command
async def give_up(session: Session, workload: str, reason: str, yes: bool) -> int:
    """End a workload that is frozen since a damaged log has lost events of it.

    It ends as cancelled, for every reader; whatever of it still runs is removed. Wait first for the
    clusters: an executor that still holds it brings it back by itself, and then it goes on.
    """
    from berthmaster.audit.story import inspect
    from berthmaster.cli.render.terminal import safe

    if yes and not reason:
        raise click.UsageError("--reason is missing: why it is given up, for those who come later")
    tenant, name = _named(workload)
    async with session.client() as berth:
        lines = await read(inspect(berth.connection, tenant, name))
        if not lines:
            raise BerthError(f"the log has nothing of {workload}")
        if not yes:
            note = "Nothing is changed. --yes --reason … ends it."
            session.out.document(lines, lambda: safe(f"{_story(workload, lines)}\n{note}"))
            return EXIT_FAILED
        request = GiveUpRequest(tenant=tenant, id=name, sequence=lines[-1].sequence, reason=reason)
        reply = await berth.give_up(request)
    session.out.document(reply, lambda: f"{workload} is given up: {reply.note}")
    return 0


def _named(workload: str) -> tuple[str, str]:
    tenant, _, name = workload.partition("/")
    if not (tenant and name) or "/" in name:
        raise click.BadParameter("it is TENANT/ID", param_hint="TENANT/ID")
    return tenant, name


def _story(workload: str, lines: "list[Line]") -> str:
    if not lines:
        return f"The log has nothing of {workload}"
    return "\n".join(
        f"{line.sequence:>10}  {line.verdict:<10}  {line.kind or line.subject}"
        + (f" after {line.after} by {line.by}" if line.after is not None else "")
        + (f": {line.why}" if line.why else "")
        for line in lines
    )


def _lines(stream: str, damage: "list[Damage]") -> str:
    if not damage:
        return (
            f"{stream} is what it was, as far as the bus remembers: there is nothing to accept. "
            "If a service says otherwise all the same, --yes --reason … accepts the log as it is."
        )
    told = "\n".join(str(each) for each in damage)
    return f"{told}\nNothing is changed. --yes --reason … accepts it."
