"""The fleet on the screen: one line per cluster, one line per node."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.output import amounts
from berthmaster.cli.output.amounts import duration
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.engine.fleetview.rows import ClusterRow, NodeRow
from berthmaster.lib.messages.api import (
    CordonsReply,
    CordonView,
    GpusReply,
    GpuStock,
)

FRESHNESS_STYLES = {"fresh": "", "stale": "yellow", "withdrawn": "red", "unscored": "yellow"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".123456789"


def clusters(
    rows: Sequence[ClusterRow], *, ascii_only: bool = False, wide: bool = False
) -> RenderableType:
    """Return the clusters of `berth top` as a table."""
    if not rows:
        return safe("No cluster has reported yet.")
    headers = (
        "CLUSTER",
        "STATE",
        "SEEN",
        "NODES",
        "GPUS",
        "FREE",
        "USED",
        "",
        "IDLE",
        "FRAG",
        "GPU",
        *(("LARGEST GANG", "MODELS") if wide else ()),
    )
    table = plain_table(
        *headers, right=("SEEN", "NODES", "GPUS", "FREE", "USED", "IDLE", "FRAG", "GPU")
    )
    table.columns[0].overflow = "fold"
    notes: list[Text] = []
    for row in rows:
        share = row.used_share
        table.add_row(
            safe(row.cluster),
            _state(row),
            "-" if row.seen_s is None else amounts.age(row.seen_s),
            str(row.nodes),
            str(row.gpus),
            "?" if row.free_gpus is None else f"{row.free_gpus:,.1f}".removesuffix(".0"),
            amounts.percent(share),
            "" if share is None else amounts.bar(share, 8, ascii_only=ascii_only),
            amounts.percent(_fraction(row.idle_gpu_percent)),
            amounts.percent(_fraction(row.fragmentation_percent)),
            str(row.scores.get("gpuClusterAvailable", "?")),
            *((safe(_counts(row.largest_gang)), safe(_counts(row.models))) if wide else ()),
        )
        notes += _notes(row)
    legend = safe(
        "USED: allocated GPUs. IDLE: measured by telemetry. FRAG: free GPUs that suit no typical "
        "job. GPU: OCM's score, -100 to 100. ?: unknown.",
        style="dim",
    )
    return Group(table, safe(), fleet_line(rows), legend, *notes)


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items())) or "-"


def fleet_line(rows: Sequence[ClusterRow]) -> Text:
    """Return all clusters in one line."""
    gpus = sum(row.gpus for row in rows)
    rows = [row for row in rows if not row.same_as]
    known = [row for row in rows if row.free_gpus is not None]
    free = sum(row.free_gpus or 0.0 for row in known)
    of = sum(row.gpus for row in known)
    nodes_ = sum(row.nodes for row in rows)
    text = ", ".join(
        amounts.many(count, noun)
        for count, noun in ((len(rows), "cluster"), (nodes_, "node"), (gpus, "GPU"))
    )
    if of:
        text += f", {amounts.number(round(free, 1))} free, {amounts.percent(1 - free / of)} used"
    if len(known) < len(rows):
        text += f" ({amounts.many(len(rows) - len(known), 'cluster')} unknown)"
    return safe(text, style="bold")


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _state(row: ClusterRow) -> Text:
    if row.lost is not None:
        return safe("lost", style="bold red")
    if row.same_as:
        return safe("twin", style="bold red")
    if row.cordoned is not None:
        return safe("cordoned", style="yellow")
    return safe(row.freshness, style=FRESHNESS_STYLES.get(row.freshness, ""))


def _notes(row: ClusterRow) -> list[Text]:
    notes = []
    if row.lost is not None:
        notes.append(safe(f"{row.cluster} is declared lost: {row.lost}", style="red"))
    if row.same_as:
        text = f"{row.cluster} is the API server of {row.same_as}, which counts"
        notes.append(safe(text, style="red"))
    for one in row.unlisted:
        text = f"{row.cluster}: its API server cannot list {one.kind}: {one.why}"
        notes.append(safe(text, style="red"))
    if row.cordoned is not None:
        notes.append(safe(f"{row.cluster} is cordoned: {row.cordoned}", style="yellow"))
    if row.cordoned_nodes:
        notes.append(
            safe(
                f"{row.cluster}: {amounts.many(row.cordoned_nodes, 'node')} cordoned",
                style="yellow",
            )
        )
    if row.note:
        notes.append(safe(f"{row.cluster} is {row.freshness}: {row.note}", style="yellow"))
    return notes


def nodes(rows: Sequence[NodeRow], *, ascii_only: bool = False) -> RenderableType:
    """Return the nodes of one cluster as a table."""
    if not rows:
        return safe("No node has reported.")
    table = plain_table("NODE", "STATE", "MODEL", "GPUS", "HELD", "UTIL", "POWER", "PODS", right=(
        "HELD", "UTIL", "POWER", "PODS",
    ))  # fmt: skip
    for row in rows:
        held = sum(row.gpu_milli_used)
        count = len(row.gpu_milli_used)
        gpus = safe(levels(row.gpu_milli_used, ascii_only=ascii_only))
        if row.unhealthy:
            gpus.append(f" +{row.unhealthy} bad", style="red")
        table.add_row(
            safe(row.node),
            safe(row.state, style="" if row.state == "ready" else "yellow"),
            safe(row.model or "-"),
            gpus,
            f"{held / 1000:g}/{count}" if count else "-",
            amounts.percent(_fraction(row.utilization_percent)),
            "?" if row.power_w is None else f"{row.power_w:,.0f} W",
            str(row.pods),
        )
    return table


def levels(milli: Sequence[int], *, ascii_only: bool = False) -> str:
    """Return one character per GPU for its allocated fraction."""
    scale = _ASCII_LEVELS if ascii_only else _LEVELS
    body = "".join(
        scale[min(len(scale) - 1, -(-used * (len(scale) - 1) // 1000))] for used in milli
    )
    return f"|{body}|" if body else "-"


def gpu_models(reply: GpusReply, *, wide: bool = False) -> RenderableType:
    """Return one line per model, sorted by free GPUs, most first."""
    if not reply.models:
        return safe("No GPU has been reported yet.")
    more = ("NODE MAX", "OPEN", "CLUSTERS", "MEMORY") if wide else ()
    numbers = ("FREE", "TOTAL", "WAIT", "PRICE/H", *more)
    found = plain_table("MODEL", *numbers, right=numbers)
    for one in reply.models:
        cells = [_free(one), str(one.gpus), _wait(one), _price(one)]
        if wide:
            memory = f"{amounts.number(one.memory_mib / 1024)} GiB" if one.memory_mib else "?"
            cells += [str(one.most_on_a_node), str(one.open_gpus), str(one.clusters), memory]
        found.add_row(safe(one.model or "(not told)"), *cells)
    notes = [safe(f"{one.model}: {one.why_not}", "yellow") for one in reply.models if one.why_not]
    legend = safe(
        f"WAIT is as if jobs ended as they state, or as similar jobs did, and no other came; "
        f"{amounts.many(reply.waiting, 'pending job')} in all.",
        style="dim",
    )
    return Group(found, safe(), *notes, legend)


def _free(one: GpuStock) -> str:
    """Return the whole free GPUs, and the free fractions of others."""
    parts = one.free_gpu_milli / 1000 - one.free_gpus
    return f"{one.free_gpus} + {amounts.number(parts)}" if parts > 0 else str(one.free_gpus)


def _wait(one: GpuStock) -> str:
    if one.why_not:
        return "never"
    if one.expected_wait_s is None:
        return "?"
    if not one.expected_wait_s:
        return "none"
    wait = f"~{amounts.age(one.expected_wait_s)}"
    if one.wait_low_s is None or one.wait_high_s is None:
        return wait
    return f"{wait} ({amounts.age(one.wait_low_s)} to {amounts.age(one.wait_high_s)})"


def _price(one: GpuStock) -> str:
    if one.price_least is None or one.price_most is None:
        return "-"
    least, most = f"{one.price_least:g}", f"{one.price_most:g}"
    return least if least == most else f"{least}-{most}"


SHOWN = 20  # maximum number of workloads of one cordon


def cordons(reply: CordonsReply, now_s: float) -> RenderableType:
    """Return one line per cordon, and below drains the workloads still there."""
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
    """Return a cluster, or a node or GPU of a cluster."""
    gpu = "" if cordon.gpu is None else f" GPU {cordon.gpu}"
    return f"{cordon.cluster}/{cordon.node}{gpu}" if cordon.node else cordon.cluster


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
