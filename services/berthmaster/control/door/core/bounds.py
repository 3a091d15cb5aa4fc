"""Bounds of each cluster at the door, so that one cluster's flood costs the others little.

Each cluster has a queue, and the queues are served in turn. Work in flight and waiting work are
bounded for each cluster. Stored and forwarded messages have a rate limit, checked by size before
decoding. Example: at 1 MiB/s of usage metrics the door decodes at most 1 MiB/s of a cluster, for
any amount sent.

**Facts.** The last value of every fact by cluster, for the agents' requests.

A fact is kept as stored. As in every mirror, a fact with an older stamp than the known fact is
dropped, and a new list removes the facts missing in the list. The facts of a cluster are bounded,
because an endless number would fill the memory of every reader.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from berthmaster.lib.engine.fleet.clusters import Twins
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.messages.fleet import ClusterProfile, Stamp
from berthmaster.lib.nats.subjects import SubjectError, parse_fact, profile

T = TypeVar("T")
MIB = 1 << 20


class Limits(NamedTuple):
    """Limits of one cluster. settings.py has the limits for operators."""

    max_requests: int = 64  # requests in flight
    max_items: int = 1000  # events and facts in flight
    max_facts: int = 50_000
    max_fact_bytes: int = 256 * 1024
    max_facts_bytes: int = 256 * MIB
    facts_bytes_per_s: float = MIB  # all facts are sent again each hour, and the stream has 8 GiB
    facts_burst_bytes: float = 128 * MIB  # all nodes of a new cluster
    requests_bytes_per_s: float = 16 * MIB  # more than facts and logs take together
    requests_burst_bytes: float = 192 * MIB  # more than the facts of a new cluster
    telemetry_per_s: float = 5000.0  # messages
    telemetry_bytes_per_s: float = 16 * MIB  # 2,000 nodes of 8 GPUs send half of that
    max_telemetry_bytes: int = 64 * 1024  # of one message
    figures_bytes_per_s: float = MIB  # 20,000 jobs send half of that
    max_figures_bytes: int = 24 * 1024  # of one job
    logs_bytes_per_s: float = 8 * MIB  # twice what one executor reads, in JSON
    letters_per_minute: float = 30.0  # dead letters that the door stores
    read_bytes_per_s: float = 4 * MIB  # open workloads and facts that the agent reads
    read_burst_bytes: float = 128 * MIB  # an executor and an inventory start


class Bucket:
    """Token bucket with a rate per second and a burst."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._left = burst
        self._at_s = float("-inf")

    def take(self, amount: float, now_s: float) -> bool:
        """Take the amount and return True, or return False. An amount above the burst needs a full
        bucket.
        """
        gained = max(0.0, now_s - self._at_s) * self._rate_per_s
        self._at_s = now_s
        self._left = min(self._burst, self._left + gained)
        if self._left < min(amount, self._burst):
            return False
        self._left -= amount
        return True

    def again_s(self) -> float:
        """Return the seconds from the last take until the bucket is no longer empty."""
        return max(0.0, -self._left / self._rate_per_s) if self._rate_per_s else 0.0

    def owe(self, amount: float) -> None:
        """Take an amount known only afterwards, even below zero."""
        self._left -= amount


class Buckets:
    """One bucket of each cluster, all with the same limits."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s = rate_per_s
        self._burst = burst
        self._of: dict[str, Bucket] = {}

    def of(self, cluster: str) -> Bucket:
        bucket = self._of.get(cluster)
        if bucket is None:
            bucket = self._of[cluster] = Bucket(self.rate_per_s, self._burst)
        return bucket

    def take(self, cluster: str, amount: float, now_s: float) -> bool:
        """Take the amount from the cluster's bucket and return True, or return False."""
        return self.of(cluster).take(amount, now_s)


class InHand:
    """Work in flight of each cluster: requests, and their events or facts."""

    def __init__(self, max_requests: int, max_items: int) -> None:
        self._max_requests = max_requests
        self._max_items = max_items
        self._requests: dict[str, int] = {}
        self._items: dict[str, int] = {}

    def begin(self, cluster: str) -> bool:
        """Begin one more request, and return whether this is allowed."""
        count = self._requests.get(cluster, 0)
        if count >= self._max_requests:
            return False
        self._requests[cluster] = count + 1
        return True

    def add(self, cluster: str, items: int) -> bool:
        """Add items, and return whether this number is allowed."""
        count = self._items.get(cluster, 0) + items
        if count > self._max_items:
            return False
        self._items[cluster] = count
        return True

    def end(self, cluster: str) -> None:
        _less(self._requests, cluster, 1)

    def end_items(self, cluster: str, items: int) -> None:
        _less(self._items, cluster, items)


def _less(counts: dict[str, int], cluster: str, by: int) -> None:
    left = counts.get(cluster, 0) - by
    if left > 0:
        counts[cluster] = left
    else:
        counts.pop(cluster, None)


class Turns(Generic[T]):
    def __init__(self, room: int) -> None:
        """Serve clusters in turn. ``room`` is the number of items in progress at once."""
        self._room = room
        self._used = 0
        self._queues: OrderedDict[str, deque[tuple[int, T]]] = OrderedDict()

    def join(self, cluster: str, items: int, work: T) -> None:
        self._queues.setdefault(cluster, deque()).append((items, work))

    def due(self) -> Iterator[tuple[int, T]]:
        """Yield the next work with its number of items, which count until ``leave``."""
        while self._queues and self._used < self._room:
            cluster, queue = next(iter(self._queues.items()))
            items, work = queue.popleft()
            if queue:
                self._queues.move_to_end(cluster)
            else:
                del self._queues[cluster]
            self._used += items
            yield items, work

    def leave(self, items: int) -> None:
        self._used -= items


class _Stamped(msgspec.Struct):
    stamp: Stamp


_STAMPED: Final = msgspec.json.Decoder(_Stamped)
_PROFILES: Final = msgspec.json.Decoder(ClusterProfile)


class StoredFact(NamedTuple):
    sequence: int
    stored_at_s: float
    data: bytes
    kind: str
    stamp: Stamp


class _Facts:
    def __init__(self) -> None:
        self.last: OrderedDict[str, StoredFact] = OrderedDict()  # newest last
        self.bytes = 0
        self.epoch = 0


class FleetView:
    def __init__(self, max_facts: int, max_bytes: int) -> None:
        self._max_facts = max_facts
        self._max_bytes = max_bytes
        self._clusters: dict[str, _Facts] = {}
        self._listed: set[str] | None = None
        self.twins = Twins()

    @property
    def facts(self) -> int:
        return sum(len(one.last) for one in self._clusters.values())

    def start_listing(self, replaced: bool) -> None:
        """Begin a listing of all facts. ``replaced``: the stream is new, and old sequences are
        void.
        """
        self._listed = set()
        if replaced:
            self._clusters.clear()
            self.twins = Twins()

    def end_listing(self) -> None:
        """Remove the facts missing in the listing."""
        if self._listed is None:
            return
        for cluster, one in self._clusters.items():
            for subject in [subject for subject in one.last if subject not in self._listed]:
                gone = one.last.pop(subject)
                one.bytes -= len(gone.data)
                if gone.kind == "profile":
                    self.twins.drop(cluster)
        self._listed = None

    def take(
        self, subject: str, sequence: int, stored_at_s: float, data: bytes
    ) -> tuple[str, str] | None:
        """Take one fact and return cluster and kind if new, else None. Another service stores dead
        letters of unreadable ones.
        """
        if self._listed is not None:
            self._listed.add(subject)
        try:
            cluster, kind, _ = parse_fact(subject)
            stamp = _STAMPED.decode(data).stamp
        except (SubjectError, *UNREADABLE):
            return None
        one = self._clusters.setdefault(cluster, _Facts())
        known = one.last.get(subject)
        if known is not None and (sequence <= known.sequence or stamp < known.stamp):
            return None
        one.last[subject] = StoredFact(sequence, stored_at_s, data, kind, stamp)
        one.last.move_to_end(subject)
        one.bytes += len(data) - (len(known.data) if known is not None else 0)
        one.epoch = max(one.epoch, stamp.epoch)
        if kind == "profile" and (found := self.profile(cluster)) is not None:
            self.twins.put(found)
        return cluster, kind

    def profile(self, cluster: str) -> ClusterProfile | None:
        """Return the cluster's profile, or None if missing or unreadable."""
        one = self._clusters.get(cluster)
        stored = one.last.get(profile(cluster)) if one is not None else None
        try:
            return _PROFILES.decode(stored.data) if stored is not None else None
        except UNREADABLE:
            return None

    def epoch(self, cluster: str) -> int:
        """Return the newest epoch of a cluster's writers."""
        one = self._clusters.get(cluster)
        return one.epoch if one is not None else 0

    def since(
        self, cluster: str, kinds: Collection[str], after: int, most_bytes: int
    ) -> tuple[list[StoredFact], bool]:
        """Return facts after a cursor, oldest first, as many as fit and at least one, and whether
        there are more. Empty ``kinds`` means all.
        """
        one = self._clusters.get(cluster)
        found: list[StoredFact] = []
        for fact in reversed(one.last.values()) if one is not None else ():
            if fact.sequence <= after:
                break
            if not kinds or fact.kind in kinds:
                found.append(fact)
        size = 0
        for number, fact in enumerate(reversed(found)):
            size += len(fact.data)
            if number and size > most_bytes:
                return found[: -number - 1 : -1], True
        return found[::-1], False

    def room(self, cluster: str, subject: str, size: int) -> str:
        """Return why a fact of this size exceeds a bound, or ""."""
        one = self._clusters.get(cluster)
        if one is None:
            return ""
        known = one.last.get(subject)
        if known is None and len(one.last) >= self._max_facts:
            return f"the cluster has {len(one.last)} facts, which is the limit"
        more = size - (len(known.data) if known is not None else 0)
        if more > 0 and one.bytes + more > self._max_bytes:
            return f"the cluster's facts have {one.bytes} bytes; {self._max_bytes} is the limit"
        return ""
