"""Somebody else who writes a Workload's nomination: a second dispatcher, or one of Kueue's own.

Kueue itself takes a nomination away only with its own attempt, when it names a cluster or takes the
quota back. If it is gone or another one while the attempt lasts, somebody else has written it. Two
who each put their own word back would do so for ever, and each time Kueue makes and removes copies.
So this one backs off, 2 s after the first time, then 4 s, … a minute, and asks the API server who
the other one is. What a Workload goes through meanwhile says nothing of any cluster.
"""

from typing import Final

from berthmaster.lib.kueue.names import QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload

FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0


class Contest:
    """About one Workload, in one attempt of Kueue's."""

    __slots__ = ("_attempt", "_version", "_wrote", "by", "times", "until_s")

    def __init__(self) -> None:
        self.times = 0  # somebody else has written it
        self.until_s = 0.0  # left alone until then
        self.by: tuple[str, ...] = ()  # field managers; () = not known
        self._wrote: tuple[str, ...] | None = None  # our last word, as far as it stands
        self._version = 0
        self._attempt = ""

    def over(self) -> None:
        """Kueue's attempt has ended, or it has named a cluster."""
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
            return False  # what the mirror shows may be older than our word
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
        """For people; "" where nobody else was seen."""
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
