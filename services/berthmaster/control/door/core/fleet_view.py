"""The last value of every fact, by cluster, as the clusters' agents ask for their own.

A fact is kept as it is stored. As in every mirror, one with an older stamp than the one at hand is
dropped, and what a new list does not name is forgotten. What one cluster may have here is bounded:
facts that it could tell without end would take the memory of whoever reads them all.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.engine.fleet.clusters import Twins
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.messages.fleet import ClusterProfile, Stamp
from berthmaster.lib.nats.subjects import SubjectError, parse_fact, profile


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
        self.last: OrderedDict[str, StoredFact] = OrderedDict()  # the newest at the end
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
        """All facts come once more; ``replaced``: their sequences mean something else now."""
        self._listed = set()
        if replaced:
            self._clusters.clear()
            self.twins = Twins()

    def end_listing(self) -> None:
        """What was not listed is no more."""
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
        """One fact; (cluster, kind) if it is news. What cannot be read is another's to bury."""
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
        """The cluster's profile; None if there is none that can be read."""
        one = self._clusters.get(cluster)
        stored = one.last.get(profile(cluster)) if one is not None else None
        try:
            return _PROFILES.decode(stored.data) if stored is not None else None
        except UNREADABLE:
            return None

    def epoch(self, cluster: str) -> int:
        """The newest of a cluster's writers."""
        one = self._clusters.get(cluster)
        return one.epoch if one is not None else 0

    def since(
        self, cluster: str, kinds: Collection[str], after: int, most_bytes: int
    ) -> tuple[list[StoredFact], bool]:
        """Facts behind a cursor, the oldest first, as many as fit and at least one; whether there
        are more. Empty ``kinds`` = all."""
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
        """Why a fact of so many bytes has no room, "" = it has."""
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
