"""Links between GPUs of a node from annotations, where neither driver nor HAMi reports them. Pure.

``berthmaster.io/nvlink: "0,1,2,3 4,5,6,7"`` are two groups linked by NVLink, with indices as in
``nvidia-smi topo -m``. ``berthmaster.io/numa`` has the GPUs of each NUMA node. Operators write
them, because a device plugin only counts. Annotations override a driver. A malformed annotation is
reported and ignored.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.worker.inventory.core.devices.layout import Gpu, maker_of_gpu

NVLINK: Final = "berthmaster.io/nvlink"
NUMA: Final = "berthmaster.io/numa"
MAX_CHARS: Final = 1024


def linked(
    gpus: tuple[Gpu, ...], annotations: Mapping[str, str]
) -> tuple[tuple[Gpu, ...], list[str]]:
    """Return the GPUs with links, and the problems of the annotations."""
    problems: list[str] = []
    for key in (NVLINK, NUMA):
        text = annotations.get(key, "")
        if not text or not gpus:
            continue
        numbers = _numbers(gpus)
        groups = _groups(text, len(numbers))
        if isinstance(groups, str):
            problems.append(f"annotation {key}: {groups}")
        elif key == NVLINK:
            gpus = tuple(
                gpu._replace(nvlink_domain=groups.get(numbers.get(at, -1)))
                for at, gpu in enumerate(gpus)
            )
        else:
            gpus = tuple(
                gpu._replace(numa_node=groups.get(numbers.get(at, -1)))
                for at, gpu in enumerate(gpus)
            )
    return gpus, problems


def _numbers(gpus: tuple[Gpu, ...]) -> dict[int, int]:
    """Return the annotation's number of each GPU by position: of NVIDIA's GPUs, or else of the
    node's first vendor.
    """
    makers = [maker_of_gpu(gpu) for gpu in gpus]
    meant = "nvidia" if "nvidia" in makers else makers[0]
    positions = [at for at, maker in enumerate(makers) if maker == meant]
    return {at: number for number, at in enumerate(positions)}


def _groups(text: str, count: int) -> dict[int, int] | str:
    """Return the group of each GPU, or the error."""
    found: dict[int, int] = {}
    for number, group in enumerate(text[:MAX_CHARS].split()):
        for index in group.split(","):
            if not (index.isascii() and index.isdigit() and len(index) < 4):
                return f"{index[:32]!r} is no index of a GPU; right is such as 0,1,2,3 4,5,6,7"
            if int(index) >= count:
                return f"GPU {index} of {count}: indices are from 0 to {count - 1}"
            if int(index) in found:
                return f"GPU {index} is in two groups"
            found[int(index)] = number
    return found
