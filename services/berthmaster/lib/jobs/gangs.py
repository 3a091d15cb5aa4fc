"""All pods of an attempt at once, on the nodes too: by whatever gang scheduling the cluster serves.

Rules of this file:

- Pods name a group by the name of their Job. The group itself is made after the Job and belongs to
  it; its scheduler lets pods wait for the group, so nobody has to hurry.
- What the group is stands in an annotation of the Job: whoever finds the Job without it makes it.
- KAI's scheduler groups the pods of a Job by itself, and is told how many there must be.
- Volcano's groups are of a queue of Volcano's; where it starts the gangs it schedules all pods,
  those that are alone too, as two schedulers of one node would each count on the same room.
- Where nothing is served pods start one by one: the executor has one of two half-started gangs
  give way.

Pure.
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
VOLCANO_PREEMPTABLE: Final = "volcano.sh/preemptable"  # annotation of a pod, also of one alone
VOLCANO_ANNOTATION: Final = "scheduling.k8s.io/group-name"  # of a pod, as Volcano reads it
_POD_GROUP: Final = "gang"  # what a Workload of Kubernetes 1.35 calls its only group


class Gangs(StrEnum):
    """What starts all pods of a gang or none."""

    NONE = "none"
    KUBERNETES = "kubernetes"  # its own PodGroup, from 1.36
    WORKLOAD = "workload"  # its own Workload, of 1.35
    COSCHEDULING = "coscheduling"  # the PodGroup of scheduler-plugins
    VOLCANO = "volcano"  # the PodGroup of Volcano, in one of its queues


# The first that is served counts.
SERVED_BY: Final[Mapping[Gangs, Resource]] = {
    Gangs.KUBERNETES: POD_GROUPS,
    Gangs.WORKLOAD: SCHEDULING_WORKLOADS,
    Gangs.COSCHEDULING: COSCHEDULING_POD_GROUPS,
    Gangs.VOLCANO: VOLCANO_POD_GROUPS,
}


class Group(NamedTuple):
    gangs: Gangs
    pods: int
    queue: str = ""  # Volcano's, by its name

    @property
    def text(self) -> str:
        text = f"{self.gangs.value}:{self.pods}"
        return f"{text}:{self.queue}" if self.queue else text


def join(group: Group, name: str, template: Document) -> None:
    """Have the pods of a template name their group."""
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
    """What an annotation says; None if it says nonsense, as somebody else's words may."""
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
    """The group's object. ``known``, ``told``: labels and annotations that say whose it is;
    ``owner``: with whose end it ends."""
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
