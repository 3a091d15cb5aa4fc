"""Attribution of one GPU's usage to pods, at one time. Pure.

Three sources name users of a GPU, each with gaps:

- The kubelet (or an exporter that asks it) reports allocations. HAMi and KAI allocate other GPUs
  than the kubelet knows, so for their pods only annotations and groups count.
- HAMi's annotation names the GPUs of a pod. A KAI group shares the GPU of its keeper.
- The driver's processes show present users, whatever was allocated.

Held means allocated or annotated; used means with processes. A pod gets the usage of its processes,
allocated or not. A contradiction of sources is reported: rarely a fault of the agent, usually of
the cluster, such as a pod that uses all GPUs of its node.

Example: pod a is alone on a GPU and gets all of its metrics. If a and b share it with 30 % and 10 %
utilization, a gets 30 % and three quarters of the power, an estimate. Counters (SMs,
tensor cores, DRAM, PCIe) are known per device only, so they are reported for exclusive use.
"""

from enum import Enum
from typing import NamedTuple

from berthmaster.lib.messages.telemetry import GpuPodUse, GpuReading
from berthmaster.worker.job_metrics.core.pods import Book, Pod


class Disagreement(Enum):
    """How sources can contradict each other; the values are labels of a metric."""

    UNKNOWN_POD = "unknown_pod"  # named by the kubelet or a process, unknown to the API server
    OTHER_NODE = "other_node"  # the API server has the pod on another node
    NOT_GIVEN = "not_given"  # processes of a pod without an allocation
    TWO_AGENTS = "two_agents"  # two lives of an agent tell of one node at once
    GPU_TWICE = "gpu_twice"  # two nodes tell of one GPU


class Wrong(NamedTuple):
    kind: Disagreement
    about: str  # the pod by uid, else by name, else the node or GPU
    text: str


class Part(NamedTuple):
    """One pod's part of a device, and its usage."""

    pod: Pod
    device: str  # UUID
    utilization_percent: float | None
    memory_used_mib: int | None
    memory_total_mib: int | None
    power_w: float | None
    sm_active_percent: float | None = None
    tensor_active_percent: float | None = None
    dram_active_percent: float | None = None
    memory_bandwidth_percent: float | None = None
    pcie_bytes_per_s: float | None = None


def attribute(
    gpu: GpuReading, node: str, book: Book, *, told_of_holders: bool
) -> tuple[list[Part], list[Wrong]]:
    """Return parts and contradictions. ``told_of_holders``: whether allocations on the node are
    known.
    """
    wrong: list[Wrong] = []
    where = f"GPU {gpu.index} of {node}"
    held = _held(gpu, node, book, where, wrong)
    given = {uid for uid, _ in held}
    used: dict[str, GpuPodUse] = {}
    for use in gpu.pods:
        pod = book.get(use.pod_uid)
        if pod is None:
            text = f"{where} has processes of pod {use.pod_uid}, which the API server does not know"
            wrong.append(Wrong(Disagreement.UNKNOWN_POD, use.pod_uid, text))
        elif pod.node != node:
            wrong.append(_elsewhere(pod, where))
        else:
            used[pod.uid] = use
            if told_of_holders and pod.uid not in given and not pod.keeper:
                text = f"{pod.namespace}/{pod.name} has processes on {where}, which nobody gave it"
                wrong.append(Wrong(Disagreement.NOT_GIVEN, pod.uid, text))
    held |= {(uid, "") for uid in used.keys() - given}
    instances = {one.uuid: one for one in gpu.mig}
    parts: list[Part] = []
    whole: list[Pod] = []
    for uid, device in sorted(held):
        pod = book.get(uid)
        assert pod is not None
        instance = instances.get(device)
        if instance is None:
            whole.append(pod)
            continue
        share = instance.memory_mib / gpu.memory_total_mib if gpu.memory_total_mib else None
        power_w = None if gpu.power_w is None or share is None else gpu.power_w * min(1.0, share)
        busy = instance.utilization_percent
        used_mib, total_mib = instance.memory_used_mib, instance.memory_mib
        sm, tensor = instance.sm_active_percent, instance.tensor_active_percent
        dram = instance.dram_active_percent
        parts.append(Part(pod, device, busy, used_mib, total_mib, power_w, sm, tensor, dram))
    return parts + _whole(gpu, whole, used), wrong


def _held(
    gpu: GpuReading, node: str, book: Book, where: str, wrong: list[Wrong]
) -> set[tuple[str, str]]:
    """Return the holders of the GPU or its MIG instances: (uid, instance)."""
    held: set[tuple[str, str]] = set()
    for holder in gpu.holders:
        pod = book.named(holder.namespace, holder.pod)
        name = f"{holder.namespace}/{holder.pod}"
        if pod is None:
            text = f"{where} is given to {name}, which the API server does not know"
            wrong.append(Wrong(Disagreement.UNKNOWN_POD, name, text))
        elif pod.node != node:
            wrong.append(_elsewhere(pod, where))
        elif pod.keeper:
            held |= {
                (one.uid, holder.device)
                for group in pod.groups
                for one in book.sharing(group)
                if one.node == node
            }
        elif not pod.devices:
            held.add((pod.uid, holder.device))
    return held | {(pod.uid, "") for pod in book.written(gpu.uuid) if pod.node == node}


def _elsewhere(pod: Pod, where: str) -> Wrong:
    text = f"{where} is said to be {pod.namespace}/{pod.name}'s, which is on {pod.node}"
    return Wrong(Disagreement.OTHER_NODE, pod.uid, text)


def _whole(gpu: GpuReading, pods: list[Pod], used: dict[str, GpuPodUse]) -> list[Part]:
    """Return the parts of pods on the GPU itself."""
    total_mib = gpu.memory_total_mib
    if len(pods) == 1 and not gpu.other_processes:
        alone = pods[0]
        busy, memory_mib, power_w = gpu.utilization_percent, gpu.memory_used_mib, gpu.power_w
        return [
            Part(
                alone,
                gpu.uuid,
                busy,
                memory_mib,
                total_mib,
                power_w,
                gpu.sm_active_percent,
                gpu.tensor_active_percent,
                gpu.dram_active_percent,
                gpu.memory_bandwidth_percent,
                gpu.pcie_bytes_per_s,
            )
        ]
    told = bool(gpu.pods or gpu.other_processes)  # a driver's sample, with processes
    still = gpu.utilization_percent == 0
    busy_of: dict[str, float | None] = {}
    for pod in pods:
        use = used.get(pod.uid)
        share = use.sm_percent if use is not None else 0.0 if told else None
        busy_of[pod.uid] = 0.0 if still else share
    known = [share for share in busy_of.values() if share is not None]
    # Pods with unknown usage, as under MPS, share the power equally.
    sum_percent = sum(known) if len(known) == len(busy_of) else 0.0
    parts: list[Part] = []
    for pod in pods:
        use, busy = used.get(pod.uid), busy_of[pod.uid]
        mib = use.memory_mib if use is not None else 0 if told else None
        power_w = None
        if gpu.power_w is not None:
            of_it = (busy or 0.0) / sum_percent if sum_percent else 1 / len(pods)
            power_w = gpu.power_w * of_it
        parts.append(Part(pod, gpu.uuid, busy, mib, total_mib, power_w))
    return parts
