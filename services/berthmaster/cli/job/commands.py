"""Commands about submitted jobs: jobs, job, watch, why, cancel, reprioritize."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from berthmaster.cli.completion import ANY, OPEN, QUEUE
from berthmaster.cli.job.selection import (
    OPEN_STATES,
    Followed,
    Selection,
    selection_of,
    selection_options,
)
from berthmaster.cli.output.errors import complain
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, misspelt_tenant, usage

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from berthmaster.client import Client
    from berthmaster.lib.messages.api import (
        ChangeReply,
        Expectation,
        ListReply,
        WhyReply,
        WorkloadStateName,
        WorkloadView,
    )

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
WATCH_EVERY_S: Final = 1.0
SORTS: "Final[Mapping[str, Callable[[WorkloadView], Any]]]" = {
    "age": lambda view: -view.submitted_at_s,
    "changed": lambda view: -view.changed_at_s,
    "name": lambda view: view.id,
    "tenant": lambda view: view.tenant,
    "state": lambda view: STATES.index(view.state),
    "priority": lambda view: -view.priority,
    "gpus": lambda view: -view.gpus,
    "queue": lambda view: view.queue,
    "cluster": lambda view: view.clusters,
}


@click.command()
@click.option(
    "--state",
    type=click.Choice(STATES),
    multiple=True,
    help="List only jobs in this state; may be repeated.",
)
@click.option("--queue", type=QUEUE, default="", help="List only jobs of this queue.")
@selection_options("Only with")
@click.option(
    "--since", metavar="TIME", help="List only jobs with an event since this time ago, such as 2h."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option(
    "--before", type=int, default=0, help="List only jobs submitted before this event; 0 = all."
)
@click.option("--all-tenants", is_flag=True, help="List jobs of all tenants; for operators.")
@click.option(
    "--sort",
    type=click.Choice([mark + name for name in SORTS for mark in ("", "-")]),
    metavar="KEY",
    help=f"Order of the list: {', '.join(SORTS)}; -KEY reverses it. [default: age]",
)
@click.option("--watch", is_flag=True, help="Keep running and show changes; Ctrl-C ends.")
@form_option
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
    all_tenants: bool,
    sort: str | None,
    watch: bool,
    form: Form | None,
) -> None:
    """List jobs, newest first. `berth job` shows the parts of a divided job."""
    from berthmaster.cli.job import screen
    from berthmaster.cli.values import WrongInput, parse_duration_s

    selected = selection_of(set_name, label)
    if watch and form not in (None, "wide"):
        usage(f"--watch shows a table, or lines with --json; not -o {form}")
    try:
        ago_s = None if since is None else parse_duration_s(since)
    except WrongInput as error:
        usage(str(error))
    async with session.client() as berth:

        async def listed() -> "ListReply":
            reply = await berth.list(
                states=state,
                queue=queue,
                set_name=selected.set_name,
                labels=selected.labels,
                since_s=0.0 if ago_s is None else max(0.0, berth.now() - ago_s),
                limit=limit,
                before=before,
                all_tenants=all_tenants,
            )
            return in_sort(reply, sort)

        def shown(reply: "ListReply", wide: bool) -> "RenderableType":
            return screen.jobs(reply, berth.now(), wide=wide, all_tenants=all_tenants)

        if watch:
            lines = functools.partial(screen.job_line, all_tenants=all_tenants)
            wide = form == "wide"
            await watch_list(session, berth.now, listed, lambda r: shown(r, wide), lines)
            return
        reply = await listed()
        if not reply.workloads and not all_tenants and (hint := misspelt_tenant(session.target)):
            session.out.say(f"berth: nothing is listed{hint}")
        write_list(
            session.out,
            form,
            reply,
            reply.workloads,
            lambda view: f"{view.tenant}/{view.id}" if all_tenants else view.id,
            lambda wide: shown(reply, wide),
        )


def in_sort(reply: "ListReply", sort: str | None) -> "ListReply":
    """Return the page in another order. Equal jobs stay in order, newest first."""
    if sort is None:
        return reply
    found = sorted(reply.workloads, key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    return msgspec.structs.replace(reply, workloads=tuple(found))


async def watch_list(
    session: Session,
    now: Callable[[], float],
    listed: "Callable[[], Awaitable[ListReply]]",
    shown: "Callable[[ListReply], RenderableType]",
    line: "Callable[[WorkloadView, float], Text]",
) -> None:
    """Refresh the list on a terminal; elsewhere write it once, then a line for each change."""
    from rich.live import Live

    from berthmaster.client.errors import UnavailableError

    out = session.out
    if out.console.is_terminal and not out.as_json:
        with Live(console=out.console, auto_refresh=False) as live:
            while True:
                with suppress(UnavailableError):  # keep the last known list
                    live.update(shown(await listed()), refresh=True)
                await asyncio.sleep(WATCH_EVERY_S)
    before: dict[tuple[str, str], WorkloadView] = {}
    while True:
        with suppress(UnavailableError):
            reply = await listed()
            for view in reply.workloads:
                if before.get((view.tenant, view.id)) != view:
                    out.item(view, lambda view=view: line(view, now()))  # type: ignore[misc]
            before = {(view.tenant, view.id): view for view in reply.workloads}
        await asyncio.sleep(WATCH_EVERY_S)


@click.command()
@click.argument("workload", type=ANY)
@click.option(
    "--raw", is_flag=True, help="Show the messages in the event log; for operators, with TENANT/ID."
)
@bus_command
async def job(session: Session, workload: str, raw: bool) -> None:
    """Show one job and its events.

    With --raw, show every message of the job in the log with its verdict, undecodable messages
    included.
    """
    from berthmaster.cli.job import screen

    async with session.client() as berth:
        if raw:
            from berthmaster.cli.audit.commands import read
            from berthmaster.cli.audit.story import inspect
            from berthmaster.cli.job.events import raw_events

            tenant, _, name = workload.partition("/")
            if not (tenant and name):
                usage("--raw takes TENANT/ID")
            lines = await read(inspect(berth.connection, tenant, name))
            session.out.document(lines, lambda: raw_events(workload, lines))
            return
        reply = await berth.get(workload, story=True)
        if reply.workload.state not in ENDINGS:
            reply = msgspec.structs.replace(reply, expected=await expected_of(berth, workload))
        session.out.document(reply, lambda: screen.job(reply, berth.now()))


async def expected_of(berth: "Client", workload: str) -> "Expectation | None":
    """Return when an open job begins and ends; None if that is not known or no resolver answers."""
    from berthmaster.client.errors import BerthError

    try:
        return (await berth.why(workload)).expected
    except BerthError:
        return None  # the rest of the page does not depend on it


@click.command()
@click.argument("workload", required=False, type=ANY)
@click.option("--all-tenants", is_flag=True, help="Follow jobs of all tenants; for operators.")
@selection_options("Those with")
@click.option("--since", type=int, help="Follow from after this event; 0 = from the beginning.")
@bus_command
async def watch(
    session: Session,
    workload: str | None,
    all_tenants: bool,
    set_name: str,
    label: tuple[str, ...],
    since: int | None,
) -> None:
    """Follow stored events of all jobs, or of one job."""
    from berthmaster.cli.job.events import event_line

    selected = selection_of(set_name, label)
    if selected and (workload is not None or all_tenants):
        usage("--set and --label are of one tenant's workloads, without a name")
    async with session.client() as berth:
        if workload is not None and since is None:
            since = 0  # its event history, then new events
        if selected and since is None:
            since = await berth.position()  # include jobs submitted during the listing
        ids = {view.id async for view in selected.views(berth, parts=True)} if selected else set()
        followed = Followed(selected, ids)
        tenant = "*" if all_tenants else None
        session.out.say("Following; Ctrl-C ends.")
        async with aclosing(berth.watch(workload=workload, tenant=tenant, since=since)) as events:
            async for seen in events:
                if selected and not followed.takes(seen.event):
                    continue
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
    """Explain the placement of a job, or why the job waits. Without a job, explain all pending
    jobs."""
    from berthmaster.cli.job import screen
    from berthmaster.client.errors import RefusedError

    async with session.client() as berth:
        try:
            reply = await berth.why(workload)
        except RefusedError as error:
            if workload is None or error.refusal.code != "not_found":
                raise
            reply = ending_of((await berth.get(workload)).workload)
        session.out.document(reply, lambda: screen.why(reply, berth.now()))


def ending_of(view: "WorkloadView") -> "WhyReply":
    """Return the answer for a job that the resolver does not consider, such as an ended one."""
    from berthmaster.lib.messages.api import WhyReply

    where = f" on {view.cluster}" if view.cluster else ""
    summary = f"{view.state}{where}" + (f": {view.reason}" if view.reason else "")
    if view.state in ENDINGS:
        summary = f"it has ended: {summary}; `berth job {view.id}` tells its story"
    return WhyReply(tenant=view.tenant, id=view.id, state=view.state, summary=summary)


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", type=OPEN)
@selection_options("All open ones with")
@click.option("--reason", default="", help="Reason, which the event history shows.")
@bus_command
async def cancel(
    session: Session,
    workloads: tuple[str, ...],
    set_name: str,
    label: tuple[str, ...],
    reason: str,
) -> int:
    """Cancel jobs. The cluster stops a running job a little later."""
    if not (workloads or set_name or label):
        usage("name workloads, or say --set or --label")

    def line_of(reply: "ChangeReply") -> str:
        note = f": {reply.note}" if reply.note else ""
        return f"{reply.id} is {reply.state}{note}"

    selected = selection_of(set_name, label)
    async with session.client() as berth:
        names = await meant(berth, workloads, selected)
        return await change_all(session, names, lambda name: berth.cancel(name, reason), line_of)


async def meant(
    berth: "Client", workloads: tuple[str, ...], selected: Selection
) -> tuple[str, ...]:
    """Return the named jobs and the selected open ones, each once."""
    found = [view.id async for view in selected.views(berth, OPEN_STATES)] if selected else []
    return tuple(dict.fromkeys((*workloads, *found)))


async def change_all(
    session: Session,
    workloads: tuple[str, ...],
    change: "Callable[[str], Awaitable[ChangeReply]]",
    line_of: "Callable[[ChangeReply], str]",
) -> int:
    """Change each job and write its answer; a refused one does not stop the others."""
    from berthmaster.cli.output.terminal import safe
    from berthmaster.client.errors import RefusedError

    failed = 0
    for workload in workloads:
        try:
            reply = await change(workload)
        except RefusedError as error:
            failed += 1
            if session.out.as_json:
                session.out.line({"id": workload, "error": error.refusal})
            complain(f"{workload}: {error}")
            continue
        text = line_of(reply)
        session.out.item(reply, lambda text=text: safe(text))  # type: ignore[misc]
    return EXIT_FAILED if failed else 0


@click.command(context_settings={"ignore_unknown_options": True})  # -7 is a priority
@click.argument("words", nargs=-1, required=True, metavar="[WORKLOAD]... PRIORITY", type=OPEN)
@selection_options("All open ones with")
@bus_command
async def reprioritize(
    session: Session, words: tuple[str, ...], set_name: str, label: tuple[str, ...]
) -> int:
    """Set the priority of jobs; a higher priority goes first."""
    *workloads, number = words
    try:
        priority = int(number)
    except ValueError:
        usage(f"the last word is the priority, a whole number; {number!r} is none")
    if not (workloads or set_name or label):
        usage("name workloads before the priority, or say --set or --label")

    def line_of(reply: "ChangeReply") -> str:
        if reply.state in ENDINGS:
            return f"{reply.id} is {reply.state} and keeps its priority: {reply.note}"
        note = f"; {reply.note}" if reply.note else ""
        return f"{reply.id} has priority {priority} and is {reply.state}{note}"

    selected = selection_of(set_name, label)
    async with session.client() as berth:
        names = await meant(berth, tuple(workloads), selected)
        return await change_all(
            session, names, lambda name: berth.reprioritize(name, priority), line_of
        )
