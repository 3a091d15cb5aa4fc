"""The fields of Kubernetes' objects that the doctor reads, and the facts derived from them.
Pure."""

from collections.abc import Callable, Container, Iterable
from typing import Any, Final, TypeVar

import msgspec

from berthmaster.cli.doctor import facts
from berthmaster.cli.doctor.facts import ManagerConfig, State
from berthmaster.cli.doctor.gates import SECTION, parse_gates
from berthmaster.cli.doctor.upgrade import OurContainer
from berthmaster.lib.accelerators import tpu
from berthmaster.lib.accelerators.table import (
    GKE_CLIENTS,
    GKE_STRATEGY,
    GPU_MILLI,
    PRODUCT,
    How,
    how_of,
    maker_of,
    model_label,
    pieces_of_whole,
)
from berthmaster.lib.kube.objects import Condition, Object, Struct, condition, seconds
from berthmaster.lib.kube.quantity import QuantityError, parse_quantity
from berthmaster.lib.kueue.configuration import Unreadable, configuration_in, section
from berthmaster.lib.kueue.jobs import FIELD as TTL_FIELD
from berthmaster.lib.kueue.jobs import HubJob, deleted_after_s
from berthmaster.lib.kueue.multikueue import ManagedWorkload, others_nominating
from berthmaster.lib.kueue.names import CLEARING_WEBHOOK, GROUP, MULTIKUEUE, QUEUE_LABEL
from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue, ResourceGroup
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.services import SERVICES

O = TypeVar("O", bound=Object)  # noqa: E741
HAMI_DEVICES: Final = "hami.io/node-nvidia-register"
WORKLOAD_WEBHOOK: Final = "vworkload.kb.io"
KUEUE_MANAGERS: Final = ("kueue", "multikueue")  # prefixes of Kueue's own field managers
# forms of accelerators on nodes and in quotas
DEVICES: Final = (How.WHOLE, How.SHARED, How.MIG, How.MILLI, How.TPU)


class NodeStatus(Struct, frozen=True):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True):
    status: NodeStatus = NodeStatus()


class DaemonSetStatus(Struct, frozen=True):
    desired_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(Object, frozen=True):
    status: DaemonSetStatus = DaemonSetStatus()


def telemetry(one: DaemonSet | None) -> facts.Telemetry | None:
    """Return the fact of the telemetry DaemonSet."""
    if one is None:
        return None
    status = one.status
    return facts.Telemetry(wanted=status.desired_number_scheduled, ready=status.number_ready)


def exporter(sets: Iterable[DaemonSet]) -> str:
    """Return the dcgm-exporter, by its usual name in charts and the GPU operator."""
    found = (one.metadata for one in sets if "dcgm-exporter" in one.metadata.name)
    return next((f"{one.namespace}/{one.name}" for one in found), "")


class SliceSpec(Struct, frozen=True):
    driver: str = ""
    node_name: str = ""


class ResourceSlice(Object, frozen=True):
    spec: SliceSpec = SliceSpec()


class CelSelector(Struct, frozen=True):
    expression: str = ""


class DeviceSelector(Struct, frozen=True):
    cel: CelSelector | None = None


class DeviceClassSpec(Struct, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClass(Object, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class PodContainer(Struct, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class PodSpec(Struct, frozen=True):
    containers: tuple[PodContainer, ...] = ()


class Template(Struct, frozen=True):
    spec: PodSpec = PodSpec()


class Selector(Struct, frozen=True):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)


class DeploymentSpec(Struct, frozen=True):
    replicas: int = 1
    selector: Selector = Selector()
    template: Template = Template()


class DeploymentStatus(Struct, frozen=True):
    ready_replicas: int = 0


class Deployment(Object, frozen=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True):
    waiting: Waiting | None = None
    terminated: Waiting | None = None


class ContainerStatus(Struct, frozen=True):
    ready: bool = False
    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class RuleOver(Struct, frozen=True):
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


class Matches(Struct, frozen=True):
    resource_rules: tuple[RuleOver, ...] = ()


class Expression(Struct, frozen=True):
    expression: str = ""


class Mutation(Struct, frozen=True):
    json_patch: Expression | None = None
    apply_configuration: Expression | None = None


class PolicySpec(Struct, frozen=True):
    match_constraints: Matches | None = None
    mutations: tuple[Mutation, ...] | None = None


class Policy(Object, frozen=True):
    spec: PolicySpec = PolicySpec()


class Narrowed(Struct, frozen=True):
    """The objects of a binding; no selector selects everything."""

    namespace_selector: dict[str, Any] | None = None
    object_selector: dict[str, Any] | None = None
    resource_rules: tuple[RuleOver, ...] | None = None
    exclude_resource_rules: tuple[RuleOver, ...] | None = None


class BindingSpec(Struct, frozen=True):
    policy_name: str = ""
    match_resources: Narrowed | None = None


class PolicyBinding(Object, frozen=True):
    spec: BindingSpec = BindingSpec()


class WebhookService(Struct, frozen=True):
    namespace: str = ""
    name: str = ""


class WebhookClient(Struct, frozen=True):
    service: WebhookService | None = None
    ca_bundle: str = ""


class Webhook(Struct, frozen=True):
    name: str = ""
    client_config: WebhookClient = WebhookClient()
    failure_policy: str = "Fail"


class WebhookConfiguration(Object, frozen=True):
    webhooks: tuple[Webhook, ...] | None = None


class LeaseSpec(Struct, frozen=True):
    renew_time: str | None = None
    holder_identity: str | None = None


class Lease(Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()


# ---- derived facts


def state(found: Condition | None) -> State:
    """Return the state of the condition Active."""
    if found is None or found.status not in ("True", "False"):
        return State()
    return State(active=found.true, reason=found.reason, message=found.message)


def is_gpu(resource: str) -> bool:
    """Return whether a resource stands for accelerators."""
    return how_of(resource) in DEVICES


def amount(text: str | int) -> int:
    """Return a quantity as a whole number; an invalid quantity is 0."""
    try:
        return int(parse_quantity(str(text)))
    except QuantityError:
        return 0


def gpu_quota(groups: Iterable[ResourceGroup]) -> dict[str, int] | None:
    """Return the GPU quota by resource, over all flavors."""
    found: dict[str, int] = {}
    for group in groups:
        for flavor in group.flavors or ():
            for quota in flavor.resources or ():
                if is_gpu(quota.name):
                    found[quota.name] = found.get(quota.name, 0) + amount(quota.nominal_quota)
    return found or None


def cluster_queue(one: ClusterQueue) -> facts.ClusterQueue:
    return facts.ClusterQueue(
        name=one.metadata.name,
        checks=one.check_names,
        state=state(one.active),
        stopped=one.held,
        preempts=one.preempts,
        gpu_quota=gpu_quota(one.groups),
    )


def local_queue(one: LocalQueue) -> facts.LocalQueue:
    return facts.LocalQueue(
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        cluster_queue=one.spec.cluster_queue,
        state=state(one.active),
        stopped=one.held,
    )


def gpu_nodes(one: Node) -> tuple[facts.GpuNode, ...]:
    """Return a fact per GPU vendor of a node."""
    gpus: dict[facts.Vendor, int] = {}
    for name, text in one.status.allocatable.items():
        if is_gpu(name) and (number := amount(text)) > 0:
            vendor = _vendor(name)
            gpus[vendor] = gpus.get(vendor, 0) + -(-number // pieces_of_whole(name))
    return tuple(_gpu_node(one, vendor, number) for vendor, number in sorted(gpus.items()))


def _gpu_node(one: Node, vendor: facts.Vendor, gpus: int) -> facts.GpuNode:
    ready = condition(one.status.conditions, "Ready")
    labels = one.metadata.labels
    told = tpu.ACCELERATOR_LABEL if vendor == "tpu" else model_label(labels, vendor)
    return facts.GpuNode(
        name=one.metadata.name,
        gpus=gpus,
        ready=ready is not None and ready.true,
        model=labels.get(told, "") if told is not None else "",
        vendor=vendor,
        sharing=_sharing(one) if vendor == "nvidia" else "",
    )


def _sharing(one: Node) -> facts.Sharing:
    labels = one.metadata.labels
    ways = {how_of(name) for name, text in one.status.allocatable.items() if amount(text) > 0}
    if one.metadata.annotations.get(HAMI_DEVICES):
        return "HAMi"
    if How.MILLI in ways:
        return "MPS" if amount(one.status.allocatable.get(GPU_MILLI, "")) > 0 else "time slicing"
    if How.MIG in ways or "-MIG-" in labels.get(PRODUCT, ""):
        return "MIG"
    replicas = labels.get("nvidia.com/gpu.replicas") or labels.get(GKE_CLIENTS, "")
    if How.SHARED not in ways and not (replicas.isdecimal() and int(replicas[:9]) > 1):
        return ""
    strategy = labels.get("nvidia.com/gpu.sharing-strategy") or labels.get(GKE_STRATEGY, "")
    capable = labels.get("nvidia.com/mps.capable") == "true"
    by_mps = capable if strategy in ("", "none") else strategy == "mps"
    return "MPS" if by_mps else "time slicing"


def drivers(
    slices: Iterable[ResourceSlice], classes: Iterable[DeviceClass]
) -> tuple[facts.DeviceDriver, ...]:
    """Return the drivers of GPUs and TPUs, with their DeviceClasses."""
    nodes: dict[str, set[str]] = {}
    for one in slices:
        if one.spec.driver.startswith(("gpu.", "tpu.")) and one.spec.node_name:
            nodes.setdefault(one.spec.driver, set()).add(one.spec.node_name)
    said = {
        one.metadata.name: " ".join(s.cel.expression for s in one.spec.selectors if s.cel)
        for one in classes
    }
    return tuple(
        facts.DeviceDriver(
            name=driver,
            nodes=len(names),
            classes=tuple(
                name
                for name, text in sorted(said.items())
                if f"'{driver}'" in text or f'"{driver}"' in text
            ),
        )
        for driver, names in sorted(nodes.items())
    )


def _vendor(resource: str) -> facts.Vendor:
    makers: dict[str, facts.Vendor] = {"amd": "amd", "intel": "intel", "google": "tpu"}
    return makers.get(maker_of(resource), "nvidia")


def stranded(
    jobs: Iterable[HubJob],
    local_queues: Iterable[LocalQueue],
    multikueue: Container[str],
) -> tuple[facts.StrandedJob, ...]:
    """Return jobs managed by MultiKueue, but in no queue with its check.

    ``multikueue``: ClusterQueues with MultiKueue's check.
    """
    leads = {
        (one.metadata.namespace, one.metadata.name)
        for one in local_queues
        if one.spec.cluster_queue in multikueue
    }
    found = []
    for job in jobs:
        meta = job.metadata
        queue = meta.labels.get(QUEUE_LABEL, "")
        if job.spec.managed_by != MULTIKUEUE or job.ended or meta.deletion_timestamp:
            continue
        if (meta.namespace, queue) not in leads:
            found.append(
                facts.StrandedJob(
                    namespace=meta.namespace,
                    name=meta.name,
                    queue=queue,
                    suspended=job.spec.suspend is True,
                )
            )
    return tuple(found)


def clears_nominations(policy: Policy) -> bool:
    """Return whether a MutatingAdmissionPolicy changes nominations in a Workload's status."""
    resources = {"workloads/status", "*/*", "workloads/*"}
    return _mutates(policy, GROUP, resources, "UPDATE", "nominatedClusterNames")


def keeps_ended_jobs(policy: Policy) -> bool:
    """Return whether a MutatingAdmissionPolicy sets when an ended Job is deleted."""
    return _mutates(policy, "batch", {"jobs", "*", "*/*"}, "CREATE", TTL_FIELD)


def _mutates(
    policy: Policy, group: str, resources: Container[str], operation: str, field: str
) -> bool:
    constraints = policy.spec.match_constraints
    over = constraints is not None and any(
        {group, "*"} & set(rule.api_groups)
        and any(each in resources for each in rule.resources)
        and {operation, "*"} & set(rule.operations)
        for rule in constraints.resource_rules
    )
    changed = [
        each.expression
        for mutation in policy.spec.mutations or ()
        for each in (mutation.json_patch, mutation.apply_configuration)
        if each is not None
    ]
    return over and any(field in text for text in changed)


def find_policies(
    policies: Iterable[Policy],
    bindings: Iterable[PolicyBinding],
    does: Callable[[Policy], bool],
) -> tuple[facts.FoundPolicy, ...]:
    """Return the matching policies, and whether they apply to every object."""
    bound: dict[str, list[PolicyBinding]] = {}
    for binding in bindings:
        bound.setdefault(binding.spec.policy_name, []).append(binding)
    return tuple(
        facts.FoundPolicy(name=name, idle=_idle(bound.get(name, [])))
        for policy in policies
        if does(policy)
        for name in [policy.metadata.name]
    )


def find_clearing_webhook(
    found: Iterable[WebhookConfiguration],
) -> tuple[str, Webhook] | None:
    """Return the configuration's name and our webhook that clears nominations, or None."""
    for one in found:
        for hook in one.webhooks or ():
            if hook.name == CLEARING_WEBHOOK:
                return one.metadata.name, hook
    return None


def clearing_webhook(name: str, hook: Webhook, pods: Deployment | None) -> facts.FoundPolicy:
    """Return whether the webhook answers. ``pods``: None if another server than ours answers."""
    idle, state = "", f"failurePolicy {hook.failure_policy}"
    if not hook.client_config.ca_bundle:
        idle = "has no caBundle: the pod berth-accounts, or cert-manager, writes it"
    elif hook.client_config.service is not None and pods is None:
        there = hook.client_config.service
        idle = f"has no pods: no Deployment {there.namespace}/{there.name}"
    elif pods is not None:
        ready, wanted = pods.status.ready_replicas, pods.spec.replicas
        state += f", {ready} of {wanted} pods ready"
        idle = "" if ready else f"none of its {wanted} pods is ready"
    return facts.FoundPolicy(
        name=name,
        kind=facts.WEBHOOK_KIND,
        idle=idle,
        state=state,
        ignores_failure=hook.failure_policy == "Ignore",
    )


def early_deleted(kind: str, jobs: Iterable[HubJob]) -> tuple[facts.EarlyDeleted, ...]:
    """Return the open jobs that a worker may delete too early."""
    return tuple(
        facts.EarlyDeleted(kind, job.metadata.namespace, job.metadata.name, after_s)
        for job in jobs
        if (after_s := deleted_after_s(job)) is not None and not job.ended
    )


def _idle(bindings: list[PolicyBinding]) -> str:
    if not bindings:
        return "no MutatingAdmissionPolicyBinding names it"
    if all(_narrow(one.spec.match_resources) for one in bindings):
        named = ", ".join(one.metadata.name for one in bindings)
        return f"its binding {named} leaves objects out (spec.matchResources)"
    return ""


def _narrow(matches: Narrowed | None) -> bool:
    return matches is not None and any(
        (
            matches.namespace_selector,
            matches.object_selector,
            matches.resource_rules,
            matches.exclude_resource_rules,
        )
    )


def workload_webhook(found: Iterable[WebhookConfiguration]) -> str:
    """Return the configuration through which the API server asks Kueue about Workloads."""
    for one in found:
        if any(hook.name == WORKLOAD_WEBHOOK for hook in one.webhooks or ()):
            return one.metadata.name
    return ""


def nominators(workloads: Iterable[ManagedWorkload]) -> dict[str, tuple[str, ...]]:
    """Return other nominators of clusters, with their Workloads."""
    found: dict[str, list[str]] = {}
    for one in workloads:
        for manager in others_nominating(one) if one.nominated else ():
            if not manager.startswith(KUEUE_MANAGERS):
                name = f"{one.metadata.namespace}/{one.metadata.name}"
                found.setdefault(manager, []).append(name)
    return {manager: tuple(names) for manager, names in sorted(found.items())}


def poisoned(workloads: Iterable[Workload]) -> tuple[facts.Poisoned, ...]:
    return tuple(
        facts.Poisoned(namespace=one.metadata.namespace, name=one.metadata.name, owner=one.owner)
        for one in workloads
        if one.poisoned
    )


def manager_config(data: dict[str, str], argument: facts.GateArgument | None) -> ManagerConfig:
    """Return the configuration of ConfigMap and argument; the argument's gates win."""
    try:
        told = configuration_in(data)
    except Unreadable as error:
        return ManagerConfig(problem=str(error))
    kueue = section(told, "multiKueue")
    step = section(kueue, "incrementalDispatcherConfig").get("stepSize")
    gates = {str(name): on for name, on in section(told, SECTION).items() if isinstance(on, bool)}
    dispatcher = kueue.get("dispatcherName")
    return ManagerConfig(
        dispatcher=dispatcher if isinstance(dispatcher, str) else "",
        step_size=step if isinstance(step, int) else None,
        gates=gates | (parse_gates(argument.value) if argument is not None else {}),
        file_gates=gates if isinstance(told.get(SECTION), dict) else None,
        waits_for_pods=_waits(told.get("waitForPodsReady")),
        keeps_finished=not section(section(told, "objectRetentionPolicies"), "workloads").get(
            "afterFinished"
        ),
    )


def _waits(told: Any) -> bool:
    """Return whether Kueue evicts jobs that do not start whole.

    Newer versions default to on if the section exists.
    """
    return isinstance(told, dict) and told.get("enable") is not False


def manager_life(
    deployment: Deployment | None, pods: Iterable[Pod], leases: Iterable[Lease], clock_s: float
) -> facts.ManagerLife:
    """Return the state of Kueue's manager. ``clock_s`` is the cluster's time."""
    labels = deployment.spec.selector.match_labels if deployment is not None else {}
    lease = next((one for one in leases if one.metadata.name.endswith(f".{GROUP}")), None)
    return facts.ManagerLife(
        wanted=deployment.spec.replicas if deployment is not None else None,
        pods=tuple(
            _manager_pod(pod)
            for pod in pods
            if labels and labels.items() <= pod.metadata.labels.items()
        ),
        renewed_s_ago=max(0.0, clock_s - seconds(lease.spec.renew_time)) if lease else None,
        holder=(lease.spec.holder_identity or "") if lease else "",
    )


def our_containers(pod: Pod) -> list[OurContainer]:
    """Return the services of a Berthmaster pod; none for an ended or deleted pod."""
    if pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp:
        return []
    ready = condition(pod.status.conditions, "Ready")
    return [
        OurContainer(
            service=one.name,
            pod=pod.metadata.name,
            image=one.image,
            ready=ready is not None and ready.true,
        )
        for one in pod.spec.containers
        if one.name in SERVICES
    ]


def _manager_pod(pod: Pod) -> facts.ManagerPod:
    ready = condition(pod.status.conditions, "Ready")
    if ready is not None and ready.true:
        return facts.ManagerPod(name=pod.metadata.name, ready=True)
    states = (one.state for one in pod.status.container_statuses if not one.ready)
    said = [found for one in states if (found := one.waiting or one.terminated) is not None]
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if said:
        words = f"{said[0].reason}: {said[0].message}" if said[0].message else said[0].reason
    elif scheduled is not None and not scheduled.true:
        words = scheduled.message or scheduled.reason
    else:
        words = pod.status.reason or pod.status.phase
    return facts.ManagerPod(name=pod.metadata.name, words=words[:300])
