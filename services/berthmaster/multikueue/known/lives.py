"""What the log has not been told yet of Workloads that are over or gone.

While the log cannot be written, a Workload may begin, end and be deleted. Which of those on a hub
are such, and not simply history from before this service came, is known by having been seen before
its end, or, after a start, by having ended after the last thing that was written, or shortly
before it: whoever wrote that was perhaps killed before it came to this one.
"""

from collections import OrderedDict
from typing import Final

from berthmaster.kubernetes.objects import seconds
from berthmaster.kueue.names import FINISHED
from berthmaster.kueue.workloads import KueueWorkload
from berthmaster.lifecycle.workload import Key

UNSURE_S: Final = 600.0
MOST_GONE: Final = 10_000  # deleted Workloads that are kept until the log knows of them


class Lives:
    def __init__(self) -> None:
        self.written_until_s = float("inf")  # before this life of the process
        self.gone: OrderedDict[Key, KueueWorkload] = OrderedDict()  # as they were last
        self._seen: dict[Key, str] = {}  # uid of those seen before their end

    def seen(self, name: Key, workload: KueueWorkload) -> None:
        """A Workload as it is now, that the log has not told of."""
        if not workload.holds(FINISHED):
            self._seen[name] = workload.metadata.uid

    def lost(self, name: Key, workload: KueueWorkload, *, is_open: bool) -> None:
        """A Workload that was deleted before the log knew of its end; ``is_open``: it knows of the
        beginning."""
        finished = workload.holds(FINISHED)
        if not (finished if is_open else self.is_unwritten(name, workload)):
            return
        self.gone[name] = workload
        if len(self.gone) > MOST_GONE:
            self.gone.popitem(last=False)

    def began(self, name: Key) -> None:
        """The log knows of it."""
        self._seen.pop(name, None)

    def ended(self, name: Key) -> None:
        """The log knows of its end."""
        self._seen.pop(name, None)
        self.gone.pop(name, None)

    def is_unwritten(self, name: Key, workload: KueueWorkload) -> bool:
        """Whether the log should tell of it, although it is over: one that it does not know."""
        if self._seen.get(name) == workload.metadata.uid:
            return True
        try:
            return seconds(_over_at(workload)) > self.written_until_s - UNSURE_S
        except ValueError:
            return False


def _over_at(workload: KueueWorkload) -> str:
    """When it ended; of one that was deleted before, when it was made."""
    finished = workload.condition(FINISHED)
    at = finished.last_transition_time if finished is not None and finished.true else ""
    return at or workload.metadata.creation_timestamp or ""
