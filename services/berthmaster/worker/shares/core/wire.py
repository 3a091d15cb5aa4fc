"""Messages of the kubelet's APIs in protobuf encoding. Pure.

Device plugin API v1beta1: Register, ListAndWatch, GetPreferredAllocation, Allocate. PodResources
API v1: GetAllocatableResources. Field numbers are those of Kubernetes' api.proto. Reading functions
raise BadMessage.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.lib.runtime.protobuf import BadMessage, field, fields, parts, text
from berthmaster.worker.shares.core.shares import Grant

VERSION: Final = "v1beta1"
_PREFERRED: Final = field(2, 1)  # DevicePluginOptions.get_preferred_allocation_available
OPTIONS: Final = _PREFERRED


class Wish(NamedTuple):
    """A request for a preferred allocation."""

    available: tuple[str, ...]
    taken: tuple[str, ...]
    size: int


class Owned(NamedTuple):
    """Devices of one resource in the kubelet."""

    resource: str
    devices: tuple[str, ...]


def registration(endpoint: str, resource: str) -> bytes:
    """Encode a RegisterRequest. ``endpoint``: the socket's file name."""
    return field(1, VERSION) + field(2, endpoint) + field(3, resource) + field(4, OPTIONS)


def listing(devices: Iterable[tuple[str, bool]]) -> bytes:
    """Encode a ListAndWatchResponse with the health of each device."""
    states = {True: field(2, "Healthy"), False: field(2, "Unhealthy")}
    return b"".join(field(1, field(1, name) + states[ok]) for name, ok in devices)


def wishes(request: bytes) -> list[Wish]:
    """Decode a PreferredAllocationRequest: one entry a container."""
    return [Wish(_texts(one, 1), _texts(one, 2), _number(one, 3)) for one in parts(request, 1)]


def preference(chosen: Iterable[Iterable[str]]) -> bytes:
    """Encode a PreferredAllocationResponse."""
    return b"".join(field(1, b"".join(field(1, name) for name in one)) for one in chosen)


def allocations(request: bytes) -> list[tuple[str, ...]]:
    """Decode an AllocateRequest: the devices of each container."""
    return [_texts(one, 1) for one in parts(request, 1)]


def grants(given: Iterable[Grant]) -> bytes:
    """Encode an AllocateResponse."""
    return b"".join(field(1, _grant(one)) for one in given)


def _grant(grant: Grant) -> bytes:
    env = (field(1, field(1, name) + field(2, value)) for name, value in grant.env.items())
    mounts = (
        field(2, field(1, one.inside) + field(2, one.outside) + field(3, int(one.read_only)))
        for one in grant.mounts
    )
    files = (field(3, field(1, one) + field(2, one) + field(3, "rw")) for one in grant.files)
    return b"".join((*env, *mounts, *files))


def owned(answer: bytes) -> list[Owned]:
    """Decode an AllocatableResourcesResponse."""
    return [Owned(text(one, 1), _texts(one, 2)) for one in parts(answer, 1)]


def _texts(data: bytes, number: int) -> tuple[str, ...]:
    try:
        return tuple(part.decode() for part in parts(data, number))
    except UnicodeDecodeError as error:
        raise BadMessage(f"field {number} is no text") from error


def _number(data: bytes, number: int) -> int:
    *_, last = (0, *(value for found, value in fields(data) if found == number))
    if not isinstance(last, int):
        raise BadMessage(f"field {number} is no number")
    return last
