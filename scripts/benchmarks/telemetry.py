"""What the telemetry agent of a node with eight GPUs costs at one reading a second: through pynvml,
over a library that stands in for the driver's, each GPU with a process that is looked up in /proc.
In a process of its own, so that its memory is the agent's. Where this machine has a GPU, also what
the driver takes for one of eight times: with nobody on it, with one process, and with two."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.source import SourceAbsent
from berthmaster.worker.telemetry.nvml import open_nvml
from tests.gpu.cuda import Process

BUDGETS = {"core_percent": ("<=", 0.5), "agent_mib": ("<=", 60.0)}
READS = 500
_AGENT = f"""
import json, os, resource, time
from pathlib import Path

import pynvml

import berthmaster.worker.telemetry.kubelet
import berthmaster.worker.telemetry.service
from berthmaster.lib.messages.families import encode
from berthmaster.worker.telemetry.core.agent import Agent, Publish, ReadEnded, Ticked
from berthmaster.worker.telemetry.nvml import Pynvml
from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.pods import Pods
from berthmaster.worker.telemetry.proc import ProcFolder
from tests.unit.worker.telemetry import fake_library as fake


class Eight(fake.Library):
    def nvmlDeviceGetCount_v2(self, count):
        return fake._set(count, 8)

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):
        fake._point(device, 0x10000 + index.value)
        return fake.SUCCESS

    def nvmlDeviceGetUUID(self, device, buffer, size):
        buffer.value = b"GPU-%x" % fake._address(device)
        return fake.SUCCESS


pynvml.nvmlLib = library = Eight()
library.processes = [(os.getpid(), 512 << 20)]
reader = NvmlReader(Pynvml(pynvml), Pods(ProcFolder(Path("/proc")), time.monotonic))
reader.open(0.0)
agent = Agent(cluster="c", node="n", source="nvml", epoch=1, interval_s=1.0, read_limit_s=5.0)


def second(now_s):
    agent.handle(Ticked(), now_s)
    for one in agent.handle(ReadEnded(reader.read(now_s), now_s), now_s):
        if isinstance(one, Publish):
            assert len(one.message.gpus) == 8 and encode(one.message)


for number in range(20):
    second(float(number))
began_s = time.process_time()
for number in range(20, 20 + {READS}):
    second(float(number))
took_s = time.process_time() - began_s
kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({{"core_percent": 100 * took_s / {READS}, "agent_mib": kib / 1024}}))
"""


_GPUS = 8
_SECONDS = 31  # all that is asked seldom is asked once


def _read_for_a_while(reader: NvmlReader) -> float:
    """Processor time of eight such GPUs, in percent of a core."""
    took_s = 0.0
    for _ in range(_SECONDS):
        time.sleep(1.0)
        began_s = time.thread_time()
        reader.read(time.monotonic())
        took_s += time.thread_time() - began_s
    return 100 * _GPUS * took_s / _SECONDS


def _measure_driver() -> dict[str, float]:
    try:
        reader, _ = open_nvml(Path("/proc"))
    except SourceAbsent:
        return {}
    found = {"driver_idle_core_percent": _read_for_a_while(reader)}
    with Process(os.environ) as one:
        one.begin("spin 70 0")
        found["driver_busy_core_percent"] = _read_for_a_while(reader)
        with Process(os.environ) as two:
            two.begin("spin 35 0")
            found["driver_shared_core_percent"] = _read_for_a_while(reader)
    reader.close()
    return found


def measure() -> dict[str, float]:
    """Of one reading a second, processor time in percent of a core, and memory at its most."""
    done = subprocess.run(
        [sys.executable, "-c", _AGENT], capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found | _measure_driver()
