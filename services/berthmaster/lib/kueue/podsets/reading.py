"""The requests of a pod template as a pod set, and the workload id of a hub's object. Pure.

Rules:

- Only constraints on clusters are read: requests, node labels, GPU models, tolerations. Expressions
  other than "this label has this value" are left to the scheduler.
- Unreadable values count as no request, and are reported.

**Resources.** Rules:

- Every resource of every container is read, by its request or else its limit, and added as
  Kubernetes does: containers and sidecars run together, init containers in sequence.
- No accelerator is dropped silently. The engine ranks clusters by the accelerators that it knows.
  Others must exist in the cluster by name (lib/engine/fleetview/components.py). Problems report
  uncounted accelerators.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from berthmaster.lib.accelerators.table import (
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_MEMORY_PERCENT,
    KAI_DEVICES,
    KAI_FRACTION,
    KAI_MEMORY,
    MIG,
    NVIDIA,
    PRODUCT,
    TPU,
    How,
    how_of,
    is_resource_name,
)
from berthmaster.lib.accelerators.tpu import TOPOLOGY_LABEL, chips_of
from berthmaster.lib.engine.fleet.gpus import EXACTLY, resources_of
from berthmaster.lib.engine.fleet.shares import profile_milli
from berthmaster.lib.kube.objects import LabelRequirement
from berthmaster.lib.kube.quantity import QuantityError, milli, whole
from berthmaster.lib.kueue.podsets.templates import (
    PodSpec,
    PodTemplate,
    PodToleration,
    Quantity,
    Resources,
    TemplateSet,
)
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import (
    MAX_GPUS_A_POD,
    MAX_PIECES_A_POD,
    MAX_PODS,
    MAX_RESOURCES,
    MAX_TOLERATIONS,
    MAX_TPUS_A_POD,
    PodSet,
    Toleration,
)

WHOLE: Final = 1000
MAX_PART_MIB: Final = 1 << 24  # of a GPU fraction
NAME_CHARS: Final = 120  # of a resource, in messages
SIDECAR: Final = "Always"  # restartPolicy of a sidecar among the init containers


class Devices(NamedTuple):
    """The devices of each pod."""

    number: int = 0  # GPUs that the engine ranks by
    resource: str = ""  # of whole GPUs
    profile: str = ""  # MIG profile
    milli: int = WHOLE
    memory_mib: int = 0  # of a GPU fraction
    tpus: int = 0
    pieces: Mapping[str, int] = {}  # units of unknown extended resources, on one node
    required: Mapping[str, int] = {}  # required by name, free ones uncounted


_NOTHING: Final = Devices()


def amounts_of(spec: PodSpec, where: str, problems: list[str]) -> dict[str, int]:
    """Return the amounts by resource: CPU in milli, others in whole units."""
    together = _running(spec, where, problems)
    if spec.resources is not None:
        together.update(_asked(spec.resources, where, problems))  # overrides the containers'
    if spec.overhead:
        for name, amount in _read(spec.overhead, where, problems):
            together[name] = together.get(name, 0) + amount
    return together


def _running(spec: PodSpec, where: str, problems: list[str]) -> dict[str, int]:
    together: dict[str, int] = {}
    for one in spec.containers or ():
        for name, amount in _asked(one.resources, where, problems):
            together[name] = together.get(name, 0) + amount
    if not spec.init_containers:
        return together
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for one in spec.init_containers:
        for name, amount in _asked(one.resources, where, problems):
            beside = sidecars.get(name, 0) + amount
            most[name] = max(most.get(name, 0), beside)
            if one.restart_policy == SIDECAR:
                sidecars[name] = beside
    for name, amount in most.items():
        together[name] = max(together.get(name, 0) + sidecars.get(name, 0), amount)
    return together


def _asked(
    resources: Resources | None, where: str, problems: list[str]
) -> Iterable[tuple[str, int]]:
    if resources is None:
        return ()
    requests, limits = resources.requests or {}, resources.limits
    if not limits or limits == requests:
        return _read(requests, where, problems)
    told = {name: one for name, one in requests.items() if one is not None}
    return _read({**limits, **told}, where, problems)


def _read(
    named: Mapping[str, Quantity], where: str, problems: list[str]
) -> Iterable[tuple[str, int]]:
    for name, asked in named.items():
        if asked is None:
            continue
        text = repr(asked) if isinstance(asked, float) else asked
        try:
            yield name, milli(text) if name == "cpu" else whole(text)
        except QuantityError as error:
            problems.append(f"{where}: {name[:NAME_CHARS]}: {error}")


def devices_of(
    template: PodTemplate | None, amounts: Mapping[str, int], where: str, problems: list[str]
) -> Devices:
    """Return the accelerators and unknown extended resources among the amounts."""
    asked = {name: n for name, n in amounts.items() if n and how_of(name) is not None}
    found = _in_pieces(_ranked(asked), asked) if asked else _NOTHING
    rest = {name: n for name, n in asked.items() if name != _name_of(found)}
    annotations = (
        template.metadata.annotations if template is not None and template.metadata else None
    ) or {}
    if KAI_FRACTION in annotations or KAI_MEMORY in annotations:
        rest[KAI_FRACTION] = 1
        found = _shared_by_kai(found, annotations, where, problems)
    part = found.number and found.milli < WHOLE and not found.profile
    for name, count in sorted(rest.items()):
        how = how_of(name)
        if name == TPU and found.tpus:
            continue  # ranked by units
        if name in found.pieces:
            told = "not known by name here, so nodes must have it and queues grant it as it is"
        elif how is How.OTHER:
            told = "more than is counted, so only queues that grant it count"
        elif part and (how in (How.LIMIT, How.MILLI) or name == KAI_FRACTION):
            continue  # ranked by the GPU fraction
        else:
            told = "required of a cluster, and what is free of it is not known"
        problems.append(f"{where}: {count} {name[:NAME_CHARS]} a pod: {told}")
    spec = template.spec if template is not None else None
    for claim in (spec.resource_claims if spec is not None else None) or ():
        of = claim.resource_claim_template_name or claim.resource_claim_name or claim.name
        problems.append(
            f"{where}: resource claim {of[:NAME_CHARS]}: a Workload does not tell its devices, so "
            "only the quota that the hub's Kueue counts for it is required of a cluster"
        )
    return found._replace(required=rest)


def _ranked(asked: Mapping[str, int]) -> Devices:
    """Return the GPUs that the engine ranks, by their exact resource name.

    A request for one maker's GPUs cannot use another maker's.
    """
    wholes = sorted(
        (name for name in asked if how_of(name) is How.WHOLE), key=lambda n: (n != NVIDIA, n)
    )
    if wholes:
        first = wholes[0]
        limits = [name for name in asked if how_of(name) is How.LIMIT]
        if limits and first == NVIDIA and asked[NVIDIA] == 1:
            percent = max(asked.get(HAMI_CORES, 0), asked.get(HAMI_MEMORY_PERCENT, 0))
            memory_mib = min(asked.get(HAMI_MEMORY, 0), MAX_PART_MIB)
            return Devices(1, "", "", max(1, min(percent * 10, WHOLE - 1)), memory_mib)
        return Devices(asked[first], first)
    parts = [n for name, n in asked.items() if how_of(name) is How.MILLI]
    if len(parts) == 1 and parts[0] < WHOLE:
        return Devices(1, "", "", parts[0])
    slices = [name for name in asked if how_of(name) is How.MIG]
    if len(slices) == 1 and asked[slices[0]] == 1:
        profile = slices[0].removeprefix(MIG)
        part = profile_milli(profile)
        if part is not None:
            return Devices(1, "", profile, part)
    return Devices()


def _in_pieces(found: Devices, asked: Mapping[str, int]) -> Devices:
    """Add TPUs and unknown extended resources, in whole units of one node."""
    tpus = asked.get(TPU, 0) if not found.number else 0
    others = (
        (name, n)
        for name, n in sorted(asked.items())
        if how_of(name) is How.OTHER and n <= MAX_PIECES_A_POD and is_resource_name(name)
    )
    return found._replace(
        tpus=tpus if tpus <= MAX_TPUS_A_POD else 0, pieces=dict(islice(others, MAX_RESOURCES))
    )


def _name_of(found: Devices) -> str:
    """Return the resource name of the ranked GPUs."""
    if not found.number:
        return ""
    return f"{MIG}{found.profile}" if found.profile else found.resource or NVIDIA


def _shared_by_kai(
    found: Devices, annotations: Mapping[str, str], where: str, problems: list[str]
) -> Devices:
    """Read a fraction of one GPU. Several GPUs, or one beside others, are only required by name."""
    fraction, memory = annotations.get(KAI_FRACTION), annotations.get(KAI_MEMORY, "")
    try:
        share = float(fraction) if fraction is not None else 0.0
        memory_mib = int(memory) if fraction is None else 0
    except ValueError:
        share = memory_mib = -1
    if not 0 <= share <= 1 or not 0 <= memory_mib <= MAX_PART_MIB or not (share or memory_mib):
        said = fraction if fraction is not None else memory
        problems.append(f"{where}: annotation {KAI_FRACTION}: {said[:32]!r} is no part of a GPU")
        return found
    if found.number or annotations.get(KAI_DEVICES, "1") != "1":
        return found
    return Devices(1, "", "", max(1, min(int(share * WHOLE + 0.999), WHOLE - 1)), memory_mib)


def has(node: NodeReport, name: str, count: int) -> bool:
    """Return whether a node has this number of a resource, free or not."""
    if name == TPU:
        return node.allocatable.tpus >= count
    if node.allocatable.pieces.get(name, 0) >= count:
        return True
    if how_of(name) is How.WHOLE:
        return resources_of(node).count(name) >= count
    if how_of(name) is How.LIMIT:
        return any(share.kind == "hami" for share in node.shares)
    return any(share.resource == name and share.count >= count for share in node.shares)


MIB: Final = 1024 * 1024
MAX_CPU_MILLI: Final = 10_000_000
MAX_MEMORY_MIB: Final = 1 << 30
MAX_PRIORITY: Final = 1_000_000
MAX_ID_CHARS: Final = 52
MAX_LABELS: Final = 64
UID_CHARS: Final = 8
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9-]+")
_QUEUE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class SetRead(NamedTuple):
    """A pod set and the requests of its pods, computed once for all readers."""

    found: TemplateSet
    amounts: Mapping[str, int]
    devices: Devices
    problems: tuple[str, ...]


def workload_id(name: str, uid: str) -> str:
    """Return ``<name, cut>-<first of uid>``: stable for an object, new for its successor."""
    tail = _NOT_PLAIN.sub("", uid.lower())[:UID_CHARS] or "0"
    head = _NOT_PLAIN.sub("-", name.lower())[: MAX_ID_CHARS - 1 - len(tail)].strip("-")
    return f"{head or 'w'}-{tail}"


def tenant_of(namespace: str, tenants: Mapping[str, str]) -> str:
    """Return the tenant of a namespace: by the setting, else the namespace itself."""
    return tenants.get(namespace, namespace)


def read_set(one: TemplateSet) -> SetRead:
    """Read the requests of a pod set."""
    problems: list[str] = []
    where = _where(one)
    amounts = amounts_of(_spec(one), where, problems)
    devices = devices_of(one.template, amounts, where, problems)
    return SetRead(one, amounts, devices, tuple(problems))


def queue_fault(queue: str) -> str:
    """Return the fault of a queue's name, or ""."""
    return "" if _QUEUE.fullmatch(queue) else f"queue name {queue[:64]!r} is none"


def bounded_priority(priority: int | None) -> int:
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, priority or 0))


def _where(pods: TemplateSet) -> str:
    return f"pod set {pods.name[:63]}"


def _spec(pods: TemplateSet) -> PodSpec:
    return (pods.template.spec if pods.template is not None else None) or PodSpec()


def pod_set_of(read: SetRead, problems: list[str]) -> PodSet:
    """Return the pod set of a request, and add to the request's ``problems``."""
    pods, amounts, gpus, found = read
    spec, where = _spec(pods), _where(pods)
    name = _NOT_PLAIN.sub("-", pods.name.lower())[:63].strip("-") or "main"
    count = _within(pods.count, 1, MAX_PODS, where, "pods", problems)
    models, labels = _placement(spec)
    if len(labels) > MAX_LABELS:
        problems.append(f"{where}: {len(labels)} node labels, only {MAX_LABELS} are looked at")
        labels = dict(sorted(labels.items())[:MAX_LABELS])
    problems += found
    cpu, memory = amounts.get("cpu", 0), -(-amounts.get("memory", 0) // MIB)
    return PodSet(
        name=name,
        count=count,
        cpu_milli=_within(cpu, 0, MAX_CPU_MILLI, where, "milli of cpu", problems),
        memory_mib=_within(memory, 0, MAX_MEMORY_MIB, where, "MiB", problems),
        gpus=_within(gpus.number, 0, MAX_GPUS_A_POD, where, "GPUs a pod", problems),
        gpu_milli=gpus.milli,
        gpu_memory_mib=gpus.memory_mib,
        mig_profile=gpus.profile,
        gpu_resource=gpus.resource,
        tpus=gpus.tpus,
        tpu_topology=_slice_of(labels, gpus.tpus, count),
        resources=dict(gpus.pieces),
        gpu_models=models[:32],
        node_labels=labels,
        tolerations=tuple(_toleration(t) for t in (spec.tolerations or ())[:MAX_TOLERATIONS]),
    )


def _slice_of(labels: Mapping[str, str], tpus: int, pods: int) -> str:
    """Return the topology of the nodes, if each pod, or all pods together, make up one slice."""
    topology = labels.get(TOPOLOGY_LABEL, "")
    chips = chips_of(topology) if topology and tpus else None
    return topology if chips is not None and chips in (tpus, tpus * pods) else ""


def _within(value: int, least: int, most: int, where: str, of: str, problems: list[str]) -> int:
    if least <= value <= most:
        return value
    bounded = max(least, min(most, value))
    problems.append(f"{where}: {value} {of}, counted as {bounded}")
    return bounded


def _placement(spec: PodSpec) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return GPU models, of which a node must have one, and node labels, all of which must hold."""
    labels = dict(spec.node_selector or {})
    models: set[str] = set()
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = (
        affinity.required_during_scheduling_ignored_during_execution
        if affinity is not None
        else None
    )
    terms = (required.node_selector_terms if required is not None else None) or ()
    of_terms = [_named(term.match_expressions or ()) for term in terms]
    if len(of_terms) == 1:
        labels |= {key: values[0] for key, values in of_terms[0].items() if len(values) == 1}
    if of_terms and all(PRODUCT in named for named in of_terms):
        models = {model for named in of_terms for model in named[PRODUCT]}
    product = labels.pop(PRODUCT, None)
    if product is not None:
        models = {product}
    # The scheduler compares labels exactly, so other spellings do not match.
    return tuple(sorted(f"{EXACTLY}{model}" for model in models)), labels


def _named(expressions: tuple[LabelRequirement, ...]) -> dict[str, tuple[str, ...]]:
    """Return the labels that must have one of several values."""
    return {e.key: e.values for e in expressions if e.operator == "In" and e.values}


def _toleration(toleration: PodToleration) -> Toleration:
    effect = toleration.effect or ""
    return Toleration(
        key=toleration.key or "",
        operator="Exists" if toleration.operator == "Exists" else "Equal",
        value=toleration.value or "",
        effect=effect if effect in _EFFECTS else "",  # type: ignore[arg-type]
    )
