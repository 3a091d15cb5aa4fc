"""Waits as counts a bucket, so that many days' percentiles are added up instead of sorted. Pure.

Bucket b > 0 holds what is longer than 1.02^(b-1) ms and no longer than 1.02^b ms, and a bucket
stands for its geometric middle: so a percentile is right within 1 %. Bucket 0 is "within a
millisecond". With this, a wait of an hour is in bucket 763, and one of ten years in 1,337.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

GROWTH: Final = 1.02
_LOG: Final = math.log(GROWTH)
Buckets = dict[int, int]  # bucket -> jobs
_LIMIT: Final = 2**16  # in no bucket beyond is there a wait, however long


def bucket_of(wait_ms: int) -> int:
    """Where a wait belongs; one below 0 (clocks) is none at all."""
    return 0 if wait_ms <= 1 else math.ceil(math.log(wait_ms) / _LOG - 1e-9)


def seconds_of(bucket: int) -> float:
    """What a bucket stands for."""
    return 0.0 if bucket <= 0 else GROWTH ** (bucket - 0.5) / 1000


def packed(buckets: Mapping[int, int]) -> bytes:
    """As a cell of the store has it: bucket and jobs in turn, 32 bits each, lowest byte first."""
    flat = [number for each in sorted(buckets.items()) for number in each]
    return struct.pack(f"<{len(flat)}I", *flat)


def unpacked(data: bytes | memoryview | None) -> Buckets:
    """The reverse."""
    flat = struct.unpack(f"<{len(data) // 4}I", data) if data else ()
    return dict(zip(flat[::2], flat[1::2], strict=True))


def sum_of(cells: Iterable[bytes | memoryview]) -> Buckets:
    """Of many cells at once, as ``packed`` made them. A report by owner over three months of a
    million jobs adds up a million of such pairs."""
    pairs = np.frombuffer(b"".join(cells), "<u4").reshape(-1, 2)
    pairs = pairs[pairs[:, 0] < _LIMIT]
    jobs = np.bincount(pairs[:, 0], weights=pairs[:, 1])
    return {int(bucket): int(jobs[bucket]) for bucket in np.flatnonzero(jobs)}


def add(into: Buckets, more: Mapping[int, int]) -> None:
    for bucket, jobs in more.items():
        into[bucket] = into.get(bucket, 0) + jobs


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """The wait that this share of the jobs did not exceed, in seconds; None: there are no jobs."""
    count = sum(buckets.values())
    if not count:
        return None
    rank, seen = max(1, math.ceil(share * count)), 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= rank:
            return round(seconds_of(bucket), 4)
    return None


def of(values_ms: Iterable[int]) -> Buckets:
    """Counts of these waits."""
    found: Buckets = {}
    for value in values_ms:
        bucket = bucket_of(value)
        found[bucket] = found.get(bucket, 0) + 1
    return found
