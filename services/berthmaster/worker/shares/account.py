"""Files through which libberthcuda limits containers to their shares.

The plugin creates a file per container, with the memory limit and later the tokens per second for
launches. The container's processes count their usage there (``_berthcuda.c``). Example: a share of
250 that used 500 of the GPU with 8000 tokens a second gets 4000.
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
    """Usage of a share since the last check."""

    milli: int  # granted, of the GPU's compute
    used_milli: int  # measured
    spent: int  # tokens a second
    waited: bool  # whether launches had to wait for tokens


def targets(readings: Sequence[Reading], burst_milli: int) -> list[int]:
    """Return the milli of the GPU for each share in the next interval.

    Each may use its granted milli. Unused milli go to shares with waiting launches, by size and up
    to ``burst_milli`` more each.
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
    """One open file."""

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
        """Yield the processes with a slot, as visible here."""
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
    """Create a new file, replacing that of an ended container."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    header = HEADER.pack(MAGIC, limit_bytes, 0, 0, 0, 0, 0, milli)
    fresh.write_bytes(header.ljust(SIZE, b"\0"))
    fresh.chmod(0o666)  # for any user of the container
    fresh.rename(path)
