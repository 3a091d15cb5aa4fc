"""Devices of dynamic resource allocation: offers of drivers, and allocations of claims. Pure.

A driver's pool consists of the slices of its newest generation, once complete, as for the
scheduler. GPUs are devices of drivers named ``gpu.…``, TPUs those of ``tpu.…``. A MIG device is
part of its parent, which may be a device too or be offered in parts only. Links come from
attributes named nvlinkDomain and numaNode, under any prefix. Only devices of a single node count.

A device is obtained by a claim of a matching DeviceClass, or by extended resource if the class has
an extendedResourceName. Without a matching class no pod can get it. A device with several
allocations is charged by consumed capacity, any other as a whole.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.accelerators import mig
from berthmaster.lib.accelerators.table import CLASS, MIG, NVIDIA, TPU
from berthmaster.lib.messages.fleet import DeviceClaim, Share
from berthmaster.worker.inventory.core.devices.amounts import MAX_MEMORY_MIB, Nonsense, quota
from berthmaster.worker.inventory.core.devices.device_classes import (
    Claimable,
    class_for,
    resource_for,
)
from berthmaster.worker.inventory.core.devices.layout import MAX_GPUS, WHOLE, Gpu
from berthmaster.worker.inventory.core.devices.models import named
from berthmaster.worker.inventory.core.objects import Device, ResourceClaim, ResourceSlice

Pool = tuple[str, str]  # driver, pool
DeviceName = tuple[str, str, str]  # driver, pool, device
_DIGITS: Final = re.compile(r"(\d{1,9})")
_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")


class DevicePlace(NamedTuple):
    """Position of a device's GPU, and the share that the device is."""

    position: int
    milli: int
    # Capacity shared by claims; () = one claim gets the device
    capacity: tuple[tuple[str, int], ...] = ()


class Offered(NamedTuple):
    gpus: tuple[Gpu, ...] = ()
    places: Mapping[DeviceName, DevicePlace] = {}
    shares: tuple[Share, ...] = ()  # how to claim fractions
    tpus: tuple[DeviceName, ...] = ()
    unclaimable: tuple[str, ...] = ()  # drivers of GPUs without a class
    problems: tuple[str, ...] = ()


class Granted(NamedTuple):
    """One allocated device of a claim, and its share."""

    device: DeviceName
    consumed: tuple[tuple[str, str | int], ...] = ()  # () = all of it


class Grant(NamedTuple):
    """Allocation of a claim, and the pods that may use it."""

    devices: tuple[Granted, ...]
    pods: tuple[str, ...]  # uids


def grant_of(claim: ResourceClaim) -> Grant | None:
    """Return the allocation of a claim; None without a counted device."""
    if claim.status.allocation is None:
        return None
    devices = tuple(
        Granted(
            (one.driver, one.pool, one.device), tuple(sorted((one.consumed_capacity or {}).items()))
        )
        for one in claim.status.allocation.devices.results
        if not one.admin_access and is_ours_to_count(one.driver)
    )
    pods = tuple(one.uid for one in claim.status.reserved_for if one.resource == "pods")
    return Grant(devices, pods) if devices else None


def is_ours_to_count(driver: str) -> bool:
    """Whether a driver's devices are GPUs or TPUs."""
    return driver.startswith("gpu.") or is_tpu(driver)


def is_tpu(driver: str) -> bool:
    return driver.startswith("tpu.")


def consumed_milli(place: DevicePlace, consumed: Iterable[tuple[str, str | int]]) -> int:
    """Return the milli of a GPU used by a claim: the largest share of any shared capacity, or all
    if the scheduler reports none or nonsense.
    """
    if not place.capacity:
        return place.milli
    there, most = dict(place.capacity), 0
    for name, text in consumed:
        total = there.get(_plain(name), 0)
        try:
            taken = quota(name, text, up=True)
        except Nonsense:
            return place.milli
        if total:
            most = max(most, -(-taken * WHOLE // total))
    return min(most, place.milli) if most > 0 else place.milli


def offered_by(
    slices: Iterable[ResourceSlice], classes: Sequence[Claimable] | None = None
) -> Offered:
    """Return the offer of one node's slices. ``classes``: usable DeviceClasses; None = not
    readable, so assume that every device can be claimed.
    """
    problems: list[str] = []
    book = _Book(classes)
    tpus: list[DeviceName] = []
    counted = (one for one in slices if is_ours_to_count(one.spec.driver))
    for (driver, pool), devices in sorted(_pools(counted, problems).items()):
        # Pods request TPUs by number, which needs a class with an extended resource.
        if is_tpu(driver) and classes is not None and resource_for(classes, driver, "") != TPU:
            problems.append(f"no DeviceClass has the devices of {driver} counted as {TPU}")
            continue
        try:
            _once(devices)
            if is_tpu(driver):
                tpus += _tpus(driver, pool, devices, tpus)
            else:
                book.add(driver, pool, devices)
        except Nonsense as nonsense:
            problems.append(f"pool {pool} of {driver}: {nonsense}")
    if len(book.gpus) > MAX_GPUS:
        told = f"{len(book.gpus)} GPUs in slices: more than any node has ({MAX_GPUS})"
        return Offered(tpus=tuple(tpus), problems=(*problems, told))
    return Offered(
        tuple(book.gpus),
        book.places,
        book.shares(),
        tuple(tpus),
        tuple(sorted(book.unclaimable)),
        (*problems, *book.problems),
    )


def _once(devices: Iterable[Device]) -> None:
    """Raises Nonsense."""
    names = Counter(device.name for device in devices)
    for name, count in names.items():
        if count > 1:
            raise Nonsense(f"device {name[:64]} is there twice")


def _tpus(
    driver: str, pool: str, devices: Sequence[Device], others: Sequence[DeviceName]
) -> list[DeviceName]:
    """Return the TPUs of a pool. ``others``: those of earlier pools. Raises Nonsense."""
    known = {(one, name) for one, _, name in others}
    for device in devices:
        if (driver, device.name) in known:
            raise Nonsense(f"device {device.name[:64]} is in another pool")
    if len(others) + len(devices) > MAX_GPUS:
        raise Nonsense(f"{len(others) + len(devices)} TPUs: more than any node has ({MAX_GPUS})")
    return [(driver, pool, device.name) for device in devices]


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
        if len(parts) != wanted:
            problems.append(f"pool {pool[1]} of {pool[0]}: {len(parts)} of {wanted} slices")
            continue
        devices = (device for part in parts for device in part.spec.devices)
        whole[pool] = sorted(devices, key=lambda device: _natural(device.name))
    return whole


def _natural(name: str) -> list[tuple[int, str]]:
    """gpu-2 before gpu-10."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(parts)]


class _Book:
    """The GPUs of a node, pool by pool. A pool that cannot be right adds nothing."""

    def __init__(self, classes: Sequence[Claimable] | None) -> None:
        self.gpus: list[Gpu] = []
        self.places: dict[DeviceName, DevicePlace] = {}
        self.unclaimable: set[str] = set()
        self._classes = classes
        # Of MIG devices that are alike, the position of each one's GPU.
        self._slices: dict[tuple[str, int, int, DeviceClaim | None], list[int]] = {}
        self.problems: list[str] = []

    def add(self, driver: str, pool: str, devices: Sequence[Device]) -> None:
        """Raises Nonsense."""
        gpus: list[Gpu] = []
        elsewhere = {gpu.uuid for gpu in self.gpus}
        places: dict[DeviceName, DevicePlace] = {}
        parts: list[Device] = []
        by_uuid: dict[str, int] = {}
        first = len(self.gpus)
        for device in devices:
            if _text(device, "type") == "mig":
                parts.append(device)
                continue
            gpu = self._claimed(_gpu(device, _text(device, "uuid"), driver), device, driver)
            if gpu.uuid and gpu.uuid in by_uuid:
                raise Nonsense(f"two devices are {gpu.uuid[:64]}")
            if gpu.uuid and gpu.uuid in elsewhere:
                raise Nonsense(f"{gpu.uuid[:64]} is in another pool")
            by_uuid[gpu.uuid] = len(gpus)
            shared = _shared_capacity(device)
            places[driver, pool, device.name] = DevicePlace(first + len(gpus), WHOLE, shared)
            gpus.append(gpu)
        offer: dict[int, int] = {}  # of GPUs offered in parts only
        found: dict[tuple[str, int, int, DeviceClaim | None], list[int]] = {}
        for device in parts:
            parent = _text(device, "parentUUID") or _text(device, "uuid")
            position = by_uuid.get(parent)
            if position is None:
                position = by_uuid[parent] = len(gpus)
                gpus.append(_gpu(device, parent, driver)._replace(memory_mib=0))
                offer[position] = 0
            profile = _text(device, "profile")
            of = mig.profile(profile)
            board = mig.board_of(gpus[position].model)
            milli = mig.milli_of(of, board) if of else WHOLE
            if of is None:
                self.problems.append(
                    f"device {device.name[:64]}: {profile[:32]!r} is no MIG profile that we know"
                )
            places[driver, pool, device.name] = DevicePlace(first + position, milli)
            memory_mib = _memory_mib(device)
            if position in offer:
                offer[position] += of.compute if of else board.compute
                total_mib = gpus[position].memory_mib + memory_mib
                gpus[position] = gpus[position]._replace(memory_mib=total_mib)
            claim = self._claim(driver, device)
            if of is not None and (claim is not None or self._classes is None):
                found.setdefault((profile, milli, memory_mib, claim), []).append(first + position)
        for position, slices in offer.items():
            given = slices * WHOLE // mig.board_of(gpus[position].model).compute
            gpus[position] = gpus[position]._replace(reserved_milli=max(1, WHOLE - given))
        self.gpus += gpus
        self.places |= places
        for what, positions in found.items():
            self._slices.setdefault(what, []).extend(positions)

    def _claimed(self, gpu: Gpu, device: Device, driver: str) -> Gpu:
        """Return the GPU with the way to obtain it. An extended resource is preferred where it is
        sufficient.
        """
        if self._classes is None:
            return gpu
        kind = _text(device, "type")
        resource = resource_for(self._classes, driver, kind)
        if resource and not device.allow_multiple_allocations:
            return gpu._replace(resource="" if resource == NVIDIA else resource)
        claim = self._claim(driver, device)
        if claim is None:
            self.unclaimable.add(driver)
            return gpu._replace(healthy=False)
        return gpu._replace(claim=claim, resource=f"{CLASS}{claim.device_class}")

    def _claim(self, driver: str, device: Device) -> DeviceClaim | None:
        kind = _text(device, "type")
        found = class_for(self._classes or (), driver, kind)
        if found is None:
            return None
        divisible = bool(device.allow_multiple_allocations) and _memory_mib(device) > 0
        # Selectors find an attribute under the driver's own domain only.
        product = device.attributes.get("productName") or device.attributes.get(
            f"{driver}/productName"
        )
        return DeviceClaim(
            driver=driver,
            device_class=found.name,
            product=(product.string or "")[:256] if product is not None and kind != "mig" else "",
            divisible=divisible,
        )

    def shares(self) -> tuple[Share, ...]:
        """How parts of these GPUs are claimed."""
        made = [
            Share(
                resource=f"{MIG}{profile}",
                milli=milli,
                memory_mib=memory_mib,
                count=len(positions),
                kind="mig",
                claim=claim,
                gpus=self._some(positions),
            )
            for (profile, milli, memory_mib, claim), positions in self._slices.items()
            if claim is not None
        ]
        claims: dict[DeviceClaim, list[int]] = {}
        for position, gpu in enumerate(self.gpus):
            if gpu.claim and gpu.claim.divisible:
                claims.setdefault(gpu.claim, []).append(position)
        made += [
            # In any size, so no count of pieces says anything.
            Share(
                resource=claim.device_class,
                milli=0,
                count=len(positions),
                claim=claim,
                gpus=self._some(positions),
            )
            for claim, positions in claims.items()
        ]
        return tuple(sorted(made, key=lambda share: share.resource))

    def _some(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Return the positions; empty if they are all GPUs."""
        some = tuple(sorted(set(positions)))
        return some if len(some) < len(self.gpus) else ()


def _shared_capacity(device: Device) -> tuple[tuple[str, int], ...]:
    """Return the capacity that several claims may share; empty for exclusive devices."""
    if not device.allow_multiple_allocations:
        return ()
    named = {_plain(name): quota(name, one.value) for name, one in device.capacity.items()}
    return tuple(sorted((name, amount) for name, amount in named.items() if amount > 0))


def _plain(name: str) -> str:
    """Return the name without its domain."""
    return name.rpartition("/")[2]


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
            mib = quota("memory", capacity.value)
            if mib > MAX_MEMORY_MIB:
                raise Nonsense(f"device {device.name[:64]}: more memory than any has")
            return mib
    return 0


def _number(device: Device, wanted: str) -> int | None:
    """Return a number attribute; None if missing or negative (unknown, as in Linux)."""
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2] == wanted and attribute.number is not None:
            return attribute.number if attribute.number >= 0 else None
    return None


def _text(device: Device, wanted: str) -> str:
    """Return a text attribute, with or without the driver's domain."""
    for name, attribute in device.attributes.items():
        if name.rpartition("/")[2] == wanted:
            return (attribute.string or "")[:256]
    return ""
