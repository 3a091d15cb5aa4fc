"""What the doctor reads of Kubernetes' and Kueue's objects, and the facts that it comes to. Pure.

Structs are the doctor's own but for MultiKueue's: it must understand a hub on which nothing of ours
would start.
"""

from typing import Any, Final, TypeVar

import msgspec
import yaml

from berthmaster.doctor import facts
from berthmaster.doctor.facts import ManagerConfig, State
from berthmaster.kubernetes.multikueue import ACTIVE
from berthmaster.kubernetes.objects import Condition, Conditioned, Object, Struct, condition
from berthmaster.kubernetes.quantity import QuantityError, parse_quantity

O = TypeVar("O", bound=Object)  # noqa: E741
MODEL_LABEL: Final = "nvidia.com/gpu.product"
CONFIG_FILE: Final = "controller_manager_config.yaml"
GPU_MARKS: Final = ("/gpu", "nvidia.com/mig-", "google.com/tpu")


class Quota(Struct, frozen=True):
    name: str = ""
    nominal_quota: str | int = "0"


class Flavor(Struct, frozen=True):
    name: str = ""
    resources: tuple[Quota, ...] = ()


class ResourceGroup(Struct, frozen=True):
    flavors: tuple[Flavor, ...] = ()


class CheckRule(Struct, frozen=True):
    name: str = ""


class CheckStrategy(Struct, frozen=True):
    admission_checks: tuple[CheckRule, ...] = ()


class QueueSpec(Struct, frozen=True):
    resource_groups: tuple[ResourceGroup, ...] = ()
    admission_checks_strategy: CheckStrategy | None = None
    stop_policy: str | None = None


class ClusterQueue(Conditioned, frozen=True):
    spec: QueueSpec = QueueSpec()


class LocalSpec(Struct, frozen=True):
    cluster_queue: str = ""


class LocalQueue(Conditioned, frozen=True):
    spec: LocalSpec = LocalSpec()


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


def state(one: Conditioned) -> State:
    """Of the condition Active."""
    found = one.condition(ACTIVE)
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


def gpu_quota(spec: QueueSpec) -> dict[str, int] | None:
    """By resource, over all flavors."""
    found: dict[str, int] = {}
    for group in spec.resource_groups:
        for flavor in group.flavors:
            for quota in flavor.resources:
                if is_gpu(quota.name):
                    found[quota.name] = found.get(quota.name, 0) + amount(quota.nominal_quota)
    return found or None


def cluster_queue(one: ClusterQueue) -> facts.ClusterQueue:
    """As a fact."""
    strategy = one.spec.admission_checks_strategy or CheckStrategy()
    stopped = one.spec.stop_policy or "None"
    return facts.ClusterQueue(
        name=one.metadata.name,
        checks=tuple(rule.name for rule in strategy.admission_checks),
        state=state(one),
        stopped="" if stopped == "None" else stopped,
        gpu_quota=gpu_quota(one.spec),
    )


def local_queue(one: LocalQueue) -> facts.LocalQueue:
    """As a fact."""
    return facts.LocalQueue(
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        cluster_queue=one.spec.cluster_queue,
        state=state(one),
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
        "kueue.x-k8s.io" in rule.api_groups and "workloads/status" in rule.resources
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
