"""Attempts that may be preempted, by cluster, queue and priority. Kept for speed.

Each workload alone determines its entry. Every search for victims asks here first whether any
exist, usually none.
"""

from collections import Counter
from typing import NamedTuple

from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.queueing.held_parts import HeldParts, Takes
from berthmaster.lib.engine.queueing.preemption import loss_of
from berthmaster.lib.lifecycle.attempt_owner import is_ours_to_end
from berthmaster.lib.lifecycle.bindings import gpu_milli_of, pod_gpu_milli
from berthmaster.lib.lifecycle.states import HELD
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest


class _Entry(NamedTuple):
    cluster: str
    queue: str
    priority: int
    gpu_milli: int


def is_movable(workload: Workload) -> bool:
    """Return whether a decision may end the attempt: claimed, not governed by Kueue, and
    preemptible.
    """
    request = workload.request
    return (
        workload.state in HELD
        and request is not None
        and request.preemptible
        and is_ours_to_end(workload)
        and not workload.cancel_requested
        and not workload.leaving
    )


class Movable:
    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._priorities: dict[str, Counter[int]] = {}  # by queue
        self._here: dict[str, HeldParts] = {}  # cluster -> their capacity there
        self._jobs: dict[str, Counter[str]] = {}  # cluster -> queue -> how many
        self._milli: dict[str, Counter[str]] = {}  # cluster -> queue -> GPU milli

    def follow(self, workload: Workload, *, frozen: bool) -> None:
        name = workload.key
        self.drop(name)
        request = workload.request
        if frozen or request is None or not is_movable(workload):
            return
        milli = gpu_milli_of(workload)
        entry = _Entry(workload.cluster, request.queue, workload.priority, milli)
        self._entries[name] = entry
        self._priorities.setdefault(entry.queue, Counter())[entry.priority] += 1
        here = self._here.get(entry.cluster)
        if here is None:
            here = self._here[entry.cluster] = HeldParts()
        here.add(
            name,
            entry.queue,
            entry.priority,
            -workload.submitted_sequence,
            loss_of(workload),
            _by_node(workload, request),
        )
        self._jobs.setdefault(entry.cluster, Counter())[entry.queue] += 1
        self._milli.setdefault(entry.cluster, Counter())[entry.queue] += milli

    def drop(self, name: Key) -> None:
        """Remove an attempt."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        priorities = self._priorities[entry.queue]
        priorities[entry.priority] -= 1
        if not priorities[entry.priority]:
            del priorities[entry.priority]
        if not priorities:
            del self._priorities[entry.queue]
        here, jobs = self._here[entry.cluster], self._jobs[entry.cluster]
        here.drop(name)
        self._milli[entry.cluster][entry.queue] -= entry.gpu_milli
        jobs[entry.queue] -= 1
        if not jobs[entry.queue]:
            del jobs[entry.queue], self._milli[entry.cluster][entry.queue]
        if not jobs:
            del self._here[entry.cluster], self._jobs[entry.cluster], self._milli[entry.cluster]

    def queues(self) -> dict[str, int]:
        """Return the queues with such attempts, and the lowest priority of each."""
        return {queue: min(priorities) for queue, priorities in self._priorities.items()}

    def milli(self, cluster: str, queues: frozenset[str]) -> int:
        """Return the GPU milli of these queues' attempts in a cluster."""
        return sum(n for queue, n in self._milli.get(cluster, {}).items() if queue in queues)

    def any_of(self, cluster: str, queues: frozenset[str]) -> bool:
        return not queues.isdisjoint(self._jobs.get(cluster, ()))

    def lay_out(self, fleet: Fleet) -> None:
        """Find the nodes of all attempts in advance, so that a search is fast."""
        for cluster, here in self._here.items():
            here.lay_out(fleet, cluster)

    def here(self, cluster: str) -> HeldParts:
        """Return the capacity of all attempts in a cluster."""
        return self._here.get(cluster) or HeldParts()


def _by_node(workload: Workload, request: JobRequest) -> dict[str, Takes]:
    sets = {pods.name: pods for pods in request.pod_sets}
    found: dict[str, Takes] = {}
    for binding in workload.pods:
        pods = sets.get(binding.pod.rpartition("-")[0])
        if pods is None:
            continue
        before = found.get(binding.node)
        milli = pod_gpu_milli(pods, binding)
        takes = Takes(milli, pods.cpu_milli, pods.memory_mib)
        if before is not None:
            takes = Takes(*(one + other for one, other in zip(before, takes, strict=True)))
        found[binding.node] = takes
    return found
