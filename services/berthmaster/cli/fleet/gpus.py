"""`berth gpus`: which GPUs there are, how many are free, when more may be, at what price."""

import click

from berthmaster.cli.completion import MODEL, QUEUE
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage


@click.command()
@click.argument("models", type=MODEL, nargs=-1, metavar="[MODEL]...")
@click.option(
    "--gpus",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How long one waits for so many on one node.",
)
@click.option("--queue", type=QUEUE, default="", help="Only what may be had through this queue.")
@form_option
@bus_command
async def gpus(
    session: Session, models: tuple[str, ...], gpus: int, queue: str, form: Form | None
) -> int:
    """List the models of GPUs: free and in all, the expected wait, the price of an hour.

    Whoever may submit may ask. What is free is told for the whole fleet; a queue's own limits come
    on top of that (`berth queue list`).
    """
    from msgspec.structs import replace

    from berthmaster.cli.fleet.gpus_screen import table
    from berthmaster.cli.nearest import did_you_mean
    from berthmaster.lib.engine.fleet.models import is_model

    async with session.client() as berth:
        reply = await berth.gpus(gpus, queue=queue or session.target.queue)
    known = [one.model for one in reply.models]
    for model in models:
        if not any(is_model(model, one) for one in known):
            usage(f"no cluster has GPUs of model {model}{did_you_mean(model, known)}")
    if models:
        kept = [one for one in reply.models if any(is_model(name, one.model) for name in models)]
        reply = replace(reply, models=tuple(kept))
    write_list(
        session.out,
        form,
        reply,
        reply.models,
        lambda one: one.model,
        lambda wide: table(reply, wide=wide),
    )
    return 0 if reply.models else EXIT_FAILED
