"""Processes that follow a script: their control groups, and when each was started."""

from collections.abc import Mapping

from berthmaster.worker.telemetry.core.pods import Pods


class FakeProc:
    """The protocol Proc over texts of control groups by process id."""

    def __init__(self, groups: Mapping[int, str]) -> None:
        self.groups = dict(groups)
        self.starts: dict[int, int] = {}  # 1 for who is not named
        self.names: dict[int, str] = {}  # "python" for who is not named
        self.looked_up: list[int] = []
        self.checked: list[int] = []

    def cgroup(self, pid: int) -> str:
        self.looked_up.append(pid)
        return self._there(pid)

    def name(self, pid: int) -> str:
        self._there(pid)
        return self.names.get(pid, "python")

    def started(self, pid: int) -> int:
        self._there(pid)
        self.checked.append(pid)
        return self.starts.get(pid, 1)

    def _there(self, pid: int) -> str:
        if pid not in self.groups:
            raise ProcessLookupError(pid)
        return self.groups[pid]


def pods_of(uids: Mapping[int, str]) -> Pods:
    """The pods of processes with these uids; of all others nothing is known."""
    proc = FakeProc({pid: f"0::/kubepods/pod{uid}/{'0' * 64}" for pid, uid in uids.items()})
    return Pods(proc, lambda: 0.0)
