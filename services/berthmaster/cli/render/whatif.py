"""What would move: the answer to `berth whatif`, one screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.render.why import why
from berthmaster.cli.render.words import plain_table, words
from berthmaster.messages.api import Moved, WhatifReply

SHOWN = 20


def whatif(reply: WhatifReply, now_s: float) -> RenderableType:
    """The summary, then whom it is about."""
    lines: list[RenderableType] = [words(reply.summary, style="bold")]
    if reply.job is not None:
        lines += [words(), why(reply.job, now_s)]
    for title, name, moved in (
        ("Would be placed now:", "placed", reply.placed),
        ("Would wait, and are about to be placed:", "waits", reply.waits),
        ("Would go elsewhere if placed anew; what runs stays:", "elsewhere", reply.elsewhere),
        ("Would have no cluster left:", "stranded", reply.stranded),
    ):
        if reply.counts.get(name):
            lines += [words(), *_moves(title, moved, reply.counts[name])]
    if reply.hidden:
        lines += [words(), words(f"{reply.hidden:,} of these are other tenants'.")]
    lines += [words(f"Not all was looked at: {what}.") for what in reply.capped]
    return Group(*lines)


def _moves(title: str, moved: Sequence[Moved], count: int) -> list[RenderableType]:
    table = plain_table("WORKLOAD", "QUEUE", "GPUS", "WAS", "WOULD", right=("GPUS",))
    table.columns[0].overflow = "fold"
    for each in moved[:SHOWN]:
        table.add_row(
            words(f"{each.tenant}/{each.id}"),
            words(each.queue),
            f"{each.gpus:g}",
            words(each.was or "waits"),
            words(each.would or ("nowhere" if each.was else "waits")),
        )
    lines: list[RenderableType] = [words(title, style="bold")]
    if moved:
        lines.append(table)
    more = count - min(len(moved), SHOWN)
    if more > 0:
        lines.append(words(f"and {more:,} more"))
    return lines
