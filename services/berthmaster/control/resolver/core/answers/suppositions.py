"""The supposed change of a what-if, as messages.

A new cluster sends its profile, nodes, queues and a heartbeat. A cordon or queue is an operator's
setting, a job a submission. An impossible change is refused with the accepted values.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.lifecycle.choices import as_written
from berthmaster.lib.lifecycle.workload import Workload, key, request_digest
from berthmaster.lib.messages.api import (
    AddedCluster,
    CordonRequest,
    Refusal,
    SupposedQueue,
    WhatifRequest,
)
from berthmaster.lib.messages.control import ControlFact, Cordon, QueueSetting
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    FleetFact,
    GpuDevice,
    NodeReport,
    QueueReport,
    Stamp,
)
from berthmaster.lib.messages.workload import JobRequest, Submitted
from berthmaster.lib.requests.queues import placing_fault
from berthmaster.lib.requests.runtimes import filled_in
from berthmaster.lib.requests.validation import ranking_fault, request_fault

# For a machine with eight GPUs of a model unknown to the fleet, the usual quantities.
GPUS: Final = 8
GPU_MEMORY_MIB: Final = 81_920
CPU_MILLI_A_GPU: Final = 12_000
MEMORY_MIB_A_GPU: Final = 98_304
KINDS: Final = (
    *("submit", "cordon", "uncordon", "add_cluster", "queue"),
    *("drain", "preempt", "preempt_for", "rebalance"),
)
_STAMP: Final = Stamp(epoch=1, counter=1)


class Change(NamedTuple):
    """One supposed change."""

    words: str
    facts: Sequence[FleetFact] = ()
    control: ControlFact | None = None
    submitted: Submitted | None = None
    takes_away: bool = False  # reduces capacity, so that some job may lose its placement
    # Concerns single nodes: another node of the same cluster counts as elsewhere
    node: bool = False
    # Live placements that the change may concern
    concerns: Callable[[Workload], bool] = lambda _: False


def change_of(
    know: Knowledge, now_s: float, tenant: str | None, request: WhatifRequest
) -> Change | Refusal:
    """Return the supposed change, or why it is impossible."""
    given = [name for name in KINDS if getattr(request, name) is not None]
    if len(given) != 1:
        return refused("", ", ".join(given), f"exactly one of {', '.join(KINDS)}")
    if request.submit is not None:
        return _submit(know, now_s, tenant or "default", request.submit)
    if request.cordon is not None:
        return _cordon(know, "cordon", request.cordon)
    if request.uncordon is not None:
        return _cordon(know, "uncordon", request.uncordon)
    if request.add_cluster is not None:
        return _add(know, now_s, request.add_cluster)
    assert request.queue is not None
    return _queue(know, request.queue)


def _submit(know: Knowledge, now_s: float, tenant: str, request: JobRequest) -> Change | Refusal:
    event = submission(know, now_s, tenant, request, "submit")
    return event if isinstance(event, Refusal) else Change(f"submit {request.id}", submitted=event)


def submission(
    know: Knowledge, now_s: float, tenant: str, request: JobRequest, field: str
) -> Submitted | Refusal:
    """Return a supposed submission. ``field``: its place in the request, for errors."""
    name = key(tenant, request.id)
    if name in know.open or name in know.frozen or name in know.elsewhere:
        return refused(f"{field}.id", request.id, "an id that is not in use")
    request = as_written(request)
    if (wrong := request_fault(request)) is not None:
        return _inside(field, wrong)
    filled = filled_in(request, tenant, know.runtimes)
    if isinstance(filled, Refusal):
        return _inside(field, filled)
    return Submitted(
        tenant=tenant,
        id=request.id,
        after=0,
        at_s=now_s,
        by="whatif",
        request=filled,
        digest=request_digest(request),
        cell=know.cell,
    )


def _cordon(know: Knowledge, verb: str, request: CordonRequest) -> Change | Refusal:
    cluster, node = request.cluster, request.node
    if request.gpu is not None:
        right = "no GPU: supposed cordons are of whole nodes and clusters"
        return refused(f"{verb}.gpu", str(request.gpu), right)
    if cluster not in _names(know):
        return refused(f"{verb}.cluster", cluster, f"one of {_some(_names(know))}")
    if node is not None and know.fleet.node(cluster, node) is None:
        return refused(f"{verb}.node", node, f"a node of {cluster} that has reported")

    def concerns(workload: Workload) -> bool:
        if verb == "uncordon":
            return workload.cluster != cluster or node is not None
        inside = node is None or any(binding.node == node for binding in workload.pods)
        return workload.cluster == cluster and inside

    return Change(
        f"{verb} {f'node {node} of ' if node else ''}{cluster}",
        control=Cordon(
            cluster=cluster, node=node, cordoned=verb == "cordon", reason=request.reason
        ),
        takes_away=verb == "cordon",
        node=node is not None,
        concerns=concerns,
    )


def _queue(know: Knowledge, supposed: SupposedQueue) -> Change | Refusal:
    fields = QueueSetting.__struct_fields__
    setting = QueueSetting(**{name: getattr(supposed, name) for name in fields})
    wrong = ranking_fault(setting) or placing_fault(know.queues, setting)
    if wrong is not None:
        return _inside("queue", wrong)
    known = know.queues.get(setting.queue)
    return Change(
        f"{'change' if known is not None else 'make'} queue {setting.queue}", control=setting
    )


# A new cluster


def _add(know: Knowledge, now_s: float, asked: AddedCluster) -> Change | Refusal:
    names = _names(know)
    if asked.name in names:
        return refused("add_cluster.name", asked.name, "a name that no cluster has yet")
    if bool(asked.like) == bool(asked.model):
        value = f"{asked.like} {asked.model}".strip()
        return refused("add_cluster", value, "either like (a cluster) or model (of GPU)")
    if asked.like and asked.like not in names:
        return refused("add_cluster.like", asked.like, f"one of {_some(names)}")
    queues: list[QueueReport] = []
    if asked.like:
        nodes = [
            _empty(r, asked.name, r.node) for r in know.fleet.reports() if r.cluster == asked.like
        ]
        like = know.clusters.peek(asked.like)
        profile = like.profile or ClusterProfile(cluster="", stamp=_STAMP, observed_at_s=now_s)
        queues = [_unused(report, asked.name) for report in like.queues.values()]
        words = f"add {asked.name}, a copy of {asked.like}"
    else:
        template, source = _template(know, asked)
        nodes = [_empty(template, asked.name, f"n{n:05}") for n in range(1, asked.nodes + 1)]
        profile = ClusterProfile(cluster="", stamp=_STAMP, observed_at_s=now_s)
        words = f"add {asked.name}, {source}"
    gpus = Counter(gpu.model for node in nodes for gpu in node.gpus)
    words += f" ({len(nodes)} nodes, {gpus.total()} GPUs)"
    facts: list[FleetFact] = [
        replace(profile, cluster=asked.name, stamp=_STAMP, nodes=len(nodes), gpus=dict(gpus)),
        *nodes,
        *queues,
        ClusterScore(
            cluster=asked.name,
            stamp=_STAMP,
            freshness="fresh",
            input_age_s=0.0,
            idle_gpu_percent=100.0,
        ),
        ClusterAlive(cluster=asked.name, stamp=_STAMP, observed_at_s=now_s, interval_s=1.0),
    ]
    return Change(words, facts=facts, concerns=lambda _: True)


def _template(know: Knowledge, asked: AddedCluster) -> tuple[NodeReport, str]:
    """Return a node with the model, and the source of its quantities."""
    having = [r for r in know.fleet.reports() if any(g.model == asked.model for g in r.gpus)]
    largest = max(having, key=lambda r: len(r.gpus), default=None)  # first by name
    gpus = asked.gpus_a_node or (len(largest.gpus) if largest is not None else GPUS)
    if largest is None:
        allocatable = Amounts(cpu_milli=CPU_MILLI_A_GPU * gpus, memory_mib=MEMORY_MIB_A_GPU * gpus)
        source = "usual machines"
    else:
        allocatable = largest.allocatable
        source = f"machines like {largest.node} of {largest.cluster}"
    known_mib = next(
        (g.memory_mib for g in (largest.gpus if largest else ()) if g.model == asked.model),
        GPU_MEMORY_MIB,
    )
    devices = tuple(
        GpuDevice(
            index=index,
            uuid=f"GPU-supposed-{index}",
            model=asked.model,
            memory_mib=asked.gpu_memory_mib or known_mib,
        )
        for index in range(gpus)
    )
    report = NodeReport(
        cluster="",
        node="",
        stamp=_STAMP,
        observed_at_s=0.0,
        allocatable=replace(allocatable, gpu_milli=1000 * gpus),
        gpus=devices,
    )
    return report, source


def _empty(report: NodeReport, cluster: str, node: str) -> NodeReport:
    """Return a copy of the node in another cluster, ready and empty."""
    return replace(
        report,
        cluster=cluster,
        node=node,
        stamp=_STAMP,
        ready=True,
        schedulable=True,
        foreign=Amounts(),
        gpus=tuple(replace(gpu, healthy=True, foreign_milli=0) for gpu in report.gpus),
        pods=(),
    )


def _unused(report: QueueReport, cluster: str) -> QueueReport:
    flavors = tuple(
        replace(f, resources={n: replace(a, used=0) for n, a in f.resources.items()})
        for f in report.flavors
    )
    return replace(report, cluster=cluster, stamp=_STAMP, flavors=flavors, pending=0, admitted=0)


# Words


def _names(know: Knowledge) -> list[str]:
    """Return clusters with a profile or nodes."""
    know.fleet.arrange()
    told = {c.name for c in know.clusters.known() if c.profile is not None}
    return sorted(told.union(know.fleet.clusters))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown or "no cluster yet"


def _inside(where: str, wrong: Refusal) -> Refusal:
    return replace(wrong, field=f"{where}.{wrong.field}" if wrong.field else where)


def refused(field: str, value: str, expected: str) -> Refusal:
    """Of a question's field."""
    return Refusal(code="invalid", field=field, value=value, expected=expected)
