"""The mirror of lib/nats/facts.py: older stamps are dropped, the sequence is known."""

from collections.abc import Callable

from berthmaster.lib.messages.fleet import Stamp
from tests.simulation.bus import Message


class Mirror:
    """Passes on each fact that is not older than what was there."""

    def __init__(self, on_fact: Callable[[Message], None]) -> None:
        self._on_fact = on_fact
        self._stamps: dict[str, Stamp] = {}
        self.sequence = 0

    def take(self, message: Message) -> None:
        self.sequence = message.sequence
        known = self._stamps.get(message.subject)
        if known is not None and message.body.stamp < known:
            return
        self._stamps[message.subject] = message.body.stamp
        self._on_fact(message)
