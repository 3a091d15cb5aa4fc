"""`berth suggest`: other configurations of a job, with run time, wait and cost of each."""

from typing import TYPE_CHECKING, Final

import click

from berthmaster.cli.completion import ANY
from berthmaster.cli.session import Session, bus_command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.lib.messages.suggest import Configuration, Suggestions

_CHANGES: Final = {
    "fewer_gpus": "fewer GPUs",
    "more_gpus": "more GPUs",
    "smaller_slice": "smaller slice",
    "other_pods": "other pods",
    "other_model": "other model",
}
_BEST: Final = {"time": "fastest", "cost": "cheapest", "start": "soonest"}


@click.command()
@click.argument("workload", type=ANY)
@bus_command
async def suggest(session: Session, workload: str) -> None:
    """Suggest other GPUs for a job: fewer, a smaller slice, another model.

    Run time, wait and cost are medians of ended jobs with the same program, or else with the same
    labels. The job may be pending, running or ended.
    """
    from berthmaster.lib.messages.suggest import SuggestRequest

    async with session.client() as berth:
        reply = await berth.suggest(SuggestRequest(id=workload))
        session.out.document(reply, lambda: screen(reply))


def screen(reply: "Suggestions") -> "RenderableType":
    """Return one row for each configuration."""
    from rich.console import Group

    from berthmaster.cli.output.terminal import plain_table, safe

    parts: list[RenderableType] = []
    if reply.configurations:
        parts.append(safe(f"{reply.tenant}/{reply.id}: ended jobs of the same {reply.by}"))
        cost = f"COST {reply.currency}" if reply.currency else "GPU h"
        numbers = ("JOBS", "TIME", "8 OF 10", "WAIT", cost)
        table = plain_table("GPUS", "MODEL", *numbers, "REMARK", right=numbers)
        for one in reply.configurations:
            value = one.cost if reply.currency else one.gpu_h
            cells = (*_times(one), "-" if value is None else f"{value:,.2f}")
            table.add_row(safe(one.layout), safe(one.model or "-"), *cells, safe(_remarks(one)))
        parts.append(table)
    parts += [safe(note, style="yellow") for note in reply.notes]
    return Group(*parts)


def _times(one: "Configuration") -> list[str]:
    from berthmaster.cli.output import amounts

    def span(seconds: float | None) -> str:
        return "-" if seconds is None else amounts.duration(seconds)

    interval = "-" if one.ran_s is None else f"{span(one.ran_low_s)} to {span(one.ran_high_s)}"
    return [f"{one.jobs:,}", span(one.ran_s), interval, span(one.wait_s)]


def _remarks(one: "Configuration") -> str:
    words = ["as now"] if one.own else [_CHANGES[change] for change in one.changes]
    words += [_BEST[name] for name in one.best]
    if one.failed:
        words.append(f"{one.failed:,} failed")
    if one.by == "profile":
        words.append("by measured use")
    return ", ".join(words)
