"""What one pod holds on its node, worked out once when the pod changes. Pure.

A pod is ours when it carries our labels; what any other holds is foreign use. KAI's scheduler keeps
a GPU that it shares by a pod of its own, and the sharers ask for no resource: they say by
annotation how much, and by label which groups they belong to, one for each GPU.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.accelerators.table import KAI_DEVICES, KAI_FRACTION, KAI_MEMORY, how_of
from berthmaster.accelerators.written import KAI_KEEPERS, HamiUse, hami_use, kai_groups
from berthmaster.inventory.devices.amounts import CPU, MEMORY, Nonsense, held
from berthmaster.inventory.devices.layout import WHOLE
from berthmaster.inventory.objects import Pod
from berthmaster.kubernetes.labels import Identity, gpu_indices, identity

ENDED: Final = ("Succeeded", "Failed")


class Hold(NamedTuple):
    """What one pod holds."""

    node: str
    uid: str
    ours: Identity | None
    cpu_milli: int
    memory_bytes: int
    pieces: tuple[tuple[str, int], ...] = ()  # extended resources, GPUs among them
    gpus: tuple[int, ...] = ()  # indices, where the pod says
    hami: tuple[HamiUse, ...] = ()
    fraction_milli: int = 0  # by KAI, of each device
    fraction_mib: int = 0  # by KAI, where it asks for memory
    fraction_devices: int = 1
    groups: tuple[str, ...] = ()  # KAI's, of one GPU each
    keeper: bool = False  # KAI's own pod, which keeps a GPU for its group

    @property
    def is_part(self) -> bool:
        """Whether KAI gives it a part of a GPU."""
        return bool(self.fraction_milli or self.fraction_mib)


def hold_of(pod: Pod) -> tuple[Hold | None, str]:
    """(what it holds, what of it cannot be right). None: it is bound to no node, or has ended."""
    if not pod.spec.node_name or pod.status.phase in ENDED:
        return None, ""
    asked: dict[str, int] = {}
    problem = ""
    try:
        asked = held(pod.spec)
    except Nonsense as nonsense:
        problem = str(nonsense)
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    pieces = tuple(
        sorted((n, count) for n, count in asked.items() if count and how_of(n) is not None)
    )
    hold = Hold(
        node=pod.spec.node_name,
        uid=pod.metadata.uid,
        ours=identity(labels, annotations, pod.metadata.name),
        cpu_milli=asked.get(CPU, 0),
        memory_bytes=asked.get(MEMORY, 0),
        pieces=pieces,
        gpus=gpu_indices(annotations),
        hami=hami_use(annotations, len(pod.spec.init_containers)) if pieces else (),
    )
    if groups := kai_groups(labels):
        keeper = pod.metadata.namespace in KAI_KEEPERS
        hold = hold._replace(groups=groups, keeper=keeper)
    if KAI_FRACTION in annotations or KAI_MEMORY in annotations:
        try:
            hold = _shared_by_kai(hold, annotations)
        except Nonsense as nonsense:
            problem = str(nonsense)
    return hold, problem


def _shared_by_kai(hold: Hold, annotations: Mapping[str, str]) -> Hold:
    devices = annotations.get(KAI_DEVICES, "1")
    if not devices.isdecimal() or not 1 <= int(devices[:4]) <= 64:
        raise Nonsense(f"annotation {KAI_DEVICES}: {devices[:32]!r} is no number of GPUs")
    milli = mib = 0
    if (text := annotations.get(KAI_FRACTION)) is not None:
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 < share <= 1:
            raise Nonsense(f"annotation {KAI_FRACTION}: {text[:32]!r} is no share of a GPU")
        milli = math.ceil(share * WHOLE - 1e-6)
    else:
        text = annotations[KAI_MEMORY]
        if not text.isdecimal() or len(text) > 8:
            raise Nonsense(f"annotation {KAI_MEMORY}: {text[:32]!r} is no number of MiB")
        mib = int(text)
    return hold._replace(fraction_milli=milli, fraction_mib=mib, fraction_devices=int(devices))
