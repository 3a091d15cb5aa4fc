"""Logs of emulated pods: steps of a training, one line per second of run time.

Nothing is stored: a pod's lines follow from its start time. So they can be read again at any time,
also after the emulator was killed.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from berthmaster.lab.emulator.chance import uniform
from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.world import Group, Phase
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.logs import LogStream, NoLog

STEP_S: Final = 1.0
MOST_AT_ONCE: Final = 500
LOOK_S: Final = 0.1


class EmulatedLogs:
    def __init__(self, cluster: EmulatedCluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock

    async def pods(self, attempt: Attempt) -> Sequence[str]:
        """Return the pods, including ended ones."""
        group = self._cluster.world.groups.get(attempt)
        if group is None or group.phase is Phase.REFUSED:
            return ()
        return [attempt.pod_name(seat.pod) for seat in group.made.seats]

    async def open(
        self,
        attempt: Attempt,
        pod: str,
        *,
        since_s: float | None,
        tail: int | None,
        follow: bool,
    ) -> LogStream:
        """Open a pod's log. Raises NoLog."""
        group = self._cluster.world.groups.get(attempt)
        if group is None:
            raise NoLog(f"pod {pod} is gone")
        stream = _EmulatedLog(group, pod, self._clock, follow=follow)
        stream.begin(since_s, tail)
        return stream


class _EmulatedLog:
    def __init__(self, group: Group, pod: str, clock: Callable[[], float], *, follow: bool) -> None:
        self._group = group
        self._pod = pod
        self._clock = clock
        self._follow = follow
        self._next = 0

    def begin(self, since_s: float | None, tail: int | None) -> None:
        if since_s is not None:
            self._next = max(0, int((since_s - self._group.made.starts_s) / STEP_S))
        if tail is not None:
            self._next = max(self._next, self._written() - tail)

    @property
    def _alive(self) -> bool:
        return self._group.phase in (Phase.STARTING, Phase.RUNNING)

    def _written(self) -> int:
        made = self._group.made
        until_s = self._clock() if self._alive else min(self._clock(), made.ends_s)
        return max(0, 1 + int((min(until_s, made.ends_s) - made.starts_s) / STEP_S))

    async def read(self) -> bytes:
        """Return lines as a kubelet does."""
        while self._next >= self._written():
            if not self._follow or not self._alive:
                return b""
            await asyncio.sleep(LOOK_S)
        upto = min(self._written(), self._next + MOST_AT_ONCE)
        lines = [self._line(step) for step in range(self._next, upto)]
        self._next = upto
        return "".join(lines).encode()

    def _line(self, step: int) -> str:
        at_s = self._group.made.starts_s + step * STEP_S
        stamp = datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
        loss = 4.0 / (1 + step / 50) + uniform(len(self._pod), self._pod, step) / 10
        return f"{stamp} {self._pod} step {step} loss {loss:.3f}\n"

    def close(self) -> None:
        self._follow = False
