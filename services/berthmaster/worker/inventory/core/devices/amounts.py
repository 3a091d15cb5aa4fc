"""Quantities of objects as whole numbers, and the requests of a pod. Pure.

Offers are rounded down, requests up. An impossible offer (negative, not a number, above any
machine) is an error that names the quantity. An impossible request is a problem that names it, and
counts as the maximum of any machine.

**HAMi.** Devices in HAMi's node annotation. Pure.

HAMi multiplies nvidia.com/gpu (ten per GPU by default), so the count is useless. The annotation
lists the devices as JSON or, in older versions, as fields separated by commas and devices by
colons. JSON omits 0, empty and false, so an unhealthy GPU has no health field. GPUs cordoned in
another annotation get no new pods.

A malformed entry becomes a GPU without new pods, if its id is readable, and is reported. A list
without any readable entry leaves the node without GPUs, because the count alone would promise each
GPU ten times.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from berthmaster.lib.accelerators.table import HAMI_MEMORY, TPU, pieces_of_whole
from berthmaster.lib.accelerators.written import MAX_CHARS, MAX_DEVICES
from berthmaster.lib.kube.quantity import QuantityError, parse_quantity
from berthmaster.worker.inventory.core.devices.models import UNKNOWN, named
from berthmaster.worker.inventory.core.objects import Container, PodSpec, Quantities

CPU: Final = "cpu"
MEMORY: Final = "memory"
MIB: Final = 2**20
# No machine has more. Beyond them a figure is a mistake, and arithmetic elsewhere could overflow.
MAX_CPU_MILLI: Final = 10_000_000
MAX_MEMORY_MIB: Final = 2**30
MAX_OFFERED: Final = 10_000  # of one resource of a node, replicas included
MAX_TPUS: Final = 1024  # TPUs of pods on one node
MAX_PIECES: Final = 1_000_000  # of an unknown resource on one node
MAX_COUNT: Final = 2**53  # larger numbers are inexact in other languages


# Charge of a request that cannot be read.
_MOST: Final = {
    CPU: MAX_CPU_MILLI,
    MEMORY: MAX_MEMORY_MIB * MIB,
    TPU: MAX_TPUS,
    HAMI_MEMORY: MAX_MEMORY_MIB,
}


class Nonsense(ValueError):
    """An impossible quantity, named in the text."""


def offered(quantities: Quantities, name: str) -> int:
    """How much of a resource is offered: CPU in milli, memory in MiB, all else in pieces; 0 where
    it is not named. Raises Nonsense."""
    text = quantities.get(name)
    if text is None:
        return 0
    try:
        value = _units(name, text, up=False)
    except QuantityError as error:
        raise Nonsense(f"{name}: {error}") from None
    most = {CPU: MAX_CPU_MILLI, MEMORY: MAX_MEMORY_MIB}.get(
        name, MAX_OFFERED * pieces_of_whole(name)
    )
    if value > most:
        raise Nonsense(f"{name}: {str(text)[:64]!r} is more than any node has ({most})")
    return value


def quota(name: str, text: str | int, *, up: bool = False) -> int:
    """A figure of a quota, in the units above. Raises Nonsense."""
    try:
        return min(_units(name, text, up=up), MAX_COUNT)
    except QuantityError as error:
        raise Nonsense(f"{name}: {error}") from None


@lru_cache(maxsize=4096)
def _units(name: str, text: str | int, *, up: bool) -> int:
    """In the units of facts."""
    value = parse_quantity(text)
    if name == CPU:
        value *= 1000
    elif name == MEMORY:
        value /= MIB
    return -(-value.numerator // value.denominator) if up else int(value)


@lru_cache(maxsize=4096)
def _asked(name: str, text: str | int) -> int:
    """Return the request of one container: CPU in milli, else whole units (memory in bytes).
    Unreadable text gives the maximum of any machine.
    """
    try:
        value = parse_quantity(text) * (1000 if name == CPU else 1)
    except QuantityError:
        return _MOST.get(name, MAX_PIECES)
    return min(-(-value.numerator // value.denominator), MAX_COUNT)


def nonsense_of(named: Iterable[Quantities]) -> tuple[str, ...]:
    """Return the unreadable quantities, described."""
    found: dict[str, None] = {}
    for quantities in named:
        for name, text in quantities.items():
            try:
                parse_quantity(text)
            except QuantityError as error:
                found[f"{name[:80]}: {error}"] = None
    return tuple(found)


def quantities_of(spec: PodSpec) -> Iterator[Quantities]:
    """Yield all requests of a pod, part by part."""
    for container in (*spec.containers, *spec.init_containers):
        yield container.resources.asked
    yield spec.resources.asked
    yield spec.overhead


def held(spec: PodSpec) -> dict[str, int]:
    """Return a pod's requests as the scheduler counts: CPU in milli, memory in bytes, else units.

    Containers and sidecars together, or the peak during initialization if larger. Requests of the
    whole pod replace these, and overhead is added. Unreadable requests count as the maximum of any
    machine, and ``nonsense_of`` names them.
    """
    total = _sum(container.resources.asked for container in spec.containers)
    if spec.init_containers:
        total = _with_starting(total, spec.init_containers)
    for name, text in spec.resources.asked.items():
        total[name] = _asked(name, text)
    for name, text in spec.overhead.items():
        total[name] = total.get(name, 0) + _asked(name, text)
    return total


def _sum(many: Iterable[Quantities]) -> dict[str, int]:
    total: dict[str, int] = {}
    for requests in many:
        for name, text in requests.items():
            total[name] = total.get(name, 0) + _asked(name, text)
    return total


def _with_starting(running: Mapping[str, int], starting: Iterable[Container]) -> dict[str, int]:
    """Return the peak: init containers run one after another, each beside the sidecars started
    before.
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in starting:
        asked = {n: _asked(n, text) for n, text in container.resources.asked.items()}
        if container.restart_policy == "Always":
            for name, amount in asked.items():
                sidecars[name] = sidecars.get(name, 0) + amount
            asked = sidecars
        else:
            asked = {n: amount + sidecars.get(n, 0) for n, amount in asked.items()}
        for name, amount in asked.items():
            peak[name] = max(peak.get(name, 0), amount)
    names = {**running, **sidecars, **peak}
    return {
        name: max(running.get(name, 0) + sidecars.get(name, 0), peak.get(name, 0)) for name in names
    }


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
