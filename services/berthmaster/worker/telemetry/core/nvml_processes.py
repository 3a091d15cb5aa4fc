"""Processes on one GPU under NVML, and the usage of each. Pure.

Process samples cost ten times as much as all other values of a GPU (2 to 3 ms of CPU on an H200,
driver 580). They are read every `SHARES_S`, and not at all for a single process, whose usage is the
GPU's.

Under MPS the driver attributes everything to the server. The server's usage belongs to its only
client. With several clients it is known only if it is 0. The server itself belongs to no pod.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeVar

from berthmaster.lib.messages.telemetry import GpuPodUse, GpuProcess
from berthmaster.worker.telemetry.core.nvml_driver import Handle, Nvml, Process
from berthmaster.worker.telemetry.core.source import percent

T = TypeVar("T")
ProcessKind = Literal["compute", "graphics", "mps"]

SHARES_S: Final = 10.0  # between two looks at the samples; each tells of all the time since
GRAPHICS_S: Final = 10.0  # interval of reads of graphics processes
MIB: Final = 1024 * 1024
# Processes with the most memory are listed, all of them by pod: a node of eight GPUs stays below
# the door's limit of 64 KiB.
MAX_PROCESSES: Final = 32
MAX_PODS: Final = 32


class Whose(Protocol):
    """Knowledge about processes from other sources."""

    def pod_of(self, pid: int) -> str | None: ...
    def serves_mps(self, pid: int) -> bool: ...


class Ask(Protocol):
    """One call of the driver: its answer, or None after a failure."""

    def __call__(self, what: str, call: Callable[[Handle], T]) -> T | None: ...


class Processes:
    def __init__(self, driver: Nvml, ask: Ask, whose: Whose) -> None:
        self.told_together = False  # several MPS clients with an indivisible usage
        self._driver = driver
        self._ask = ask
        self._whose = whose
        self.begin()

    def begin(self) -> None:
        """The driver has named the GPU anew."""
        self._sampled_us = 0
        self._shares_due_s = self._graphics_due_s = float("-inf")
        self._sampled: Mapping[int, float] = {}
        self._graphics: Sequence[Process] = ()

    def read(
        self, now_s: float, busy_percent: float | None
    ) -> tuple[tuple[GpuProcess, ...], tuple[GpuPodUse, ...], int]:
        """Return processes with the most memory, usage by pod, and the number outside of pods.
        ``busy_percent``: utilization of the GPU.
        """
        used = self._list(now_s)
        self.told_together = False
        if not used:
            return (), (), 0
        servers = {pid for pid, kind in used if kind == "compute" and self._whose.serves_mps(pid)}
        clients = {pid for pid, kind in used if kind == "mps"}
        pids = dict.fromkeys(pid for pid, _ in used)
        shares = dict(self._shares(now_s, pids.keys() - clients or clients, busy_percent))
        self._divide(shares, servers, clients)
        by_memory = sorted(used.items(), key=lambda item: item[1] or 0, reverse=True)
        pod_of = {pid: self._whose.pod_of(pid) for pid in pids if pid not in servers}
        told = tuple(
            GpuProcess(
                pid=pid,
                kind=kind,
                serves_mps=pid in servers,
                memory_mib=None if used_bytes is None else used_bytes // MIB,
                sm_percent=shares.get(pid),
                pod_uid=pod_of.get(pid),
            )
            for (pid, kind), used_bytes in sorted(by_memory[:MAX_PROCESSES])
        )
        memory: dict[int, int | None] = {}
        for (pid, _), used_bytes in used.items():  # a process may compute and draw
            memory[pid] = _sum(memory[pid], used_bytes) if pid in memory else used_bytes
        return told, *_by_pod(memory, shares, pod_of)

    def _list(self, now_s: float) -> dict[tuple[int, ProcessKind], int | None]:
        """Return the memory of each process by its kind."""
        driver = self._driver
        compute = self._ask("compute processes", driver.compute_processes)
        # MPS clients have a computing server, so without compute processes there are none.
        asks_mps = compute is None or len(compute) > 0
        mps = self._ask("mps processes", driver.mps_processes) if asks_mps else ()
        if now_s >= self._graphics_due_s:
            self._graphics = self._ask("graphics processes", driver.graphics_processes) or ()
            self._graphics_due_s = now_s + GRAPHICS_S
        used: dict[tuple[int, ProcessKind], int | None] = {}
        lists: tuple[tuple[ProcessKind, Sequence[Process]], ...] = (
            ("mps", mps or ()),
            ("compute", compute or ()),
            ("graphics", self._graphics),
        )
        for kind, processes in lists:
            for process in processes:
                if kind == "compute" and (process.pid, "mps") in used:
                    continue  # a client is in both lists
                key = (process.pid, kind)
                if key in used:  # an entry for each of its MIG instances
                    used[key] = _sum(used[key], process.used_bytes)
                else:
                    used[key] = process.used_bytes
        return used

    def _shares(
        self, now_s: float, measured: set[int], busy_percent: float | None
    ) -> Mapping[int, float]:
        """Return the known usage of these processes in percent."""
        if busy_percent == 0 or (len(measured) == 1 and busy_percent is not None):
            return dict.fromkeys(measured, busy_percent)
        if now_s >= self._shares_due_s:
            self._shares_due_s = now_s + SHARES_S
            self._sampled = self._sample(measured)
        return {pid: self._sampled[pid] for pid in measured if pid in self._sampled}

    def _sample(self, measured: set[int]) -> Mapping[int, float]:
        """Return the mean of each process's new samples. The driver lists active processes, so
        others were idle. Without any entry it may have no sample.
        """
        since_us = self._sampled_us
        samples = self._ask(
            "process samples", lambda handle: self._driver.process_samples(handle, since_us)
        )
        sums: dict[int, tuple[int, int]] = {}
        absurd: set[int] = set()
        for sample in samples or ():
            # A driver with nothing to tell has been seen to send old or absurd entries.
            if percent(sample.sm_percent) is None:
                absurd.add(sample.pid)
            elif sample.at_us > since_us:
                total, count = sums.get(sample.pid, (0, 0))
                sums[sample.pid] = (total + sample.sm_percent, count + 1)
                self._sampled_us = max(self._sampled_us, sample.at_us)
        if not sums:
            return {}
        still = dict.fromkeys(measured - absurd, 0.0)
        return still | {pid: round(total / count, 1) for pid, (total, count) in sums.items()}

    def _divide(self, shares: dict[int, float], servers: set[int], clients: set[int]) -> None:
        """Attribute the servers' usage to clients, as far as possible."""
        if not servers or not clients or any(pid not in shares for pid in servers):
            return
        together = sum(shares[pid] for pid in servers)
        if len(clients) == 1 or together == 0:
            shares |= dict.fromkeys(clients, min(100.0, together))
        else:
            self.told_together = True


def _by_pod(
    memory: Mapping[int, int | None], shares: Mapping[int, float], pod_of: Mapping[int, str | None]
) -> tuple[tuple[GpuPodUse, ...], int]:
    """Return usage by pod, and the number of processes outside of pods."""
    pids: dict[str, list[int]] = {}
    others = 0
    for pid, uid in pod_of.items():
        if uid is None:
            others += 1
        else:
            pids.setdefault(uid, []).append(pid)
    found = []
    for uid, own in pids.items():
        used = [memory[pid] for pid in own]
        known = [each for each in used if each is not None]
        told = [shares[pid] for pid in own if pid in shares]
        found.append(
            GpuPodUse(
                pod_uid=uid,
                processes=len(own),
                memory_mib=sum(known) // MIB if len(known) == len(used) else None,
                sm_percent=min(100.0, round(sum(told), 1)) if told else None,
            )
        )
    found.sort(key=lambda use: (-(use.memory_mib or 0), use.pod_uid))
    return tuple(found[:MAX_PODS]), others


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
