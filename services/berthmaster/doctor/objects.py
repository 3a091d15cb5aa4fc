"""What the doctor reads of Kubernetes' objects, and the facts that these and Kueue's come to.
Pure."""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
import yaml

from berthmaster.doctor import facts
from berthmaster.doctor.facts import ManagerConfig, State
from berthmaster.kubernetes.objects import Condition, Object, Struct, condition
from berthmaster.kubernetes.quantity import QuantityError, parse_quantity
from berthmaster.kueue.names import GROUP
from berthmaster.kueue.queues import ClusterQueue, LocalQueue, ResourceGroup

O = TypeVar("O", bound=Object)  # noqa: E741
MODEL_LABEL: Final = "nvidia.com/gpu.product"
CONFIG_FILE: Final = "controller_manager_config.yaml"
GPU_MARKS: Final = ("/gpu", "nvidia.com/mig-", "google.com/tpu")


class NodeStatus(Struct, frozen=True):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True):
    status: NodeStatus = NodeStatus()


class Container(Struct, frozen=True):
    image: str = ""
    args: tuple[str, ...] = ()


class PodSpec(Struct, frozen=True):
    containers: tuple[Container, ...] = ()


class Template(Struct, frozen=True):
    spec: PodSpec = PodSpec()


class DeploymentSpec(Struct, frozen=True):
    template: Template = Template()


class Deployment(Object, frozen=True):
    spec: DeploymentSpec = DeploymentSpec()


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class RuleOver(Struct, frozen=True):
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class Matches(Struct, frozen=True):
    resource_rules: tuple[RuleOver, ...] = ()


class PolicySpec(Struct, frozen=True):
    match_constraints: Matches | None = None


class Policy(Object, frozen=True):
    spec: PolicySpec = PolicySpec()


class LeaseSpec(Struct, frozen=True):
    renew_time: str | None = None


class Lease(Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()


# ---- what they come to


def state(found: Condition | None) -> State:
    """Of the condition Active."""
    if found is None or found.status not in ("True", "False"):
        return State()
    return State(active=found.true, reason=found.reason, message=found.message)


def is_gpu(resource: str) -> bool:
    """Whether a resource stands for accelerators."""
    return any(mark in resource for mark in GPU_MARKS)


def amount(text: str | int) -> int:
    """A quantity in whole pieces; what is none counts as nothing."""
    try:
        return int(parse_quantity(str(text)))
    except QuantityError:
        return 0


def gpu_quota(groups: Iterable[ResourceGroup]) -> dict[str, int] | None:
    """By resource, over all flavors."""
    found: dict[str, int] = {}
    for group in groups:
        for flavor in group.flavors or ():
            for quota in flavor.resources or ():
                if is_gpu(quota.name):
                    found[quota.name] = found.get(quota.name, 0) + amount(quota.nominal_quota)
    return found or None


def cluster_queue(one: ClusterQueue) -> facts.ClusterQueue:
    """As a fact."""
    return facts.ClusterQueue(
        name=one.metadata.name,
        checks=one.check_names,
        state=state(one.active),
        stopped=one.held,
        gpu_quota=gpu_quota(one.groups),
    )


def local_queue(one: LocalQueue) -> facts.LocalQueue:
    """As a fact."""
    return facts.LocalQueue(
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        cluster_queue=one.spec.cluster_queue,
        state=state(one.active),
    )


def gpu_node(one: Node) -> facts.GpuNode | None:
    """As a fact; None without GPUs."""
    gpus = sum(amount(text) for name, text in one.status.allocatable.items() if is_gpu(name))
    if gpus <= 0:
        return None
    ready = condition(one.status.conditions, "Ready")
    return facts.GpuNode(
        name=one.metadata.name,
        gpus=gpus,
        ready=ready is not None and ready.true,
        model=one.metadata.labels.get(MODEL_LABEL, ""),
    )


def guards_nominations(policy: Policy) -> bool:
    """Whether a MutatingAdmissionPolicy is over the status of Kueue's Workloads."""
    constraints = policy.spec.match_constraints
    return constraints is not None and any(
        GROUP in rule.api_groups and "workloads/status" in rule.resources
        for rule in constraints.resource_rules
    )


def manager_config(data: dict[str, str], args: tuple[str, ...]) -> ManagerConfig:
    """Of the ConfigMap, and of the manager's own arguments, which count over it."""
    try:
        told = yaml.safe_load(data.get(CONFIG_FILE, ""))
    except yaml.YAMLError as error:
        return ManagerConfig(problem=f"{CONFIG_FILE} is no YAML: {str(error).splitlines()[0]}")
    if not isinstance(told, dict):
        return ManagerConfig(problem=f"there is no {CONFIG_FILE} in it")
    kueue = _section(told, "multiKueue")
    step = _section(kueue, "incrementalDispatcherConfig").get("stepSize")
    gates = {
        str(name): on for name, on in _section(told, "featureGates").items() if isinstance(on, bool)
    }
    dispatcher = kueue.get("dispatcherName")
    return ManagerConfig(
        dispatcher=dispatcher if isinstance(dispatcher, str) else "",
        step_size=step if isinstance(step, int) else None,
        gates=gates | _gates(args),
    )


def _section(told: dict[str, Any], name: str) -> dict[str, Any]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def _gates(args: tuple[str, ...]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for arg in args:
        name, _, value = arg.partition("=")
        if name == "--feature-gates":
            for pair in value.split(","):
                gate, _, on = pair.partition("=")
                found[gate.strip()] = on.strip().lower() == "true"
    return found
