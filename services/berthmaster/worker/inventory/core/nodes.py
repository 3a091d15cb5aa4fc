"""A node's report: the part from the node object, and the whole. Pure.

**Labels.** A report has the labels that jobs may match: all but noise of feature discovery and
deployments (feature.node.kubernetes.io, nvidia.com/gpu.deploy., nvidia.com/cuda.,
beta.kubernetes.io and other old spellings), at most 64 labels and 8 KiB. Above the limit labels of
Kubernetes, GPUs and clouds stay first, then others by name. Labels of Kueue's flavors are always
included.

**Impossible values** make capacity unusable, with a reason. An impossible GPU resource removes
those GPUs. Impossible CPU or memory, or an unreadable object, closes the node. The reason is the
value of a taint, PreferNoSchedule in the first case, which excludes no pods.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple, cast

from msgspec import structs

from berthmaster.lib.kube.bounds import MAX_LABELS, MAX_TAINTS, bounded_labels
from berthmaster.lib.kube.objects import holds
from berthmaster.lib.messages.fleet import Amounts, GpuDevice, NodeReport, Share, Stamp, Taint
from berthmaster.worker.inventory.core.devices.amounts import (
    CPU,
    MAX_CPU_MILLI,
    MAX_MEMORY_MIB,
    MAX_TPUS,
    MEMORY,
    Nonsense,
    offered,
)
from berthmaster.worker.inventory.core.devices.charging import Charged
from berthmaster.worker.inventory.core.devices.dra import DeviceName, DevicePlace, Offered
from berthmaster.worker.inventory.core.devices.layout import (
    WHOLE,
    Gpu,
    Layout,
    Way,
    indices_of,
    layout_of,
    maker_of_gpu,
)
from berthmaster.worker.inventory.core.devices.links import linked
from berthmaster.worker.inventory.core.objects import Node, NodeTaint

UNUSABLE: Final = "berthmaster.io/unusable"  # taint with the reason
MAX_REASON_CHARS: Final = 250
MAX_PROBLEMS: Final = 8  # maximum problems in a report
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeShape(NamedTuple):
    ready: bool = False
    schedulable: bool = False
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: tuple[Gpu, ...] = ()
    ways: tuple[Way, ...] = ()
    shares: tuple[Share, ...] = ()
    places: Mapping[DeviceName, DevicePlace] = {}  # positions of claimable devices
    tpu_devices: tuple[DeviceName, ...] = ()
    tpus: int = 0
    pieces: tuple[tuple[str, int], ...] = ()
    problems: tuple[str, ...] = ()


def shape_of(
    node: Node,
    devices: Offered,
    *,
    kai: bool = False,
    kept_labels: Collection[str] = (),
) -> NodeShape:
    """Return the node's own part, from resources, labels and drivers' slices. ``kept_labels``:
    labels to keep although noise.
    """
    problems: list[str] = []
    closed = ""
    amounts = [0, 0]
    for at, name in enumerate((CPU, MEMORY)):
        try:
            amounts[at] = offered(node.status.allocatable, name)
        except Nonsense as nonsense:
            closed = closed or str(nonsense)
    layout, devices = _one(layout_of(node, kai=kai), devices)
    gpus, doubts = linked(layout.gpus, node.metadata.annotations)
    layout = layout._replace(gpus=gpus)
    problems += [*([closed] if closed else []), *layout.problems, *devices.problems]
    labels, left_out = bounded_labels(node.metadata.labels, kept_labels)
    taints, unknown = _taints(node.spec.taints)
    if problems:
        effect: Effect = "NoSchedule" if closed else "PreferNoSchedule"
        taints = (*taints, _unusable(problems[0], effect))
    if left_out:
        problems.append(f"{left_out} labels left out: more than {MAX_LABELS} or too long")
    problems += [*unknown, *doubts, *layout.doubts]
    gone = node.metadata.deletion_timestamp is not None
    return NodeShape(
        ready=holds(node.status.conditions, "Ready"),
        schedulable=not (node.spec.unschedulable or gone or closed),
        labels=labels,
        taints=taints,
        cpu_milli=amounts[0],
        memory_mib=amounts[1],
        gpus=layout.gpus,
        ways=layout.ways,
        shares=layout.shares,
        places=devices.places,
        tpu_devices=devices.tpus,
        tpus=layout.tpus or len(devices.tpus),
        pieces=layout.pieces,
        problems=tuple(problems),
    )


def _one(layout: Layout, devices: Offered) -> tuple[Layout, Offered]:
    """A device plugin's count and a driver's slices tell of the same GPUs of a maker, never of
    more."""
    if not devices.gpus:
        return layout, devices
    gpus, problems = list(layout.gpus), list(devices.problems)
    moved: dict[int, int] = {}  # position among the devices -> among all GPUs
    by_claim: set[int] = set()  # positions of devices without a plugin
    for maker in dict.fromkeys(map(maker_of_gpu, devices.gpus)):
        listed = [at for at, gpu in enumerate(devices.gpus) if maker_of_gpu(gpu) == maker]
        counted = [at for at, gpu in enumerate(layout.gpus) if maker_of_gpu(gpu) == maker]
        if not counted:
            moved |= zip(listed, range(len(gpus), len(gpus) + len(listed)), strict=True)
            gpus += [devices.gpus[at] for at in listed]
            by_claim |= set(listed)
        elif len(listed) == len(counted):
            moved |= zip(listed, counted, strict=True)
            for here, there in zip(counted, listed, strict=True):
                gpus[here] = _both(gpus[here], devices.gpus[there])
        else:
            told = f"{len(listed)} GPUs in slices, {len(counted)} by resources"
            problems.append(f"{told}: the latter count")
    claimed = {maker_of_gpu(devices.gpus[at]) for at in by_claim}
    # A missing plugin is expected here.
    no_plugin = {text for maker, text in layout.unplugged if maker in claimed}
    if by_claim:
        problems += [
            f"no DeviceClass means the devices of {driver}: nobody can claim them"
            for driver in devices.unclaimable
        ]
    all_before = tuple(range(len(layout.gpus)))
    shares = [
        share if share.gpus or not by_claim else structs.replace(share, gpus=all_before)
        for share in layout.shares
    ]
    for share in devices.shares:
        of = share.gpus or tuple(range(len(devices.gpus)))
        if by_claim.issuperset(of):
            at = tuple(sorted(moved[one] for one in of))
            everywhere = len(at) == len(gpus)
            shares.append(structs.replace(share, gpus=() if everywhere else at))
    places = {
        name: place._replace(position=moved[place.position])
        for name, place in devices.places.items()
        if place.position in moved
    }
    layout = layout._replace(
        gpus=tuple(gpus),
        shares=tuple(shares),
        problems=tuple(p for p in layout.problems if layout.gpus and p not in no_plugin),
    )
    return layout, devices._replace(places=places, problems=tuple(problems))


def _both(counted: Gpu, listed: Gpu) -> Gpu:
    """Merge a GPU counted by a plugin with the same GPU listed by a driver."""
    return counted._replace(
        uuid=listed.uuid,
        memory_mib=counted.memory_mib or listed.memory_mib,
        nvlink_domain=_first(counted.nvlink_domain, listed.nvlink_domain),
        numa_node=_first(counted.numa_node, listed.numa_node),
    )


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def unreadable(why: str) -> NodeShape:
    return NodeShape(taints=(_unusable(why, "NoSchedule"),), problems=(why,))


def _unusable(why: str, effect: Effect) -> Taint:
    return Taint(key=UNUSABLE, value=why[:MAX_REASON_CHARS], effect=effect)


def _taints(taints: Iterable[NodeTaint]) -> tuple[tuple[Taint, ...], list[str]]:
    known: list[Taint] = []
    problems: list[str] = []
    for taint in taints:
        if taint.effect not in _EFFECTS:
            problems.append(f"taint {taint.key[:80]}: unknown effect {taint.effect[:32]!r}")
        elif len(known) == MAX_TAINTS:
            problems.append(f"more than {MAX_TAINTS} taints")
            break
        else:
            effect = cast("Effect", taint.effect)
            known.append(Taint(key=taint.key, value=taint.value, effect=effect))
    return tuple(known), problems


def report(
    cluster: str,
    name: str,
    shape: NodeShape,
    charged: Charged,
    stamp: Stamp,
    now_s: float,
    *,
    doubt: str = "",
) -> NodeReport:
    """Return the report. ``doubt``: unreadable parts of its pods, which exclude no pods."""
    taints = shape.taints
    if doubt and not any(taint.key == UNUSABLE for taint in taints):
        taints = (*taints, _unusable(doubt, "PreferNoSchedule"))
    indices = indices_of(shape.gpus)
    gpus = tuple(
        GpuDevice(
            index=indices[at],
            uuid=gpu.uuid,  # a device plugin only counts; readers then go by the index
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            healthy=gpu.healthy,
            foreign_milli=charged.foreign_milli[at],
            withheld_milli=gpu.reserved_milli,
            nvlink_domain=gpu.nvlink_domain,
            numa_node=gpu.numa_node,
            resource=gpu.resource,
            claim=gpu.claim,
            parts_only=gpu.reserved_milli > 0,
        )
        for at, gpu in enumerate(shape.gpus)
    )
    return NodeReport(
        cluster=cluster,
        node=name,
        stamp=stamp,
        observed_at_s=now_s,
        ready=shape.ready,
        schedulable=shape.schedulable,
        labels=dict(shape.labels),
        taints=taints,
        allocatable=Amounts(
            cpu_milli=shape.cpu_milli,
            memory_mib=shape.memory_mib,
            gpu_milli=WHOLE * len(gpus),
            tpus=shape.tpus,
            pieces=dict(shape.pieces),
        ),
        foreign=Amounts(
            cpu_milli=min(charged.foreign_cpu_milli, MAX_CPU_MILLI),
            memory_mib=min(charged.foreign_memory_mib, MAX_MEMORY_MIB),
            gpu_milli=sum(charged.foreign_milli),
            tpus=min(charged.foreign_tpus, max(shape.tpus, MAX_TPUS)),
            pieces={
                name: charged.foreign_pieces[name]
                for name, _ in shape.pieces
                if name in charged.foreign_pieces
            },
        ),
        gpus=gpus,
        pods=charged.pods,
        fractions=bool(shape.shares),
        shares=tuple(
            structs.replace(share, gpus=tuple(indices[at] for at in share.gpus))
            for share in shape.shares
        ),
        problems=tuple(text[:MAX_REASON_CHARS] for text in shape.problems[:MAX_PROBLEMS]),
    )
