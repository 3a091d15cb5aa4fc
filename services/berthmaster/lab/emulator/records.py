"""Records of an emulated cluster: one per change, small enough for thousands per second.

The cluster changes only by applying records, so reading them again after a kill gives the same
cluster. Times are on the cluster's clock, and durations are already at its speed.
"""

from typing import Final, NamedTuple

import msgspec


class GpuUse(NamedTuple):
    """A pod's allocation on a node."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0  # of each GPU below
    gpus: tuple[int, ...] = ()


class Seat(NamedTuple):
    """One managed pod on its node."""

    pod: str
    node: str
    use: GpuUse


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """Written as an array, which halves the bytes."""


class Made(_Record, frozen=True, array_like=True, tag="made"):
    """A job object with its accepted pods. ``refused``: the reason of a refusal."""

    tenant: str
    id: str
    attempt: int
    executor: str
    seats: tuple[Seat, ...]
    starts_s: float
    ends_s: float
    fails: bool  # at ends_s, instead of completing
    expires_s: float | None
    refused: str = ""
    receipt: str = ""  # from its executor


class Resized(_Record, frozen=True, array_like=True, tag="resized"):
    """The pods of a job object after a resize. ``missing``: why pods are missing."""

    tenant: str
    id: str
    attempt: int
    seats: tuple[Seat, ...]
    missing: str = ""


class Over(_Record, frozen=True, array_like=True, tag="over"):
    """The pods of a job object are ending. ``frees``: the pods without an allocation from now
    on."""

    tenant: str
    id: str
    attempt: int
    how: str  # Phase
    frees: tuple[str, ...]
    reason: str = ""
    exit_code: int | None = None


class Stopped(_Record, frozen=True, array_like=True, tag="stopped"):
    """The pods of a job object were stopped on request."""

    tenant: str
    id: str
    attempt: int
    reason: str


class Deleted(_Record, frozen=True, array_like=True, tag="deleted"):
    """Pods and object were deleted."""

    tenant: str
    id: str
    attempt: int


class ForeignCame(_Record, frozen=True, array_like=True, tag="came"):
    """An unmanaged pod started."""

    number: int
    node: str
    use: GpuUse
    until_s: float


class ForeignLeft(_Record, frozen=True, array_like=True, tag="left"):
    """An unmanaged pod ended."""

    number: int


class NodeTurned(_Record, frozen=True, array_like=True, tag="node"):
    """A node is not ready until a time; 0: ready."""

    node: str
    until_s: float


class GpuTurned(_Record, frozen=True, array_like=True, tag="gpu"):
    """A GPU is lost until a time; 0: replaced."""

    node: str
    index: int
    until_s: float


class Drawn(_Record, frozen=True, array_like=True, tag="drawn"):
    """The number of drawn events of one kind, and the time of the next."""

    kind: str
    number: int
    next_s: float


Record = (
    Made
    | Resized
    | Over
    | Stopped
    | Deleted
    | ForeignCame
    | ForeignLeft
    | NodeTurned
    | GpuTurned
    | Drawn
)
ENCODER: Final = msgspec.json.Encoder()
DECODER: Final = msgspec.json.Decoder(Record)
