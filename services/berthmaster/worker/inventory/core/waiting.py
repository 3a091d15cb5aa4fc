"""Pods without a node, by job. Pure.

Only the scheduler reports why an admitted job does not start, because Kueue's part ends with the
quota. Pods with a scheduling gate, or not yet examined by the scheduler, do not count.
"""

from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import condition
from berthmaster.worker.inventory.core.objects import WaitingPod

JOB_SET_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"  # pods belong to Jobs of the set
Key = tuple[str, str]


class Owner(NamedTuple):
    """A job object."""

    namespace: str = ""
    kind: str = ""
    name: str = ""


class Unscheduled(NamedTuple):
    """Pods of one job without a node."""

    pods: int = 0
    words: str = ""  # the scheduler's, of the first by name


NOBODY: Final = Owner()
NONE_WAIT: Final = Unscheduled()


class WaitingPods:
    def __init__(self) -> None:
        self._owner: dict[Key, Owner] = {}
        self._of: dict[Owner, dict[Key, str]] = {}

    def of(self, owner: Owner) -> Unscheduled:
        pods = self._of.get(owner)
        return Unscheduled(len(pods), pods[min(pods)]) if pods else NONE_WAIT

    def put(self, pod: WaitingPod) -> Owner:
        """Apply a pod. Return the job with a changed result; NOBODY if none."""
        key = (pod.metadata.namespace, pod.metadata.name)
        found = condition(pod.status.conditions, "PodScheduled")
        owner = _owner_of(pod)
        if found is None or found.reason != "Unschedulable" or owner == NOBODY:
            return self.drop(key)
        of = self._of.setdefault(owner, {})
        if of.get(key) == found.message:
            return NOBODY
        self._owner[key] = owner
        of[key] = found.message
        return owner

    def drop(self, key: Key) -> Owner:
        owner = self._owner.pop(key, NOBODY)
        of = self._of.get(owner)
        if of is not None:
            of.pop(key, None)
            if not of:
                del self._of[owner]
        return owner


def _owner_of(pod: WaitingPod) -> Owner:
    meta = pod.metadata
    if name := meta.labels.get(JOB_SET_LABEL):
        return Owner(meta.namespace, "JobSet", name)
    for reference in meta.owner_references:
        if reference.controller:
            return Owner(meta.namespace, reference.kind, reference.name)
    return NOBODY
