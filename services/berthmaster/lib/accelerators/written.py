"""GPU allocations that sharing layers write on pods. Pure.

HAMi names the devices in an annotation. KAI's scheduler reserves a shared GPU by a pod of its own,
and labels on the sharing pods name their groups.

An unreadable entry counts as a whole GPU, the maximum. For example ``GPU-a,NVIDIA,3Gi,20:;``
allocates all of GPU-a, and ``junk:;`` all of an unknown GPU.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
MAX_CHARS: Final = 64 * 1024
MAX_DEVICES: Final = 64
KAI_GROUP: Final = "runai-gpu-group"  # label
_KAI_ONE_OF: Final = f"{KAI_GROUP}/"  # prefix: one label a group, where a pod shares several GPUs
_MAX_GROUPS: Final = 64
KAI_KEEPERS: Final = ("kai-resource-reservation", "runai-reservation")  # namespaces
_AMOUNT: Final = re.compile(r"[0-9]{1,9}")
_WHOLE_PERCENT: Final = 100


def kai_groups(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the groups of a pod. Each group shares one GPU, reserved by a pod of KAI."""
    found = {group for key, group in labels.items() if key.startswith(_KAI_ONE_OF)}
    found.add(labels.get(KAI_GROUP, ""))
    return tuple(sorted(found - {""}))[:_MAX_GROUPS]


class HamiUse(NamedTuple):
    """A pod's allocation of one GPU."""

    uuid: str  # "" = missing in the annotation
    memory_mib: int
    cores_percent: int


WHOLE_OF_UNKNOWN: Final = HamiUse("", 0, _WHOLE_PERCENT)


class HamiUses(NamedTuple):
    """The content of a pod's annotation."""

    uses: tuple[HamiUse, ...] = ()
    entries: int = 0  # devices of all containers, of which several may be one GPU
    problem: str = ""  # the first unreadable entry, for operators


def read_hami(annotations: Mapping[str, str], init_containers: int = 0) -> HamiUses:
    """Return a pod's GPUs from "UUID,NVIDIA,MiB,cores:" for each device, ";" after each container.

    Init containers come first and run in sequence. So their largest allocation counts, and only if
    the other containers together have less. For a MIG slice by HAMi its position follows the UUID.
    """
    text = annotations.get(ALLOCATED, "")
    if len(text) > MAX_CHARS:
        problem = f"annotation {ALLOCATED}: {len(text)} characters; right are at most {MAX_CHARS}"
        return HamiUses((WHOLE_OF_UNKNOWN,) * MAX_DEVICES, MAX_DEVICES, problem)
    largest: dict[str, HamiUse] = {}
    together: dict[str, HamiUse] = {}
    unknown: list[HamiUse] = []
    entries, problem = 0, ""
    for number, container in enumerate(text.split(";")):
        for entry in container.split(":"):
            if not entry.strip():
                continue
            entries += 1
            use, is_right = _entry(entry)
            if not is_right and not problem:
                problem = (
                    f"annotation {ALLOCATED}: {entry[:64]!r} is no device and counts as a whole "
                    "GPU; right is such as GPU-1a2b,NVIDIA,3000,20"
                )
            if not use.uuid:
                unknown.append(use)
            elif number < init_containers:
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
    return HamiUses((*together.values(), *unknown[:MAX_DEVICES]), entries, problem)


def _entry(text: str) -> tuple[HamiUse, bool]:
    """Return one device, and whether its entry is fully readable."""
    fields = [field.strip() for field in text.split(",")]
    uuid = fields[0].partition("[")[0]
    amounts = fields[2:4]
    is_right = len(amounts) == 2 and all(_AMOUNT.fullmatch(one) for one in amounts)
    if not uuid or not is_right or not int(amounts[0]):  # no pod has a GPU without memory
        return HamiUse(uuid, 0, _WHOLE_PERCENT), False
    return HamiUse(uuid, int(amounts[0]), int(amounts[1])), True


def _larger(one: HamiUse, other: HamiUse) -> HamiUse:
    memory_mib = max(one.memory_mib, other.memory_mib)
    return HamiUse(one.uuid, memory_mib, max(one.cores_percent, other.cores_percent))
