"""How workloads ended, as far as whoever follows the log remembers.

An ended workload is open no more, but its id is used and its object may still be looked at.
Bounded: of older endings the log is asked.
"""

from collections import OrderedDict
from typing import Final

from berthmaster.lib.lifecycle.states import STATE_OF, Ending, State
from berthmaster.lib.lifecycle.workload import Key, key

MAX_ENDINGS: Final = 100_000


class Endings(OrderedDict[Key, State]):
    """The states that they ended in, the newest last."""

    def remember(self, event: Ending) -> None:
        """The ending of a workload, or its tombstone."""
        self[key(event.tenant, event.id)] = STATE_OF[type(event)]
        if len(self) > MAX_ENDINGS:
            self.popitem(last=False)
