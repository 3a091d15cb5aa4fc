"""Reads what the pods of this node use, from control groups of version 2 and from /proc.

Every `EVERY_S`, since a rate over a second says little. A pod is found by its control group; where
this node has none of version 2, by the control groups of all processes in /proc. A counter that the
group lacks is the sum over the pod's processes: so /proc alone is enough. What processes read and
wrote is then told only to whoever may trace them.

The network is that of the pod's first process, unless the pod is in the network of the node. Both
have the same inode of net/dev then, which needs no right to look at.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from berthmaster.lib.messages.telemetry import PodUsage, TelemetrySource
from berthmaster.worker.telemetry.core.cgroup import pod_uid
from berthmaster.worker.telemetry.core.pod_usage import (
    Counters,
    ProcessSums,
    cpu_us,
    io_bytes,
    memory_bytes,
    process_io,
    rates,
    stacked_majors,
    traffic,
)
from berthmaster.worker.telemetry.core.pods import Pods
from berthmaster.worker.telemetry.core.source import NodeReading, Source
from berthmaster.worker.telemetry.proc import STARTED, ProcFolder, read_kernel_text

EVERY_S: Final = 10.0
MAX_PODS: Final = 256  # in one message; those with the most CPU time
MAX_FOUND: Final = 1024  # pods that are read at all
MAX_PROCESSES: Final = 4096  # of one pod, and of a node whose pods are found in /proc
MAX_DEPTH: Final = 5  # of a control group that may hold pods
_ABOVE: Final = ("kube", "burstable", "besteffort", "system.slice", "containerd.service")
_UTIME, _STIME, _RSS = 11, 12, 21  # fields of stat behind the name
_TEXT_BYTES: Final = 256 * 1024


class _Process(NamedTuple):
    started: int
    ticks: int  # of CPU time
    rss_pages: int


class _Pod:
    """What is remembered of a pod from one sample to the next."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.counters = Counters()
        self.ticks, self.read, self.written = ProcessSums(), ProcessSums(), ProcessSums()


class PodUsageReader:
    """``proc`` and ``cgroup``: where this node's are. Blocks; used from one thread."""

    def __init__(
        self, proc: Path, cgroup: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc = str(proc)
        self._cgroup = str(cgroup)
        self._clock = clock
        self._folder = ProcFolder(proc)
        self._processes = Pods(self._folder, clock)
        self._due_s = float("-inf")
        self._known: dict[str, _Pod] = {}
        self._before_ticks: int | None = None  # uptime at the sample before
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def read(self, now_s: float) -> tuple[tuple[PodUsage, ...], tuple[str, ...]]:
        """The usage of all pods, and values that were refused; nothing between two samples."""
        if now_s < self._due_s:
            return (), ()
        self._due_s = now_s + EVERY_S
        groups = self._groups()
        pids = {uid: self._pids_in(path) for uid, path in groups.items()}
        if not groups:
            pids = self._pids_by_pod()
        stacked = stacked_majors(self._text(f"{self._proc}/devices"))
        own = self._inode(1)
        uptime_ticks = self._uptime_ticks()
        known, self._known = self._known, {}
        found: list[PodUsage] = []
        refused: list[str] = []
        for uid, ids in pids.items():
            pod = known.get(uid) or _Pod()
            counters = self._counters(pod, groups.get(uid, ""), ids, stacked, own)
            at_s = self._clock()
            usage, wrong = rates(uid, pod.counters, counters, at_s - pod.at_s)
            pod.at_s, pod.counters = at_s, counters
            self._known[uid] = pod
            found.append(usage)
            refused += wrong
        self._before_ticks = uptime_ticks
        found.sort(key=lambda one: (-(one.cpu_cores or 0.0), one.pod_uid))
        return tuple(found[:MAX_PODS]), tuple(refused)

    def _counters(
        self,
        pod: _Pod,
        group: str,
        ids: Sequence[int],
        stacked: frozenset[int],
        own_network: int | None,
    ) -> Counters:
        cpu = memory = None
        disk: tuple[int, int] | None = None
        if group:
            cpu = cpu_us(self._text(f"{group}/cpu.stat"))
            current = self._text(f"{group}/memory.current")
            memory = memory_bytes(current, self._text(f"{group}/memory.stat"))
            io_stat = self._read(f"{group}/io.stat")
            disk = None if io_stat is None else io_bytes(io_stat, stacked)
        processes: dict[int, _Process] = {}
        if cpu is None or memory is None or disk is None:
            processes = {pid: one for pid in ids if (one := self._process(pid)) is not None}
        if cpu is None and processes:
            ticks = {(pid, one.started): one.ticks for pid, one in processes.items()}
            total = pod.ticks.add(ticks, self._before_ticks)
            cpu = total * 1_000_000 // self._ticks_per_s
        if memory is None and processes:
            pages = sum(one.rss_pages for one in processes.values())
            memory = pages * self._page_bytes
        if disk is None:
            disk = self._disk_of_processes(pod, processes)
        sent_received = self._traffic(ids, own_network)
        return Counters(
            cpu,
            memory,
            *(disk or (None, None)),
            *(sent_received or (None, None)),
        )

    # Which pods there are

    def _groups(self) -> dict[str, str]:
        """The control group of each pod, by uid."""
        found: dict[str, str] = {}
        waiting = [("", 0)]
        while waiting and len(found) < MAX_FOUND:
            path, depth = waiting.pop()
            for name in self._folders(f"{self._cgroup}{path}"):
                below = f"{path}/{name}"
                uid = pod_uid(f"0::{below}")
                if uid is not None:
                    found[uid] = f"{self._cgroup}{below}"
                elif depth < MAX_DEPTH and any(one in name for one in _ABOVE):
                    waiting.append((below, depth + 1))
        return found

    def _pids_in(self, group: str) -> list[int]:
        """Processes of a control group and of those below it; the oldest container's first."""
        found: list[int] = []
        waiting = [group]
        while waiting and len(found) < MAX_PROCESSES:
            path = waiting.pop()
            text = self._text(f"{path}/cgroup.procs")
            found += (int(word) for word in text.split() if word.isdecimal() and word != "0")
            waiting += (f"{path}/{name}" for name in self._folders(path))
        return sorted(found)[:MAX_PROCESSES]

    def _pids_by_pod(self) -> dict[str, list[int]]:
        """The same of all pods, by looking at every process."""
        self._processes.begin()
        found: dict[str, list[int]] = {}
        numbers = sorted(int(name) for name in self._folders(self._proc) if name.isdecimal())
        for pid in numbers[:MAX_PROCESSES]:
            uid = self._processes.pod_of(pid)
            if uid is not None and (uid in found or len(found) < MAX_FOUND):
                found.setdefault(uid, []).append(pid)
        return found

    @staticmethod
    def _folders(path: str) -> Iterator[str]:
        try:
            with os.scandir(path) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return
        yield from names

    # What the kernel says

    def _process(self, pid: int) -> _Process | None:
        try:
            fields = self._folder.stat(pid)
            ticks = int(fields[_UTIME]) + int(fields[_STIME])
            return _Process(int(fields[STARTED]), ticks, int(fields[_RSS]))
        except (OSError, IndexError, ValueError):
            return None  # it has ended

    def _disk_of_processes(
        self, pod: _Pod, processes: Mapping[int, _Process]
    ) -> tuple[int, int] | None:
        read: dict[tuple[int, int], int] = {}
        written: dict[tuple[int, int], int] = {}
        for pid, process in processes.items():
            io = process_io(self._text(f"{self._proc}/{pid}/io"))
            if io is not None:
                read[pid, process.started], written[pid, process.started] = io
        if not read:
            return None
        before = self._before_ticks
        return pod.read.add(read, before), pod.written.add(written, before)

    def _traffic(self, ids: Sequence[int], own: int | None) -> tuple[int, int] | None:
        for pid in ids:
            inode = self._inode(pid)
            if inode is None:
                continue  # it has ended
            if inode == own or (text := self._read(f"{self._proc}/{pid}/net/dev")) is None:
                return None
            return traffic(text)
        return None

    def _inode(self, pid: int) -> int | None:
        try:
            return Path(f"{self._proc}/{pid}/net/dev").stat().st_ino
        except OSError:
            return None

    def _uptime_ticks(self) -> int | None:
        first, _, _ = self._text(f"{self._proc}/uptime").partition(" ")
        try:
            return int(float(first) * self._ticks_per_s)
        except ValueError:
            return None

    def _text(self, path: str) -> str:
        return self._read(path) or ""

    @staticmethod
    def _read(path: str) -> str | None:
        try:
            return read_kernel_text(path, _TEXT_BYTES).decode(errors="replace")
        except OSError:
            return None


class WithPodUsage:
    """The readings of another source, of one node, with what its pods use."""

    def __init__(self, source: Source, reader: PodUsageReader) -> None:
        self._source = source
        self._reader = reader

    @property
    def kind(self) -> TelemetrySource:
        """The other's."""
        return self._source.kind

    def read(self, now_s: float) -> Sequence[NodeReading]:
        """Raises SourceFailed as the other does."""
        nodes = list(self._source.read(now_s))
        pods, refused = self._reader.read(now_s)
        if len(nodes) == 1 and (pods or refused):
            nodes[0] = nodes[0]._replace(pods=pods, refused=(*nodes[0].refused, *refused))
        return nodes

    def close(self) -> None:
        """Close the other."""
        self._source.close()
