"""A job that ran out of GPU memory, by the end of its log."""

import pytest

from berthmaster.lib.profiles.out_of_memory import LAST_LINES, evidence_of

TORCH = (
    b"2026-11-28T20:00:00.1Z Traceback (most recent call last):\n"
    b"2026-11-28T20:00:00.1Z torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
)


@pytest.mark.parametrize(
    ("end", "memory_percent", "expected"),
    [
        (TORCH, 99.0, ("log", "memory")),
        (TORCH, 40.0, ("log",)),  # it asked for more at once than there is
        (TORCH, None, ("log",)),
        (b"x RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes\n", None, ("log",)),
        (b"x CUDA error: device-side assert triggered\n", 99.0, ()),  # full memory is no proof
        (b"x MemoryError\n", None, ()),  # of the host
        (TORCH + b"next line\n" * LAST_LINES, 99.0, ()),  # it went on for long after that
        (b"", 99.0, ()),
    ],
)
def test_evidence_of_memory_rests_on_the_log(
    end: bytes, memory_percent: float | None, expected: tuple[str, ...]
) -> None:
    assert evidence_of([b"another pod's\n", end], memory_percent) == expected
