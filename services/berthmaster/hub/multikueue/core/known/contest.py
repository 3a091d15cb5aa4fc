"""Another writer of a Workload's nomination: a second dispatcher, or one of Kueue's own.

Kueue removes a nomination only with its own attempt: when it chooses a cluster or releases the
quota. Any other change during the attempt comes from another writer. Two writers would overwrite
each other forever, and Kueue would create and remove copies each time. So this service backs off
for 2 s, 4 s, … up to a minute, and asks the API server for the other writer. Events of that time
are no evidence about any cluster.
"""

from typing import Final

from berthmaster.lib.kueue.names import QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload

FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0


class Contest:
    """The contest about one Workload during one Kueue attempt."""

    __slots__ = ("_attempt", "_version", "_wrote", "by", "times", "until_s")

    def __init__(self) -> None:
        self.times = 0  # number of observed foreign writes
        self.until_s = 0.0  # left alone until then
        self.by: tuple[str, ...] = ()  # field managers; () = not known
        self._wrote: tuple[str, ...] | None = None  # this service's last write that still stands
        self._version = 0
        self._attempt = ""

    def over(self) -> None:
        """End the contest: Kueue's attempt ended, or Kueue chose a cluster."""
        self.times, self.until_s, self.by, self._wrote = 0, 0.0, (), None

    def wrote(self, workload: KueueWorkload) -> None:
        """Our word stands, as the server answered."""
        self._wrote = workload.nominated
        self._version = _version(workload)
        self._attempt = _attempt(workload)

    def look(self, workload: KueueWorkload, now_s: float) -> bool:
        """Whether somebody else has written since our last word. To be asked only while the
        contract allows a nomination."""
        mine, version = self._wrote, _version(workload)
        if mine is None or version <= self._version:
            return False  # the mirror may be behind this service's write
        if _attempt(workload) != self._attempt:
            self.over()
            return False
        if workload.nominated == mine:
            return False
        self._wrote = None
        self.times += 1
        self.until_s = now_s + min(FIRST_S * 2.0 ** min(self.times - 1, 16), LONGEST_S)
        return True

    @property
    def words(self) -> str:
        """Describe the contest; "" without another writer."""
        if not self.times:
            return ""
        who = ", ".join(self.by) if self.by else "somebody whom managedFields do not name"
        often = "once" if self.times == 1 else f"{self.times} times"
        return (
            f"{who} has written its nomination as well, {often}: only one dispatcher may do so "
            "(dispatcherName in the configuration of the hub's Kueue says which)"
        )


def _version(workload: KueueWorkload) -> int:
    version = workload.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _attempt(workload: KueueWorkload) -> str:
    reserved = workload.condition(QUOTA_RESERVED)
    return (reserved.last_transition_time or "") if reserved is not None else ""
