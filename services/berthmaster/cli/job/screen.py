"""Jobs on the screen: the list, one job with its events, and why a job runs or waits."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.job.events import NAME_COLUMNS, history, places, progress_text, request_line
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.engine.scoring.profiles import BALANCED
from berthmaster.lib.lifecycle.trials import outcome
from berthmaster.lib.messages.api import (
    DryRunReply,
    Expectation,
    GetReply,
    ListReply,
    QueueStanding,
    WhyReply,
    WorkloadView,
)
from berthmaster.lib.messages.placement import Choice, Option, RankedCluster
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.runtime.visible_text import visible

STATE_STYLES = {
    "queued": "yellow",
    "placed": "cyan",
    "claimed": "cyan",
    "admitted": "cyan",
    "running": "green",
    "succeeded": "dim",
    "failed": "bold red",
    "cancelled": "dim",
}


def state_text(view: WorkloadView) -> Text:
    """Return the state, with a requested cancellation beside it."""
    text = safe(view.state, style=STATE_STYLES.get(view.state, ""))
    if view.cancel_requested and view.state in ("claimed", "admitted", "running"):
        text.append(" (cancelling)", style="yellow")
    return text


JOB_COLUMNS = ("ID", "STATE", "GPUS", "PODS", "QUEUE", "PRIO", "CLUSTER", "AGE")
WIDE_COLUMNS = ("CHANGED", "TRIES", "SET", "LABELS", "MODELS", "REASON")
RIGHT_COLUMNS = ("GPUS", "PODS", "PRIO", "AGE", "CHANGED", "TRIES")


def jobs(
    reply: ListReply, now_s: float, *, wide: bool = False, all_tenants: bool = False
) -> RenderableType:
    """Return the list of workloads, in the given order."""
    if not reply.workloads:
        total = amounts.counted(reply.counts)
        return safe(f"No workloads match. In all: {total}." if total else "No workloads yet.")
    columns = (*(("TENANT",) if all_tenants else ()), *JOB_COLUMNS, *(WIDE_COLUMNS if wide else ()))
    table = plain_table(*columns, right=RIGHT_COLUMNS)
    for view in reply.workloads:
        first = (safe(view.tenant),) if all_tenants else ()
        table.add_row(*first, *_cells(view, now_s), *(_more_cells(view, now_s) if wide else ()))
    lines: list[RenderableType] = [table]
    if counts := amounts.counted(reply.counts):
        lines += [safe(), safe(f"In all: {counts}.")]
    if reply.next_before:
        lines.append(safe(f"Older ones: --before {reply.next_before}"))
    return Group(*lines)


def _cells(view: WorkloadView, now_s: float) -> tuple[Text | str, ...]:
    return (
        safe(view.id),
        state_text(view),
        amounts.number(view.gpus),
        str(view.pods or "-"),
        safe(view.queue or "-"),
        str(view.priority),
        safe(", ".join(view.clusters) or "-"),
        amounts.since(view.submitted_at_s, now_s),
    )


def _more_cells(view: WorkloadView, now_s: float) -> tuple[Text | str, ...]:
    labels = ",".join(f"{key}={value}" for key, value in view.labels.items())
    return (
        amounts.since(view.changed_at_s, now_s),
        str(view.attempt),
        safe(view.set or "-"),
        safe(labels or "-"),
        safe(" or ".join(view.gpu_models) or "-"),
        safe(view.reason or "-"),
    )


def job_line(view: WorkloadView, now_s: float, *, all_tenants: bool = False) -> Text:
    """Return one workload as a line of a continuous list without aligned columns."""
    name = f"{view.tenant}/{view.id}" if all_tenants else view.id
    head = safe(f"{amounts.clock(now_s)}  {name:<{NAME_COLUMNS}} ")
    head.append(state_text(view))
    where = f" on {', '.join(view.clusters)}" if view.clusters else ""
    head.append(visible(f"{where}: {view.reason}" if view.reason else where))
    return head


def job(reply: GetReply, now_s: float) -> RenderableType:
    """Return one workload, its request, and its event history if included."""
    view = reply.workload
    facts = plain_table("", "")
    facts.show_header = False
    facts.columns[0].style = "bold"

    def fact(name: str, value: str | Text) -> None:
        if value:
            facts.add_row(name, value if isinstance(value, Text) else safe(value))

    fact("workload", f"{view.tenant}/{view.id}")
    fact("state", state_text(view))
    fact("cluster", view.cluster)
    fact("part of", view.part_of)
    for number, part in enumerate(view.parts):
        line = f"{part.id}: {amounts.many(part.pods, 'pod')} on {part.cluster}"
        fact("" if number else "parts", line)
    ended = view.state in ("succeeded", "failed", "cancelled")
    fact("reason" if ended or not view.evictions else "evicted", view.reason)
    fact("queue", f"{view.queue or '-'}, priority {view.priority}")
    attempts = f"{view.attempt}" + (
        f", evicted {amounts.many(view.evictions, 'time')}" if view.evictions else ""
    )
    fact("attempts", attempts if view.attempt else "none yet")
    submitted = (
        f"{amounts.moment(view.submitted_at_s)} ({amounts.since(view.submitted_at_s, now_s)} ago)"
    )
    fact("submitted", submitted)
    fact("changed", f"{amounts.since(view.changed_at_s, now_s)} ago (event {view.sequence})")
    if reply.request is not None:
        fact("requests", request_line(reply.request))
    else:
        fact("requests", "its ending is all that is left in the log; the archive has the rest")
    if reply.expected is not None:
        fact("expected", expected_text(reply.expected, now_s))
    if view.progress is not None:
        age_s = max(0.0, now_s - view.progress_at_s)
        text = progress_text(view.progress, 0.0 if ended else age_s)
        fact("progress", f"{text}, as told {amounts.age(age_s)} ago")
    if view.checkpoint is not None:
        fact("checkpoint", f"step {view.checkpoint.step}, {view.checkpoint.uri}")
    fact("waits for", ", ".join(view.waits_for))
    for number, trial in enumerate(view.trials, start=1):
        fact("" if number > 1 else "trials", f"{number}: {outcome(trial)}")
    for number, line in enumerate(figures_lines(reply.figures, now_s)):
        fact("" if number else "GPUs", line)
    parts: list[RenderableType] = [facts]
    if reply.story:
        parts += [safe(), history(reply.story)]
    return Group(*parts)


UNKNOWN = "-"


def use_line(use: GpuUse) -> str:
    parts = [amounts.many(use.gpus, "GPU")]
    parts.append(f"{_percent(use.utilization_percent)} busy")
    if use.sm_active_percent is not None:
        parts.append(f"{_percent(use.sm_active_percent)} of their SMs")
    if use.memory_used_mib is not None:
        whole = f" of {_gib(use.memory_total_mib)}" if use.memory_total_mib else ""
        parts.append(f"{_gib(use.memory_used_mib)}{whole}")
    if use.power_w is not None:
        parts.append(f"{use.power_w:.0f} W")
    return ", ".join(parts)


def figures_lines(figures: Sequence[JobFigures], now_s: float) -> list[str]:
    """Return the GPU usage of one job in each cluster, with problems last."""
    found: list[str] = []
    for one in figures:
        found.append(f"{one.cluster}: {use_line(one.use)}{_idle(one, now_s)}")
        if one.owner is not None and one.owner.jobs > 1:
            owner = one.owner
            found.append(f"all of {owner.kind} {owner.name}: {use_line(owner.use)}")
        found += one.disagreements
    return found


def _idle(figures: JobFigures, now_s: float) -> str:
    if figures.idle_since_s is None:
        return ""
    return f"; no GPU of it has done anything for {amounts.since(figures.idle_since_s, now_s)}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}%"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


SHOWN_CLUSTERS = 10
SHOWN_PARTS = 3


def why(reply: WhyReply, now_s: float) -> RenderableType:
    """Return the answer to `berth why`, with or without a workload."""
    lines: list[RenderableType] = []
    if reply.id:
        head = safe(f"{reply.tenant}/{reply.id}", style="bold")
        head.append(f" is {reply.state}" if reply.state else "")
        lines.append(head)
    lines.append(safe(reply.summary))
    if reply.position is not None:
        lines.append(safe(_position(reply)))
    lines += [safe(line) for line in _reservation(reply)]
    if reply.expected is not None:
        lines.append(safe(f"Expected: {expected_text(reply.expected, now_s)}."))
    if reply.account is not None:
        lines.append(safe(queue_line(reply.account)))
        lines += [safe(f"Above it: {queue_line(each)}") for each in reply.account.parents]
    lines += [safe(line) for line in figures_lines(reply.figures, now_s)]
    if reply.reasons and not reply.filtered:
        unit = "clusters" if reply.id else "workloads"
        lines += [safe(), reason_table(reply.reasons, unit)]
    if reply.choice is not None:
        lines += [safe(), *chosen(reply.choice)]
        if reply.decision:
            ago = f", {amounts.since(reply.decided_at_s, now_s)} ago" if reply.decided_at_s else ""
            lines.append(safe(f"Decision {reply.decision}{ago}."))
    if reply.filtered and reply.choice is None:
        lines += [safe(), *left_out(reply.filtered)]
    if reply.hints:
        lines += [safe(), safe("What would help:", style="bold")]
        lines += [safe(f"- {hint}") for hint in reply.hints]
    return Group(*lines)


def _position(reply: WhyReply) -> str:
    text = f"Position {reply.position} of {reply.waiting} that wait"
    if reply.account is not None and reply.queue_position is not None:
        text += f"; {reply.queue_position} of {reply.account.waiting} in its queue"
    return f"{text}."


def expected_text(expected: Expectation, now_s: float) -> str:
    """Return the expected start and end of a job, with intervals and their basis."""
    parts = []
    for name, low_s, at_s, high_s in (
        ("starts", expected.starts_low_s, expected.starts_s, expected.starts_high_s),
        ("ends", expected.ends_low_s, expected.ends_s, expected.ends_high_s),
    ):
        if at_s is not None:
            parts.append(f"{name} {_in(at_s, now_s)}{_between(low_s, high_s, now_s)}")
    if not parts and expected.lasts_s is not None:
        lasts = amounts.age(expected.lasts_s)
        parts.append(f"takes {lasts}{_between(expected.lasts_low_s, expected.lasts_high_s, 0.0)}")
    similar = f"by {amounts.many(expected.jobs, 'similar job')}"
    return f"{', '.join(parts)}, {similar if expected.by == 'similar' else 'as stated'}"


def _in(at_s: float, now_s: float) -> str:
    return f"in {amounts.age(at_s - now_s)}" if at_s > now_s else "now"


def _between(low_s: float | None, high_s: float | None, now_s: float) -> str:
    if low_s is None or high_s is None or high_s <= low_s:
        return ""
    low, high = (amounts.age(max(0.0, each - now_s)) for each in (low_s, high_s))
    return f" ({low} to {high})" if low != high else ""


def _reservation(reply: WhyReply) -> list[str]:
    """Return the line about the capacity reserved for the job, if any."""
    found = reply.reservation
    if found is None:
        return []
    when = f", about {amounts.moment(found.expected_at_s)}" if found.expected_at_s else ""
    nodes = ", ".join(held.node for held in found.held[:3])
    more = f" and {len(found.held) - 3} more" if len(found.held) > 3 else ""
    return [f"Reserved for this job on {found.cluster}: {nodes}{more}{when}."]


def queue_line(account: QueueStanding) -> str:
    parts = [f"{_gpus(account.used_gpu_milli)} GPUs allocated"]
    if account.max_running_jobs is not None:
        parts.append(f"{account.running} of {account.max_running_jobs} jobs")
    for name, milli in (
        ("guaranteed", account.guarantee_gpu_milli),
        ("deserved", account.deserved_gpu_milli),
        ("at most", account.capability_gpu_milli),
    ):
        if milli is not None:
            parts.append(
                f"{_gpus(milli)} {name}" if name != "at most" else f"at most {_gpus(milli)}"
            )
    if account.borrowed_gpu_milli:
        parts.append(f"{_gpus(account.borrowed_gpu_milli)} borrowed")
    if account.priority:
        parts.append(f"priority {account.priority}")
    if account.held:
        parts.append("held")
    return f"Queue {account.queue}: {', '.join(parts)}."


def _gpus(milli: int) -> str:
    return f"{milli / 1000:g}"


def dry_run(reply: DryRunReply, now_s: float) -> RenderableType:
    if reply.summary.startswith("would "):
        head = safe(f"It {reply.summary}.", style="bold")
    else:
        head = safe("It would be placed now. " if reply.placed else "It would wait. ", style="bold")
        head.append(visible(reply.summary), style="not bold")
    lines: list[RenderableType] = [head]
    if reply.expected is not None:
        lines.append(safe(f"Expected: {expected_text(reply.expected, now_s)}."))
    if reply.choice is not None:
        lines += [safe(), *chosen(reply.choice)]
    elif reply.ranking:
        lines += [safe(), ranking(reply.ranking)]
    if reply.filtered and reply.choice is None:
        lines += [safe(), *left_out(reply.filtered)]
    return Group(*lines)


def reason_table(reasons: Mapping[str, int], unit: str) -> RenderableType:
    """Return reasons, the most frequent first."""
    table = plain_table(unit.upper(), "REASON", right=(unit.upper(),))
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"{count:,}", safe(reason))
    return table


def chosen(choice: Choice) -> list[RenderableType]:
    """Return the placement, its ranking, and the filtered clusters."""
    lines: list[RenderableType] = []
    where = safe("-> ", style="bold")
    where.append(visible(choice.cluster), style="bold cyan")
    where.append(visible(f"  {places(choice.pods)}  (attempt {choice.attempt})"))
    lines += [where, safe()]
    if choice.profile or choice.weights:
        lines.append(safe(f"Ranked by {ranks_by(choice.profile, choice.weights)}."))
    if choice.ranking:
        lines.append(ranking(choice.ranking))
    if choice.options:
        lines += [safe(), compared(choice.options)]
    if choice.filtered:
        lines += [safe(), *left_out(choice.filtered)]
    return lines


def compared(options: Sequence[Option]) -> RenderableType:
    """Return the configurations that the job could have had, in the requested order."""
    of_trials = any(one.step_s is not None for one in options)
    numbers = ("GPUS", "STEP" if of_trials else "TIME", "JOBS", "COST")
    table = plain_table("MODEL", *numbers, "WHY NOT", right=numbers)
    for one in options:
        seconds = one.step_s if of_trials else one.expected_s
        table.add_row(
            safe(", ".join(one.gpu_models) or "any"),
            str(one.gpus),
            "-" if seconds is None else _step(seconds) if of_trials else amounts.duration(seconds),
            str(one.jobs) if one.jobs else "-",
            "-" if one.cost is None else f"{one.cost:.2g}" if of_trials else f"{one.cost:.2f}",
            safe(one.why or "taken", style="" if one.why else "cyan"),
        )
    return table


def _step(seconds: float) -> str:
    return f"{seconds:.3g} s"


def ranks_by(profile: str, weights: Mapping[str, float]) -> str:
    """Return a profile with the requested weights."""
    parts = ", ".join(f"{part} {weight:g}" for part, weight in weights.items())
    return visible(profile or BALANCED) + (f" ({visible(parts)})" if parts else "")


def ranking(ranked: Sequence[RankedCluster]) -> RenderableType:
    """Return the possible clusters, best first, with the components of their scores."""
    parts = list(dict.fromkeys(name for cluster in ranked for name in cluster.parts))
    headers = ["#", "CLUSTER", "SCORE", *(part.replace("_", " ").upper() for part in parts), "SEEN"]
    table = plain_table(*headers, right=[header for header in headers if header != "CLUSTER"])
    table.columns[1].overflow = "fold"
    for place, cluster in enumerate(ranked[:SHOWN_CLUSTERS], 1):
        table.add_row(
            str(place),
            safe(cluster.cluster, style="cyan" if place == 1 else ""),
            f"{cluster.score:.1f}",
            *(f"{cluster.parts[part]:.0f}" if part in cluster.parts else "-" for part in parts),
            amounts.age(cluster.input_age_s),
        )
    more = len(ranked) - SHOWN_CLUSTERS
    return Group(table, safe(f"and {more} more that rank lower")) if more > 0 else table


def left_out(filtered: Mapping[str, str]) -> list[RenderableType]:
    """Return the filtered clusters with reasons, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for cluster, reason in filtered.items():
        by_reason.setdefault(reason, []).append(cluster)
    table = plain_table("LEFT OUT", "WHY")
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    for reason, clusters in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(sorted(clusters)[:3])
        more = f" and {len(clusters) - 3} more" if len(clusters) > 3 else ""
        table.add_row(safe(shown + more), safe(reason))
    return [table]


def reason_of(choice: Choice) -> str:
    """Return the reason of a placement in one line: largest components, rivals, filtered
    clusters."""
    if not choice.ranking:
        return "the only one asked"
    best = choice.ranking[0]
    top = sorted(best.parts.items(), key=lambda item: -item[1])[:SHOWN_PARTS]
    parts = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in top)
    text = f"score {best.score:.0f} ({parts})" if parts else f"score {best.score:.0f}"
    if len(choice.ranking) > 1:
        second = choice.ranking[1]
        text += f"; next {second.cluster} {second.score:.0f}"
    if choice.filtered:
        out = Counter(choice.filtered.values()).most_common(1)[0]
        text += f"; {len(choice.filtered)} out ({out[1]}x {out[0]})"
    return text
