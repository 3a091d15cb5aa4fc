"""Streams of job requests: from a pod list in openb's form, or generated with its mix.

One pod of the list is one request with one pod. Columns: ``num_gpu`` and ``gpu_milli`` become the
pod set, ``gpu_spec`` (``A|B``) the acceptable models, ``qos`` the priority (table below), creation
the arrival, and the time from scheduling to deletion the expected duration. Lists without times
(such as multigpu50) get arrivals and durations from the seed, like generated streams.

Pure: the same input and seed always give the same requests.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from berthmaster.lab.emulator.chance import exponential, lognormal, uniform
from berthmaster.lib.messages.workload import JobRequest, PodSet

OPENB_PODS: Final = {
    "default": "openb/openb_pod_list_default.csv",
    "gpushare100": "openb/openb_pod_list_gpushare100.csv",
    "multigpu50": "openb/openb_pod_list_multigpu50.csv",
}
COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
# Latency-sensitive pods go before bursting ones, best effort comes last.
PRIORITY_OF_QOS: Final[Mapping[str, int]] = {
    "Guaranteed": 300,
    "LS": 200,
    "Burstable": 100,
    "BE": 0,
}
# Numbers of openb's default list: half of the jobs take under about 8 minutes, a few take days.
MEDIAN_DURATION_S: Final = 485.0
SIGMA_DURATION: Final = 1.94
LONGEST_S: Final = 31_536_000.0
_UNFIT: Final = re.compile(r"[^a-z0-9]+")


class Arrival(NamedTuple):
    """A request and its time, in seconds from the start of the stream."""

    at_s: float
    request: JobRequest


class WorkloadError(ValueError):
    """The pod list or the request is invalid. The text says what would be right."""


class _Kind(NamedTuple):
    share: int  # of 10,000 pods
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    priority: int


# The mix of openb's default list by requested GPUs, with the most frequent CPU and memory.
_MIX: Final = (
    _Kind(1047, 12_500, 57_344, 0, 1000, 0),
    _Kind(288, 32_000, 49_152, 0, 1000, 200),
    _Kind(172, 4_000, 15_258, 1, 160, 0),
    _Kind(206, 4_000, 30_517, 1, 230, 0),
    _Kind(420, 4_000, 22_888, 1, 320, 0),
    _Kind(157, 6_000, 12_288, 1, 460, 200),
    _Kind(1008, 11_908, 47_104, 1, 470, 200),
    _Kind(180, 3_152, 5_600, 1, 590, 0),
    _Kind(310, 11_908, 47_104, 1, 650, 200),
    _Kind(1322, 3_152, 5_600, 1, 810, 0),
    _Kind(1250, 11_300, 49_152, 1, 1000, 200),
    _Kind(2000, 11_400, 48_128, 1, 1000, 200),
    _Kind(700, 3_152, 5_600, 1, 1000, 0),
    _Kind(848, 8_000, 16_384, 1, 1000, 0),
    _Kind(20, 16_200, 66_560, 2, 1000, 200),
    _Kind(18, 32_200, 132_096, 4, 1000, 200),
    _Kind(54, 64_200, 263_168, 8, 1000, 200),
)
_SHARES: Final = tuple(accumulate(kind.share for kind in _MIX))


def generated(
    *,
    seed: int,
    rate_per_s: float,
    count: int | None = None,
    prefix: str = "job",
    queue: str = "default",
    median_duration_s: float = MEDIAN_DURATION_S,
    gang_share: float = 0.0,
    largest_gang: int = 8,
) -> Iterator[Arrival]:
    """Yield requests with the published mix at random times, ``rate_per_s`` on average.

    ``gang_share`` of the requests with whole GPUs have 2 to ``largest_gang`` pods; openb has no
    gangs. Endless without ``count``.
    """
    if rate_per_s <= 0:
        raise WorkloadError(f"rate_per_s is {rate_per_s}; arrivals need more than 0")
    if not 0 <= gang_share <= 1 or largest_gang < 2:
        raise WorkloadError("gang_share is from 0 to 1, largest_gang at least 2")
    at_s = 0.0
    number = 0
    while count is None or number < count:
        number += 1
        at_s += exponential(1.0 / rate_per_s, seed, "arrival", number)
        kind = _kind(seed, number)
        pods = 1
        if kind.gpus and kind.gpu_milli == 1000 and uniform(seed, "gang", number) < gang_share:
            pods = 2 + int(uniform(seed, "size", number) * (largest_gang - 1))
        request = JobRequest(
            id=_id(prefix, f"{number:06}"),
            queue=queue,
            priority=kind.priority,
            pod_sets=(_pod_set(kind, pods),),
            expected_duration_s=_duration_s(seed, str(number), median_duration_s),
        )
        yield Arrival(at_s, request)


def _kind(seed: int, number: int) -> _Kind:
    drawn = uniform(seed, "kind", number) * _SHARES[-1]
    return next(kind for kind, end in zip(_MIX, _SHARES, strict=True) if drawn < end)


def _pod_set(kind: _Kind, count: int) -> PodSet:
    return PodSet(
        count=count,
        cpu_milli=kind.cpu_milli,
        memory_mib=kind.memory_mib,
        gpus=kind.gpus,
        gpu_milli=kind.gpu_milli,
    )


def _duration_s(seed: int, what: str, median_s: float) -> float:
    drawn = lognormal(median_s, SIGMA_DURATION, seed, "duration", what)
    return round(min(max(drawn, 1.0), LONGEST_S), 3)


def _id(prefix: str, name: str) -> str:
    """Return a valid workload id for any name."""
    full = f"{prefix}-{name}" if prefix else name
    plain = _UNFIT.sub("-", full.lower()).strip("-")[:52].strip("-")
    if not plain:
        raise WorkloadError(f"the name {name!r} has no letter or digit for an id")
    return plain


def parse_workloads(
    text: str,
    *,
    seed: int = 0,
    prefix: str = "",
    queue: str = "default",
    rate_per_s: float = 1.0,
) -> list[Arrival]:
    """Return the requests of a pod list, sorted by arrival. Raises WorkloadError.

    ``prefix`` goes before every id, so that a list can be replayed on the same bus. ``rate_per_s``
    is for lists without times.
    """
    rows = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise WorkloadError(
            f"the pod list lacks {', '.join(missing)}; it needs {','.join(COLUMNS)}"
        )
    arrivals: list[Arrival] = []
    seen: set[str] = set()
    drawn_s = 0.0
    for line, row in enumerate(rows, 2):
        request = _request(row, line, seed, prefix, queue)
        if request.id in seen:
            raise WorkloadError(f"line {line}: the id {request.id!r} is there twice")
        seen.add(request.id)
        created = _time(row, "creation_time", line)
        if created is None:
            drawn_s += exponential(1.0 / rate_per_s, seed, "arrival", line)
        arrivals.append(Arrival(drawn_s if created is None else created, request))
    if not arrivals:
        raise WorkloadError("the pod list has no pods")
    start_s = min(arrival.at_s for arrival in arrivals)
    arrivals.sort(key=lambda a: (a.at_s, a.request.id))
    return [Arrival(at_s - start_s, request) for at_s, request in arrivals]


def _request(
    row: Mapping[str, str | None], line: int, seed: int, prefix: str, queue: str
) -> JobRequest:
    name = (row["name"] or "").strip()
    gpus = _amount(row, "num_gpu", line, 64)
    milli = _amount(row, "gpu_milli", line, 1000)
    if gpus == 1 and milli == 0:
        raise WorkloadError(f"line {line}: gpu_milli is 0 for one GPU; it takes 1 to 1000")
    models = tuple(part for part in (row.get("gpu_spec") or "").strip().split("|") if part)
    return JobRequest(
        id=_id(prefix, name),
        queue=queue,
        priority=PRIORITY_OF_QOS.get((row.get("qos") or "").strip(), 0),
        pod_sets=(
            PodSet(
                cpu_milli=_amount(row, "cpu_milli", line, 10_000_000),
                memory_mib=_amount(row, "memory_mib", line, 1 << 30),
                gpus=gpus,
                gpu_milli=milli if gpus == 1 else 1000,
                gpu_models=models,
            ),
        ),
        expected_duration_s=_lifetime_s(row, line) or _duration_s(seed, name, MEDIAN_DURATION_S),
    )


def _lifetime_s(row: Mapping[str, str | None], line: int) -> float | None:
    """Return how long a pod held its node; from creation for a pod without a node."""
    end = _time(row, "deletion_time", line)
    start = _time(row, "scheduled_time", line)
    if start is None:
        start = _time(row, "creation_time", line)
    if start is None or end is None:
        return None
    return min(max(end - start, 1.0), LONGEST_S)


def _amount(row: Mapping[str, str | None], column: str, line: int, most: int) -> int:
    text = (row[column] or "").strip()
    try:
        value = int(text or 0)
    except ValueError:
        value = -1
    if not 0 <= value <= most:
        raise WorkloadError(f"line {line}: {column} is {text!r}, not a number from 0 to {most}")
    return value


def _time(row: Mapping[str, str | None], column: str, line: int) -> float | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -1e12 < value < 1e12:  # also refuses nan
        raise WorkloadError(f"line {line}: {column} is {text!r}, not a number of seconds")
    return value
