"""The answer to `berth whatif`: one screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.job.screen import why
from berthmaster.cli.output.amounts import duration
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.messages.api import Ended, Moved, Rebalanced, WhatifReply

SHOWN = 20


def whatif(reply: WhatifReply, now_s: float) -> RenderableType:
    """Return the summary, then the affected jobs."""
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
    if reply.rebalances:
        lines += [safe(), _for_whom(reply.rebalances)]
    if reply.ended:
        lines += [safe(), _ended(reply.ended)]
    if reply.hidden:
        lines += [safe(), safe(f"{reply.hidden:,} of these are other tenants'.")]
    lines += [safe(f"Not all was looked at: {what}.") for what in reply.capped]
    return Group(*lines)


def _for_whom(rebalances: Sequence[Rebalanced]) -> RenderableType:
    columns = ("WAITS", "GPUS", "SINCE", "MOVES", "GAINS", "LOSES", "BEGINS IN, OR WHY NOT")
    table = plain_table(*columns, right=("GPUS", "SINCE", "MOVES", "GAINS", "LOSES"))
    table.columns[0].overflow = "fold"
    for each in rebalances[:SHOWN]:
        begins = not each.why_not
        table.add_row(
            safe(f"{each.tenant}/{each.id}"),
            f"{each.gpus:g}",
            duration(each.waited_s),
            str(each.moves) if begins else "-",
            f"{each.gain_gpu_s:,.0f} GPU s" if begins else "-",
            f"{each.cost_gpu_s:,.0f} GPU s" if begins else "-",
            safe(_place(each.cluster, each.nodes) if begins else each.why_not),
        )
    return table


def _place(cluster: str, nodes: Sequence[str]) -> str:
    """Return a cluster, with its nodes if known."""
    if not nodes:
        return cluster
    more = f" and {len(nodes) - 2} more" if len(nodes) > 2 else ""
    return f"{cluster} ({', '.join(nodes[:2])}{more})"


def _ended(ended: Sequence[Ended]) -> RenderableType:
    columns = ("WORKLOAD", "QUEUE", "GPUS", "IN", "TO", "LOSES", "WHY")
    table = plain_table(*columns, right=("GPUS", "LOSES"))
    table.columns[0].overflow = "fold"
    for each in ended[:SHOWN]:
        table.add_row(
            safe(f"{each.tenant}/{each.id}"),
            safe(each.queue),
            f"{each.gpus:g}",
            safe(_place(each.cluster, each.nodes)),
            safe(_place(each.to, each.to_nodes) if each.to else "-"),
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
