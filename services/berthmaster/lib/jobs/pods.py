"""The fixed schema of Berthmaster's pods. Pure.

A request sets image, command, arguments, environment, resources, tolerations and node labels. The
named runtime adds what its operator allows (templates.py). Everything else is excluded: privileges,
host access, Secrets except the tenant's and the runtime's, rights in the cluster except those of
the queue's service account, and GPUs beyond the request.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.engine.fleet.pieces import tolerations_of
from berthmaster.lib.messages.workload import PodSet, RunSpec, Toleration

CONTAINER: Final = "main"
# Some variables make a container runtime add the named devices, whatever the device plugin
# allocated. Others tell a driver or a sharing layer which of a pod's devices, or how much of one, a
# process may use. Example: HAMi-core's limit 0 applies to the first device in CUDA_VISIBLE_DEVICES.
# Only device plugins, operators and the executor may set these variables. The rule matches words in
# a name, so that the rule covers makers whose devices were never tested here.
OPENS_GPUS: Final = "NVIDIA_VISIBLE_DEVICES"
FOR_DEVICE_PLUGINS: Final = re.compile(
    # Of all makers: CUDA_, ROCR_, HIP_, HABANA_, ASCEND_RT_, MLU_, NEURON_RT_VISIBLE_CORES, …
    r"(?:\w+_)?VISIBLE_(?:\w+_)?(?:DEVICE|CORE|CHIP|MODULE|GPU|NPU|XPU|TPU|CARD|DIE|ACCELERATOR)S?\Z"
    r"|(?:\w+_)?(?:DEVICE_ORDINAL|AFFINITY_MASK|DEVICE_SELECTOR|DEVICE_FILTER|DEVICE_ALLOWLIST)\Z"
    r"|\w+_(?:VNPU_SPECS|DEVICE_IDS?|DEVICE_LIST|MODULE_IDS?|PHYSICAL_DEVICES?)\Z"
    # NVIDIA's container toolkit: more devices, and the driver's own files.
    r"|NVIDIA_(?:MIG_(?:CONFIG|MONITOR)_DEVICES|IMEX_CHANNELS|FABRIC_DEVICES|GDS|MOFED|NVSWITCH"
    r"|GDRCOPY)\Z"
    # HAMi-core and MPS.
    r"|CUDA_(?:DISABLE_CONTROL|OVERSUBSCRIBE|DEVICE_(?:MEMORY|SM)_LIMIT(?:_\d+)?)\Z"
    r"|CUDA_(?:DEVICE_MEMORY_SHARED_CACHE|TASK_PRIORITY)\Z|GPU_CORE_UTILIZATION_POLICY\Z"
    r"|CUDA_MPS_\w+\Z|(?:VGPU|HAMI|LIBCUDA_LOG)_\w+\Z"
    # AMD's compute unit masks, and Intel's view of tiles and of SR-IOV functions.
    r"|(?:HSA|ROC)_(?:CU_MASK\w*|GLOBAL_CU_MASK)\Z|ZE_\w*DEVICE_HIERARCHY\Z|ZEX_NUMBER_OF_CCS\Z"
    # TPUs: the chips, and their position in the slice.
    r"|(?:CLOUD_)?TPU_(?:VISIBLE_\w+|CHIPS?_\w+|PROCESS_\w+|HOST_BOUNDS|ACCELERATOR_TYPE|TOPOLOGY\w*"
    r"|WORKER_\w+|TASK_ID|SKIP_MDS_QUERY)\Z"
    # Huawei's, Habana's and AWS's.
    r"|ASCEND_(?:RUNTIME_OPTIONS|ALLOW_LINK)\Z|HABANA_RUNTIME_\w+\Z|NEURON_RT_(?:NUM|VIRTUAL)_\w+\Z"
    r"|(?:RBLN|FURIOSA|QAIC|TT)_DEVICES?\Z"
)
# The driver capabilities of a container. Some add device files beyond the GPUs: graphics and
# display add /dev/dri and /dev/nvidia-modeset, and "all" includes both. These add libraries only.
_CAPABILITIES: Final = re.compile(r"\w+_DRIVER_CAPABILITIES\Z")
LIBRARIES_ONLY: Final = ("compute", "utility", "video", "compat32", "ngx")
Document = dict[str, Any]
GPU_CLAIM: Final = "gpu"  # name of a pod's claim for its GPUs
# An existing ResourceClaimTemplate, with one claim for each pod, or a ResourceClaim shared by all.
Existing = Literal["template", "claim"]
HARDENED: Final[Document] = {  # security context of every container
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
    """Return the specification of one pod.

    - ``tenant``: owner of the readable Secrets.
    - ``account``: a service account. "" = the namespace's default, without a mounted token.
    - ``devices``: number of each extended resource.
    - ``env``: variables set by the executor.
    """
    amounts = {"cpu": f"{pods.cpu_milli}m", "memory": f"{pods.memory_mib}Mi"}
    limits = dict(devices)
    if pods.memory_mib:  # above the limit this pod is killed, and no other pod
        limits["memory"] = amounts["memory"]
    spec: Document = {
        "restartPolicy": "Never",
        "containers": [_container(run, pods, tenant, amounts | dict(devices), limits, env)],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "enableServiceLinks": False,
        # A job that needs the cluster's API has a queue with a service account.
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
    """Return the node label requirements for the pod's TPUs."""
    if not pods.tpus:
        return []
    kinds = (tpu.ACCELERATOR_LABEL, list(pods.tpu_accelerators))
    shapes = (tpu.TOPOLOGY_LABEL, [pods.tpu_topology] if pods.tpu_topology else [])
    return [one_of(key, values) for key, values in (kinds, shapes) if values]


def one_of(key: str, values: list[str]) -> Document:
    """Return the requirement that a label has one of some values."""
    return {"key": key, "operator": "In", "values": values}


def from_annotation(name: str) -> Document:
    """Return the source of a variable with the value of the pod's annotation."""
    return {"fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}


def use_claims(spec: Document, existing: Mapping[str, Existing], gpus: str = "") -> None:
    """Add the request's claims to a pod, and one for GPUs from the template ``gpus``, if any."""
    named = [{"name": GPU_CLAIM, "resourceClaimTemplateName": gpus}] if gpus else []
    for number, (name, kind) in enumerate(existing.items()):
        key = "resourceClaimTemplateName" if kind == "template" else "resourceClaimName"
        named.append({"name": f"claim-{number}", key: name})
    if named:
        spec["resourceClaims"] = named
        [container] = spec["containers"]
        container["resources"]["claims"] = [{"name": claim["name"]} for claim in named]


def is_for_device_plugins(name: str, value: str | None) -> bool:
    """Return whether a variable selects devices of a container, or an amount of them.

    ``value``: None = unknown here.
    """
    if _CAPABILITIES.match(name):
        wanted = [each.strip() for each in (value or "").split(",")]
        return value is None or not set(wanted) <= {"", *LIBRARIES_ONLY}
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
    plain = {
        name: value
        for name, value in sorted(run.env.items())
        if not is_for_device_plugins(name, value)
    }
    if not pods.gpus:  # else images with the value "all", such as CUDA's, see every GPU
        plain[OPENS_GPUS] = "void"
    plain |= ours
    env: list[Document] = [{"name": name, "value": value} for name, value in plain.items()]
    for name, of in sorted(run.secret_env.items()):
        if is_for_device_plugins(name, None):
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
