"""Sequences that are missing in both the log and its archive. Pure.

A stream numbers its messages without gaps, and the archivist removes only archived messages. An
archived decision does not name its own sequence, but the next decision does. Example: the log has
1, 2 and 9, and archived histories hold 3 to 6. Decision 12, under 9, names 8 as the sequence of
decision 11, which is archived. So 7 is a hole.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A decision's reference to the previous one in its chain."""

    cell: str
    number: int
    after: int


class Sequences:
    """The sequences of log and archive, from ``first`` on."""

    def __init__(self) -> None:
        self.first = 1  # first known sequence
        self._known: set[int] = set()
        self._links: list[Link] = []
        self._archived: dict[str, set[int]] = defaultdict(set)  # cell -> numbers of decisions

    def add(self, sequences: Iterable[int]) -> None:
        self._known.update(sequences)

    def decision(self, link: Link, *, archived: bool) -> None:
        self._links.append(link)
        if archived:
            self._archived[link.cell].add(link.number)

    def holes(self, last: int) -> list[tuple[int, int]]:
        """Return the first and last sequence of each hole up to ``last``."""
        known = set(self._known)
        known.update(one.after for one in self._links if one.number - 1 in self._archived[one.cell])
        found: list[tuple[int, int]] = []
        next_ = self.first
        for sequence in sorted(one for one in known if self.first <= one <= last):
            if sequence > next_:
                found.append((next_, sequence - 1))
            next_ = sequence + 1
        if next_ <= last:
            found.append((next_, last))
        return found


def hole_words(holes: list[tuple[int, int]], most: int = 5) -> str:
    """Return the holes as text; "" = none."""
    if not holes:
        return ""
    count = sum(last - first + 1 for first, last in holes)
    shown = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in holes[:most])
    more = f" and {len(holes) - most} more" if len(holes) > most else ""
    return f"WORKLOADS has lost {count} messages that nobody removed: {shown}{more}"
