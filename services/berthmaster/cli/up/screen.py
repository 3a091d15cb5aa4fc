"""The processes of `berth up` on the screen."""

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.supervisor.stack import ProcessView, StackView

CONDITION_STYLES = {"ready": "green", "restarting": "yellow", "unready": "yellow", "failed": "red"}


def stack(view: StackView, *, hint: str) -> RenderableType:
    """Return the table of processes and the next steps."""
    table = plain_table("PROCESS", "PID", "STATE", "URL", right=("PID",))
    for process in view.processes:
        table.add_row(
            safe(process.name),
            str(process.pid),
            safe(process.condition, style=CONDITION_STYLES.get(process.condition, "")),
            safe(process.url),
        )
    return Group(
        table,
        safe(),
        safe(f"Up after {amounts.duration(view.took_s)}. Logs and data: {view.folder}"),
        *(safe(line) for line in view.figures),
        safe(hint),
    )


def change(process: ProcessView) -> Text:
    line = safe(f"{process.name} (pid {process.pid}) is ")
    line.append(process.condition, style=CONDITION_STYLES.get(process.condition, ""))
    if process.note:
        line.append_text(safe(f": {process.note.splitlines()[0]}"))
    if process.restarts and process.condition == "ready":
        line.append(f" again ({process.restarts} restarts)")
    return line
