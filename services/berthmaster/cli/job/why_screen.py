"""Why a workload is where it is, or why it is nowhere yet: one screen."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType

from berthmaster.cli.job import figures_screen as figures
from berthmaster.cli.job.screen import places
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.engine.scoring.profiles import BALANCED
from berthmaster.lib.messages.api import DryRunReply, QueueStanding, WhyReply
from berthmaster.lib.messages.placement import Choice, RankedCluster
from berthmaster.lib.runtime.visible_text import visible

SHOWN_CLUSTERS = 10
SHOWN_PARTS = 3


def why(reply: WhyReply, now_s: float) -> RenderableType:
    """The answer to `berth why`, with or without a workload."""
    lines: list[RenderableType] = []
    if reply.id:
        head = safe(f"{reply.tenant}/{reply.id}", style="bold")
        head.append(f" is {reply.state}" if reply.state else "")
        lines.append(head)
    lines.append(safe(reply.summary))
    if reply.position is not None:
        lines.append(safe(_position(reply)))
    lines += [safe(line) for line in _room(reply)]
    if reply.account is not None:
        lines.append(safe(queue_line(reply.account)))
        lines += [safe(f"Above it: {queue_line(each)}") for each in reply.account.parents]
    lines += [safe(line) for line in figures.lines(reply.figures, now_s)]
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


def _room(reply: WhyReply) -> list[str]:
    """What is kept for it, in one line."""
    kept = reply.reservation
    if kept is None:
        return []
    when = f", about {amounts.moment(kept.expected_at_s)}" if kept.expected_at_s else ""
    nodes = ", ".join(held.node for held in kept.held[:3])
    more = f" and {len(kept.held) - 3} more" if len(kept.held) > 3 else ""
    return [f"Room is kept for it on {kept.cluster}: {nodes}{more}{when}."]


def queue_line(account: QueueStanding) -> str:
    parts = [f"{_gpus(account.used_gpu_milli)} GPUs in use"]
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


def dry_run(reply: DryRunReply) -> RenderableType:
    if reply.summary.startswith("would "):
        head = safe(f"It {reply.summary}.", style="bold")
    else:
        head = safe("It would be placed now. " if reply.placed else "It would wait. ", style="bold")
        head.append(visible(reply.summary), style="not bold")
    lines: list[RenderableType] = [head]
    if reply.choice is not None:
        lines += [safe(), *chosen(reply.choice)]
    elif reply.ranking:
        lines += [safe(), ranking(reply.ranking)]
    if reply.filtered and reply.choice is None:
        lines += [safe(), *left_out(reply.filtered)]
    return Group(*lines)


def reason_table(reasons: Mapping[str, int], unit: str) -> RenderableType:
    """Reasons, the most frequent first."""
    table = plain_table(unit.upper(), "REASON", right=(unit.upper(),))
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"{count:,}", safe(reason))
    return table


def chosen(choice: Choice) -> list[RenderableType]:
    """The place, the ranking it came out of, and what was filtered before."""
    lines: list[RenderableType] = []
    where = safe("-> ", style="bold")
    where.append(visible(choice.cluster), style="bold cyan")
    where.append(visible(f"  {places(choice.pods)}  (attempt {choice.attempt})"))
    lines += [where, safe()]
    if choice.profile or choice.weights:
        lines.append(safe(f"Ranked by {ranks_by(choice.profile, choice.weights)}."))
    if choice.ranking:
        lines.append(ranking(choice.ranking))
    if choice.filtered:
        lines += [safe(), *left_out(choice.filtered)]
    return lines


def ranks_by(profile: str, weights: Mapping[str, float]) -> str:
    """A profile with the weights that were given beside it."""
    parts = ", ".join(f"{part} {weight:g}" for part, weight in weights.items())
    return visible(profile or BALANCED) + (f" ({visible(parts)})" if parts else "")


def ranking(ranked: Sequence[RankedCluster]) -> RenderableType:
    """Clusters that could take it, best first, with the parts of their scores."""
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
    """Clusters that could not take it and why; many with one reason share a line."""
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
    """Why there, in one line: the score with its largest parts, the rivals, who was out."""
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
