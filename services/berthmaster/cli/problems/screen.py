"""Problems and dead letters on the screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import safe
from berthmaster.client.following import SeenDead
from berthmaster.lib.engine.fleetview.fleet_problems import Problem
from berthmaster.lib.runtime.visible_text import visible


def problem_lines(found: Sequence[Problem], unknown: Sequence[str], now_s: float) -> RenderableType:
    """Return one problem per line with its detail below, and the failed checks last."""
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


DEAD_BODY_SHOWN = 160  # characters


def dead(letters: Sequence[SeenDead], now_s: float, *, wide: bool = False) -> RenderableType:
    """Return dead letters, newest last. ``wide``: with all fields."""
    if not letters:
        return safe("No dead letters: every message was handled.")
    lines: list[RenderableType] = []
    for seen in letters:
        letter = seen.letter
        head = safe(f"{amounts.since(seen.stored_at_s, now_s)} ago  ")
        head.append(visible(letter.service), style="bold")
        head.append(visible(f"  {letter.subject}"))
        if letter.workload:
            head.append(visible(f"  (freezes {letter.workload})"), style="yellow")
        lines += [head, safe(f"    {letter.reason}")]
        most = len(letter.body) if wide else DEAD_BODY_SHOWN
        body = letter.body[:most].decode(errors="replace")
        lines.append(safe(f"    {body}{'…' if len(letter.body) > most else ''}", style="dim"))
    return Group(*lines)
