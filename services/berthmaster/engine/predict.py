"""How long a job will take, from how long its likes took: a fold of endings in the log's order.

People run the same thing again and again, so a job is compared with those that ended of its own
tenant, queue, labels and shape; where fewer than ENOUGH of them are known, with wider kinds:
without labels, then all of the same size, then all. Of a kind the median counts, newer endings
more: an ending loses half of its weight with every HALF_LIFE that follow it, so that what a team
does this week outweighs what it did last month.

What a request states of its own duration goes before all of this. A job that has run for longer
than was expected is expected to run for as long again as a share OVERRUN of what it has run.

``Sizes`` keeps what jobs of late said that they take, to tell which are so large that they may be
left behind (order.py).

Pure: durations in, estimates out; ``kept`` and ``restored`` carry both through a snapshot.
"""

import bisect
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from berthmaster.engine.needs import shape_of
from berthmaster.messages.workload import JobRequest

ENOUGH: Final = 3  # endings of a kind, before it is believed
KEPT: Final = 24  # endings of a kind; older ones weigh less than a hundredth
HALF_LIFE: Final = 4  # endings
KINDS: Final = 8192  # the one that was least lately added to is forgotten
FIRST_GUESS_S: Final = 3600.0  # before anything has ended
OVERRUN: Final = 0.5
SIZES_KEPT: Final = 2000  # jobs of late
SIZES_ENOUGH: Final = 50  # before any job is called large
LARGE_QUANTILE: Final = 0.97  # three jobs in a hundred are larger

Kind = tuple[str, ...]


class KindHistory(msgspec.Struct, frozen=True, array_like=True):
    """The endings of one kind, as a snapshot keeps them."""

    kind: Kind
    durations_s: list[float]


def kinds_of(tenant: str, request: JobRequest) -> tuple[Kind, ...]:
    """What a job is compared with, the narrowest first."""
    shape = shape_of(request).hex()
    size = str(sum(p.count * p.gpus * p.gpu_milli for p in request.pod_sets))
    labels = "\x1f".join(f"{name}={request.labels[name]}" for name in sorted(request.labels))
    kinds: list[Kind] = [("size", size), ("all",)]
    kinds.insert(0, ("shape", tenant, request.queue, shape))
    if labels:
        kinds.insert(0, ("labels", tenant, request.queue, shape, labels))
    return tuple(kinds)


def weighted_median(durations_s: Sequence[float]) -> float:
    """The least duration with half of all weight at or below it; the last one is the newest."""
    newest = len(durations_s) - 1
    weighed = sorted((d, 2.0 ** ((i - newest) / HALF_LIFE)) for i, d in enumerate(durations_s))
    half = sum(weight for _, weight in weighed) / 2
    below = 0.0
    for duration_s, weight in weighed:
        below += weight
        if below >= half:
            return duration_s
    return weighed[-1][0]


class Durations:
    """What has been learned."""

    def __init__(self) -> None:
        self._ended: OrderedDict[Kind, list[float]] = OrderedDict()

    def learn(self, tenant: str, request: JobRequest, ran_s: float) -> None:
        """A job of this kind ended well after so long."""
        if not 0 <= ran_s < float("inf"):
            return
        for kind in kinds_of(tenant, request):
            durations_s = self._ended.setdefault(kind, [])
            durations_s.append(ran_s)
            del durations_s[:-KEPT]
            self._ended.move_to_end(kind)
        while len(self._ended) > KINDS:
            self._ended.popitem(last=False)

    def expected_s(self, tenant: str, request: JobRequest) -> float:
        """How long it will take: as it says, or as its likes did."""
        if request.expected_duration_s is not None:
            return request.expected_duration_s
        for kind in kinds_of(tenant, request):
            durations_s = self._ended.get(kind, ())
            if len(durations_s) >= ENOUGH or (kind == ("all",) and durations_s):
                return weighted_median(durations_s)
        return FIRST_GUESS_S

    def kept(self) -> list[KindHistory]:
        """What ``restored`` needs, in the order of forgetting."""
        return [KindHistory(kind, list(durations)) for kind, durations in self._ended.items()]

    @classmethod
    def restored(cls, kept: Iterable[KindHistory]) -> "Durations":
        """As it was when ``kept`` was called."""
        durations = cls()
        for history in kept:
            durations._ended[history.kind] = list(history.durations_s)
        return durations


def left_s(expected_s: float, ran_s: float) -> float:
    """How long a running job will still take."""
    return expected_s - ran_s if ran_s < expected_s else OVERRUN * ran_s


class Sizes:
    """The service of the jobs of late that stated their duration, in GPU-seconds."""

    def __init__(self, kept: Iterable[float] = ()) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        for service in kept:
            self.learn(service)

    def learn(self, service_gpu_s: float) -> None:
        """A job was submitted."""
        if not 0 <= service_gpu_s < math.inf:
            return
        self._newest.append(service_gpu_s)
        bisect.insort(self._sorted, service_gpu_s)
        if len(self._newest) > SIZES_KEPT:
            oldest = self._newest.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]

    def large_gpu_s(self) -> float:
        """A job of more service than this is large; infinite while too few are known."""
        known = len(self._sorted)
        if known < SIZES_ENOUGH:
            return math.inf
        return self._sorted[min(known - 1, math.ceil(LARGE_QUANTILE * known) - 1)]

    def kept(self) -> list[float]:
        """What a new one is made of, oldest first."""
        return list(self._newest)
