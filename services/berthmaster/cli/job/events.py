"""Requests and events of jobs as text: one line for each, and the event history as a table."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from rich.console import RenderableType
from rich.text import Text

from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lib.lifecycle.pods import is_set_elastic, least, most
from berthmaster.lib.lifecycle.trials import summary
from berthmaster.lib.messages.api import RecordedEvent
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
    IdleChanged,
    JobRequest,
    LimitExceeded,
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
from berthmaster.lib.runtime.visible_text import visible

if TYPE_CHECKING:
    from berthmaster.cli.audit.story import Line

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
NAME_COLUMNS = 24  # columns of a name in an event line; longer names shift the remaining text
BELOW = " " * 14  # under the name, right of the time


def history(events: Sequence[RecordedEvent]) -> RenderableType:
    """Return all events in order, with the time between them."""
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
    """Return one event as one line. A line wider than ``width`` continues below."""
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
    """Return a job's progress as text. ``since_s``: age of that report."""
    text = f"step {progress.step}"
    if progress.loss is not None:
        text += f", loss {progress.loss:.4g}"
    if progress.eta_s is not None:
        text += f", ends in {amounts.duration(max(0.0, progress.eta_s - since_s))}"
    return text


def describe(event: WorkloadEvent) -> str:
    """Return the details of an event, without kind and workload."""
    match event:
        case Submitted():
            return f"{request_line(event.request)}; queue {event.request.queue}"
        case Released():
            return summary(event.trials) or "the jobs before it are done"
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
        case LimitExceeded():
            unit = "MiB" if event.limit == "memory" else "GPU milli"
            return f"{event.cluster}: uses {event.used} {unit} of {event.granted} granted"
        case IdleChanged():
            if not event.idle:
                return f"{event.cluster}: idle no more{_because(event.reason)}"
            most = f"at most {event.utilization_percent:.0f} %"
            return f"{event.cluster}: idle since {amounts.clock(event.since_s)}, {most}"
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
    """Return nodes and GPUs: node-1[0-7] node-2[0-7] and 6 more.

    For fractions of GPUs, the text also has the strength of their limit.
    """
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
    """Return one line per message of the log."""
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
        number = str(pods.gpus)
        share = f" at {pods.gpu_milli / 10:g}%" if pods.gpu_milli < 1000 else ""
        memory = f"{amounts.number(pods.gpu_memory_mib / 1024)} GiB"
        if pods.mig_profile:
            share = f" as MIG {pods.mig_profile}"
        elif pods.gpu_memory_mib and pods.gpu_milli == 1:  # the fraction is given by its memory
            number, share = f"{memory} of 1", ""
        elif pods.gpu_memory_mib:
            share += f" with {memory}"
        if pods.prefer_gpu_models:
            share += f", rather {' then '.join(pods.prefer_gpu_models)}"
        parts.append(f"{number} {models + ' ' if models else ''}GPU{'s'[: pods.gpus > 1]}{share}")
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
    """Return the topology constraints of the pods as text."""
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
