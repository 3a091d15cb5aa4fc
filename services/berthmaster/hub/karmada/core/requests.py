"""The request of a ResourceBinding, as a message of the bus. Pure.

An error that prevents the request is a fault, and the binding waits until it changes. An unknown
field that limits nothing is a problem, and an Event reports the problem.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.hub.karmada.core.candidates import candidates, several
from berthmaster.hub.karmada.core.objects import (
    PRIORITY,
    QUEUE,
    SCHEDULER,
    KarmadaCluster,
    NodeClaim,
    Placement,
    Requirements,
    ResourceBinding,
)
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.selector import SelectorError
from berthmaster.lib.kueue.podsets.reading import (
    amounts_of,
    bounded_priority,
    pod_set_of,
    queue_fault,
    read_set,
    tenant_of,
    workload_id,
)
from berthmaster.lib.kueue.podsets.templates import (
    Affinity,
    Container,
    NodeAffinity,
    PodSpec,
    PodTemplate,
    Resources,
    TemplateSet,
)
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import MAX_PODS, HubObject, JobRequest

MAX_CLUSTERS: Final = 64  # maximum number of clusters in a request
POD_SET: Final = "main"
# A Job ends, and has its own number of pods. The pods of a Deployment scale, so no request could
# reserve their capacity.
KIND: Final = ("batch/v1", "Job")


class Read(NamedTuple):
    """The request of a binding. ``fault`` is the reason for a missing request."""

    request: JobRequest | None
    fault: str = ""
    problems: tuple[str, ...] = ()


def is_ours(binding: ResourceBinding) -> bool:
    """Return whether Berthmaster is the binding's scheduler."""
    return binding.spec.scheduler_name == SCHEDULER


def name_of(binding: ResourceBinding, tenants: Mapping[str, str]) -> tuple[str, str]:
    """Return (tenant, workload id)."""
    meta = binding.metadata
    return tenant_of(meta.namespace, tenants), workload_id(binding.spec.resource.name, meta.uid)


def origin_of(binding: ResourceBinding, queue: str, hub: str) -> HubObject:
    """Return the hub object of a workload on the bus."""
    of, meta = binding.spec.resource, binding.metadata
    return HubObject(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        owner=f"{of.kind}/{of.name}",
        local_queue=queue,
        hub=hub,
        system="karmada",
    )


def read_request(
    binding: ResourceBinding,
    told: Mapping[str, str],
    members: Iterable[KarmadaCluster],
    queues: Mapping[str, QueueSetting],
    tenants: Mapping[str, str],
) -> Read:
    """Return the request of a binding.

    ``told`` are labels of the binding's policy. ``tenants`` maps namespaces to tenants.
    """
    spec, problems, unread = binding.spec, list[str](), list[str]()
    try:
        placement = spec.placement
    except msgspec.ValidationError as error:
        return Read(None, f"placement: {error}")
    queue = told.get(QUEUE, "default")
    tenant, workload = name_of(binding, tenants)
    if fault := _fault(binding, placement, queue, queues, tenant):
        return Read(None, fault)
    amounts_of(_replica(binding), "replicaRequirements", unread)
    if unread:  # without readable amounts the needed capacity is unknown
        return Read(None, unread[0])
    try:
        clusters = candidates(placement, members)
    except SelectorError as error:
        return Read(None, f"placement.clusterAffinity: {error}")
    if not clusters:
        return Read(None, "no member cluster matches placement.clusterAffinity and its taints")
    if len(clusters) > MAX_CLUSTERS:
        more = len(clusters) - MAX_CLUSTERS
        problems.append(f"{len(clusters)} clusters match: the last {more} by name are left out")
        clusters = clusters[:MAX_CLUSTERS]
    template = PodTemplate(spec=_replica(binding))
    pods = pod_set_of(
        read_set(TemplateSet(name=POD_SET, count=spec.replicas, template=template)), problems
    )
    request = JobRequest(
        id=workload,
        queue=queue,
        priority=_priority(binding, told, problems),
        pod_sets=(pods,),
        clusters=clusters,
        max_evictions=1000,  # evictions by Karmada are not the job's fault
    )
    return Read(request, "", tuple(problems))


def _fault(
    binding: ResourceBinding,
    placement: Placement,
    queue: str,
    queues: Mapping[str, QueueSetting],
    tenant: str,
) -> str:
    spec, of = binding.spec, binding.spec.resource
    if (of.api_version, of.kind) != KIND:
        return f"resource: {of.api_version} {of.kind}: right is a Job of batch/v1"
    if not 1 <= spec.replicas <= MAX_PODS:
        return f"replicas: {spec.replicas}: right are 1 to {MAX_PODS}"
    if spec.replica_requirements is None or not spec.replica_requirements.resource_request:
        return "replicaRequirements: none: its pods must say in resources.requests what they need"
    if asked := several(placement):
        return f"{asked}: a workload goes to one cluster here"
    if fault := queue_fault(queue):
        return f"label {QUEUE} of its policy: {fault}"
    setting = queues.get(queue)
    if setting is not None and setting.via != "direct":
        return f"label {QUEUE} of its policy: queue {queue!r} is via {setting.via}: right is direct"
    if setting is not None and setting.tenants and tenant not in setting.tenants:
        return f"label {QUEUE} of its policy: tenant {tenant!r} may not use queue {queue!r}"
    if labels.value(tenant) != tenant:
        return f"tenant {tenant[:63]!r} of its namespace does not fit a label of pods"
    return ""


def _replica(binding: ResourceBinding) -> PodSpec:
    needs = binding.spec.replica_requirements or Requirements()
    nodes = needs.node_claim or NodeClaim()
    required = NodeAffinity(
        required_during_scheduling_ignored_during_execution=nodes.hard_node_affinity
    )
    return PodSpec(
        containers=(Container(resources=Resources(requests=needs.resource_request)),),
        node_selector=nodes.node_selector,
        affinity=Affinity(node_affinity=required),
        tolerations=nodes.tolerations,
    )


def _priority(binding: ResourceBinding, told: Mapping[str, str], problems: list[str]) -> int:
    if (text := told.get(PRIORITY)) is not None:
        try:
            return bounded_priority(int(text))
        except ValueError:
            problems.append(f"label {PRIORITY} of its policy: {text!r} is no whole number")
    asked = binding.spec.schedule_priority
    return bounded_priority(asked.priority if asked is not None else 0)
