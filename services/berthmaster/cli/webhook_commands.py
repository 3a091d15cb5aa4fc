"""`berth webhook`: have an address told of the ends of one's own jobs."""

import sys
from typing import get_args

import click
from msgspec.structs import replace

from berthmaster.cli.completion import QUEUE
from berthmaster.cli.listing import Form, form_option, write_list
from berthmaster.cli.requests import WrongInput, parse_pairs
from berthmaster.cli.session import Session, bus_command, usage
from berthmaster.messages.control import EndKind
from berthmaster.messages.usage import WebhookSetting


@click.group()
def webhook() -> None:
    """Have an address told of the ends of your jobs, with nobody who waits."""


@webhook.command("list")
@click.option("--all-tenants", "of_all", is_flag=True, help="Everybody's, for those who may.")
@form_option
@bus_command
async def webhook_list(session: Session, of_all: bool, form: Form | None) -> None:
    """List your webhooks: what each is told of, and what went wrong last."""
    from berthmaster.cli.render import webhooks

    async with session.client() as berth:
        reply = await berth.webhooks(of_all=of_all)
        now_s = berth.now()
        write_list(
            session.out,
            form,
            reply,
            reply.webhooks,
            lambda one: one.name,
            lambda _: webhooks.table(reply, now_s),
        )


@webhook.command("set")
@click.argument("name")
@click.argument("url")
@click.option(
    "--on",
    type=click.Choice(get_args(EndKind)),
    multiple=True,
    help="Which ends; may be repeated [all but evicted].",
)
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Of this queue's jobs alone.")
@click.option("--set", "sets", multiple=True, metavar="SET", help="Of this set's jobs alone.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Of these jobs alone.")
@bus_command
async def webhook_set(
    session: Session,
    name: str,
    url: str,
    on: tuple[EndKind, ...],
    queues: tuple[str, ...],
    sets: tuple[str, ...],
    labels: tuple[str, ...],
) -> None:
    """Have URL told of your jobs' ends; anew: in place of the one of that NAME, with a new key.

    Its host must be one that operators allow: `berth webhook list` names them. The key that notices
    are signed with (header Berth-Signature) is shown this once. '-' as URL reads it from standard
    input, so that it stands in no shell's history.
    """
    from berthmaster.cli.render.terminal import safe

    if url == "-":
        url = sys.stdin.readline(4096).strip()
    setting = WebhookSetting(name=name, url=url, queues=queues, sets=sets)
    try:
        setting = replace(setting, labels=parse_pairs(labels), on=on or setting.on)
    except WrongInput as error:
        usage(str(error))
    async with session.client() as berth:
        reply = await berth.set_webhook(setting)
        text = f"webhook {name} is set; its key, told this once:\n{reply.key}"
        session.out.document(reply, lambda: safe(text))


@webhook.command("remove")
@click.argument("name")
@bus_command
async def webhook_remove(session: Session, name: str) -> None:
    """Have it told of nothing more."""
    from berthmaster.cli.render.terminal import safe

    async with session.client() as berth:
        reply = await berth.remove_webhook(name)
        session.out.document(reply, lambda: safe(f"webhook {name} is removed"))
