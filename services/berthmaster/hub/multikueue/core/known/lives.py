"""Ended or deleted Workloads that the log does not contain yet.

A Workload may begin, end and be deleted while the log is not writable. An ended Workload counts as
missing in two cases. Other ended Workloads predate this service.

- This process saw the Workload before its end.
- The Workload ended after the last event of the previous process, or up to UNSURE_S before, since
  that process may have been killed before writing the end.
"""

from collections import OrderedDict
from typing import Final

from berthmaster.lib.kube.objects import seconds
from berthmaster.lib.kueue.names import FINISHED
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.workload import Key

UNSURE_S: Final = 600.0
MOST_GONE: Final = 10_000  # deleted Workloads kept until the log contains their end


class Lives:
    def __init__(self) -> None:
        self.written_until_s = float("inf")  # time of the previous process's last event
        self.gone: OrderedDict[Key, KueueWorkload] = OrderedDict()  # last state of each
        self._seen: dict[Key, str] = {}  # uid of each Workload seen before its end

    def seen(self, name: Key, workload: KueueWorkload) -> None:
        """Note a Workload that the log does not contain."""
        if not workload.holds(FINISHED):
            self._seen[name] = workload.metadata.uid

    def lost(self, name: Key, workload: KueueWorkload, *, is_open: bool) -> None:
        """Keep a Workload that was deleted before the log contained its end. ``is_open``: the log
        contains its beginning.
        """
        finished = workload.holds(FINISHED)
        if not (finished if is_open else self.is_unwritten(name, workload)):
            return
        self.gone[name] = workload
        if len(self.gone) > MOST_GONE:
            self.gone.popitem(last=False)

    def began(self, name: Key) -> None:
        """Note that the log contains the beginning."""
        self._seen.pop(name, None)

    def ended(self, name: Key) -> None:
        """Note that the log contains the end."""
        self._seen.pop(name, None)
        self.gone.pop(name, None)

    def is_unwritten(self, name: Key, workload: KueueWorkload) -> bool:
        """Return whether an ended Workload is missing in the log and belongs there."""
        if self._seen.get(name) == workload.metadata.uid:
            return True
        try:
            return seconds(_over_at(workload)) > self.written_until_s - UNSURE_S
        except ValueError:
            return False


def _over_at(workload: KueueWorkload) -> str:
    """Return the time of the end, or of the creation for a Workload deleted before its end."""
    finished = workload.condition(FINISHED)
    at = finished.last_transition_time if finished is not None and finished.true else ""
    return at or workload.metadata.creation_timestamp or ""
