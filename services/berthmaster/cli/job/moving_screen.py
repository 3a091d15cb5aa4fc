"""Cordons and drains as people read them."""

from rich.console import Group, RenderableType

from berthmaster.cli.output.amounts import duration
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.messages.api import CordonsReply, CordonView

SHOWN = 20  # workloads of one cordon


def cordons(reply: CordonsReply, now_s: float) -> RenderableType:
    """One a line, and under the drains what still runs there."""
    if not reply.cordons:
        return safe("nothing is cordoned")
    table = plain_table(
        "PLACE", "WHAT", "BY", "SINCE", "JOBS", "GPUS", "WHY", right=("JOBS", "GPUS")
    )
    for cordon in reply.cordons:
        table.add_row(
            safe(place(cordon)),
            safe(_what(cordon, now_s)),
            safe(cordon.set_by or "-"),
            duration(max(0.0, now_s - cordon.set_at_s)) if cordon.set_at_s else "-",
            f"{cordon.jobs:,}",
            f"{cordon.gpus:g}",
            safe(_why(cordon)),
        )
    parts: list[RenderableType] = [table]
    for cordon in reply.cordons:
        if cordon.drain and cordon.still_there:
            still = plain_table("WORKLOAD", "GPUS", "STILL THERE, SINCE", right=("GPUS",))
            for one in cordon.still_there[:SHOWN]:
                still.add_row(safe(f"{one.tenant}/{one.id}"), f"{one.gpus:g}", safe(one.why))
            parts += [safe(f"\n{place(cordon)}:"), still]
            more = cordon.jobs - min(SHOWN, len(cordon.still_there))
            if more > 0:
                parts.append(safe(f"and {more:,} more"))
    return Group(*parts)


def place(cordon: CordonView) -> str:
    """A cluster, or a node of it."""
    return f"{cordon.cluster}/{cordon.node}" if cordon.node else cordon.cluster


def _what(cordon: CordonView, now_s: float) -> str:
    if not cordon.drain:
        return "cordoned"
    if not cordon.jobs:
        return "drained"
    if cordon.drain_by_s is None:
        return "draining"
    return f"draining, {duration(max(0.0, cordon.drain_by_s - now_s))} left"


def _why(cordon: CordonView) -> str:
    if cordon.matches:
        return cordon.reason
    meant = f", did you mean {cordon.nearest}?" if cordon.nearest else ""
    return f"matches nothing{meant}" + (f" ({cordon.reason})" if cordon.reason else "")
