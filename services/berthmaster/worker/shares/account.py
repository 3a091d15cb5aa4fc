"""The files in which libberthcuda holds containers to their shares, and what sets their pace.

The plugin makes a file a container, writes the memory limit into it, and later how many tokens a
second launches may spend. Processes of the container count in it what they hold (``_berthcuda.c``).
Example: a share of 250 that used 500 of the GPU while it spent 8000 tokens a second gets 4000.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

MAGIC: Final = 0x3165726168736262
SLOTS: Final = 512
HEADER: Final = struct.Struct("<8Q")
SIZE: Final = HEADER.size + 8 * SLOTS
_RATE, _SPENT, _WAITS, _MILLI = 16, 24, 32, 56  # offsets
_LOCKS: Final = 1 << 20  # offset of the bytes that processes lock
_LOCK: Final = struct.Struct("@hhqqi4x")  # struct flock
WHOLE: Final = 1000


class Reading(NamedTuple):
    """What a share did since the last look."""

    milli: int  # granted, of the GPU's compute
    used_milli: int  # measured
    spent: int  # tokens a second
    waited: bool  # whether launches had to wait for tokens


def targets(readings: Sequence[Reading], burst_milli: int) -> list[int]:
    """Return how much of the GPU each share may use next.

    Each may use what it was granted. What the others leave goes to those whose launches wait, by
    their size and up to ``burst_milli`` more for each.
    """
    taken = sum(one.milli if one.waited else min(one.milli, one.used_milli) for one in readings)
    waiting = sum(one.milli for one in readings if one.waited)
    spare = max(0, WHOLE - taken)
    return [
        one.milli + (min(burst_milli, spare * one.milli // waiting) if one.waited else 0)
        for one in readings
    ]


def rate_of(reading: Reading, target_milli: int, before: int) -> int:
    """Return the tokens a second for a target; 0 = no limit, as long as nothing was measured."""
    if target_milli >= WHOLE:
        return 0
    if not reading.used_milli or not reading.spent:
        return before
    return max(1, reading.spent * target_milli // reading.used_milli)


class Account:
    """One file, open."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError where the file is none of ours."""
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._file, SIZE)
        except ValueError:
            os.close(self._file)
            raise
        self.milli: int = struct.unpack_from("<Q", self._map, _MILLI)[0]
        self._before = self._counters()

    def processes(self) -> Iterator[int]:
        """Name the processes that hold a slot, as this process sees them."""
        for slot in range(SLOTS):
            asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _LOCKS + 1 + slot, 1, 0)
            kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                yield pid

    def read(self, percents: Mapping[int, float], seconds: float) -> Reading:
        """Say what the share did in so many seconds. ``percents``: use of the SMs by process."""
        now = self._counters()
        (spent, waits), self._before = self._before, now
        used = sum(percents.get(pid, 0.0) for pid in self.processes())
        milli = min(WHOLE, round(used * 10))
        return Reading(self.milli, milli, int((now[0] - spent) / seconds), now[1] > waits)

    @property
    def rate(self) -> int:
        """Tokens a second; 0 = no limit."""
        found: int = struct.unpack_from("<Q", self._map, _RATE)[0]
        return found

    @rate.setter
    def rate(self, tokens: int) -> None:
        struct.pack_into("<Q", self._map, _RATE, tokens)

    def close(self) -> None:
        """Forget the file."""
        self._map.close()
        os.close(self._file)

    def _counters(self) -> tuple[int, int]:
        spent, waits = struct.unpack_from("<QQ", self._map, _SPENT)
        return spent, waits


def make(path: Path, limit_bytes: int, milli: int) -> None:
    """Make a fresh file; one of a container that has ended goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    header = HEADER.pack(MAGIC, limit_bytes, 0, 0, 0, 0, 0, milli)
    fresh.write_bytes(header.ljust(SIZE, b"\0"))
    fresh.chmod(0o666)  # whoever the container's processes are
    fresh.rename(path)
