"""What HAMi says of a node's devices and of a pod's, in its annotations. Pure.

HAMi multiplies nvidia.com/gpu (ten for each GPU by default), so that count says nothing. The node's
annotation lists the devices, as JSON or, in older versions, as fields between commas and devices
between colons. What cannot be read counts as absent.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.inventory.devices.models import named

REGISTER: Final = "hami.io/node-nvidia-register"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
MAX_CHARS: Final = 64 * 1024
MAX_DEVICES: Final = 64


class HamiDevice(NamedTuple):
    """One GPU."""

    uuid: str
    memory_mib: int
    model: str
    healthy: bool
    numa_node: int | None = None


class HamiUse(NamedTuple):
    """What one container holds of one GPU."""

    uuid: str
    memory_mib: int
    cores_percent: int


class _Listed(msgspec.Struct):
    id: str = ""
    devmem: int = 0
    type: str = ""
    health: bool = True
    numa: int = 0  # left out where it is 0


_LIST: Final = msgspec.json.Decoder(list[_Listed])


def hami_devices(annotations: Mapping[str, str]) -> tuple[HamiDevice, ...]:
    """The devices of a node; none where HAMi does not manage it."""
    text = annotations.get(REGISTER, "")[:MAX_CHARS].strip()
    if not text:
        return ()
    found: list[HamiDevice] = []
    if text.startswith("["):
        try:
            listed = _LIST.decode(text)
        except msgspec.MsgspecError:
            return ()
        told = any(d.numa > 0 for d in listed)  # else nobody knows whether there is more than one
        found = [
            HamiDevice(
                d.id, max(0, d.devmem), _model(d.type), d.health, max(0, d.numa) if told else None
            )
            for d in listed
        ]
    else:
        for part in text.split(":"):
            fields = part.split(",")
            if len(fields) >= 7 and fields[2].isdecimal() and len(fields[2]) < 9:
                healthy = fields[6].strip().lower() == "true"
                found.append(HamiDevice(fields[0], int(fields[2]), _model(fields[4]), healthy))
    return tuple(found) if len(found) <= MAX_DEVICES else ()


def _model(kind: str) -> str:
    """HAMi writes "NVIDIA-Tesla T4" for what discovery labels "Tesla-T4"."""
    kind = (
        kind.removeprefix("NVIDIA-") if kind.startswith(("NVIDIA-NVIDIA", "NVIDIA-Tesla")) else kind
    )
    return named(kind)


def hami_use(annotations: Mapping[str, str]) -> tuple[HamiUse, ...]:
    """Which GPUs a pod has: "UUID,NVIDIA,MiB,cores:" for each device, ";" behind each container."""
    uses: list[HamiUse] = []
    for container in annotations.get(ALLOCATED, "")[:MAX_CHARS].split(";"):
        for device in container.split(":"):
            fields: list[Any] = device.split(",")
            if len(fields) >= 4 and fields[2].isdecimal() and fields[3].isdecimal():
                uses.append(HamiUse(fields[0], int(fields[2][:9]), int(fields[3][:4])))
    return tuple(uses[:MAX_DEVICES])
