"""Gang scheduling: all pods of an attempt start together, by the scheduler that the cluster serves.

Pure. Rules:

- Pods name a group by the name of their Job. The executor creates the group after the Job, as the
  Job's dependent. The scheduler lets pods wait for their group, so the order is safe.
- An annotation of the Job describes the group. An executor that finds a Job without its group
  creates the group.
- KAI's scheduler groups a Job's pods by itself, and only needs their number.
- Volcano's groups belong to a queue of Volcano. A cluster whose gangs start by Volcano schedules
  all pods by Volcano, single pods included. Otherwise two schedulers would allocate the same free
  capacity of a node.
- Without gang scheduling pods start one by one, and the executor lets one of two half-started gangs
  yield.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.kube.resources import (
    COSCHEDULING_POD_GROUPS,
    POD_GROUPS,
    SCHEDULING_WORKLOADS,
    VOLCANO_POD_GROUPS,
    Resource,
)

GROUP: Final = "berthmaster.io/pod-group"  # annotation: "<way>:<pods>" or "<way>:<pods>:<queue>"
KAI_MEMBERS: Final = "kai.scheduler/batch-min-member"  # annotation of a Job or JobSet
COSCHEDULING_LABEL: Final = "scheduling.x-k8s.io/pod-group"
VOLCANO_PREEMPTABLE: Final = "volcano.sh/preemptable"  # annotation of a pod, also without a gang
VOLCANO_ANNOTATION: Final = "scheduling.k8s.io/group-name"  # of a pod, as Volcano reads the group
_POD_GROUP: Final = "gang"  # only group in a Workload of Kubernetes 1.35


class Gangs(StrEnum):
    """The scheduler feature that starts all pods of a gang or none."""

    NONE = "none"
    KUBERNETES = "kubernetes"  # PodGroup of Kubernetes, from 1.36
    WORKLOAD = "workload"  # Workload of Kubernetes 1.35
    COSCHEDULING = "coscheduling"  # PodGroup of scheduler-plugins
    VOLCANO = "volcano"  # PodGroup of Volcano, in one of Volcano's queues


# The first one served by the cluster is used.
SERVED_BY: Final[Mapping[Gangs, Resource]] = {
    Gangs.KUBERNETES: POD_GROUPS,
    Gangs.WORKLOAD: SCHEDULING_WORKLOADS,
    Gangs.COSCHEDULING: COSCHEDULING_POD_GROUPS,
    Gangs.VOLCANO: VOLCANO_POD_GROUPS,
}


class Group(NamedTuple):
    gangs: Gangs
    pods: int
    queue: str = ""  # name of Volcano's queue

    @property
    def text(self) -> str:
        text = f"{self.gangs.value}:{self.pods}"
        return f"{text}:{self.queue}" if self.queue else text


def join(group: Group, name: str, template: Document) -> None:
    """Add the group's name to a template of pods."""
    match group.gangs:
        case Gangs.KUBERNETES:
            template["spec"]["schedulingGroup"] = {"podGroupName": name}
        case Gangs.WORKLOAD:
            template["spec"]["workloadRef"] = {"name": name, "podGroup": _POD_GROUP}
        case Gangs.COSCHEDULING:
            template["metadata"]["labels"][COSCHEDULING_LABEL] = name
        case Gangs.VOLCANO:
            template["metadata"].setdefault("annotations", {})[VOLCANO_ANNOTATION] = name
        case Gangs.NONE:
            pass


def read(text: str) -> Group | None:
    """Parse the annotation ``GROUP``. Return None for malformed text."""
    way, _, rest = text.partition(":")
    count, _, queue = rest.partition(":")
    if way not in SERVED_BY or not (count.isascii() and count.isdecimal() and len(count) < 6):
        return None
    return Group(Gangs(way), int(count), queue)


def document(
    group: Group,
    name: str,
    known: Mapping[str, str],
    owner: Document,
    told: Mapping[str, str] = {},
) -> Document:
    """Return the group's object.

    ``known`` and ``told``: labels and annotations with the workload's identity. ``owner``: owner
    reference, so that the group is deleted with its owner.
    """
    resource = SERVED_BY[group.gangs]
    spec: Document
    match group.gangs:
        case Gangs.KUBERNETES:
            spec = {"schedulingPolicy": {"gang": {"minCount": group.pods}}}
        case Gangs.WORKLOAD:
            policy = {"gang": {"minCount": group.pods}}
            spec = {"podGroups": [{"name": _POD_GROUP, "policy": policy}]}
        case Gangs.VOLCANO:
            spec = {"minMember": group.pods, "queue": group.queue or "default"}
        case _:
            spec = {"minMember": group.pods}
    metadata: Document = {"name": name, "labels": dict(known), "ownerReferences": [owner]}
    if told:
        metadata["annotations"] = dict(told)
    return {
        "apiVersion": resource.group_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": spec,
    }
