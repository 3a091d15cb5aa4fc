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
    """What a pod holds of one GPU."""

    uuid: str
    memory_mib: int
    cores_percent: int


def hami_use(annotations: Mapping[str, str], init_containers: int = 0) -> tuple[HamiUse, ...]:
    """Which GPUs a pod has: "UUID,NVIDIA,MiB,cores:" for each device, ";" behind each container.
    Init containers come first and run one after the other, so of them the largest counts, and only
    where the others together have less. A slice that HAMi cuts has its place behind the UUID."""
    largest: dict[str, HamiUse] = {}
    together: dict[str, HamiUse] = {}
    for number, container in enumerate(annotations.get(ALLOCATED, "")[:MAX_CHARS].split(";")):
        for device in container.split(":"):
            fields: list[Any] = device.split(",")
            if len(fields) < 4 or not (fields[2].isdecimal() and fields[3].isdecimal()):
                continue
            use = HamiUse(fields[0].partition("[")[0], int(fields[2][:9]), int(fields[3][:4]))
            if number < init_containers:
                largest[use.uuid] = _larger(use, largest.get(use.uuid, use))
            else:
                before = together.get(use.uuid, HamiUse(use.uuid, 0, 0))
                together[use.uuid] = HamiUse(
                    use.uuid,
                    before.memory_mib + use.memory_mib,
                    before.cores_percent + use.cores_percent,
                )
    for uuid, use in largest.items():
        together[uuid] = _larger(use, together.get(uuid, use))
    return tuple(together.values())[:MAX_DEVICES]


def _larger(one: HamiUse, other: HamiUse) -> HamiUse:
    memory_mib = max(one.memory_mib, other.memory_mib)
    return HamiUse(one.uuid, memory_mib, max(one.cores_percent, other.cores_percent))
