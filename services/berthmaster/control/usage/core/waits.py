"""Waits as counts per bucket: percentiles of many days are added instead of sorted. Pure.

Bucket b > 0 has the waits longer than 1.02^(b-1) ms and at most 1.02^b ms. A bucket stands for its
geometric middle, so a percentile is right within 1 %. Bucket 0 has waits up to a millisecond.
Example: a wait of an hour is in bucket 763, and a wait of ten years in 1,337.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

GROWTH: Final = 1.02
_LOG: Final = math.log(GROWTH)
Buckets = dict[int, int]  # bucket -> jobs
_LIMIT: Final = 2**16  # above any possible bucket


def bucket_of(wait_ms: int) -> int:
    """Return the bucket of a wait. A wait below 0 (clocks) counts as 0."""
    return 0 if wait_ms <= 1 else math.ceil(math.log(wait_ms) / _LOG - 1e-9)


def seconds_of(bucket: int) -> float:
    """Return the wait that a bucket stands for."""
    return 0.0 if bucket <= 0 else GROWTH ** (bucket - 0.5) / 1000


def packed(buckets: Mapping[int, int]) -> bytes:
    """Return the stored form: bucket and jobs in turn, 32 bits each, lowest byte first."""
    flat = [number for each in sorted(buckets.items()) for number in each]
    return struct.pack(f"<{len(flat)}I", *flat)


def unpacked(data: bytes | memoryview | None) -> Buckets:
    """Return the buckets of a stored form."""
    flat = struct.unpack(f"<{len(data) // 4}I", data) if data else ()
    return dict(zip(flat[::2], flat[1::2], strict=True))


def sum_of(cells: Iterable[bytes | memoryview]) -> Buckets:
    """Return the sum of many cells in the form of ``packed``. A report by owner over three months
    of a million jobs sums a million such pairs.
    """
    pairs = np.frombuffer(b"".join(cells), "<u4").reshape(-1, 2)
    pairs = pairs[pairs[:, 0] < _LIMIT]
    jobs = np.bincount(pairs[:, 0], weights=pairs[:, 1])
    return {int(bucket): int(jobs[bucket]) for bucket in np.flatnonzero(jobs)}


def add(into: Buckets, more: Mapping[int, int]) -> None:
    for bucket, jobs in more.items():
        into[bucket] = into.get(bucket, 0) + jobs


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the wait that this share of the jobs did not exceed, in seconds. None: no jobs."""
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
    """Return the counts of these waits."""
    found: Buckets = {}
    for value in values_ms:
        bucket = bucket_of(value)
        found[bucket] = found.get(bucket, 0) + 1
    return found
