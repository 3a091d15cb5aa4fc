"""Resources that one pod holds on its node, computed when the pod changes. Pure.

A pod with Berthmaster's labels is managed, any other is unmanaged. KAI's scheduler holds a shared
GPU with a pod of its own. The sharing pods request no resource: annotations give their fraction,
and labels their groups, one per GPU.

Unreadable values count as their maximum and are problems of the hold. Example: ``gpu-fraction:
"NaN"`` is a whole GPU. ``gpu-fraction-num-devices: "two"`` is every GPU of the node, unless labels
name the pod's groups.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.lib.accelerators.table import KAI_DEVICES, KAI_FRACTION, KAI_MEMORY, NVIDIA, how_of
from berthmaster.lib.accelerators.written import (
    ALLOCATED,
    KAI_GROUP,
    KAI_KEEPERS,
    WHOLE_OF_UNKNOWN,
    HamiUse,
    kai_groups,
    read_hami,
)
from berthmaster.lib.kube.labels import GPUS, Identity, gpu_indices, identity
from berthmaster.worker.inventory.core.devices.amounts import (
    CPU,
    MEMORY,
    held,
    nonsense_of,
    quantities_of,
)
from berthmaster.worker.inventory.core.devices.layout import MAX_GPUS, WHOLE
from berthmaster.worker.inventory.core.objects import Pod

ENDED: Final = ("Succeeded", "Failed")
_NUMBER: Final = re.compile(r"[0-9]{1,8}")
_DECIMAL: Final = re.compile(
    r"(?:[0-9]{1,20}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?"
)


class Hold(NamedTuple):
    node: str
    uid: str
    ours: Identity | None
    cpu_milli: int
    memory_bytes: int
    pieces: tuple[tuple[str, int], ...] = ()  # extended resources, GPUs included
    gpus: tuple[int, ...] = ()  # indices, where the pod says
    hami: tuple[HamiUse, ...] = ()
    fraction_milli: int = 0  # by KAI, of each device; the larger counts where both are told
    fraction_mib: int = 0  # of a KAI fraction by memory
    fraction_devices: int = 1
    groups: tuple[str, ...] = ()  # KAI's, of one GPU each
    keeper: bool = False  # KAI's own pod that holds a GPU for its group
    problems: tuple[str, ...] = ()  # unreadable values, counted as their maximum

    @property
    def is_part(self) -> bool:
        """Return whether KAI gives the pod a GPU fraction."""
        return bool(self.fraction_milli or self.fraction_mib)


def hold_of(pod: Pod) -> Hold | None:
    """Return a pod's hold; None if unbound or ended."""
    if not pod.spec.node_name or pod.status.phase in ENDED:
        return None
    asked = held(pod.spec)
    problems = list(nonsense_of(quantities_of(pod.spec)))
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    pieces = tuple(
        sorted((n, count) for n, count in asked.items() if count and how_of(n) is not None)
    )
    hami: tuple[HamiUse, ...] = ()
    if pieces and ALLOCATED in annotations:
        hami = _by_hami(pod, asked.get(NVIDIA, 0), problems)
    gpus = gpu_indices(annotations)
    if annotations.get(GPUS) and not gpus:
        problems.append(
            f"annotation {GPUS}: {annotations[GPUS][:32]!r} is no list of GPUs; right is such as "
            "0,3"
        )
    hold = Hold(
        node=pod.spec.node_name,
        uid=pod.metadata.uid,
        ours=identity(labels, annotations, pod.metadata.name),
        cpu_milli=asked.get(CPU, 0),
        memory_bytes=asked.get(MEMORY, 0),
        pieces=pieces,
        gpus=gpus,
        hami=hami,
        groups=kai_groups(labels),
    )
    if hold.groups and pod.metadata.namespace in KAI_KEEPERS:
        hold = hold._replace(keeper=True)
    elif KAI_FRACTION in annotations or KAI_MEMORY in annotations or (hold.groups and not pieces):
        hold = _shared_by_kai(hold, annotations, problems)
    return hold._replace(problems=tuple(problems))


def _by_hami(pod: Pod, asked: int, problems: list[str]) -> tuple[HamiUse, ...]:
    """Return the GPUs in HAMi's annotation, and a whole GPU for each one not named."""
    annotations = pod.metadata.annotations
    found = read_hami(annotations, len(pod.spec.init_containers))
    if found.problem:
        problems.append(found.problem)
    unnamed = min(asked - found.entries, MAX_GPUS)
    if unnamed <= 0:
        return found.uses
    problems.append(
        f"annotation {ALLOCATED}: {found.entries} devices of {asked} that the pod asks for; "
        f"{unnamed} count as whole GPUs"
    )
    return found.uses + (WHOLE_OF_UNKNOWN,) * unnamed


def _shared_by_kai(hold: Hold, annotations: Mapping[str, str], problems: list[str]) -> Hold:
    milli = mib = 0
    if (text := annotations.get(KAI_FRACTION)) is not None:
        share = float(text) if _DECIMAL.fullmatch(text) else math.nan
        if 0 < share <= 1:
            milli = max(1, math.ceil(share * WHOLE - 1e-6))
        else:
            milli = WHOLE
            problems.append(f"annotation {KAI_FRACTION}: {text[:32]!r} is no share of a GPU")
    if (text := annotations.get(KAI_MEMORY)) is not None:
        mib = int(text) if _NUMBER.fullmatch(text) else 0
        if not mib:
            milli = WHOLE
            problems.append(f"annotation {KAI_MEMORY}: {text[:32]!r} is no number of MiB")
    if not milli and not mib:
        milli = WHOLE
        problems.append(f"label {KAI_GROUP}: no annotation says how much of the GPU the pod has")
    return hold._replace(
        fraction_milli=milli,
        fraction_mib=mib,
        fraction_devices=_devices(hold.groups, annotations.get(KAI_DEVICES), problems),
    )


def _devices(groups: tuple[str, ...], text: str | None, problems: list[str]) -> int:
    """Of how many GPUs KAI gives the pod a part: as many as its labels name, at least."""
    if text is None:
        return max(1, len(groups))
    count = int(text) if _NUMBER.fullmatch(text) else 0
    if 1 <= count <= MAX_GPUS:
        return max(count, len(groups))
    problems.append(f"annotation {KAI_DEVICES}: {text[:32]!r} is no number of GPUs")
    return len(groups) or MAX_GPUS
