"""Devices of containers, from the kubelet's PodResources API (v1, List). Pure.

Device ids are the device plugins' names: UUID of a GPU or MIG instance, followed by ``::n`` for
replicas, or ``-n`` with HAMi. Dynamic resource allocation gives the claim and CDI names, which may
contain a UUID. Example: ``GPU-1a2b::3`` is replica 3 of GPU-1a2b.

The kubelet knows pods by namespace and name, without uid.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.messages.telemetry import GpuHolder, GpuReading
from berthmaster.lib.runtime.protobuf import fields, parts, text

MAX_HOLDERS: Final = 64  # of one GPU
_UUID: Final = re.compile(
    r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|MIG-GPU-[0-9a-f-]{36}/\d+/\d+"
)
_REPLICA: Final = re.compile(r"(?:::|-)\d{1,4}\Z")
# NVIDIA's DRA driver names whole devices by minor number.
_NVIDIA_DRIVER: Final = "gpu.nvidia.com"
_BY_NUMBER: Final = re.compile(r"gpu-(\d{1,3})\Z")


class Given(NamedTuple):
    """One device of one container."""

    namespace: str
    pod: str
    container: str
    resource: str  # the extended resource, or the driver of the claim
    device: str  # a UUID, "" where only the number is known
    number: int | None = None  # number of the GPU on its node
    replica: bool = False  # a replica of a device
    claim: str = ""


def given(answer: bytes) -> list[Given]:
    """All GPUs that containers have, from the answer to List. Raises BadMessage."""
    found: list[Given] = []
    for pod in parts(answer, 1):
        name, namespace = text(pod, 1), text(pod, 2)
        for container in parts(pod, 3):
            found += _of_container(namespace, name, container)
    return found


def _of_container(namespace: str, pod: str, container: bytes) -> Iterable[Given]:
    name = text(container, 1)
    for number, value in fields(container):
        if not isinstance(value, bytes):
            continue
        if number == 2:
            resource = text(value, 1)
            for raw in parts(value, 2):
                device = raw.decode(errors="replace")
                if match := _UUID.match(device):
                    rest = device[match.end() :]
                    if not rest or _REPLICA.match(rest):
                        yield Given(
                            namespace, pod, name, resource, match[0], None, replica=bool(rest)
                        )
        elif number == 5:
            yield from _of_claim(namespace, pod, name, value)


def _of_claim(namespace: str, pod: str, container: str, claim: bytes) -> Iterable[Given]:
    name = text(claim, 2)
    for device in parts(claim, 4):
        driver, called, share = text(device, 2), text(device, 4), text(device, 5)
        cdi = [text(one, 1) for one in parts(device, 1)]
        uuids = [match[0] for one in (called, *cdi) if (match := _UUID.search(one))]
        number = _BY_NUMBER.match(called) if driver == _NVIDIA_DRIVER else None
        if uuids or number:
            yield Given(
                namespace,
                pod,
                container,
                driver,
                uuids[0] if uuids else "",
                int(number[1]) if number and not uuids else None,
                replica=bool(share),
                claim=name,
            )


class Holders:
    """Holders of each device, for samples."""

    def __init__(self, found: Iterable[Given]) -> None:
        self._by_device: dict[str, list[Given]] = {}
        self._by_number: dict[int, list[Given]] = {}
        for one in found:
            if one.device:
                self._by_device.setdefault(one.device, []).append(one)
            elif one.number is not None:
                self._by_number.setdefault(one.number, []).append(one)

    def told(self, gpu: GpuReading) -> GpuReading:
        """Return the sample with its holders."""
        holders = [
            *(_holder(one, "") for one in self._by_device.get(gpu.uuid, ())),
            *(_holder(one, "") for one in self._by_number.get(gpu.index, ())),
        ]
        for instance in gpu.mig:
            of_it = self._by_device.get(instance.uuid, ())
            holders += (_holder(one, instance.uuid) for one in of_it)
        if not holders:
            return gpu
        return msgspec.structs.replace(gpu, holders=merged(holders))


def _holder(one: Given, device: str) -> GpuHolder:
    return GpuHolder(
        namespace=one.namespace,
        pod=one.pod,
        container=one.container,
        resource=one.resource,
        device=device,
        claim=one.claim,
        parts=int(one.replica),
    )


def merged(holders: Iterable[GpuHolder]) -> tuple[GpuHolder, ...]:
    """Return one entry per container and device, with the number of replicas."""
    found: dict[tuple[str, str, str, str], GpuHolder] = {}
    for one in holders:
        key = (one.namespace, one.pod, one.container, one.device)
        known = found.get(key)
        if known is not None:
            one = msgspec.structs.replace(known, parts=known.parts + one.parts)
        found[key] = one
    return tuple(found[key] for key in sorted(found))[:MAX_HOLDERS]
