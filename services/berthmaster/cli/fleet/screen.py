"""The fleet on the screen: one line a cluster, one line a node."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.job.why_screen import ranks_by
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import WholeOrParts, part_table, plain_table, safe
from berthmaster.client.following import SeenDead
from berthmaster.lib.engine.fleetview.rows import ClusterRow, NodeRow
from berthmaster.lib.engine.queueing.queues import amount_text
from berthmaster.lib.engine.queueing.tree import QueueTree
from berthmaster.lib.messages.api import QueueStanding
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.runtime.visible_text import visible

FRESHNESS_STYLES = {"fresh": "", "stale": "yellow", "withdrawn": "red", "unscored": "yellow"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".123456789"
DEAD_BODY_SHOWN = 160  # characters


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
        "USED of GPUs is held by somebody; IDLE is measured by telemetry; FRAG of the free ones "
        "suits no typical job; GPU is OCM's score.",
        style="dim",
    )
    return Group(table, safe(), fleet_line(rows), legend, *notes)


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items())) or "-"


def standings(accounts: Sequence[QueueStanding]) -> RenderableType:
    """Queues as a tenant is told of them: those that are open to it."""
    if not accounts:
        return safe("No queue has been set for this tenant; requests use the queue 'default'.")
    shares = ("PRIO", "GUARANTEE", "DESERVED", "LIMIT", "USED", "BORROWED")
    jobs = ("RUNNING", "WAITING")
    whole = plain_table("QUEUE", *shares, *jobs, "STATE", right=(*shares, *jobs))
    shared = part_table("QUEUE", *shares, right=shares)
    rest = part_table("QUEUE", *jobs, "STATE", right=jobs)
    for each in accounts:
        name = safe(each.queue)
        has_now = (
            str(each.priority),
            _gpus(each.guarantee_gpu_milli),
            _gpus(each.deserved_gpu_milli),
            _gpus(each.capability_gpu_milli),
            *_has(each),
        )
        stands = (
            _of(each.running, each.max_running_jobs),
            str(each.waiting),
            "held" if each.held else "open",
        )
        whole.add_row(name, *has_now, *stands)
        shared.add_row(name, *has_now)
        rest.add_row(name, *stands)
    return WholeOrParts(whole, (shared, rest))


def _of(number: int, most: int | None) -> str:
    return str(number) if most is None else f"{number}/{most}"


def fleet_line(rows: Sequence[ClusterRow]) -> Text:
    """All clusters in one line."""
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
        told = f"{row.cluster} is the API server of {row.same_as}, which counts"
        notes.append(safe(told, style="red"))
    for one in row.unlisted:
        told = f"{row.cluster}: its API server cannot list {one.kind}: {one.why}"
        notes.append(safe(told, style="red"))
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
    """One character for each GPU: how much of it is held."""
    scale = _ASCII_LEVELS if ascii_only else _LEVELS
    body = "".join(
        scale[min(len(scale) - 1, -(-used * (len(scale) - 1) // 1000))] for used in milli
    )
    return f"|{body}|" if body else "-"


_PREEMPTS = {"never": "nobody", "all": "in all queues"}
_REBALANCES = {"queue": "its own jobs", "all": "all queues' jobs"}


def queues(
    settings: Sequence[QueueSetting], accounts: Sequence[QueueStanding] = ()
) -> RenderableType:
    """The queues that operators have set, each below its parent: in one table, or on a narrow
    screen in one of what they share and one of what else is set."""
    if not settings:
        return safe("No queue has been set; requests use the queue 'default'.")
    has = {each.queue: each for each in accounts}
    amounts = ("GUARANTEE", "DESERVED", "LIMIT")
    now = ("USED", "BORROWED") if accounts else ()
    limits = ("JOB", "RUNNING", "WAITING")
    words, numbers = ("TENANTS", "STATE"), ("PRIO", "WEIGHT", *amounts, *now, *limits)
    whole = plain_table("QUEUE", *numbers, *words, right=numbers)
    shares = ("PRIO", *amounts, *now)
    shared = part_table("QUEUE", *shares, right=shares, amounts=amounts)
    rest = part_table("QUEUE", "WEIGHT", *limits, *words, right=("WEIGHT", *limits))
    for depth, setting in _as_tree(settings):
        state = "deleted" if setting.deleted else "held" if setting.held else "open"
        if setting.via != "direct":
            state += f", by Kueue ({setting.via})"  # whose amounts are the ones that count
        if setting.profile or setting.weights:
            state += f", ranks by {ranks_by(setting.profile, setting.weights)}"
        if setting.preempts != "queue":
            state += f", preempts {_PREEMPTS[setting.preempts]}"
        if setting.preempts_equals:
            state += ", stops equals"
        if setting.rebalances != "never":
            state += f", moves {_REBALANCES[setting.rebalances]} to fit in"
        if setting.max_evictions_per_hour is not None:
            state += f", gives way at most {setting.max_evictions_per_hour} times an hour"
        if setting.max_priority is not None:
            state += f", priority to {setting.max_priority}"
        allowed = [
            f"{name.replace('_', ' ')} {', '.join(listed) or '(none)'}"
            for name in setting.allows.__struct_fields__
            if (listed := getattr(setting.allows, name)) is not None
        ]
        if allowed:
            state += f", allows {'; '.join(allowed)}"
        name = safe("  " * depth + setting.queue)
        priority, weight = str(setting.priority), f"{setting.weight:g}"
        has_now = (
            _amounts(setting, "guarantee"),
            _amounts(setting, "deserved"),
            _amounts(setting, "capability"),
            *(_has(has.get(setting.queue)) if accounts else ()),
        )
        is_set = (
            _gpus(setting.max_job_gpu_milli),
            _jobs(setting.max_running_jobs),
            _jobs(setting.max_waiting_jobs),
            safe(", ".join(setting.tenants) or "everybody"),
            safe(state),
        )
        whole.add_row(name, priority, weight, *has_now, *is_set)
        shared.add_row(name, priority, *has_now)
        rest.add_row(name, weight, *is_set)
    return WholeOrParts(whole, (shared, rest))


def _as_tree(settings: Sequence[QueueSetting]) -> Iterator[tuple[int, QueueSetting]]:
    """Each with how many are above it: those of one parent by priority, then by name."""
    by_name = {each.queue: each for each in settings}
    tree = QueueTree(by_name)
    first: dict[str, tuple[tuple[int, str], ...]] = {}
    for name in by_name:
        way = [by_name[each] for each in (*reversed(tree.parents.get(name, ())), name)]
        first[name] = tuple((-each.priority, each.queue) for each in way)
    for name in sorted(by_name, key=first.__getitem__):
        yield len(first[name]) - 1, by_name[name]


def _has(account: QueueStanding | None) -> tuple[str, str]:
    """GPUs that a queue and all below it use, and that are beyond what it deserves."""
    if account is None:
        return "?", "?"
    return f"{account.used_gpu_milli / 1000:g}", f"{account.borrowed_gpu_milli / 1000:g}"


def _amounts(setting: QueueSetting, kind: str) -> Text:
    """GPUs of any model, then what is said of single resources."""
    gpus: int | None = getattr(setting, f"{kind}_gpu_milli")
    parts = [] if gpus is None else [f"{gpus / 1000:g}"]
    for resource, each in sorted(setting.resources.items()):
        amount: int | None = getattr(each, kind)
        if amount is not None:
            parts.append(amount_text(resource, amount))
    return safe(", ".join(parts) or "-")


def _jobs(number: int | None) -> str:
    return "-" if number is None else str(number)


def _gpus(milli: int | None) -> str:
    return "-" if milli is None else f"{milli / 1000:g}"


def dead(letters: Sequence[SeenDead], now_s: float, *, wide: bool = False) -> RenderableType:
    """Messages that services could not handle, newest last; ``wide``: with all that is kept."""
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
