"""What a pod uses of its node, from counters of the kernel to rates. Pure.

The counters are those of the pod's control group (version 2) and of its network::

    cpu.stat       usage_usec 81234567
    memory.current 734003200              less inactive_file of memory.stat, as the kubelet does
    io.stat        8:0 rbytes=1024 wbytes=4096 rios=1 wios=1 dbytes=0 dios=0
    net/dev          eth0: 1234 10 0 0 0 0 0 0 5678 12 0 0 0 0 0 0

A rate is the difference of two samples by the time between them. A counter that went back, or a
rate that no node can have, is "not measured". Example: 81,234,567 us of CPU time, ten seconds later
101,234,567 us: the pod used 2.0 cores.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from berthmaster.lib.messages.telemetry import PodUsage
from berthmaster.lib.profiles.metrics import HOST_BOUNDS

MIB: Final = 1024 * 1024
_DEVICE: Final = re.compile(r"(\d+):\d+ ")
# Their bytes are counted once more by the devices that they lie on.
STACKED: Final = frozenset({"device-mapper", "md", "loop"})


class Counters(NamedTuple):
    """One pod at one moment; None = the kernel does not say."""

    cpu_us: int | None = None
    memory_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None


class Traffic(NamedTuple):
    received_bytes: int
    sent_bytes: int


def rates(
    uid: str, before: Counters, after: Counters, seconds: float
) -> tuple[PodUsage, list[str]]:
    """The usage of a pod, and the names of values that were refused."""
    cpu_us = _rate(before.cpu_us, after.cpu_us, seconds)
    memory = after.memory_bytes
    found: dict[str, float | None] = {
        "cpu_cores": None if cpu_us is None else round(cpu_us / 1e6, 4),
        "memory_mib": None if memory is None else round(memory / MIB, 1),
        "disk_read_bytes_per_s": _rate(before.read_bytes, after.read_bytes, seconds),
        "disk_write_bytes_per_s": _rate(before.written_bytes, after.written_bytes, seconds),
        "network_receive_bytes_per_s": _rate(before.received_bytes, after.received_bytes, seconds),
        "network_transmit_bytes_per_s": _rate(before.sent_bytes, after.sent_bytes, seconds),
    }
    refused = [
        name
        for name, value in found.items()
        if value is not None and not HOST_BOUNDS[name].hold(value)
    ]
    named = [f"{name} of pod {uid} is {found[name]:g}" for name in refused]
    return PodUsage(pod_uid=uid, **(found | dict.fromkeys(refused))), named


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return round((after - before) / seconds, 1)


# Texts of the kernel


def cpu_us(cpu_stat: str) -> int | None:
    """CPU time in microseconds, of a cpu.stat."""
    return _named(cpu_stat, "usage_usec")


def memory_bytes(current: str, memory_stat: str) -> int | None:
    """Memory in use: memory.current without file cache that the kernel may drop at once."""
    text = current.strip()
    if not text.isdecimal():
        return None
    return max(0, int(text) - (_named(memory_stat, "inactive_file") or 0))


def io_bytes(io_stat: str, stacked: Collection[int]) -> tuple[int, int]:
    """Bytes read and written, of an io.stat. ``stacked``: majors of devices that lie on others,
    which count only where a group used no other."""
    plain, above = [0, 0], [0, 0]
    is_plain = False
    for line in io_stat.splitlines():
        if (device := _DEVICE.match(line)) is None:
            continue
        is_above = int(device[1]) in stacked
        is_plain |= not is_above
        into = above if is_above else plain
        for word in line.split()[1:]:
            name, _, value = word.partition("=")
            if value.isdecimal() and name in ("rbytes", "wbytes"):
                into[name == "wbytes"] += int(value)
    read, written = plain if is_plain else above
    return read, written


def stacked_majors(devices: str) -> frozenset[int]:
    """Of a /proc/devices, the majors of block devices that lie on others."""
    _, _, blocks = devices.partition("Block devices:")
    found = (line.split() for line in blocks.splitlines())
    return frozenset(
        int(words[0])
        for words in found
        if len(words) == 2 and words[1] in STACKED and words[0].isdecimal()
    )


def traffic(net_dev: str) -> Traffic:
    """Bytes received and sent by all interfaces but the loopback, of a net/dev."""
    received = sent = 0
    for line in net_dev.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if not colon or name.strip() == "lo" or len(words) < 9:
            continue
        if words[0].isdecimal() and words[8].isdecimal():
            received += int(words[0])
            sent += int(words[8])
    return Traffic(received, sent)


def process_io(io: str) -> tuple[int, int] | None:
    """Bytes that a process read from and wrote to disks, of a /proc/PID/io."""
    read, written = _named(io, "read_bytes:"), _named(io, "write_bytes:")
    return None if read is None or written is None else (read, written)


def _named(text: str, name: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


class ProcessSums:
    """Counters of a pod from those of its processes, where its control group has none.

    What a process used before it was first seen counts if it began after the sample before. What it
    used after it was last seen is lost with it.
    """

    def __init__(self) -> None:
        self.total = 0
        self._last: dict[tuple[int, int], int] = {}  # process and its start -> its counter

    def add(self, found: dict[tuple[int, int], int], began_after: int | None) -> int:
        """Take a sample of all processes; the sum since the first. ``began_after``: the start of
        processes from which on they are new; None = this is the first sample."""
        for process, value in found.items():
            before = self._last.get(process)
            if before is None:
                is_new = began_after is not None and process[1] >= began_after
                before = 0 if is_new else value
            self.total += max(0, value - before)
        self._last = found
        return self.total
