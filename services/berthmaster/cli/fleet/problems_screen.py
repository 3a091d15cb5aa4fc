"""What is wrong, on the screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import safe
from berthmaster.lib.engine.fleetview.fleet_problems import Problem
from berthmaster.lib.runtime.printable import visible


def table(found: Sequence[Problem], unknown: Sequence[str], now_s: float) -> RenderableType:
    """One problem a line, its detail below it; what could not be looked at at the end."""
    lines: list[RenderableType] = []
    for one in found:
        line = safe(f"{one.level:<7} ", style="red" if one.level == "broken" else "yellow")
        if one.cluster:
            line.append(visible(f"{one.cluster}: "), style="bold")
        line.append(visible(one.text))
        if one.since_s is not None:
            line.append(visible(f", {amounts.since(one.since_s, now_s)} ago"))
        lines.append(line)
        if one.detail:
            lines.append(safe(f"        {one.detail}", style="dim"))
    if not found:
        lines.append(safe("No problems." if not unknown else "No problems were seen."))
    lines += [safe(f"not looked at: {each}", style="dim") for each in unknown]
    return Group(*lines)
