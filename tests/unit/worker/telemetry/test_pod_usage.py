"""What pods use of their node: from the kernel's files to rates; of real processes as well."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from berthmaster.lib.messages.telemetry import PodUsage
from berthmaster.worker.telemetry.core.pod_usage import (
    Counters,
    ProcessSums,
    io_bytes,
    memory_bytes,
    rates,
    stacked_majors,
    traffic,
)
from berthmaster.worker.telemetry.pod_usage import EVERY_S, PodUsageReader

UID = "0f3b6a54-6a3c-4d58-9a0b-1f2e3d4c5b6a"
TICKS = os.sysconf("SC_CLK_TCK")
DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 9999999 10 0 0 0 0 0 0 9999999 10 0 0 0 0 0 0
  eth0: {received} 10 0 0 0 0 0 0 {sent} 12 0 0 0 0 0 0
"""


class Node:
    """The files of one node, shaped as the kernel's, and a clock."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.now_s = 1000.0
        self.write(self.proc / "devices", "Block devices:\n  8 sd\n253 device-mapper\n")
        self.write(self.proc / "uptime", f"{self.now_s} 1.0\n")
        self.process(1, DEV.format(received=1, sent=1))

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(
        self, pid: int, net_dev: str | None = None, *, ticks: int = 0, rss: int = 0, group: str = ""
    ) -> None:
        folder = self.proc / str(pid)
        words = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, "500", "0", str(rss)]
        self.write(folder / "stat", f"{pid} (a b) c) {' '.join(words)}\n")
        self.write(folder / "comm", "python\n")
        self.write(folder / "cgroup", f"0::{group}\n")
        if net_dev is not None:
            self.write(folder / "net/dev", net_dev)

    def pod(self, usage_us: int, memory: int, written: int, pid: int) -> None:
        group = self.cgroup / f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
        self.write(group / "cpu.stat", f"usage_usec {usage_us}\nuser_usec 1\n")
        self.write(group / "memory.current", f"{memory}\n")
        self.write(group / "memory.stat", "anon 1\ninactive_file 1048576\n")
        self.write(
            group / "io.stat",
            f"253:0 rbytes=4096 wbytes={written} rios=1 wios=1\n8:0 rbytes=4096 wbytes={written}\n",
        )
        self.write(group / "cri-containerd-a.scope/cgroup.procs", f"{pid}\n")

    def reader(self) -> PodUsageReader:
        return PodUsageReader(self.proc, self.cgroup, clock=lambda: self.now_s)

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.write(self.proc / "uptime", f"{self.now_s} 1.0\n")


def test_pod_usage_comes_from_its_control_group_and_its_network(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.process(77, DEV.format(received=1000, sent=500))
    node.pod(usage_us=5_000_000, memory=11 << 20, written=0, pid=77)
    reader = node.reader()
    assert reader.read(0.0) == ((PodUsage(pod_uid=UID, memory_mib=10.0),), ())
    assert reader.read(EVERY_S - 1) == ((), ())  # the next sample is not due

    node.later(10.0)
    node.process(77, DEV.format(received=21_000, sent=10_500))
    node.pod(usage_us=25_000_000, memory=21 << 20, written=50_000_000, pid=77)
    (usage,), refused = reader.read(EVERY_S)
    assert refused == ()
    assert usage == PodUsage(
        pod_uid=UID,
        cpu_cores=2.0,
        memory_mib=20.0,
        disk_read_bytes_per_s=0.0,
        disk_write_bytes_per_s=5_000_000.0,  # once, though the kernel counts both devices
        network_receive_bytes_per_s=2000.0,
        network_transmit_bytes_per_s=1000.0,
    )


def test_pod_in_the_network_of_the_node_has_no_traffic_of_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.process(77)
    (node.proc / "77/net").mkdir()
    os.link(node.proc / "1/net/dev", node.proc / "77/net/dev")  # one network, one inode
    node.pod(usage_us=0, memory=2 << 20, written=0, pid=77)
    reader = node.reader()
    reader.read(0.0)
    node.later(10.0)
    (usage,), _ = reader.read(EVERY_S)
    assert (usage.cpu_cores, usage.network_receive_bytes_per_s) == (0.0, None)


def test_proc_alone_is_enough_for_processor_and_memory(tmp_path: Path) -> None:
    node = Node(tmp_path)
    group = f"/kubepods/burstable/pod{UID}/{'a' * 64}"
    node.process(77, DEV.format(received=0, sent=0), ticks=100, rss=1000, group=group)
    node.process(78, DEV.format(received=0, sent=0), ticks=50, rss=500, group=group)
    node.process(79, ticks=10_000, group="/system.slice/sshd.service")
    reader = node.reader()
    reader.read(0.0)
    node.later(10.0)
    node.process(77, ticks=100 + 15 * TICKS, rss=1000, group=group)
    node.process(78, ticks=50 + 5 * TICKS, rss=500, group=group)
    (usage,), _ = reader.read(EVERY_S)
    mib = 1500 * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    assert usage == PodUsage(
        pod_uid=UID,
        cpu_cores=2.0,
        memory_mib=round(mib, 1),
        network_receive_bytes_per_s=0.0,
        network_transmit_bytes_per_s=0.0,
    )


def test_rates_refuses_what_no_node_has_and_counters_that_went_back() -> None:
    before = Counters(cpu_us=10, read_bytes=100, sent_bytes=0)
    after = Counters(cpu_us=10**16, memory_bytes=1 << 62, read_bytes=50, sent_bytes=70)
    usage, refused = rates(UID, before, after, 10.0)
    assert usage == PodUsage(pod_uid=UID, network_transmit_bytes_per_s=7.0)
    assert [one.partition(" ")[0] for one in refused] == ["cpu_cores", "memory_mib"]


def test_texts_of_the_kernel_that_say_nothing_are_not_measured() -> None:
    assert memory_bytes("max\n", "") is None
    assert io_bytes("", frozenset()) == (0, 0)
    assert io_bytes("8:0 rbytes=x wbytes=5\nnonsense\n", frozenset({8})) == (0, 5)
    assert stacked_majors("Character devices:\n253 x\n") == frozenset()
    assert traffic("eth0: 1 2\n:\n") == (0, 0)


def test_process_sums_counts_new_processes_whole_and_old_ones_from_now() -> None:
    sums = ProcessSums()
    assert sums.add({(1, 100): 50}, None) == 0
    assert sums.add({(1, 100): 60, (2, 300): 7, (3, 20): 9}, 200) == 17
    assert sums.add({(2, 300): 8}, 400) == 18  # what ended takes nothing away


BURNS = """
import time
until = time.monotonic() + 60
print("ready", flush=True)
while time.monotonic() < until:
    pass
"""


def test_process_that_burns_a_core_is_measured_within_ten_percent(tmp_path: Path) -> None:
    """The process is real, and so are its files of /proc. A folder beside them says its pod."""
    command = [sys.executable, "-c", BURNS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as burning:
        assert burning.stdout is not None
        burning.stdout.readline()
        group = tmp_path / "cgroup/kubepods" / f"pod{UID}"
        Node.write(group / "cgroup.procs", f"{burning.pid}\n")
        reader = PodUsageReader(Path("/proc"), tmp_path / "cgroup")
        reader.read(0.0)
        began_s, began = time.monotonic(), cpu_s(burning.pid)
        while cpu_s(burning.pid) - began < 2.0:  # however much of a core it gets here
            time.sleep(0.05)
        (usage,), _ = reader.read(EVERY_S)
        cores = (cpu_s(burning.pid) - began) / (time.monotonic() - began_s)
        assert usage.cpu_cores == pytest.approx(cores, rel=0.1)
        assert usage.memory_mib == pytest.approx(rss_mib(burning.pid), rel=0.1)
        assert usage.network_receive_bytes_per_s is None  # it is in this machine's own network
        burning.kill()


WRITES = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
sys.stdin.readline()
for _ in range(64):
    os.write(file, b"x" * (1 << 20))
os.fsync(file)
print("written", flush=True)
sys.stdin.readline()
"""


def test_process_that_writes_is_measured_within_ten_percent(tmp_path: Path) -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("this kernel does not account for what processes write")
    command = [sys.executable, "-c", WRITES, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writing:
        assert writing.stdin is not None
        assert writing.stdout is not None
        group = tmp_path / "cgroup/kubepods" / f"pod{UID}"
        Node.write(group / "cgroup.procs", f"{writing.pid}\n")
        times = iter([100.0, 110.0])  # ten seconds, whatever this machine takes
        at_s = [next(times)]
        reader = PodUsageReader(Path("/proc"), tmp_path / "cgroup", clock=lambda: at_s[0])
        reader.read(0.0)
        writing.stdin.write(b"go\n")
        writing.stdin.flush()
        assert writing.stdout.readline() == b"written\n"
        if _written(writing.pid) == 0:
            pytest.skip("files of this folder are in memory: nothing is written to a disk")
        at_s[0] = next(times)
        (usage,), _ = reader.read(EVERY_S)
        assert usage.disk_write_bytes_per_s == pytest.approx((64 << 20) / 10.0, rel=0.1)
        writing.kill()


def _written(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
