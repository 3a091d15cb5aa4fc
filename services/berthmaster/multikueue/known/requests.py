"""What a Kueue Workload asks for, in the bus's words: its id, its tenant and its request.

Rules of this file:

- A Workload is never left standing because something in it is odd: what cannot be read is counted
  as nothing asked for, and each such thing is named, so that people hear of it.
- Only what limits clusters is read: requests, node labels, GPU models, tolerations. Expressions
  that are no plain "this label has this value" are left to Kueue and the scheduler.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.accelerators.table import AMD, MIG, NVIDIA
from berthmaster.engine.fleet.models import EXACTLY, PRODUCT
from berthmaster.engine.fleet.shares import profile_milli
from berthmaster.kubernetes.quantity import QuantityError, milli, whole
from berthmaster.kueue.asks import asks_of
from berthmaster.kueue.quota import PODS, Ask
from berthmaster.kueue.workloads import (
    Container,
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

MIB: Final = 1024 * 1024
WHOLE: Final = 1000
MAX_CPU_MILLI: Final = 10_000_000
MAX_MEMORY_MIB: Final = 1 << 30
MAX_PRIORITY: Final = 1_000_000
MAX_ID_CHARS: Final = 52
MAX_LABELS: Final = 64
UID_CHARS: Final = 8
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9-]+")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


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


def read_request(workload: KueueWorkload) -> Read:
    """What it asks for."""
    problems: list[str] = []
    found = workload.spec.pod_sets or ()
    if not found:
        problems.append("it has no pod sets")
    if len(found) > MAX_POD_SETS:
        problems.append(f"{len(found)} pod sets: only the first {MAX_POD_SETS} are looked at")
    pod_sets = [_pod_set(one, problems) for one in found[:MAX_POD_SETS] if one.count != 0]
    queue = workload.spec.queue_name
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", queue):
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


def read_asks(workload: KueueWorkload, request: JobRequest) -> tuple[Ask, ...]:
    """What it will ask of a worker's quota: what the hub's Kueue counts, once it has reserved that,
    by its very names (other makers' GPUs, slices); before that what the request says."""
    admission = workload.status.admission if workload.status is not None else None
    assigned = (admission.pod_set_assignments if admission is not None else None) or ()
    usage = {one.name: one.resource_usage for one in assigned}
    found = [one for one in workload.spec.pod_sets or () if one.count != 0][:MAX_POD_SETS]
    known = asks_of(request)
    if len(found) != len(request.pod_sets) or not all(usage.get(one.name) for one in found):
        return known
    try:
        return tuple(
            Ask(pods, (_counted(usage[one.name] or {}),))
            for one, pods in zip(found, request.pod_sets, strict=True)
        )
    except QuantityError:
        return known


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


def _pod_set(pods: KueuePodSet, problems: list[str]) -> PodSet:
    spec = (pods.template.spec if pods.template is not None else None) or PodSpec()
    name = re.sub(r"[^a-z0-9-]+", "-", pods.name.lower())[:63].strip("-") or "main"
    where = f"pod set {pods.name[:63]}"
    count = _within(pods.count, 1, MAX_PODS, f"{where}: {pods.count} pods", problems)
    models, labels = _placement(spec)
    if len(labels) > MAX_LABELS:
        problems.append(f"{where}: {len(labels)} node labels, only {MAX_LABELS} are looked at")
        labels = dict(sorted(labels.items())[:MAX_LABELS])
    cpu = _total(spec, "cpu", where, problems, thousandths=True)
    memory = -(-_total(spec, "memory", where, problems) // MIB)
    gpus = _gpus(spec, where, problems)
    return PodSet(
        name=name,
        count=count,
        cpu_milli=_within(cpu, 0, MAX_CPU_MILLI, f"{where}: {cpu} milli of cpu", problems),
        memory_mib=_within(memory, 0, MAX_MEMORY_MIB, f"{where}: {memory} MiB", problems),
        gpus=_within(
            gpus.number, 0, MAX_GPUS_A_POD, f"{where}: {gpus.number} GPUs a pod", problems
        ),
        gpu_milli=gpus.milli,
        mig_profile=gpus.profile,
        gpu_resource=gpus.resource,
        gpu_models=models[:32],
        node_labels=labels,
        tolerations=tuple(_toleration(t) for t in (spec.tolerations or ())[:MAX_TOLERATIONS]),
    )


class _Gpus(NamedTuple):
    """What each pod asks for."""

    number: int = 0
    resource: str = ""  # of whole ones
    profile: str = ""  # of MIG
    milli: int = WHOLE


def _gpus(spec: PodSpec, where: str, problems: list[str]) -> _Gpus:
    """By the resource's very name: whoever asks for one maker's GPUs is not served by another's."""
    whole = {name: n for name in (NVIDIA, AMD) if (n := _total(spec, name, where, problems))}
    if len(whole) > 1:
        problems.append(f"{where}: GPUs of two makers: only {NVIDIA} is looked at")
    if whole:
        resource = next(iter(whole))
        return _Gpus(whole[resource], resource)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    names = {
        name
        for one in containers
        if one.resources is not None
        for named in (one.resources.requests, one.resources.limits)
        for name in named or ()
    }
    slices = {name: _total(spec, name, where, problems) for name in names if name.startswith(MIG)}
    for name, count in sorted(slices.items()):
        profile = name.removeprefix(MIG)
        milli_of_gpu = profile_milli(profile)
        if count == 1 and len(slices) == 1 and milli_of_gpu is not None:
            return _Gpus(1, "", profile, milli_of_gpu)
    return _Gpus()  # several slices a pod: their quota counts, and CPU for room


def _within(value: int, least: int, most: int, what: str, problems: list[str]) -> int:
    bounded = max(least, min(most, value))
    if bounded != value:
        problems.append(f"{what}, counted as {bounded}")
    return bounded


def _total(
    spec: PodSpec, resource: str, where: str, problems: list[str], *, thousandths: bool = False
) -> int:
    """What a pod takes: all its containers together, or the greediest init container."""

    def of(container: Container) -> int:
        return _asked(container, resource, where, problems, thousandths=thousandths)

    together = sum(of(one) for one in spec.containers or ())
    return max([together, *(of(one) for one in spec.init_containers or ())])


def _asked(
    container: Container, resource: str, where: str, problems: list[str], *, thousandths: bool
) -> int:
    resources = container.resources
    if resources is None:
        return 0
    asked: Quantity = (resources.requests or {}).get(resource)
    if asked is None:
        asked = (resources.limits or {}).get(resource)
    if asked is None:
        return 0
    try:
        text = repr(asked) if isinstance(asked, float) else asked
        return milli(text) if thousandths else whole(text)
    except QuantityError as error:
        problems.append(f"{where}: {resource}: {error}")
        return 0


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
