"""What an emulated cluster writes down: every change of it, small enough for thousands a second.

The cluster changes only by applying one of these, so that reading them again after a kill gives the
same cluster. Times are on the clock that the cluster is given, durations already at its speed.
"""

from typing import Final, NamedTuple

import msgspec


class GpuUse(NamedTuple):
    """What a pod holds of a node."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0  # of each GPU below
    gpus: tuple[int, ...] = ()


class Seat(NamedTuple):
    """One pod of ours on its node."""

    pod: str
    node: str
    use: GpuUse


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """Written as an array: half the bytes."""


class Made(_Record, frozen=True, array_like=True, tag="made"):
    """A job object, with the pods that the kubelets took. ``refused``: why one was not taken."""

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
    receipt: str = ""  # as its executor gave it


class Resized(_Record, frozen=True, array_like=True, tag="resized"):
    """Its pods are these from now on. ``missing``: why there are not as many as were asked for."""

    tenant: str
    id: str
    attempt: int
    seats: tuple[Seat, ...]
    missing: str = ""


class Over(_Record, frozen=True, array_like=True, tag="over"):
    """Its pods are ending by themselves. ``frees``: the pods that hold nothing from now on."""

    tenant: str
    id: str
    attempt: int
    how: str  # Phase
    frees: tuple[str, ...]
    reason: str = ""
    exit_code: int | None = None


class Stopped(_Record, frozen=True, array_like=True, tag="stopped"):
    """Its pods were stopped on demand."""

    tenant: str
    id: str
    attempt: int
    reason: str


class Deleted(_Record, frozen=True, array_like=True, tag="deleted"):
    """Pods and object were removed."""

    tenant: str
    id: str
    attempt: int


class ForeignCame(_Record, frozen=True, array_like=True, tag="came"):
    """A pod that is not ours started."""

    number: int
    node: str
    use: GpuUse
    until_s: float


class ForeignLeft(_Record, frozen=True, array_like=True, tag="left"):
    """And ended."""

    number: int


class NodeTurned(_Record, frozen=True, array_like=True, tag="node"):
    """A node stopped being ready until a time; 0: it is ready."""

    node: str
    until_s: float


class GpuTurned(_Record, frozen=True, array_like=True, tag="gpu"):
    """A GPU fell off the bus until a time; 0: it was replaced."""

    node: str
    index: int
    until_s: float


class Drawn(_Record, frozen=True, array_like=True, tag="drawn"):
    """How many chances of one kind have been drawn, and when the next one falls."""

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
