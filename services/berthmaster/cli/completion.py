"""`berth completion`: what a shell needs to complete commands, flags and ids of workloads."""

import asyncio
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from berthmaster.cli.session import Output, Session, target_of

LIMIT_S = 1.0  # a person waits at the keyboard
MOST = 100
SHELLS = ("bash", "zsh", "fish")
_TARGET = ("server", "context", "tenant", "creds_file", "ca_file", "data")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script for a shell: `eval "$(berth completion bash)"` in its start file."""
    made = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if made is None:
        raise click.UsageError(f"{shell} cannot be completed; right are {', '.join(SHELLS)}")
    # Not asked of the shell itself, which may not be installed where the script is made.
    click.echo(made(root, {}, "berth", "_BERTH_COMPLETE").source())


class WorkloadName(click.ParamType[str]):
    """The id of a workload: completed from the newest ones."""

    name = "workload"

    def __init__(self, *states: Any) -> None:
        self._states = states

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Nothing if the bus does not answer at once: a completion is no place for an error."""
        try:
            target = target_of(**{name: ctx.params.get(name) for name in _TARGET})
            session = Session(target, Output(as_json=True), LIMIT_S)
            return asyncio.run(self._names(session, incomplete))
        except Exception:  # noqa: BLE001  whatever it is, the next command says it
            return []

    async def _names(self, session: Session, beginning: str) -> list[CompletionItem]:
        async with asyncio.timeout(2 * LIMIT_S), session.client() as berth:
            found = await berth.list(states=self._states, limit=MOST)
        return [
            CompletionItem(view.id, help=f"{view.state}, {view.queue}")
            for view in found.workloads
            if view.id.startswith(beginning)
        ]


OPEN = WorkloadName("queued", "placed", "claimed", "admitted", "running")
ANY = WorkloadName()
