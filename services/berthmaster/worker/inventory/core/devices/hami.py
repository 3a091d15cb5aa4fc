"""Devices in HAMi's node annotation. Pure.

HAMi multiplies nvidia.com/gpu (ten per GPU by default), so the count is useless. The annotation
lists the devices as JSON or, in older versions, as fields separated by commas and devices by
colons. JSON omits 0, empty and false, so an unhealthy GPU has no health field. GPUs cordoned in
another annotation get no new pods.

A malformed entry becomes a GPU without new pods, if its id is readable, and is reported. A list
without any readable entry leaves the node without GPUs, because the count alone would promise each
GPU ten times.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.lib.accelerators.written import MAX_CHARS, MAX_DEVICES
from berthmaster.worker.inventory.core.devices.amounts import MAX_MEMORY_MIB, Nonsense
from berthmaster.worker.inventory.core.devices.models import UNKNOWN, named

REGISTER: Final = "hami.io/node-nvidia-register"
CORDONED: Final = "hami.io/device-cordon"  # UUIDs between commas
MAX_PARTS: Final = 1000  # of a GPU
_AMOUNT: Final = re.compile(r"[0-9]{1,9}")


class HamiDevice(NamedTuple):
    uuid: str
    memory_mib: int
    model: str
    healthy: bool
    numa_node: int | None = None
    parts: int = 0  # pods on it at a time; 0 = unknown


class _Named(msgspec.Struct):
    id: str = ""


class _Listed(_Named):
    devmem: Annotated[int, Meta(ge=0, le=MAX_MEMORY_MIB)] = 0
    type: str = ""
    health: bool = False
    numa: int = 0
    count: Annotated[int, Meta(ge=0)] = 0


_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(_Listed)
_ID: Final = msgspec.json.Decoder(_Named)


def hami_devices(annotations: Mapping[str, str]) -> tuple[tuple[HamiDevice, ...], list[str]]:
    """Return a node's devices, empty without HAMi, and the malformed entries. Raises Nonsense."""
    if REGISTER not in annotations:
        return (), []
    text = annotations[REGISTER].strip()
    if len(text) > MAX_CHARS:
        raise Nonsense(f"annotation {REGISTER}: {len(text)} characters are no list of devices")
    problems: list[str] = []
    if text.startswith("["):
        found = _from_json(text, problems)
    else:
        found = _from_lines(text, problems)
    if not found and text != "[]":
        first = problems[0] if problems else f"{text[:64]!r} is no list of devices"
        raise Nonsense(f"annotation {REGISTER}: {first}")
    if len(found) > MAX_DEVICES:
        raise Nonsense(f"annotation {REGISTER}: {len(found)} devices are more than any node has")
    if len({device.uuid for device in found}) < len(found):
        raise Nonsense(f"annotation {REGISTER}: a device without a name of its own")
    cordoned = {uuid.strip() for uuid in annotations.get(CORDONED, "")[:MAX_CHARS].split(",")}
    devices = (
        device._replace(healthy=device.healthy and device.uuid not in cordoned) for device in found
    )
    return tuple(devices), [f"annotation {REGISTER}: {problem}" for problem in problems]


def _from_json(text: str, problems: list[str]) -> list[HamiDevice]:
    """Raises Nonsense."""
    try:
        entries = _LIST.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Nonsense(f"annotation {REGISTER}: {error}") from None
    found: list[HamiDevice] = []
    zones: list[int] = []
    for number, entry in enumerate(entries):
        try:
            d = _ENTRY.decode(entry)
        except (msgspec.MsgspecError, RecursionError) as error:
            problems.append(f"device {number}: {error}; it gets no new pods")
            if uuid := _id_of(entry):
                found.append(HamiDevice(uuid, 0, UNKNOWN, healthy=False))
                zones.append(0)
            continue
        if not d.id:
            problems.append(f"device {number}: it has no id, and is left out")
            continue
        parts = min(d.count, MAX_PARTS)
        found.append(HamiDevice(d.id, d.devmem, _model(d.type), d.health, parts=parts))
        zones.append(max(0, d.numa))
    if not any(zones):  # otherwise the number of NUMA nodes is unknown
        return found
    return [one._replace(numa_node=zone) for one, zone in zip(found, zones, strict=True)]


def _id_of(entry: msgspec.Raw) -> str:
    try:
        return _ID.decode(entry).id
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _from_lines(text: str, problems: list[str]) -> list[HamiDevice]:
    found: list[HamiDevice] = []
    right = 0
    for part in text.split(":"):
        if not part.strip():
            continue
        fields = [field.strip() for field in part.split(",")]
        amounts = fields[1:3]
        is_right = len(fields) >= 7 and all(_AMOUNT.fullmatch(one) for one in amounts)
        if is_right and fields[0] and int(fields[2]) <= MAX_MEMORY_MIB:
            healthy = fields[6].lower() == "true"
            one = HamiDevice(fields[0], int(fields[2]), _model(fields[4]), healthy)
            found.append(one._replace(parts=min(int(fields[1]), MAX_PARTS)))
            right += 1
            continue
        problems.append(
            f"{part[:64]!r} is no device and gets no new pods; right is such as "
            "GPU-1a2b,10,15360,100,NVIDIA-Tesla T4,0,true"
        )
        if fields[0]:
            found.append(HamiDevice(fields[0], 0, UNKNOWN, healthy=False))
    return found if right else []


def _model(kind: str) -> str:
    """Return a model name as discovery labels it: HAMi writes "NVIDIA-Tesla T4" for "Tesla-T4"."""
    kind = (
        kind.removeprefix("NVIDIA-") if kind.startswith(("NVIDIA-NVIDIA", "NVIDIA-Tesla")) else kind
    )
    return named(kind)
