"""What would move: the answer to `berth whatif`, one screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.render.terminal import plain_table, safe
from berthmaster.cli.render.why import why
from berthmaster.messages.api import Ended, Moved, WhatifReply

SHOWN = 20


def whatif(reply: WhatifReply, now_s: float) -> RenderableType:
    """The summary, then whom it is about."""
    lines: list[RenderableType] = [safe(reply.summary, style="bold")]
    if reply.job is not None:
        lines += [safe(), why(reply.job, now_s)]
    for title, name, moved in (
        ("Would be placed now:", "placed", reply.placed),
        ("Would wait, and are about to be placed:", "waits", reply.waits),
        ("Would go elsewhere if placed anew; what runs stays:", "elsewhere", reply.elsewhere),
        ("Would have no cluster left:", "stranded", reply.stranded),
    ):
        if reply.counts.get(name):
            lines += [safe(), *_moves(title, moved, reply.counts[name])]
    if reply.ended:
        lines += [safe(), _ended(reply.ended)]
    if reply.hidden:
        lines += [safe(), safe(f"{reply.hidden:,} of these are other tenants'.")]
    lines += [safe(f"Not all was looked at: {what}.") for what in reply.capped]
    return Group(*lines)


def _ended(ended: Sequence[Ended]) -> RenderableType:
    columns = ("WORKLOAD", "QUEUE", "GPUS", "IN", "TO", "LOSES", "WHY")
    table = plain_table(*columns, right=("GPUS", "LOSES"))
    table.columns[0].overflow = "fold"
    for each in ended[:SHOWN]:
        table.add_row(
            safe(f"{each.tenant}/{each.id}"),
            safe(each.queue),
            f"{each.gpus:g}",
            safe(each.cluster),
            safe(each.to or "-"),
            f"{each.lost_gpu_s:,.0f} GPU s",
            safe(each.why),
        )
    return table


def _moves(title: str, moved: Sequence[Moved], count: int) -> list[RenderableType]:
    table = plain_table("WORKLOAD", "QUEUE", "GPUS", "WAS", "WOULD", right=("GPUS",))
    table.columns[0].overflow = "fold"
    for each in moved[:SHOWN]:
        table.add_row(
            safe(f"{each.tenant}/{each.id}"),
            safe(each.queue),
            f"{each.gpus:g}",
            safe(each.was or "waits"),
            safe(each.would or ("nowhere" if each.was else "waits")),
        )
    lines: list[RenderableType] = [safe(title, style="bold")]
    if moved:
        lines.append(table)
    more = count - min(len(moved), SHOWN)
    if more > 0:
        lines.append(safe(f"and {more:,} more"))
    return lines
