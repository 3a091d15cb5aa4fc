"""Shares of GPUs: the GPU of each share, and the settings of its container. Pure.

The kubelet counts devices. Each GPU is offered as 1000 devices, ``GPU-1a2b…::0`` to ``::999``. A
container with ``berthmaster.io/gpu-milli: 250`` gets 250. The kubelet stores the allocations.
Example: of two GPUs with 400 and 1000 free devices, a request for 250 gets 250 of the first, and a
request for 2000 is refused.

- Below 1000, all devices are of one GPU: of those with enough free, the one with the fewest.
- From 1000 on, requests are multiples of 1000 and get wholly free GPUs.
- Memory is proportional: 250 of a GPU with 80,000 MiB are 20,000 MiB.
- A share is enforced by MPS, by a library in the processes (intercept), or not at all with time
  slicing. Whole GPUs need no limit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from berthmaster.lib.accelerators.table import (
    GPU_MILLI,
    GPU_MILLI_SHARED,
    GPU_PIECES,
    MPS_MEMORY,
    MPS_THREADS,
)

WHOLE: Final = GPU_PIECES
MPS_PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
MPS_LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's container runtime
PIPES_INSIDE: Final = "/run/berthmaster/mps"  # in a container
SHM_INSIDE: Final = "/dev/shm"
# Beside the GPU's own file, as far as the node has them.
COMMON_FILES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
SEPARATOR: Final = "::"  # as in NVIDIA's names of replicas, which telemetry parses

Way = Literal["mps", "intercept", "time-slicing"]
RESOURCES: Final[Mapping[Way, str]] = {
    "mps": GPU_MILLI,
    "intercept": GPU_MILLI,
    "time-slicing": GPU_MILLI_SHARED,
}
LIBRARY_INSIDE: Final = "/run/berthmaster/libberthcuda.so"
ACCOUNT_INSIDE: Final = "/run/berthmaster/share"  # as in _berthcuda.c
PRELOAD_INSIDE: Final = "/etc/ld.so.preload"  # unlike LD_PRELOAD no pod's own variable


class Refused(ValueError):
    """No such share can be given; the text says why."""


class Gpu(NamedTuple):
    uuid: str
    minor: int  # number of the device file
    memory_mib: int


class Share(NamedTuple):
    """Share of one container: a part of one GPU, or whole GPUs."""

    gpus: tuple[Gpu, ...]
    milli: int  # of each GPU
    name: str = ""  # first device of a part, unique while allocated


class Mount(NamedTuple):
    """A folder of the node in a container."""

    inside: str
    outside: str
    read_only: bool = False


class Grant(NamedTuple):
    """The kubelet's additions to a container."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    files: tuple[str, ...]  # device files, named alike inside and outside


class Places(NamedTuple):
    """Where things are on the node, as the kubelet sees the node."""

    devices: str  # the folder of device files
    files: tuple[str, ...]  # existing ones of COMMON_FILES
    pipes: str  # a folder for each GPU's daemon, by UUID
    shm: str  # /dev/shm of the daemons
    accounts: str  # folder with a file for each intercepted share, by name
    library: str
    preload: str  # file that names the library


def device_ids(gpu: Gpu) -> Iterator[str]:
    """Yield the device ids of a GPU."""
    return (f"{gpu.uuid}{SEPARATOR}{number}" for number in range(WHOLE))


def preferred(available: Iterable[str], taken: Sequence[str], size: int) -> list[str]:
    """Choose ``size`` devices, ``taken`` among them; nothing where no such share is free.

    ``available`` holds ``taken`` too. The kubelet then gives any devices, and ``share_of`` refuses.
    """
    free: dict[str, list[str]] = {}
    for device in sorted(available, key=_key):
        free.setdefault(_uuid(device), []).append(device)
    held = Counter(map(_uuid, taken))
    if size < WHOLE:
        fit = [u for u in free if len(free[u]) >= size and set(held) <= {u}]
        chosen = sorted(fit, key=lambda uuid: (len(free[uuid]), uuid))[:1]
        wanted = size
    else:
        fit = [uuid for uuid in free if len(free[uuid]) == WHOLE]
        chosen = sorted(fit, key=lambda uuid: (-held[uuid], uuid))[: size // WHOLE]
        wanted = WHOLE
    if not set(held) <= set(chosen) or len(chosen) * wanted != size:
        return []
    first = set(taken)
    ordered = [sorted(free[uuid], key=lambda device: device not in first) for uuid in chosen]
    return [device for devices in ordered for device in devices[:wanted]]


def share_of(devices: Sequence[str], gpus: Mapping[str, Gpu]) -> Share:
    """Return the share of these devices. Raises Refused."""
    counts = Counter(map(_uuid, devices))
    unknown = sorted(set(counts) - set(gpus))
    if unknown:
        raise Refused(f"{unknown[0][:64]!r} is no GPU of this node")
    found = tuple(gpus[uuid] for uuid in sorted(counts, key=lambda uuid: gpus[uuid].minor))
    if len(found) == 1 and counts[found[0].uuid] <= WHOLE:
        return Share(found, counts[found[0].uuid], min(devices, key=_key))
    if found and set(counts.values()) == {WHOLE}:
        return Share(found, WHOLE)
    parts = ", ".join(f"{counts[gpu.uuid]} of {gpu.uuid}" for gpu in found) or "nothing"
    raise Refused(
        f"{len(devices)} thousandths cannot be had in one piece (free are {parts}); right are up "
        "to 1000 of one GPU, or a multiple of 1000 where as many GPUs are wholly free"
    )


def memory_mib(share: Share) -> int:
    """Return the memory of a part of a GPU."""
    return share.gpus[0].memory_mib * share.milli // WHOLE


def grant_of(share: Share, way: Way, places: Places) -> Grant:
    """Return the additions to a container with this share."""
    env = {VISIBLE: ",".join(gpu.uuid for gpu in share.gpus)}
    names = (*(f"nvidia{gpu.minor}" for gpu in share.gpus), *places.files)
    files = tuple(f"{places.devices}/{name}" for name in names)
    if share.milli == WHOLE or way == "time-slicing":
        return Grant(env, (), files)
    if way == "intercept":
        mounts = (
            Mount(LIBRARY_INSIDE, places.library, read_only=True),
            Mount(PRELOAD_INSIDE, places.preload, read_only=True),
            Mount(ACCOUNT_INSIDE, f"{places.accounts}/{share.name}"),
        )
        return Grant(env, mounts, files)
    env |= {
        MPS_PIPES: PIPES_INSIDE,
        MPS_THREADS: str(-(-share.milli * 100 // WHOLE)),
        # The number is the daemon's: each has one GPU.
        MPS_MEMORY: f"0={memory_mib(share)}M",
    }
    pipes = Mount(PIPES_INSIDE, f"{places.pipes}/{share.gpus[0].uuid}")
    return Grant(env, (pipes, Mount(SHM_INSIDE, places.shm)), files)


def _uuid(device: str) -> str:
    return device.partition(SEPARATOR)[0]


def _key(device: str) -> tuple[str, int, str]:
    uuid, _, number = device.partition(SEPARATOR)
    return uuid, int(number) if number.isdecimal() else WHOLE, device
