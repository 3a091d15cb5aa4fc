"""`berth completion`: the shell's completion of commands, flags and names on the bus: workloads,
clusters, GPU models, queues and runtimes."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from berthmaster.cli.session import Output, Session, target_of

if TYPE_CHECKING:
    from berthmaster.client import Client

LIMIT_S = 0.3  # seconds; a user waits at the keyboard
LIMIT_VARIABLE = "BERTH_COMPLETION_LIMIT_S"  # for a distant bus
MOST = 100
SHELLS = ("bash", "zsh", "fish")
Known = Callable[["Client"], Awaitable[Mapping[str, str]]]  # names, with a description of each
_TARGET = ("server", "context", "tenant", "creds_file", "ca_file", "data")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script for a shell: `eval "$(berth completion bash)"` in its start file."""
    made = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if made is None:
        raise click.UsageError(f"{shell} cannot be completed; right are {', '.join(SHELLS)}")
    # Do not ask the shell itself, because the shell may be missing on this machine.
    click.echo(made(root, {}, "berth", "_BERTH_COMPLETE").source())


class Name(click.ParamType[str]):
    """A name of an object on the bus, completed from the present ones."""

    def __init__(self, name: str, known: Known) -> None:
        self.name = name
        self._known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return matching names, or none if the bus does not answer at once.

        A completion shows no errors.
        """
        try:
            limit_s = float(os.environ.get(LIMIT_VARIABLE) or LIMIT_S)
            target = target_of(**{name: ctx.params.get(name) for name in _TARGET})
            session = Session(target, Output(as_json=True), limit_s)
            names = asyncio.run(self._ask(session, limit_s))
        except Exception:  # noqa: BLE001  whatever it is, the next command says it
            return []
        return [
            CompletionItem(name, help=(text.splitlines() or [""])[0][:80])
            for name, text in names.items()
            if name.startswith(incomplete) and name.isprintable()
        ]

    async def _ask(self, session: Session, limit_s: float) -> Mapping[str, str]:
        async with asyncio.timeout(limit_s), session.client() as berth:
            return await self._known(berth)


def workloads_in(*states: Any) -> Known:
    """Return a source of the newest workloads in these states."""

    async def known(berth: "Client") -> dict[str, str]:
        found = await berth.list(states=states, limit=MOST, parts=True)
        return {view.id: f"{view.state}, {view.queue}" for view in found.workloads}

    return known


async def clusters(berth: "Client") -> dict[str, str]:
    """Return the clusters with a report; a tenant lacks the right."""
    return dict.fromkeys(sorted({seen.fact.cluster for seen in await berth.fleet()}), "")


async def models(berth: "Client") -> dict[str, str]:
    """Return GPU models, with the number of free GPUs."""
    return {
        one.model: f"{one.free_gpus:g} of {one.gpus:g} free" for one in (await berth.gpus()).models
    }


async def queues(berth: "Client") -> dict[str, str]:
    """Return all queues; for a tenant the open ones."""
    from berthmaster.client import NotAllowedError
    from berthmaster.lib.messages.control import QueueSetting

    try:
        facts = await berth.control()
    except NotAllowedError:
        return {one.queue: "" for one in (await berth.why()).accounts}
    found = [one for one in facts if isinstance(one, QueueSetting) and not one.deleted]
    return {one.queue: one.via for one in found}


async def runtimes(berth: "Client") -> dict[str, str]:
    """Return the built-in runtimes, and those of operators if permitted."""
    from berthmaster.client import NotAllowedError
    from berthmaster.lib.messages.runtimes import RuntimeSetting
    from berthmaster.lib.requests.builtin_runtimes import BUILT_IN

    found = dict(BUILT_IN)
    with suppress(NotAllowedError):
        facts = await berth.control()
        found |= {one.runtime: one for one in facts if isinstance(one, RuntimeSetting)}
    return {name: one.description for name, one in sorted(found.items()) if not one.deleted}


OPEN = Name("workload", workloads_in("queued", "placed", "claimed", "admitted", "running"))
ANY = Name("workload", workloads_in())
CLUSTER = Name("cluster", clusters)
MODEL = Name("model", models)
QUEUE = Name("queue", queues)
RUNTIME = Name("runtime", runtimes)
