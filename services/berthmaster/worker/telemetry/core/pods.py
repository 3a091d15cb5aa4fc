"""Cache of processes: pod, and whether an MPS server, so that /proc is read once per process. Pure.

A process keeps its pod, but its number is reused after its end. So a process is identified by
number and start time, and an entry is valid while the start time is the same. That check is cheap
but not free, so `CHECKS` are made per round, in turn. With more processes, a reused number may be
confused for some rounds, `REMEMBER_S` at most. Reading /proc is passed in.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from berthmaster.worker.telemetry.core.cgroup import pod_uid

REMEMBER_S: Final = 30.0
AGAIN_S: Final = 5.0  # retry interval after a failed read
CHECKS: Final = 64  # of start times, a round
LOOK_UPS: Final = 512  # of processes not known yet, a round: the next round goes on
# "nvidia-cuda-mps-server", cut by the kernel. Another process of this name only hides its own usage
# from telemetry.
MPS_SERVER: Final = "nvidia-cuda-mps"
MAX_REMEMBERED: Final = 16_384  # twice 1,000 processes on each of eight GPUs


class Proc(Protocol):
    """Processes of this machine. All methods raise OSError for a missing process."""

    def cgroup(self, pid: int) -> str: ...

    def name(self, pid: int) -> str:
        """Return the process name, at most 15 characters."""
        ...

    def started(self, pid: int) -> int:
        """Return the start time in ticks since boot."""
        ...


class _Known(NamedTuple):
    uid: str | None
    serves_mps: bool
    started: int | None  # None: unreadable
    checked: int  # round of the last check


class Pods:
    """Answers `pod_of` from memory or, for a process not seen yet, from its control group."""

    def __init__(self, proc: Proc, clock: Callable[[], float]) -> None:
        self._proc = proc
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._until_s: dict[int, float] = {}
        self._round = 0
        self._checks = CHECKS
        self._look_ups = LOOK_UPS
        self._asked: set[int] = set()  # processes of this round
        self._turn = 1  # rounds until each start time has been looked at
        self.left_out = 0  # processes of the last round without a lookup
        self.unreadable = 0  # processes of the last round with an unreadable cgroup

    def begin(self) -> None:
        """A new round of questions, each process asked about once or more."""
        self._round += 1
        self._checks, self._look_ups = CHECKS, LOOK_UPS
        self._turn = 1 + len(self._asked) // CHECKS
        self._asked.clear()
        self.left_out = self.unreadable = 0

    def pod_of(self, pid: int) -> str | None:
        """Return the uid of the process's pod; None outside of pods or if unreadable."""
        known = self._of(pid)
        if known is None:
            self.left_out += 1
            return None
        if known.started is None:
            self.unreadable += 1
        return known.uid

    def serves_mps(self, pid: int) -> bool:
        """Return whether it is an MPS server."""
        known = self._of(pid)
        return known is not None and known.serves_mps

    def _of(self, pid: int) -> _Known | None:
        """Return the entry; None before its lookup."""
        known = self._known.get(pid)
        self._asked.add(pid)
        if known is not None and (known.checked == self._round or self._holds(pid, known)):
            return known
        if self._look_ups <= 0:
            return None
        self._look_ups -= 1
        return self._look_up(pid)

    def _holds(self, pid: int, known: _Known) -> bool:
        """Return whether the entry is still the same process."""
        if self._clock() >= self._until_s[pid]:
            return False
        if known.started is None or self._checks <= 0 or known.checked + self._turn > self._round:
            return True
        self._checks -= 1
        try:
            same = self._proc.started(pid) == known.started
        except OSError:
            return False
        if same:
            self._known[pid] = known._replace(checked=self._round)
        return same

    def _look_up(self, pid: int) -> _Known:
        uid, serves_mps, started = None, False, None
        try:
            before = self._proc.started(pid)
            text, name = self._proc.cgroup(pid), self._proc.name(pid)
            if self._proc.started(pid) == before:  # otherwise the number was reused meanwhile
                uid, serves_mps, started = pod_uid(text), name == MPS_SERVER, before
        except OSError:
            pass  # ended, or not the host's /proc
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
            self._until_s.clear()
        known = self._known[pid] = _Known(uid, serves_mps, started, self._round)
        self._until_s[pid] = self._clock() + (AGAIN_S if started is None else REMEMBER_S)
        return known
