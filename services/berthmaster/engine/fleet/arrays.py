"""The fleet's arrays, one number at a time."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from berthmaster.engine.fleet.fleet import Fleet


class Arrays:
    """The arrays' memory, for reading and writing single numbers: a third of what numpy takes."""

    __slots__ = (
        "a_gpu",
        "all_milli",
        "capacity_milli",
        "cluster_of",
        "cpu",
        "free_milli",
        "gpu",
        "memory",
        "milli",
        "open",
        "whole",
        "width",
    )

    def __init__(self, fleet: "Fleet") -> None:
        self.cpu = memoryview(fleet.cpu)  # type: ignore[arg-type]
        self.memory = memoryview(fleet.memory)  # type: ignore[arg-type]
        self.gpu: Any = memoryview(fleet.gpu)  # type: ignore[arg-type]
        self.width: int = fleet.gpu.shape[1]
        self.whole = memoryview(fleet.whole)  # type: ignore[arg-type]
        self.milli = memoryview(fleet.milli)  # type: ignore[arg-type]
        self.capacity_milli = memoryview(fleet.capacity_milli)  # type: ignore[arg-type]
        self.a_gpu: Any = memoryview(fleet.a_gpu)  # type: ignore[arg-type]
        self.open = memoryview(fleet.open)  # type: ignore[arg-type]
        self.free_milli = memoryview(fleet.free_milli)  # type: ignore[arg-type]
        self.all_milli = memoryview(fleet.all_milli)  # type: ignore[arg-type]
        self.cluster_of = memoryview(fleet.cluster_of)  # type: ignore[arg-type]
