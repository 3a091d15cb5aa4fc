"""Whether a job failed since its GPU had no memory left, by the end of its log. Pure.

A framework says so in a line of its own, below. The job must have failed as well: one that catches
the error and goes on with smaller batches has not. What the GPU's memory held beside it is no
proof, as frameworks fill it in advance; it is named as evidence where it was at `FULL_PERCENT`.
"""

import re
from collections.abc import Iterable
from typing import Final

FULL_PERCENT: Final = 95.0
LAST_LINES: Final = 200
# PyTorch, CUDA's driver and runtime, cuBLAS, XLA (JAX), TensorFlow, and AMD's HIP.
_SAYS_SO: Final = re.compile(
    rb"(?:CUDA|HIP) out of memory"
    rb"|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|cudaErrorMemoryAllocation"
    rb"|hipErrorOutOfMemory"
    rb"|CUBLAS_STATUS_ALLOC_FAILED"
    rb"|CUDA error: out of memory"
    rb"|RESOURCE_EXHAUSTED: (?:XLA:GPU )?[Oo]ut of memory"
    rb"|OOM when allocating tensor"
)


def says_out_of_memory(log_end: bytes) -> bool:
    """Whether the end of a log says that a GPU's memory was used up."""
    return any(_SAYS_SO.search(line) for line in log_end.splitlines()[-LAST_LINES:])


def evidence_of(log_ends: Iterable[bytes], memory_max_percent: float | None) -> tuple[str, ...]:
    """What says that the job ran out of GPU memory; nothing: it did not, or nobody knows."""
    if not any(says_out_of_memory(end) for end in log_ends):
        return ()
    full = memory_max_percent is not None and memory_max_percent >= FULL_PERCENT
    return ("log", "memory") if full else ("log",)
