"""What is written on pods of the GPUs that they have, by those who give out parts of them. Pure.

HAMi names the devices in an annotation. KAI's scheduler keeps a GPU that it shares by a pod of its
own, and the sharers say by label which group they belong to. What cannot be read counts as absent.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
MAX_CHARS: Final = 64 * 1024
MAX_DEVICES: Final = 64
KAI_GROUP: Final = "runai-gpu-group"  # label
_KAI_ONE_OF: Final = f"{KAI_GROUP}/"  # of labels, one a group, where a pod shares several GPUs
_MAX_GROUPS: Final = 64
KAI_KEEPERS: Final = ("kai-resource-reservation", "runai-reservation")  # namespaces


def kai_groups(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The groups of a pod: each shares one GPU, which one pod of KAI's own keeps for it."""
    found = {group for key, group in labels.items() if key.startswith(_KAI_ONE_OF)}
    found.add(labels.get(KAI_GROUP, ""))
    return tuple(sorted(found - {""}))[:_MAX_GROUPS]


class HamiUse(NamedTuple):
    """What one container holds of one GPU."""

    uuid: str
    memory_mib: int
    cores_percent: int


def hami_use(annotations: Mapping[str, str]) -> tuple[HamiUse, ...]:
    """Which GPUs a pod has: "UUID,NVIDIA,MiB,cores:" for each device, ";" behind each container."""
    uses: list[HamiUse] = []
    for container in annotations.get(ALLOCATED, "")[:MAX_CHARS].split(";"):
        for device in container.split(":"):
            fields: list[Any] = device.split(",")
            if len(fields) >= 4 and fields[2].isdecimal() and fields[3].isdecimal():
                uses.append(HamiUse(fields[0], int(fields[2][:9]), int(fields[3][:4])))
    return tuple(uses[:MAX_DEVICES])
