"""Remembers which pod a process belongs to, and whether it is a server of MPS: /proc is read once
a process, not once a second.

A process does not change its pod, but its number is given to another after it has ended. A process
is therefore its number and its start time: what is remembered counts as long as the start time is
still the same. Looking at that is cheap but not free, so `CHECKS` are made a round, in turn. With
more processes than that on its GPUs, one whose number was given away may be taken for the other
for some rounds, `REMEMBER_S` at most. Pure: reading /proc is handed in.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from berthmaster.worker.telemetry.core.cgroup import pod_uid

REMEMBER_S: Final = 30.0
AGAIN_S: Final = 5.0  # until one that could not be read is looked up again
CHECKS: Final = 64  # of start times, a round
LOOK_UPS: Final = 512  # of processes not known yet, a round: the next round goes on
# "nvidia-cuda-mps-server", as far as the kernel keeps a name. Whoever else calls itself so hides
# what it does from telemetry, which nobody decides by.
MPS_SERVER: Final = "nvidia-cuda-mps"
MAX_REMEMBERED: Final = 16_384  # twice what 1,000 processes on each of eight GPUs are


class Proc(Protocol):
    """The processes of this machine. All raise OSError for one that is not there (any more)."""

    def cgroup(self, pid: int) -> str: ...

    def name(self, pid: int) -> str:
        """What it calls itself, in 15 characters at most."""
        ...

    def started(self, pid: int) -> int:
        """When it was started, in ticks since the machine was."""
        ...


class _Known(NamedTuple):
    uid: str | None
    serves_mps: bool
    started: int | None  # None: it could not be read
    checked: int  # in which round


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
        self._asked: set[int] = set()  # in this round
        self._turn = 1  # rounds until each start time has been looked at
        self.left_out = 0  # processes of the last round that were not looked up yet
        self.unreadable = 0  # of the last round, whose control group could not be read

    def begin(self) -> None:
        """A new round of questions, each process asked about once or more."""
        self._round += 1
        self._checks, self._look_ups = CHECKS, LOOK_UPS
        self._turn = 1 + len(self._asked) // CHECKS
        self._asked.clear()
        self.left_out = self.unreadable = 0

    def pod_of(self, pid: int) -> str | None:
        """The uid of the process's pod; None for one outside of pods or one that cannot be read."""
        known = self._of(pid)
        if known is None:
            self.left_out += 1
            return None
        if known.started is None:
            self.unreadable += 1
        return known.uid

    def serves_mps(self, pid: int) -> bool:
        """Whether all that it does on a GPU is what clients of MPS have asked it to."""
        known = self._of(pid)
        return known is not None and known.serves_mps

    def _of(self, pid: int) -> _Known | None:
        """What is known of it; None before its turn to be looked up."""
        known = self._known.get(pid)
        self._asked.add(pid)
        if known is not None and (known.checked == self._round or self._holds(pid, known)):
            return known
        if self._look_ups <= 0:
            return None
        self._look_ups -= 1
        return self._look_up(pid)

    def _holds(self, pid: int, known: _Known) -> bool:
        """Whether it is still the process that is remembered."""
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
            if self._proc.started(pid) == before:  # else its number was given away meanwhile
                uid, serves_mps, started = pod_uid(text), name == MPS_SERVER, before
        except OSError:
            pass  # it has ended, or this is not the host's /proc
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
            self._until_s.clear()
        known = self._known[pid] = _Known(uid, serves_mps, started, self._round)
        self._until_s[pid] = self._clock() + (AGAIN_S if started is None else REMEMBER_S)
        return known
