"""Workloads on the screen: the list, one with its story, one line for each event."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.job import figures_screen as figures
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.lifecycle.sizes import is_set_elastic, least, most
from berthmaster.lib.messages.api import GetReply, ListReply, RecordedEvent, WorkloadView
from berthmaster.lib.messages.families import event_kind
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Carried,
    Checkpointed,
    Claimed,
    Committed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Held,
    HoldReleased,
    JobRequest,
    MoveRequested,
    Placed,
    PodSet,
    Progress,
    Progressed,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    Submitted,
    Succeeded,
    Topology,
    Withdrawn,
    WorkloadEvent,
)

if TYPE_CHECKING:
    from berthmaster.cli.audit.story import Line
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
KIND_STYLES = {
    "placed": "cyan",
    "divided": "cyan",
    "committed": "cyan",
    "running": "green",
    "failed": "bold red",
    "evicted": "red",
    "recovered": "yellow",
    "withdrawn": "yellow",
    "cancel_requested": "yellow",
    "eviction_requested": "yellow",
    "move_requested": "yellow",
    "held": "yellow",
}
SHOWN_PODS = 4
NAME_COLUMNS = 24  # of a line of events; longer names push the rest to the right
BELOW = " " * 14  # under the name, past the clock


def state_text(view: WorkloadView) -> Text:
    """The state, with a wish to cancel beside it."""
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
    """The list of workloads, in the order in which they are."""
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
    """One workload as a line of a list that goes on: no column knows how wide the next one is."""
    name = f"{view.tenant}/{view.id}" if all_tenants else view.id
    head = safe(f"{amounts.clock(now_s)}  {name:<{NAME_COLUMNS}} ")
    head.append(state_text(view))
    where = f" on {', '.join(view.clusters)}" if view.clusters else ""
    head.append(visible(f"{where}: {view.reason}" if view.reason else where))
    return head


def job(reply: GetReply, now_s: float) -> RenderableType:
    """One workload, what it asked for, and its story if that came along."""
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
        told = f"{part.id}: {amounts.many(part.pods, 'pod')} on {part.cluster}"
        fact("" if number else "parts", told)
    ended = view.state in ("succeeded", "failed", "cancelled")
    fact("reason" if ended or not view.evictions else "evicted", view.reason)
    fact("queue", f"{view.queue or '-'}, priority {view.priority}")
    attempts = f"{view.attempt}" + (
        f", evicted {amounts.many(view.evictions, 'time')}" if view.evictions else ""
    )
    fact("attempts", attempts if view.attempt else "none yet")
    asked = (
        f"{amounts.moment(view.submitted_at_s)} ({amounts.since(view.submitted_at_s, now_s)} ago)"
    )
    fact("submitted", asked)
    fact("changed", f"{amounts.since(view.changed_at_s, now_s)} ago (event {view.sequence})")
    if reply.request is not None:
        fact("asks for", request_line(reply.request))
    else:
        fact("asks for", "its ending is all that is left in the log; the archive has the rest")
    if view.progress is not None:
        age_s = max(0.0, now_s - view.progress_at_s)
        text = progress_text(view.progress, 0.0 if ended else age_s)
        fact("progress", f"{text}, as told {amounts.age(age_s)} ago")
    if view.checkpoint is not None:
        fact("checkpoint", f"step {view.checkpoint.step}, {view.checkpoint.uri}")
    for number, line in enumerate(figures.lines(reply.figures, now_s)):
        fact("" if number else "GPUs", line)
    parts: list[RenderableType] = [facts]
    if reply.story:
        parts += [safe(), story(reply.story)]
    return Group(*parts)


def request_line(request: JobRequest) -> str:
    text = "; ".join(pod_set_line(pods) for pods in request.pod_sets)
    if request.clusters:
        text += f"; on {' or '.join(request.clusters)}"
    if request.cluster_labels:
        text += "; cluster " + ", ".join(f"{k}={v}" for k, v in request.cluster_labels.items())
    if request.divide is not None:
        text += f"; may be divided over clusters by {request.divide.by}"
    if request.expected_duration_s:
        text += f"; for about {amounts.age(request.expected_duration_s)}"
    return text


def pod_set_line(pods: PodSet) -> str:
    parts: list[str] = []
    if pods.gpus:
        models = " or ".join(pods.gpu_models)
        share = f" at {pods.gpu_milli / 10:g}%" if pods.gpu_milli < 1000 else ""
        if pods.mig_profile:
            share = f" as MIG {pods.mig_profile}"
        elif pods.gpu_memory_mib:
            share += f" with {amounts.number(pods.gpu_memory_mib / 1024)} GiB"
        if pods.prefer_gpu_models:
            share += f", rather {' then '.join(pods.prefer_gpu_models)}"
        parts.append(
            f"{pods.gpus} {models + ' ' if models else ''}GPU{'s'[: pods.gpus > 1]}{share}"
        )
    if pods.isolation:
        parts.append(f"isolation {pods.isolation} or harder")
    if pods.tpus:
        kinds = " or ".join(pods.tpu_accelerators)
        shape = f" of {pods.tpu_topology}" if pods.tpu_topology else ""
        parts.append(f"{pods.tpus} {kinds + ' ' if kinds else ''}TPU{'s'[: pods.tpus > 1]}{shape}")
    parts += [f"{number} {name}" for name, number in sorted(pods.resources.items())]
    parts += [f"claim {name}" for name in pods.claims]
    parts.append(f"{amounts.number(pods.cpu_milli / 1000)} CPU")
    parts.append(f"{amounts.number(pods.memory_mib / 1024)} GiB")
    if pods.node_labels:
        parts.append(", ".join(f"{key}={value}" for key, value in pods.node_labels.items()))
    each = ", ".join(parts)
    line = f"{pods.count} pods of {each}" if pods.count > 1 else each
    if is_set_elastic(pods):
        line += f", {least(pods)} to {most(pods)} of them"
    return line + _topology_words(pods.topology)


def _topology_words(topology: Topology | None) -> str:
    """How the pods are to stand to each other."""
    if topology is None:
        return ""
    words = []
    if topology.same:
        words.append("on one node" if topology.same == "node" else f"in one {topology.same}")
    if topology.max_pods_a_node:
        words.append(f"at most {topology.max_pods_a_node} a node")
    if topology.nodes:
        words.append("on as few nodes as can be")
    if topology.gpu_domain:
        words.append("GPUs of one NVLink or NUMA domain")
    return "".join(f", {word}" for word in words)


def story(events: Sequence[RecordedEvent]) -> RenderableType:
    """All events in their order, with the time that passed between them."""
    zone = amounts.zone(events[0].stored_at_s if events else 0.0)
    head = ("SEQ", f"TIME ({zone})", "AFTER", "EVENT", "WHAT")
    table = plain_table(*head, right=("SEQ", "AFTER"))
    table.columns[4].overflow = "fold"
    before_s = None
    for recorded in events:
        passed = (
            "" if before_s is None else amounts.duration(max(0.0, recorded.stored_at_s - before_s))
        )
        before_s = recorded.stored_at_s
        kind = event_kind(recorded.event)
        what = describe(recorded.event) + (" [void: it lost a race]" if recorded.void else "")
        table.add_row(
            str(recorded.sequence),
            amounts.clock(recorded.stored_at_s),
            passed,
            safe(kind, style=KIND_STYLES.get(kind, "")),
            safe(what),
        )
    return table


def event_line(
    event: WorkloadEvent, stored_at_s: float, *, tenant: bool = False, width: int | None = None
) -> Text:
    """One event as one line; where that is wider than ``width``, what it says goes below."""
    kind = event_kind(event)
    name = f"{event.tenant}/{event.id}" if tenant else event.id
    head = f"{amounts.clock(stored_at_s)}  {name:<{NAME_COLUMNS}} "
    what = visible(describe(event)).replace("\n", " ")
    line = safe(head)
    line.append(f"{kind:<10}", style=KIND_STYLES.get(kind, ""))
    if width is None or len(line) + 1 + len(what) <= width:
        line.append(f" {what}")
    else:
        room = max(20, width - len(BELOW))
        line.rstrip()
        line.append("".join(f"\n{BELOW}{part}" for part in textwrap.wrap(what, room)))
    line.rstrip()
    return line


def progress_text(progress: Progress, since_s: float = 0.0) -> str:
    """How far a job is; ``since_s``: for how long that is known."""
    text = f"step {progress.step}"
    if progress.loss is not None:
        text += f", loss {progress.loss:.4g}"
    if progress.eta_s is not None:
        text += f", ends in {amounts.duration(max(0.0, progress.eta_s - since_s))}"
    return text


def describe(event: WorkloadEvent) -> str:
    """What an event says, without its kind and its workload."""
    match event:
        case Submitted():
            return f"{request_line(event.request)}; queue {event.request.queue}"
        case Released():
            return "the jobs before it are done"
        case Reprioritized():
            return f"priority {event.priority}"
        case CancelRequested():
            return f"{event.cluster} is asked to stop it{_because(event.reason)}"
        case EvictionRequested():
            to = f"; room is kept in {event.to}" if event.to else ""
            return f"{event.cluster} is to end it: {event.reason} (decision {event.decision}){to}"
        case Held():
            return f"by {event.who}{_because(event.reason)}"
        case HoldReleased():
            return f"by {event.who}{_because(event.reason)}"
        case MoveRequested():
            where = f" to {event.to}" if event.to else ""
            return f"{event.how}{where} by {event.who}{_because(event.reason)}"
        case Checkpointed():
            return f"{event.cluster}: step {event.checkpoint.step}, {event.checkpoint.uri}"
        case Progressed():
            return f"{event.cluster}: {progress_text(event.progress)}"
        case ResizeRequested():
            to = f"{len(event.pods)} pods: {event.reason}"
            return f"{event.cluster} is to have {to} (decision {event.decision})"
        case Resized():
            return f"{event.cluster}: {places(event.pods)}{_because(event.reason)}"
        case Placed():
            return f"{event.cluster}: {places(event.pods)} (decision {event.decision})"
        case Divided():
            shares = ", ".join(f"{part.cluster} {part.pods}" for part in event.parts)
            return f"pods on {shares} (decision {event.decision})"
        case Committed():
            where = event.cluster or "all parts"
            return f"{where}: all parts are claimed, and start (decision {event.decision})"
        case Withdrawn():
            return f"{event.cluster}{_because(event.reason)}"
        case Claimed():
            return f"{event.cluster}: by {event.executor}"
        case Admitted():
            return event.cluster
        case Running():
            return f"{event.cluster}: {places(event.pods)}"
        case Carried():
            at = f" in {event.cluster}" if event.cluster else ""
            return f"{event.workload.state}{at}, taken over by `berth recover`"
        case Evicted():
            return f"{event.cluster}{_because(event.reason)}"
        case Failed():
            code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
            return f"{event.cluster or 'before it was placed'}{code}{_because(event.reason)}"
        case Succeeded():
            return f"{event.cluster}{_because(event.reason)}"
        case Cancelled():
            return f"{event.cluster or 'before it was placed'}{_because(event.reason)}"
        case _:
            assert_never(event)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def places(pods: Sequence[PodBinding]) -> str:
    """Nodes and GPUs: node-1[0-7] node-2[0-7] and 6 more; of parts, how hard their limit is."""
    shown = [
        f"{pod.node}[{amounts.indices(pod.gpus)}]" if pod.gpus else pod.node
        for pod in pods[:SHOWN_PODS]
    ]
    more = len(pods) - len(shown)
    held = sorted({pod.isolation for pod in pods} - {""})
    return (
        " ".join(shown)
        + (f" and {more} more" if more > 0 else "")
        + (f" (isolation {', '.join(held)})" if held else "")
    )


def raw_events(workload: str, lines: "Sequence[Line]") -> Text:
    """One line a message of the log."""
    if not lines:
        return safe(f"The log has nothing of {workload}")
    return safe(
        "\n".join(
            f"{line.sequence:>10}  {line.verdict:<10}  {line.kind or line.subject}"
            + (f" after {line.after} by {line.by}" if line.after is not None else "")
            + (f": {line.why}" if line.why else "")
            for line in lines
        )
    )
