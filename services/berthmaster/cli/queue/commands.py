"""`berth queue list | set | apply`: queues and their quota shares."""

import asyncio
from typing import IO, Any, Final

import click

from berthmaster.cli.completion import QUEUE
from berthmaster.cli.output.errors import complain
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.queue.settings import (
    OPTIONS,
    changed,
    in_order,
    overcommitted_in,
    read_settings,
)
from berthmaster.cli.session import Session, bus_command, operator_reply, usage
from berthmaster.cli.values import WrongInput
from berthmaster.client import Client
from berthmaster.client.errors import BerthError, NotAllowedError
from berthmaster.lib.messages.api import QueueStanding
from berthmaster.lib.messages.control import QueueSetting

ACCOUNTS_LIMIT_S: Final = 3.0


@click.group()
def queue() -> None:
    """Set or list queues."""


@queue.command("list")
@form_option
@bus_command
async def queue_list(session: Session, form: Form | None) -> None:
    """List the set queues, each below its parent, with their current usage.

    A tenant sees only the queues that accept its jobs.
    """
    from berthmaster.cli.queue import screen

    async with session.client() as berth:
        try:
            found = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        except NotAllowedError:
            standings = (await berth.why()).accounts
            write_list(
                session.out,
                form,
                standings,
                standings,
                lambda each: each.queue,
                lambda _: screen.standings(standings),
            )
            return
        accounts: tuple[QueueStanding, ...] = ()
        if found and not session.out.as_json and form in (None, "wide"):
            accounts = await _accounts(berth)
        write_list(
            session.out,
            form,
            found,
            found,
            lambda each: each.queue,
            lambda _: screen.queues(found, accounts),
        )


async def _accounts(berth: Client) -> tuple[QueueStanding, ...]:
    """Return what queues use now; nothing where the caller may not ask or no service answers."""
    try:
        async with asyncio.timeout(ACCOUNTS_LIMIT_S):
            return (await berth.why()).accounts
    except (BerthError, TimeoutError):
        return ()


async def _warn_if_overcommitted(berth: Client) -> None:
    """Warn about guarantees beyond the fleet's capacity. A fleet may grow, so this is no error."""
    known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
    if not any(setting.guarantee_gpu_milli or setting.resources for setting in known):
        return
    try:
        nodes = [seen.fact for seen in await berth.fleet(nodes=True)]
    except BerthError:
        return  # the setting is stored, though the fleet cannot be read
    for warning in overcommitted_in(known, nodes):
        complain(f"warning: {warning}")


@queue.command("set")
@click.argument("name", type=QUEUE)
@OPTIONS
@click.option("--everybody", is_flag=True, help="Let all tenants use the queue.")
@bus_command
async def queue_set(session: Session, /, name: str, everybody: bool, **flags: Any) -> None:
    """Create a queue, or change the given fields and keep the others."""
    async with session.client() as berth:
        known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        setting = next((fact for fact in known if fact.queue == name), QueueSetting(queue=name))
        try:
            reply = await berth.set_queue(changed(setting, everybody, flags))
        except WrongInput as error:
            usage(str(error))
        operator_reply(session, reply, f"queue {name} is set")
        await _warn_if_overcommitted(berth)


@queue.command("apply")
@click.option(
    "-f",
    "--file",
    "file",
    required=True,
    type=click.File("rb"),
    help="Settings of queues as JSON: one, an array, or one a line; '-' reads standard input.",
)
@bus_command
async def queue_apply(session: Session, file: IO[bytes]) -> None:
    """Set queues from a file. Omitted fields get their defaults.

    All queues are validated before the first is set. `berth queue list --json` writes such a file.
    """
    try:
        settings = read_settings(file.read(), file.name)
    except WrongInput as error:
        usage(str(error))
    async with session.client() as berth:
        known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        try:
            ordered = in_order(settings, known)
        except WrongInput as error:
            usage(f"{file.name}: {error}")
        for setting in ordered:
            reply = await berth.set_queue(setting)
            operator_reply(session, reply, f"queue {setting.queue} is set")
        await _warn_if_overcommitted(berth)
