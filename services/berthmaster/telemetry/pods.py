"""Remembers which pod a process belongs to: /proc is read once a process, not once a second.

A process does not change its pod, but its number is given to another after it has ended; what was
learned is therefore forgotten after `REMEMBER_S`. Pure: the reading of /proc is handed in.
"""

from collections.abc import Callable
from typing import Final

from berthmaster.telemetry.cgroup import pod_uid

REMEMBER_S: Final = 30.0
MAX_REMEMBERED: Final = 4096  # far more than use the GPUs of one machine


class Pods:
    """Answers `pod_of` from memory or, for a process not seen lately, from its control group."""

    def __init__(self, cgroup_of: Callable[[int], str], clock: Callable[[], float]) -> None:
        self._cgroup_of = cgroup_of
        self._clock = clock
        self._known: dict[int, tuple[float, str | None]] = {}

    def pod_of(self, pid: int) -> str | None:
        """The uid of the process's pod; None for one outside of pods or one that cannot be read."""
        now_s = self._clock()
        known = self._known.get(pid)
        if known is not None and now_s < known[0]:
            return known[1]
        try:
            uid = pod_uid(self._cgroup_of(pid))
        except OSError:
            uid = None  # it has ended, or this is not the host's /proc
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[pid] = (now_s + REMEMBER_S, uid)
        return uid
