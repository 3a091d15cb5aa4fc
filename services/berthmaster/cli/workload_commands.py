"""Commands about workloads that are there: jobs, job, watch, why, cancel, reprioritize."""

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import click

from berthmaster.cli.completion import ANY, OPEN
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage

if TYPE_CHECKING:
    from berthmaster.client import Client
    from berthmaster.messages.api import WhyReply, WorkloadStateName, WorkloadView

ENDINGS: Final = ("succeeded", "failed", "cancelled")
STATES: "tuple[WorkloadStateName, ...]" = (
    "queued",
    "placed",
    "claimed",
    "admitted",
    "running",
    "succeeded",
    "failed",
    "cancelled",
)


@click.command()
@click.option("--state", type=click.Choice(STATES), multiple=True, help="Only in these states.")
@click.option("--queue", default="", help="Only of this queue.")
@click.option("--set", "set_name", default="", metavar="NAME", help="Only of this set.")
@click.option("--label", multiple=True, metavar="K=V", help="Only with this label.")
@click.option("--since", metavar="TIME", help="Only those of which something happened since: 2h.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", type=int, default=0, help="Only those submitted before this event.")
@bus_command
async def jobs(
    session: Session,
    state: "tuple[WorkloadStateName, ...]",
    queue: str,
    set_name: str,
    label: tuple[str, ...],
    since: str | None,
    limit: int,
    before: int,
) -> None:
    """List workloads, newest first."""
    from berthmaster.cli.render import workloads
    from berthmaster.cli.requests import WrongInput, parse_duration_s, parse_pairs

    try:
        labels = parse_pairs(label, "label")
        ago_s = None if since is None else parse_duration_s(since)
    except WrongInput as error:
        usage(str(error))
    async with session.client() as berth:
        reply = await berth.list(
            states=state,
            queue=queue,
            set_name=set_name,
            labels=labels,
            since_s=0.0 if ago_s is None else max(0.0, berth.now() - ago_s),
            limit=limit,
            before=before,
        )
        session.out.document(reply, lambda: workloads.jobs(reply, berth.now()))


@click.command()
@click.argument("workload", type=ANY)
@bus_command
async def job(session: Session, workload: str) -> None:
    """Show one workload and its story."""
    from berthmaster.cli.render import workloads

    async with session.client() as berth:
        reply = await berth.get(workload, story=True)
        session.out.document(reply, lambda: workloads.job(reply, berth.now()))


@click.command()
@click.argument("workload", required=False, type=ANY)
@click.option("--all-tenants", is_flag=True, help="Everybody's workloads, if you may.")
@click.option("--since", type=int, help="From after this event on, 0 = from the beginning.")
@bus_command
async def watch(
    session: Session, workload: str | None, all_tenants: bool, since: int | None
) -> None:
    """Follow what happens to workloads, or to one, as it happens."""
    from berthmaster.cli.render.workloads import event_line

    async with session.client() as berth:
        if workload is not None and since is None:
            since = 0  # its story so far, then what comes
        who = "*" if all_tenants else None
        session.out.say("Following; Ctrl-C ends.")
        async with aclosing(berth.watch(workload=workload, tenant=who, since=since)) as events:
            async for seen in events:
                session.out.item(
                    seen,
                    lambda seen=seen: event_line(  # type: ignore[misc]
                        seen.event, seen.stored_at_s, tenant=all_tenants, width=session.out.width
                    ),
                )


@click.command()
@click.argument("workload", required=False, type=ANY)
@bus_command
async def why(session: Session, workload: str | None) -> None:
    """Say why a workload is where it is, or why it waits; without one, why those that wait do."""
    from berthmaster.cli.render import why as render
    from berthmaster.client.errors import RefusedError

    async with session.client() as berth:
        try:
            reply = await berth.why(workload)
        except RefusedError as error:
            if workload is None or error.refusal.code != "not_found":
                raise
            reply = ending_of((await berth.get(workload)).workload)
        session.out.document(reply, lambda: render.why(reply, berth.now()))


def ending_of(view: "WorkloadView") -> "WhyReply":
    """What there is to say of a workload that waits for nothing any more, or not yet."""
    from berthmaster.messages.api import WhyReply

    where = f" on {view.cluster}" if view.cluster else ""
    summary = f"{view.state}{where}" + (f": {view.reason}" if view.reason else "")
    if view.state in ENDINGS:
        summary = f"it has ended: {summary}; `berth job {view.id}` tells its story"
    return WhyReply(tenant=view.tenant, id=view.id, state=view.state, summary=summary)


async def open_ones(berth: "Client", set_name: str, label: tuple[str, ...]) -> list[str]:
    """Ids of all workloads of a set, with these labels, that have not ended."""
    from berthmaster.cli.requests import WrongInput, parse_pairs

    try:
        labels = parse_pairs(label, "label")
    except WrongInput as error:
        usage(str(error))
    states: tuple[WorkloadStateName, ...] = ("queued", "placed", "claimed", "admitted", "running")
    found: list[str] = []
    before = 0
    while True:
        page = await berth.list(
            states=states, set_name=set_name, labels=labels, limit=1000, before=before
        )
        found += [view.id for view in page.workloads]
        if not (before := page.next_before):
            return found


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", type=OPEN)
@click.option("--set", "set_name", default="", metavar="NAME", help="All open ones of this set.")
@click.option("--label", multiple=True, metavar="K=V", help="All open ones with this label.")
@click.option("--reason", default="", help="Why, for those who read its story.")
@bus_command
async def cancel(
    session: Session,
    workloads: tuple[str, ...],
    set_name: str,
    label: tuple[str, ...],
    reason: str,
) -> int:
    """Cancel workloads. One that runs is stopped by its cluster a little later."""
    if not (workloads or set_name or label):
        usage("name workloads, or say --set or --label")
    from berthmaster.cli.render.terminal import safe
    from berthmaster.client.errors import RefusedError

    failed = 0
    async with session.client() as berth:
        if set_name or label:
            workloads = (*workloads, *await open_ones(berth, set_name, label))
        for workload in workloads:
            try:
                reply = await berth.cancel(workload, reason)
            except RefusedError as error:
                failed += 1
                if session.out.as_json:
                    session.out.line({"id": workload, "error": error.refusal})
                sys.stderr.write(f"berth: {workload}: {error}\n")
                continue
            note = f": {reply.note}" if reply.note else ""
            text = f"{reply.id} is {reply.state}{note}"
            session.out.item(reply, lambda text=text: safe(text))  # type: ignore[misc]
    return EXIT_FAILED if failed else 0


@click.command(context_settings={"ignore_unknown_options": True})  # -7 is a priority
@click.argument("workload", type=OPEN)
@click.argument("priority", type=int)
@bus_command
async def reprioritize(session: Session, workload: str, priority: int) -> None:
    """Give a workload another priority; more goes first."""
    from berthmaster.cli.render.terminal import safe

    async with session.client() as berth:
        reply = await berth.reprioritize(workload, priority)
        if reply.state in ENDINGS:
            text = f"{reply.id} is {reply.state} and keeps its priority: {reply.note}"
        else:
            note = f"; {reply.note}" if reply.note else ""
            text = f"{reply.id} has priority {priority} and is {reply.state}{note}"
        session.out.document(reply, lambda: safe(text))
