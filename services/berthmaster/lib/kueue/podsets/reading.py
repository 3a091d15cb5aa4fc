"""What pods of a template ask for, in the bus's words: a pod set of a request, and the name that an
object of a hub has as a workload. Pure.

Rules of this file:

- Only what limits clusters is read: requests, node labels, GPU models, tolerations. Expressions
  that are no plain "this label has this value" are left to the scheduler.
- What cannot be read is counted as nothing asked for, and each such thing is named.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.lib.accelerators.labels import PRODUCT
from berthmaster.lib.accelerators.tpu import TOPOLOGY_LABEL, chips_of
from berthmaster.lib.engine.fleet.models import EXACTLY
from berthmaster.lib.kueue.podsets.devices import Devices, amounts_of, devices_of
from berthmaster.lib.kueue.podsets.templates import PodSpec, PodToleration, Requirement, TemplateSet
from berthmaster.lib.messages.workload import (
    MAX_GPUS_A_POD,
    MAX_PODS,
    MAX_TOLERATIONS,
    PodSet,
    Toleration,
)

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
    """A pod set and what its pods ask for, worked out once: all that is read begins with it."""

    found: TemplateSet
    amounts: Mapping[str, int]
    devices: Devices
    problems: tuple[str, ...]


def workload_id(name: str, uid: str) -> str:
    """``<name, cut>-<first of uid>``: the same for the same object, another for its successor."""
    tail = _NOT_PLAIN.sub("", uid.lower())[:UID_CHARS] or "0"
    head = _NOT_PLAIN.sub("-", name.lower())[: MAX_ID_CHARS - 1 - len(tail)].strip("-")
    return f"{head or 'w'}-{tail}"


def tenant_of(namespace: str, tenants: Mapping[str, str]) -> str:
    """Whose a namespace is: as the setting says, else the namespace's own."""
    return tenants.get(namespace, namespace)


def read_set(one: TemplateSet) -> SetRead:
    """What its pods ask for."""
    problems: list[str] = []
    where = _where(one)
    amounts = amounts_of(_spec(one), where, problems)
    devices = devices_of(one.template, amounts, where, problems)
    return SetRead(one, amounts, devices, tuple(problems))


def queue_fault(queue: str) -> str:
    """What is wrong with the name of a queue, or ""."""
    return "" if _QUEUE.fullmatch(queue) else f"queue name {queue[:64]!r} is none"


def bounded_priority(priority: int | None) -> int:
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, priority or 0))


def _where(pods: TemplateSet) -> str:
    return f"pod set {pods.name[:63]}"


def _spec(pods: TemplateSet) -> PodSpec:
    return (pods.template.spec if pods.template is not None else None) or PodSpec()


def pod_set_of(read: SetRead, problems: list[str]) -> PodSet:
    """The pod set that it comes to; ``problems``: of the request, added to."""
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
