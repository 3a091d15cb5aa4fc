"""The pods that we make, whoever makes them: one fixed schema. Pure.

What people ask for fills in image, command, arguments, environment, amounts, tolerations and labels
of nodes, and the runtime that they name puts in what its operator allows (templates.py). Beyond
that nothing: nothing privileged, nothing of the host, no Secret but the tenant's own and those of
the runtime, no rights in the cluster but those of an account that the queue names, no GPU but those
that were asked for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from berthmaster.accelerators import tpu
from berthmaster.engine.fleet.pieces import tolerations_of
from berthmaster.messages.workload import PodSet, RunSpec, Toleration

CONTAINER: Final = "main"
# Container runtimes hand in the GPUs that these name, whatever the device plugin gave (NVIDIA's,
# AMD's, Habana's and Ascend's container toolkits); HAMi-core and MPS go by the others for what a
# pod may take of a GPU. They are for device plugins to set, and for nobody else.
OPENS_GPUS: Final = "NVIDIA_VISIBLE_DEVICES"
FOR_DEVICE_PLUGINS: Final = re.compile(
    r"(?:NVIDIA|AMD|HABANA|ASCEND)_VISIBLE_DEVICES\Z|ASCEND_RT_VISIBLE_DEVICES\Z"
    r"|NVIDIA_(?:MIG_(?:CONFIG|MONITOR)_DEVICES|IMEX_CHANNELS)\Z"
    r"|CUDA_(?:DISABLE_CONTROL|OVERSUBSCRIBE|DEVICE_(?:MEMORY|SM)_LIMIT(?:_\d+)?)\Z"
    r"|CUDA_(?:DEVICE_MEMORY_SHARED_CACHE|TASK_PRIORITY)\Z|GPU_CORE_UTILIZATION_POLICY\Z"
    r"|CUDA_MPS_\w+\Z"
)
Document = dict[str, Any]
HARDENED: Final[Document] = {  # every container that we make
    "allowPrivilegeEscalation": False,
    "privileged": False,
    "capabilities": {"drop": ["ALL"]},
}


def pod_spec(
    run: RunSpec,
    pods: PodSet,
    *,
    tenant: str,
    account: str,
    devices: Mapping[str, str],
    env: Mapping[str, str] = {},
) -> Document:
    """The specification of one pod. ``tenant``: whose Secrets it may read. ``account``: a service
    account, "" = the namespace's own, whose token is not handed in then. ``devices``: extended
    resources and how many of each. ``env``: variables that are ours to set."""
    amounts = {"cpu": f"{pods.cpu_milli}m", "memory": f"{pods.memory_mib}Mi"}
    limits = dict(devices)
    if pods.memory_mib:  # beyond it the pod is ended, and none beside it
        limits["memory"] = amounts["memory"]
    spec: Document = {
        "restartPolicy": "Never",
        "containers": [_container(run, pods, tenant, amounts | dict(devices), limits, env)],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "enableServiceLinks": False,
        # Whoever needs the cluster's API says so by naming an account in the queue.
        "automountServiceAccountToken": bool(account),
    }
    if account:
        spec["serviceAccountName"] = account
    if tolerated := tolerations_of(pods):
        spec["tolerations"] = [_toleration(each) for each in tolerated]
    if pods.node_labels:
        spec["nodeSelector"] = dict(pods.node_labels)
    return spec


def tpu_nodes(pods: PodSet) -> list[Document]:
    """Which TPUs will do, as expressions over the labels of their nodes."""
    if not pods.tpus:
        return []
    kinds = (tpu.ACCELERATOR_LABEL, list(pods.tpu_accelerators))
    shapes = (tpu.TOPOLOGY_LABEL, [pods.tpu_topology] if pods.tpu_topology else [])
    return [one_of(key, values) for key, values in (kinds, shapes) if values]


def one_of(key: str, values: list[str]) -> Document:
    """A label has one of some values."""
    return {"key": key, "operator": "In", "values": values}


def use_claims(spec: Document, named: Sequence[Document]) -> None:
    """Have a pod use these claims, as ``resourceClaims`` has them."""
    if named:
        spec["resourceClaims"] = list(named)
        [container] = spec["containers"]
        container["resources"]["claims"] = [{"name": claim["name"]} for claim in named]


def is_for_device_plugins(name: str) -> bool:
    """Whether a variable says which GPUs a container sees, or how much of them."""
    return FOR_DEVICE_PLUGINS.match(name) is not None


def _container(
    run: RunSpec,
    pods: PodSet,
    tenant: str,
    requests: dict[str, str],
    limits: dict[str, str],
    ours: Mapping[str, str],
) -> Document:
    made: Document = {
        "name": CONTAINER,
        "image": run.image,
        "resources": {"requests": requests, "limits": limits},
        "securityContext": HARDENED,
    }
    if run.command:
        made["command"] = list(run.command)
    if run.args:
        made["args"] = list(run.args)
    plain = {name: run.env[name] for name in sorted(run.env) if not is_for_device_plugins(name)}
    if not pods.gpus:  # else images that say "all", as CUDA's do, see every GPU of the node
        plain[OPENS_GPUS] = "void"
    plain |= ours
    env: list[Document] = [{"name": name, "value": value} for name, value in plain.items()]
    for name, of in sorted(run.secret_env.items()):
        if is_for_device_plugins(name):
            continue
        reference = {"name": f"{tenant}.{of.name}", "key": of.key}
        env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    if env:
        made["env"] = env
    return made


def _toleration(toleration: Toleration) -> dict[str, str]:
    made = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {name: text for name, text in made.items() if text}
