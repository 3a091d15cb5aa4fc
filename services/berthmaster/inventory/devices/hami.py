"""What HAMi says of a node's devices, in its annotation. Pure.

HAMi multiplies nvidia.com/gpu (ten for each GPU by default), so that count says nothing. The node's
annotation lists the devices, as JSON or, in older versions, as fields between commas and devices
between colons. In JSON what is 0, empty or false is left out: of a GPU that is not healthy nothing
is said. One that an operator cordons, in another annotation, gets no new pods. A list that cannot
be read leaves the node without GPUs: the count alone would promise each of them ten times. Of a
pod's annotation, what cannot be read counts as absent.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.accelerators.written import MAX_CHARS, MAX_DEVICES
from berthmaster.inventory.devices.amounts import MAX_MEMORY_MIB, Nonsense
from berthmaster.inventory.devices.models import named

REGISTER: Final = "hami.io/node-nvidia-register"
CORDONED: Final = "hami.io/device-cordon"  # UUIDs between commas
MAX_PARTS: Final = 1000  # of a GPU


class HamiDevice(NamedTuple):
    """One GPU."""

    uuid: str
    memory_mib: int
    model: str
    healthy: bool
    numa_node: int | None = None
    parts: int = 0  # pods that may have it at once; 0 = not told


class _Listed(msgspec.Struct):
    id: str = ""
    devmem: int = 0
    type: str = ""
    health: bool = False
    numa: int = 0
    count: int = 0


_LIST: Final = msgspec.json.Decoder(list[_Listed])


def hami_devices(annotations: Mapping[str, str]) -> tuple[HamiDevice, ...]:
    """The devices of a node; none where HAMi does not manage it. Raises Nonsense."""
    text = annotations.get(REGISTER, "").strip()
    if not text:
        return ()
    if len(text) > MAX_CHARS:
        raise Nonsense(f"annotation {REGISTER}: {len(text)} characters are no list of devices")
    found: list[HamiDevice] = []
    if text.startswith("["):
        try:
            listed = _LIST.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Nonsense(f"annotation {REGISTER}: {error}") from None
        told = any(d.numa > 0 for d in listed)  # else nobody knows whether there is more than one
        found = [
            HamiDevice(
                d.id,
                max(0, d.devmem),
                _model(d.type),
                d.health,
                max(0, d.numa) if told else None,
                min(max(0, d.count), MAX_PARTS),
            )
            for d in listed
        ]
    else:
        for part in text.split(":"):
            fields = part.split(",")
            if len(fields) >= 7 and fields[2].isdecimal() and len(fields[2]) < 9:
                healthy = fields[6].strip().lower() == "true"
                parts = int(fields[1][:5]) if fields[1].isdecimal() else 0
                one = HamiDevice(fields[0], int(fields[2]), _model(fields[4]), healthy)
                found.append(one._replace(parts=min(parts, MAX_PARTS)))
    if not found and text != "[]":
        raise Nonsense(f"annotation {REGISTER}: {text[:64]!r} is no list of devices")
    if len(found) > MAX_DEVICES:
        raise Nonsense(f"annotation {REGISTER}: {len(found)} devices are more than any node has")
    uuids = [device.uuid for device in found]
    if "" in uuids or len(set(uuids)) < len(uuids):
        raise Nonsense(f"annotation {REGISTER}: a device without a name of its own")
    if any(device.memory_mib > MAX_MEMORY_MIB for device in found):
        raise Nonsense(f"annotation {REGISTER}: more memory than any device has")
    cordoned = {uuid.strip() for uuid in annotations.get(CORDONED, "")[:MAX_CHARS].split(",")}
    return tuple(
        device._replace(healthy=device.healthy and device.uuid not in cordoned) for device in found
    )


def _model(kind: str) -> str:
    """HAMi writes "NVIDIA-Tesla T4" for what discovery labels "Tesla-T4"."""
    kind = (
        kind.removeprefix("NVIDIA-") if kind.startswith(("NVIDIA-NVIDIA", "NVIDIA-Tesla")) else kind
    )
    return named(kind)
