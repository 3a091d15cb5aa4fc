"""What a Kueue Workload asks for, in the bus's words: its id, its tenant and its request.

Rules of this file:

- A Workload is never left standing because something in it is odd: what cannot be read is counted
  as nothing asked for, and each such thing is named, so that people hear of it. Accelerators that
  are read and cannot be ranked are required of clusters all the same (devices.py).
- Only what limits clusters is read: requests, node labels, GPU models, tolerations. Expressions
  that are no plain "this label has this value" are left to Kueue and the scheduler.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from berthmaster.accelerators.labels import PRODUCT
from berthmaster.accelerators.table import NVIDIA, How, how_of
from berthmaster.accelerators.tpu import TOPOLOGY_LABEL, chips_of
from berthmaster.engine.fleet.models import EXACTLY
from berthmaster.kubernetes.quantity import QuantityError, milli, whole
from berthmaster.kueue.asks import asks_of
from berthmaster.kueue.quota import PODS, Ask
from berthmaster.kueue.workloads import (
    KueuePodSet,
    KueueWorkload,
    PodSpec,
    PodToleration,
    Quantity,
    Requirement,
)
from berthmaster.messages.workload import (
    MAX_GPUS_A_POD,
    MAX_POD_SETS,
    MAX_PODS,
    MAX_TOLERATIONS,
    HubObject,
    JobRequest,
    PodSet,
    Toleration,
)
from berthmaster.multikueue.known.devices import WHOLE, Devices, amounts_of, devices_of

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


Required = tuple[tuple[str, int], ...]  # resource, how many on one node


class SetRead(NamedTuple):
    """A pod set and what its pods ask for, worked out once: all that is read begins with it."""

    found: KueuePodSet
    amounts: Mapping[str, int]
    devices: Devices
    problems: tuple[str, ...]


class Read(NamedTuple):
    """A Workload as a request, and what in it was not understood."""

    request: JobRequest
    problems: tuple[str, ...]


def workload_id(name: str, uid: str) -> str:
    """``<name, cut>-<first of uid>``: the same for the same object, another for its successor."""
    tail = _NOT_PLAIN.sub("", uid.lower())[:UID_CHARS] or "0"
    head = _NOT_PLAIN.sub("-", name.lower())[: MAX_ID_CHARS - 1 - len(tail)].strip("-")
    return f"{head or 'w'}-{tail}"


def tenant_of(namespace: str, tenants: Mapping[str, str]) -> str:
    """Whose a namespace is: as the setting says, else the namespace's own."""
    return tenants.get(namespace, namespace)


def origin_of(workload: KueueWorkload, cluster_queue: str, hub: str) -> HubObject:
    """Which object a workload of the bus stands for."""
    kind, name = workload.owner
    return HubObject(
        namespace=workload.metadata.namespace,
        name=workload.metadata.name,
        uid=workload.metadata.uid,
        owner=f"{kind}/{name}" if name else "",
        local_queue=workload.spec.queue_name,
        cluster_queue=cluster_queue,
        hub=hub,
    )


def read_sets(workload: KueueWorkload) -> tuple[SetRead, ...]:
    """Its pod sets that have pods."""
    read = []
    for one in workload.spec.pod_sets or ():
        if one.count != 0:
            problems: list[str] = []
            where = _where(one)
            amounts = amounts_of(_spec(one), where, problems)
            devices = devices_of(one.template, amounts, where, problems)
            read.append(SetRead(one, amounts, devices, tuple(problems)))
            if len(read) == MAX_POD_SETS:
                break
    return tuple(read)


def read_request(workload: KueueWorkload, sets: Sequence[SetRead] | None = None) -> Read:
    """What it asks for. ``sets``: as they were read, if they were."""
    problems: list[str] = []
    found = workload.spec.pod_sets or ()
    if not found:
        problems.append("it has no pod sets")
    if len(found) > MAX_POD_SETS:
        problems.append(f"{len(found)} pod sets: only the first {MAX_POD_SETS} are looked at")
    sets = read_sets(workload) if sets is None else sets
    pod_sets = [_pod_set(one, problems) for one in sets]
    queue = workload.spec.queue_name
    if not _QUEUE.fullmatch(queue):
        problems.append(f"queue name {queue[:64]!r} is none")
        queue = "default"
    request = JobRequest(
        id=workload_id(workload.metadata.name, workload.metadata.uid),
        queue=queue,
        priority=max(-MAX_PRIORITY, min(MAX_PRIORITY, workload.spec.priority or 0)),
        pod_sets=tuple(pod_sets) or (PodSet(cpu_milli=0, memory_mib=0),),
        max_evictions=1000,  # how often it may be evicted is Kueue's to say
    )
    return Read(request, tuple(problems))


def by_resource(request: JobRequest) -> JobRequest:
    """With the resource named that its whole GPUs are: a Job of the hub asks for NVIDIA's where
    nothing else is said, and no other maker's will do."""
    sets = tuple(
        msgspec.structs.replace(pods, gpu_resource=NVIDIA)
        if pods.gpus and pods.gpu_milli == WHOLE and not pods.gpu_resource
        else pods
        for pods in request.pod_sets
    )
    return request if sets == request.pod_sets else msgspec.structs.replace(request, pod_sets=sets)


def without_shares(request: JobRequest, shares: Collection[str]) -> JobRequest:
    """Without the resources by which nodes hand out parts of GPUs under a name of their own: a node
    has them without having pieces of that name, and what is free of them is not known."""
    if not any(pods.resources.keys() & shares for pods in request.pod_sets):
        return request
    sets = tuple(
        msgspec.structs.replace(
            pods, resources={name: n for name, n in pods.resources.items() if name not in shares}
        )
        for pods in request.pod_sets
    )
    return msgspec.structs.replace(request, pod_sets=sets)


def read_asks(
    workload: KueueWorkload, request: JobRequest, sets: Sequence[SetRead] | None = None
) -> tuple[Ask, ...]:
    """What it will ask of a worker's quota: what the hub's Kueue counts, once it has reserved that,
    by its very names (other makers' GPUs, slices); before that what the request says."""
    admission = workload.status.admission if workload.status is not None else None
    assigned = (admission.pod_set_assignments if admission is not None else None) or ()
    usage = {one.name: one.resource_usage for one in assigned}
    sets = read_sets(workload) if sets is None else sets
    if len(sets) != len(request.pod_sets):
        return asks_of(request)
    rows = tuple(zip(sets, request.pod_sets, strict=True))
    try:
        if usage and all(usage.get(one.found.name) for one in sets):
            return tuple(Ask(pods, (_counted(usage[one.found.name] or {}),)) for one, pods in rows)
    except QuantityError:
        pass
    return tuple(Ask(pods, (_named_by(one.amounts, pods),)) for one, pods in rows)


def read_required(
    workload: KueueWorkload, asks: Sequence[Ask], sets: Sequence[SetRead] | None = None
) -> Required:
    """What a cluster must have by its name, whatever its room. What nodes do not tell of is left to
    quota; what the hub's Kueue was told not to count, no worker's quota can be asked for."""
    admitted = workload.status is not None and workload.status.admission is not None
    counted = {name for ask in asks for way in ask.ways for name in way}
    required: dict[str, int] = {}
    for one in read_sets(workload) if sets is None else sets:
        for name, count in one.devices.required.items():
            if how_of(name) is not How.OTHER or name in counted or not admitted:
                required[name] = max(required.get(name, 0), count)
    return tuple(sorted(required.items()))


def _named_by(amounts: Mapping[str, int], pods: PodSet) -> dict[str, int]:
    """What its quota is, by the resources' names that its pods ask by."""
    asked = {name: n for name, n in amounts.items() if how_of(name) is not None}
    asked |= {"cpu": pods.cpu_milli, "memory": pods.memory_mib}
    return {name: n * pods.count for name, n in asked.items() if n}


def _where(pods: KueuePodSet) -> str:
    return f"pod set {pods.name[:63]}"


def _spec(pods: KueuePodSet) -> PodSpec:
    return (pods.template.spec if pods.template is not None else None) or PodSpec()


def _counted(usage: Mapping[str, Quantity]) -> dict[str, int]:
    """In the units of a queue's report."""
    counted = {}
    for name, amount in usage.items():
        if amount is None or name == PODS:  # pods are counted where they are granted
            continue
        text = repr(amount) if isinstance(amount, float) else amount
        if name == "cpu":
            counted[name] = milli(text)
        else:
            counted[name] = -(-whole(text) // MIB) if name == "memory" else whole(text)
    return counted


def _pod_set(read: SetRead, problems: list[str]) -> PodSet:
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
    """The topology that its nodes are to have, if the pods make up one slice of it each, or one
    together."""
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
    """(GPU models, node labels) of which a node must have one, and all."""
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
    # The scheduler compares labels letter by letter: no other spelling will do.
    return tuple(sorted(f"{EXACTLY}{model}" for model in models)), labels


def _named(expressions: tuple[Requirement, ...]) -> dict[str, tuple[str, ...]]:
    """The labels that must have one of some values."""
    return {e.key: e.values for e in expressions if e.operator == "In" and e.values}


def _toleration(toleration: PodToleration) -> Toleration:
    effect = toleration.effect or ""
    return Toleration(
        key=toleration.key or "",
        operator="Exists" if toleration.operator == "Exists" else "Equal",
        value=toleration.value or "",
        effect=effect if effect in _EFFECTS else "",  # type: ignore[arg-type]
    )
