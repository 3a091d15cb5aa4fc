"""`berth queue list | set | apply`: queues and their quota shares."""

import asyncio
from typing import IO, Any, Final

import click

from berthmaster.cli.completion import QUEUE
from berthmaster.cli.job.requests import WrongInput
from berthmaster.cli.output.errors import complain
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.queue.settings import changed, in_order, overcommitted_in, read_settings
from berthmaster.cli.session import Session, bus_command, operator_reply, usage
from berthmaster.client import Client
from berthmaster.client.errors import BerthError, NotAllowedError
from berthmaster.lib.engine.scoring.profiles import PROFILES
from berthmaster.lib.messages.api import QueueStanding
from berthmaster.lib.messages.control import QueueSetting

ACCOUNTS_LIMIT_S: Final = 3.0


@click.group()
def queue() -> None:
    """Set queues, or list them."""


@queue.command("list")
@form_option
@bus_command
async def queue_list(session: Session, form: Form | None) -> None:
    """List the queues that operators have set, each below its parent, and what they have now.

    A tenant is told of those that are open to it.
    """
    from berthmaster.cli.queue import screen

    async with session.client() as berth:
        try:
            found = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
        except NotAllowedError:
            told = (await berth.why()).accounts
            write_list(
                session.out,
                form,
                told,
                told,
                lambda each: each.queue,
                lambda _: screen.standings(told),
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
    """What queues have now; nothing if nobody says it, or to us."""
    try:
        async with asyncio.timeout(ACCOUNTS_LIMIT_S):
            return (await berth.why()).accounts
    except (BerthError, TimeoutError):
        return ()


async def _warn_if_overcommitted(berth: Client) -> None:
    """Of guarantees beyond what the fleet has: it may grow, so that it is no error."""
    known = [fact for fact in await berth.control() if isinstance(fact, QueueSetting)]
    if not any(setting.guarantee_gpu_milli or setting.resources for setting in known):
        return
    try:
        nodes = [seen.fact for seen in await berth.fleet(nodes=True)]
    except BerthError:
        return  # the order was carried out; that we may not look does not change that
    for told in overcommitted_in(known, nodes):
        complain(f"warning: {told}")


@queue.command("set")
@click.argument("name", type=QUEUE)
@click.option(
    "--parent",
    type=QUEUE,
    metavar="QUEUE",
    help="The queue of whose shares it has a part; 'none' = it has its part of the fleet.",
)
@click.option("--priority", type=int, help="Queues with more go first, of one parent.")
@click.option(
    "--weight", type=click.FloatRange(min=0, min_open=True), help="Its share beside others."
)
@click.option("--guarantee", metavar="GPUS", help="GPUs that nobody borrows while it wants them.")
@click.option("--deserved", metavar="GPUS", help="GPUs up to which it goes before others.")
@click.option("--limit", metavar="GPUS", help="GPUs that it never exceeds; 'none' = no limit.")
@click.option("--max-job", metavar="GPUS", help="GPUs of its largest job; 'none' = no limit.")
@click.option("--max-running", metavar="JOBS", help="Jobs of it that run; 'none' = no limit.")
@click.option("--max-waiting", metavar="JOBS", help="Jobs of it that wait; 'none' = no limit.")
@click.option("--max-priority", metavar="N", help="Of its jobs; 'none' = no limit.")
@click.option(
    "--preempts",
    type=click.Choice(["never", "queue", "all"]),
    help="Whose jobs of lower priority make room for its jobs: nobody's, its own, all queues'.",
)
@click.option(
    "--preempts-equals",
    type=click.Choice(["yes", "no"]),
    help="Whether its jobs may stop each other: of one priority, one that has clearly more left.",
)
@click.option(
    "--rebalances",
    type=click.Choice(["never", "queue", "all"]),
    help="Whose jobs are moved to room that is free so that one of its jobs fits that has waited "
    "for long: nobody's, its own, all queues'.",
)
@click.option(
    "--max-evictions",
    metavar="N",
    help="Of its jobs in an hour, to make room for others; 'none' = as many as of the fleet.",
)
@click.option(
    "--default-max-run", metavar="TIME", help="Of its jobs that say none; 'none' = no limit."
)
@click.option(
    "--default-checkpoint-every",
    metavar="TIME",
    help="Of its jobs that say none; 'none' = unknown.",
)
@click.option(
    "--default-grace", metavar="TIME", help="Of its jobs that say none; 'none' = the cluster's own."
)
@click.option(
    "--default-preemptible",
    type=click.Choice(["yes", "no", "none"]),
    help="Whether its jobs that do not say may be ended to make room.",
)
@click.option(
    "--allow-tolerations",
    metavar="KEY,…",
    help="Taints that its jobs may tolerate; 'any' = all, '' = none.",
)
@click.option(
    "--allow-node-labels",
    metavar="KEY,…",
    help="Node labels that its jobs may require; 'any' = all, '' = none.",
)
@click.option(
    "--allow-images",
    metavar="IMAGE,…",
    help="Images of its jobs, or beginnings that end in / or :; 'any' = all.",
)
@click.option(
    "--allow-models", metavar="MODEL,…", help="GPU models that its jobs may name; 'any' = all."
)
@click.option(
    "--allow-resources",
    metavar="NAME,…",
    help="Extended resources that its jobs may ask for, such as rdma/hca; 'any' takes the list "
    "back: then all are allowed, or none where models are listed.",
)
@click.option("--allow", multiple=True, metavar="TENANT", help="Who may use it; may be repeated.")
@click.option("--everybody", is_flag=True, help="Everybody may use it.")
@click.option(
    "--via",
    type=click.Choice(["direct", "worker", "hub"]),
    help="A plain Job in the worker cluster, one for its Kueue, or one for the hub's MultiKueue.",
)
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="[CLUSTER=]NAMESPACE[/LOCALQUEUE][@ACCOUNT]",
    help="Where its jobs are made: in this cluster, on the 'hub', or in every other one; may be "
    "repeated, and replaces all that were set.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help=f"How clusters rank for its jobs: {', '.join(PROFILES)}; 'none' = as elsewhere.",
)
@click.option(
    "--score-weight",
    "score_weights",
    multiple=True,
    metavar="PART=N",
    help="What a part of the score counts for its jobs, -10 to 10; may be repeated, and replaces "
    "all that were set; 'none' = as its profile says.",
)
@click.option("--hold/--release", "held", default=None, help="Dispatch nothing / dispatch again.")
@click.option(
    "--delete/--restore", "deleted", default=None, help="Refuse new requests / take them."
)
@bus_command
async def queue_set(session: Session, /, name: str, everybody: bool, **flags: Any) -> None:
    """Make a queue, or change what is given and keep the rest."""
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
    """Set queues as a file says; a field that it leaves out is as it is by default.

    All are checked before the first is set. `berth queue list --json` writes such a file.
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
