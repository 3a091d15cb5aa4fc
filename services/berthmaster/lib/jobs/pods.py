"""The pods that we make, whoever makes them: one fixed schema. Pure.

What people ask for fills in image, command, arguments, environment, amounts, tolerations and labels
of nodes, and the runtime that they name puts in what its operator allows (templates.py). Beyond
that nothing: nothing privileged, nothing of the host, no Secret but the tenant's own and those of
the runtime, no rights in the cluster but those of an account that the queue names, no GPU but those
that were asked for.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.engine.fleet.pieces import tolerations_of
from berthmaster.lib.messages.workload import PodSet, RunSpec, Toleration

CONTAINER: Final = "main"
# Container runtimes hand in the devices that some variables name, whatever the device plugin gave.
# Others say to a driver or to a sharing layer which of a pod's devices, or how much of one, a
# process may take: HAMi-core's limit 0 is that of the first device that CUDA_VISIBLE_DEVICES names.
# Device plugins, operators and the executor set them. The rule goes by the words in a name, so that
# it holds for makers whose devices nobody here has seen.
OPENS_GPUS: Final = "NVIDIA_VISIBLE_DEVICES"
FOR_DEVICE_PLUGINS: Final = re.compile(
    # Any maker's: CUDA_, ROCR_, HIP_, HABANA_, ASCEND_RT_, MLU_, NEURON_RT_VISIBLE_CORES, …
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
    # AMD's share of compute units, and Intel's view of tiles and of SR-IOV functions.
    r"|(?:HSA|ROC)_(?:CU_MASK\w*|GLOBAL_CU_MASK)\Z|ZE_\w*DEVICE_HIERARCHY\Z|ZEX_NUMBER_OF_CCS\Z"
    # TPUs: which chips, and where they are in the slice.
    r"|(?:CLOUD_)?TPU_(?:VISIBLE_\w+|CHIPS?_\w+|PROCESS_\w+|HOST_BOUNDS|ACCELERATOR_TYPE|TOPOLOGY\w*"
    r"|WORKER_\w+|TASK_ID|SKIP_MDS_QUERY)\Z"
    # Huawei's, Habana's and AWS's.
    r"|ASCEND_(?:RUNTIME_OPTIONS|ALLOW_LINK)\Z|HABANA_RUNTIME_\w+\Z|NEURON_RT_(?:NUM|VIRTUAL)_\w+\Z"
    r"|(?:RBLN|FURIOSA|QAIC|TT)_DEVICES?\Z"
)
# What of a driver a container gets. Some bring device files beside those of its GPUs: graphics and
# display bring /dev/dri and /dev/nvidia-modeset, and "all" is both. These bring libraries only.
_CAPABILITIES: Final = re.compile(r"\w+_DRIVER_CAPABILITIES\Z")
LIBRARIES_ONLY: Final = ("compute", "utility", "video", "compat32", "ngx")
Document = dict[str, Any]
GPU_CLAIM: Final = "gpu"  # what pods call the claim of their GPUs
# Of what a request names: a template, of which each pod gets its own, or a claim that all share.
Existing = Literal["template", "claim"]
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


def from_annotation(name: str) -> Document:
    """The value of a variable that is an annotation of its pod."""
    return {"fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}


def use_claims(spec: Document, existing: Mapping[str, Existing], gpus: str = "") -> None:
    """Have a pod use claims: those that the request names, and one of its GPUs from the template
    ``gpus``, "" = none."""
    named = [{"name": GPU_CLAIM, "resourceClaimTemplateName": gpus}] if gpus else []
    for number, (name, kind) in enumerate(existing.items()):
        key = "resourceClaimTemplateName" if kind == "template" else "resourceClaimName"
        named.append({"name": f"claim-{number}", key: name})
    if named:
        spec["resourceClaims"] = named
        [container] = spec["containers"]
        container["resources"]["claims"] = [{"name": claim["name"]} for claim in named]


def is_for_device_plugins(name: str, value: str | None) -> bool:
    """Whether a variable says which devices a container sees, or how much of them; ``value``: None
    = not known here."""
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
    if not pods.gpus:  # else images that say "all", as CUDA's do, see every GPU of the node
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
