"""Whether a log holds each commit whole: behind a decision the events that it was stored with.

A commit is one atomic batch, so a log that nobody has damaged never ends in the middle of one, and
no other message stands in it. That shows a loss that nobody had read and of which no mark tells.

For example, decision 12 stands under 40 and was stored with two events. The log ends at 41: event
42 is lost. Or 42 is a submission: the log ended at 41 once, and has grown again.
"""

from typing import Final, NamedTuple

import msgspec

from berthmaster.bus.subjects import SubjectError, is_decision, parse_workload_event
from berthmaster.lifecycle.batch import Job, Orders, batch_size, jobs_of
from berthmaster.messages.families import UNREADABLE

_ORDERS: Final = msgspec.json.Decoder(Orders)


class _Caused(msgspec.Struct, frozen=True):
    cause: str = ""


_CAUSED: Final = msgspec.json.Decoder(_Caused)


class Torn(NamedTuple):
    """A commit that is not whole."""

    orders: Orders
    sequence: int  # of the decision
    at: int  # under this number there is none of its events, and none behind it
    jobs: tuple[str, ...]  # <tenant>/<id> that lack theirs

    @property
    def words(self) -> str:
        size = batch_size(self.orders)
        return (
            f"decision {self.orders.number} of cell {self.orders.cell}, message {self.sequence}, "
            f"was stored with {size} event{'s' if size != 1 else ''}"
        )

    @property
    def last(self) -> int:
        """The number of its last event."""
        return self.sequence + batch_size(self.orders)


class Commits:
    """The commits of a log that is read in order."""

    def __init__(self, accepted_to: int = 0) -> None:
        """``accepted_to``: where the log ended when a person said to go on with it: what is lost of
        commits up to there is known."""
        self.torn: list[Torn] = []
        self._accepted_to = accepted_to
        self._orders: Orders | None = None  # of the newest, while it is not known to be torn
        self._sequence = 0
        self._end = 0
        self._jobs: dict[Job, None] = {}  # that have had no event in it

    def saw(self, sequence: int, subject: str, data: bytes) -> Orders | None:
        """The next message that is there; what it says if it is a decision that can be read."""
        is_link = is_decision(subject)
        if sequence <= self._end and (is_link or not self._takes(subject, data)):
            self.torn.append(self._torn_at(sequence))
            self._forget()
        if not is_link:
            return None
        try:
            orders = _ORDERS.decode(data)
        except UNREADABLE:
            self._forget()
            return None  # other readers tell of it
        self._forget()
        if sequence > self._accepted_to:
            self._orders, self._sequence = orders, sequence
            self._end = sequence + batch_size(orders)
            self._jobs = dict.fromkeys(jobs_of(orders))
        return orders

    def unfinished(self, last: int) -> Torn | None:
        """The commit in whose middle the log ends, if that is its last number."""
        return self._torn_at(last + 1) if self._sequence <= last < self._end else None

    def _takes(self, subject: str, data: bytes) -> bool:
        """Whether an event is of the newest commit."""
        assert self._orders is not None
        try:
            place = parse_workload_event(subject)
            cause = _CAUSED.decode(data).cause
        except (SubjectError, *UNREADABLE):
            return True  # nobody knows what it is
        if cause != f"decision/{self._orders.cell}/{self._orders.number}":
            return False
        self._jobs.pop((place.tenant, place.id), None)
        return True

    def _torn_at(self, number: int) -> Torn:
        assert self._orders is not None
        jobs = tuple(sorted(f"{tenant}/{name}" for tenant, name in self._jobs))
        return Torn(self._orders, self._sequence, number, jobs)

    def _forget(self) -> None:
        self._orders, self._end, self._jobs = None, 0, {}
