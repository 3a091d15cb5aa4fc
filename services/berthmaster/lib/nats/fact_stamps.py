"""The order of facts: a writer's stamps, and a fact in a mirror."""

import msgspec

from berthmaster.lib.messages.fleet import FleetFact, Stamp


class Stamps:
    """A writer's incarnations: an epoch each, and a counter within the epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self._counter = 0

    def new_life(self, earlier: int, now_s: float) -> int:
        """Return a new epoch, above that of the newest fact and above the clock in milliseconds."""
        self.epoch = max(earlier, self.epoch, int(now_s * 1000)) + 1
        self._counter = 0
        return self.epoch

    def stamp(self) -> Stamp:
        if not self.epoch:
            raise RuntimeError("a fact was stamped before the writer's life began")
        self._counter += 1
        return Stamp(epoch=self.epoch, counter=self._counter)


class Seen(msgspec.Struct, frozen=True):
    """One fact in a mirror."""

    subject: str
    sequence: int
    stored_at_s: float
    fact: FleetFact
