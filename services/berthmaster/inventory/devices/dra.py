"""Devices by dynamic resource allocation: what drivers offer, and what claims have got. Pure.

A driver's pool is what the slices of its newest generation say, once all of them are there; the
scheduler sees it so too. GPUs are devices of drivers named ``gpu.…``, TPUs of those named
``tpu.…``; anything else is none of a node's room. A MIG device is a part of its parent, which may
be a device itself or be offered in parts only. Which GPUs belong together is read from attributes
that drivers call nvlinkDomain and numaNode, under whatever prefix. Only devices of one node count:
what a network brings to many nodes is no node's own.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.accelerators import mig
from berthmaster.accelerators.table import NVIDIA
from berthmaster.inventory.devices.amounts import Nonsense, quota
from berthmaster.inventory.devices.layout import MAX_GPUS, WHOLE, Gpu
from berthmaster.inventory.devices.models import named
from berthmaster.inventory.objects import Device, ResourceClaim, ResourceSlice

Pool = tuple[str, str]  # driver, pool
DeviceName = tuple[str, str, str]  # driver, pool, device
_DIGITS: Final = re.compile(r"(\d{1,9})")
_SLICES: Final = re.compile(r"(?:[1-7]c\.)?([1-7])g\.")
_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")


class DevicePlace(NamedTuple):
    """Where a device is: the position of its GPU, and how much of it it is."""

    position: int
    milli: int


class Offered(NamedTuple):
    """The devices of one node."""

    gpus: tuple[Gpu, ...] = ()
    places: Mapping[DeviceName, DevicePlace] = {}
    tpus: tuple[DeviceName, ...] = ()
    problems: tuple[str, ...] = ()


class Grant(NamedTuple):
    """What a claim has got, and the pods that may use it."""

    devices: tuple[DeviceName, ...]
    pods: tuple[str, ...]  # uids


def grant_of(claim: ResourceClaim) -> Grant | None:
    """None: the claim has got nothing that would be anybody's use."""
    if claim.status.allocation is None:
        return None
    devices = tuple(
        (one.driver, one.pool, one.device)
        for one in claim.status.allocation.devices.results
        if not one.admin_access and is_ours_to_count(one.driver)
    )
    pods = tuple(one.uid for one in claim.status.reserved_for if one.resource == "pods")
    return Grant(devices, pods) if devices else None


def is_ours_to_count(driver: str) -> bool:
    """Whether a driver's devices are GPUs or TPUs."""
    return driver.startswith(("gpu.", "tpu."))


def offered_by(slices: Iterable[ResourceSlice]) -> Offered:
    """What these slices of one node come to."""
    problems: list[str] = []
    gpus: list[Gpu] = []
    places: dict[DeviceName, DevicePlace] = {}
    tpus: list[DeviceName] = []
    counted = (one for one in slices if is_ours_to_count(one.spec.driver))
    for (driver, pool), devices in sorted(_pools(counted, problems).items()):
        if driver.startswith("tpu."):
            tpus += [(driver, pool, device.name) for device in devices]
            continue
        try:
            _place(driver, pool, devices, gpus, places)
        except Nonsense as nonsense:
            problems.append(f"pool {pool} of {driver}: {nonsense}")
    if len(gpus) > MAX_GPUS:
        problems.append(f"{len(gpus)} GPUs in slices: more than any node has ({MAX_GPUS})")
        gpus, places = [], {}
    return Offered(tuple(gpus), places, tuple(tpus), tuple(problems))


def _pools(slices: Iterable[ResourceSlice], problems: list[str]) -> dict[Pool, list[Device]]:
    newest: dict[Pool, list[ResourceSlice]] = {}
    for one in slices:
        pool = (one.spec.driver, one.spec.pool.name)
        known = newest.get(pool)
        if known is None or one.spec.pool.generation > known[0].spec.pool.generation:
            newest[pool] = [one]
        elif one.spec.pool.generation == known[0].spec.pool.generation:
            known.append(one)
    whole: dict[Pool, list[Device]] = {}
    for pool, parts in newest.items():
        wanted = parts[0].spec.pool.resource_slice_count
        if len(parts) < wanted:
            problems.append(f"pool {pool[1]} of {pool[0]}: {len(parts)} of {wanted} slices")
            continue
        devices = (device for part in parts for device in part.spec.devices)
        whole[pool] = sorted(devices, key=lambda device: _natural(device.name))
    return whole


def _natural(name: str) -> list[tuple[int, str]]:
    """gpu-2 before gpu-10."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(parts)]


def _place(
    driver: str,
    pool: str,
    devices: Iterable[Device],
    gpus: list[Gpu],
    places: dict[DeviceName, DevicePlace],
) -> None:
    parts: list[Device] = []
    by_uuid: dict[str, int] = {}
    for device in devices:
        if _text(device, "type") == "mig":
            parts.append(device)
            continue
        gpu = _gpu(device, _text(device, "uuid"), driver)
        by_uuid[gpu.uuid] = len(gpus)
        places[driver, pool, device.name] = DevicePlace(len(gpus), WHOLE)
        gpus.append(gpu)
    offer: dict[int, int] = {}  # of GPUs that are offered in parts only
    for device in parts:
        parent = _text(device, "parentUUID") or _text(device, "uuid")
        position = by_uuid.get(parent)
        if position is None:
            position = by_uuid[parent] = len(gpus)
            gpus.append(_gpu(device, parent, driver)._replace(memory_mib=0))
            offer[position] = 0
        found = _SLICES.match(_text(device, "profile"))
        milli = int(found[1]) * WHOLE // mig.SLICES if found else WHOLE
        places[driver, pool, device.name] = DevicePlace(position, milli)
        if position in offer:
            offer[position] += milli
            mib = gpus[position].memory_mib + _memory_mib(device)
            gpus[position] = gpus[position]._replace(memory_mib=mib)
    for position, given in offer.items():
        gpus[position] = gpus[position]._replace(reserved_milli=max(1, WHOLE - given))


def _gpu(device: Device, uuid: str, driver: str) -> Gpu:
    healthy = not any(taint.effect in _KEEPS_AWAY for taint in device.taints)
    return Gpu(
        named(_text(device, "productName")),
        _memory_mib(device),
        uuid,
        healthy,
        nvlink_domain=_number(device, "nvlinkDomain"),
        numa_node=_number(device, "numaNode"),
        resource=_resource(driver),
    )


def _resource(driver: str) -> str:
    """The extended resource under which device plugins of the driver's maker hand out whole GPUs:
    gpu.amd.com's are amd.com/gpu."""
    named = f"{driver.removeprefix('gpu.')}/gpu"
    return "" if named == NVIDIA else named


def _memory_mib(device: Device) -> int:
    for name, capacity in device.capacity.items():
        if name.rpartition("/")[2] == "memory":
            return quota("memory", capacity.value)
    return 0


def _number(device: Device, wanted: str) -> int | None:
    """An attribute that is a number; what is below 0 says that nobody knows, as Linux has it."""
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2] == wanted and attribute.number is not None:
            return attribute.number if attribute.number >= 0 else None
    return None


def _text(device: Device, wanted: str) -> str:
    """An attribute, whose name may have its driver's domain before it."""
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2] == wanted:
            return (attribute.string or "")[:256]
    return ""
