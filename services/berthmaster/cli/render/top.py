"""`berth top` on the screen: tables with a cursor, and one job with all there is to know of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.render import amounts, fleet, workloads
from berthmaster.cli.render import why as render_why
from berthmaster.cli.render.terminal import plain_table, safe
from berthmaster.cli.top_screen import COLUMNS, HELP, JobRow, View, window
from berthmaster.fleetview.rows import ClusterRow, NodeRow
from berthmaster.messages.api import GetReply, WhyReply

CURSOR = "reverse"
# The longest that is shown of a name, so that all columns have room in 80.
NAMES = {"CLUSTER": 14, "NODE": 24, "MODEL": 12, "JOB": 20}
RIGHT = (
    "SEEN",
    "GPUS",
    "FREE",
    "USED",
    "IDLE",
    "STEP",
    "LEFT",
    "FRAG",
    "HELD",
    "UTIL",
    "POWER",
    "PODS",
    "AGE",
    "MEM",
)


def jobs(rows: Sequence[JobRow]) -> RenderableType:
    """All of them, for those who look once."""
    if not rows:
        return safe("No job is open, and no GPU is told of.")
    return _table(View("jobs"), rows, range(len(rows)), ascii_only=False, cursor=False)


def table(view: View, rows: Sequence[Any], height: int, *, ascii_only: bool) -> RenderableType:
    """One view: as many rows as there is room for."""
    title = {"clusters": "Clusters", "nodes": f"Nodes of {' '.join(view.name)}", "jobs": "Jobs"}
    by = COLUMNS[view.kind][view.column].title
    order = f"by {by.lower()}{', reversed' if view.reverse else ''}"
    head = safe(f"{title[view.kind]}, {len(rows):,}, {order}", style="bold")
    shown = window(len(rows), view.at, max(1, height - 4))
    body = _table(view, rows, shown, ascii_only=ascii_only, cursor=True)
    return Group(head, body, safe(HELP, style="dim"))


def _table(
    view: View, rows: Sequence[Any], shown: range, *, ascii_only: bool, cursor: bool
) -> RenderableType:
    cells = _CELLS[view.kind]
    titles = {
        "clusters": ("CLUSTER", "STATE", "SEEN", "GPUS", "FREE", "USED", "", "IDLE", "FRAG"),
        "nodes": ("NODE", "STATE", "MODEL", "", "HELD", "UTIL", "POWER", "PODS"),
        "jobs": (
            *("JOB", "STATE", "CLUSTER", "GPUS", "UTIL", "MEM", "IDLE", "STEP", "LEFT", "AGE"),
        ),
    }[view.kind]
    by = COLUMNS[view.kind][view.column].title
    mark = "^" if view.reverse else "v"
    found = plain_table(
        *(f"{title}{mark}" if cursor and title == by else title for title in titles),
        right=[each for title in RIGHT for each in (title, f"{title}{mark}")],
    )
    for title, column in zip(titles, found.columns, strict=True):
        column.no_wrap = True
        if title in NAMES:
            column.overflow, column.max_width = "ellipsis", NAMES[title]
    for at in shown:
        style = CURSOR if cursor and at == view.at else ""
        found.add_row(*cells(rows[at], ascii_only), style=style)
    return found


def _cluster(row: ClusterRow, ascii_only: bool) -> list[Text | str]:
    share = row.used_share
    state = "lost" if row.lost is not None else "cordoned" if row.cordoned is not None else ""
    return [
        safe(row.cluster),
        safe(state or row.freshness),
        "-" if row.seen_s is None else amounts.age(row.seen_s),
        str(row.gpus),
        "?" if row.free_gpus is None else f"{row.free_gpus:,.1f}".removesuffix(".0"),
        amounts.percent(share),
        "" if share is None else amounts.bar(share, 8, ascii_only=ascii_only),
        _percent(row.idle_gpu_percent),
        _percent(row.fragmentation_percent),
    ]


def _node(row: NodeRow, ascii_only: bool) -> list[Text | str]:
    gpus = safe(fleet.levels(row.gpu_milli_used, ascii_only=ascii_only))
    if row.unhealthy:
        gpus.append(f" +{row.unhealthy} bad", style="red")
    return [
        safe(row.node),
        safe(row.state),
        safe(row.model or "-"),
        gpus,
        f"{sum(row.gpu_milli_used) / 1000:g}/{len(row.gpu_milli_used)}",
        _percent(row.utilization_percent),
        _watts(row.power_w),
        str(row.pods),
    ]


def _job(row: JobRow, _: bool) -> list[Text | str]:
    name = f"{row.tenant}/{row.id}" if row.tenant else row.id
    return [
        safe(name),
        safe(row.state, style=workloads.STATE_STYLES.get(row.state, "")),
        safe(row.cluster or "-"),
        amounts.number(row.gpus),
        _percent(row.utilization_percent),
        _percent(row.sm_active_percent),
        _memory(row, "G"),
        "-" if row.idle_s is None else amounts.age(row.idle_s),
        "-" if row.step is None else str(row.step),
        "-" if row.left_s is None else amounts.age(row.left_s),
        "-" if row.age_s is None else amounts.age(row.age_s),
    ]


def job(
    row: JobRow | None, reply: GetReply | None, why: WhyReply | None, note: str, now_s: float
) -> RenderableType:
    """One job: why it is where it is, what its GPUs do, and its story."""
    parts: list[RenderableType] = []
    if row is not None:
        figures = (
            f"GPUs {_percent(row.utilization_percent)} busy on average, the busiest "
            f"{_percent(row.utilization_max_percent)}; memory {_memory(row)}; {_watts(row.power_w)}"
        )
        idle = "" if row.idle_s is None else f"; idle for {amounts.age(row.idle_s)}"
        parts.append(safe(figures + idle, style="bold"))
    if why is not None:
        parts += [render_why.why(why, now_s), safe()]
    if reply is not None:
        parts.append(workloads.job(reply, now_s))
    if note:
        parts.append(safe(note, style="yellow"))
    parts.append(safe("Esc back  q quit", style="dim"))
    return Group(*parts)


_CELLS: Final[Mapping[str, Callable[[Any, bool], list[Text | str]]]] = {
    "clusters": _cluster,
    "nodes": _node,
    "jobs": _job,
}


def _memory(row: JobRow, unit: str = " GiB") -> str:
    if row.memory_used_mib is None:
        return "?"
    total = "" if row.memory_total_mib is None else f"/{row.memory_total_mib / 1024:.0f}"
    return f"{row.memory_used_mib / 1024:.0f}{total}{unit}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}%"


def _watts(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f} W"
