"""A job's figures from a real kubelet, real control groups and a device plugin: only the GPU is
made up. Needs root, Debian's containerd and the kubelet that `python -m tests.controlplane.build
kubelet` compiles; skipped with the reason elsewhere."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from berthmaster.jobfigures.meter import Meter
from berthmaster.jobfigures.pods import JobName, Owner, Pod
from berthmaster.messages.families import TELEMETRY, encode
from berthmaster.messages.telemetry import GpuPodUse, NodeTelemetry
from berthmaster.telemetry.held import Held
from berthmaster.telemetry.kubelet import KubeletWatch
from berthmaster.telemetry.nvml_driver import Process, Rates
from berthmaster.telemetry.nvml_reader import NvmlReader
from berthmaster.telemetry.pods import Pods
from berthmaster.telemetry.proc import ProcFolder
from tests.controlplane import node as nodes
from tests.unit.telemetry.fake_driver import MIB, FakeDriver, FakeGpu

GPUS = [f"GPU-{number:08x}-3f7a-4f6e-9f0e-0123456789ab" for number in range(2)]
RESOURCE = "nvidia.com/gpu"
NODE = "gpu-node"


@pytest.mark.timeout(180)
@pytest.mark.skipif(bool(nodes.why_not()), reason=nodes.why_not())
def test_a_jobs_figures_come_from_a_real_kubelet_and_real_processes() -> None:
    with (
        # The paths of its sockets may have 107 characters, whatever tests' folders are called.
        TemporaryDirectory(prefix="node-", ignore_cleanup_errors=True) as folder,
        nodes.running(Path(folder), NODE) as node,
        nodes.device_plugin(RESOURCE, GPUS),
    ):
        pods = Pods(ProcFolder(Path("/proc")), time.monotonic)
        node.run_pod("train", RESOURCE, 1)
        nodes.until(lambda: len(node.pids()) == 2, "the pod's sandbox and container run")

        # Whose processes they are: by the control groups that kubelet and runc have made.
        pods.begin()
        (uid,) = {pods.pod_of(pid) for pid in node.pids()}
        assert uid is not None
        assert len(uid) == 32  # a static pod's: the hash of its file
        assert pods.pod_of(os.getpid()) is None

        # Who was given which GPU: by the kubelet.
        kubelet = KubeletWatch(node.pod_resources)
        driver = FakeDriver(*(FakeGpu(one, rates=Rates(80, 20)) for one in GPUS))
        reader = NvmlReader(driver, pods)
        reader.open(0.0)
        source = Held(reader, kubelet)
        nodes.until(
            lambda: any(gpu.holders for gpu in source.read(time.monotonic())[0].gpus),
            "the kubelet says who was given what",
        )
        (reading,) = source.read(time.monotonic())
        assert reading.lacks == ()
        (given,) = [gpu for gpu in reading.gpus if gpu.holders]
        (holder,) = given.holders
        assert (holder.namespace, holder.pod) == ("ml", f"train-{NODE}")
        assert (holder.container, holder.resource) == ("main", RESOURCE)

        # A process of the pod is on it, as the driver would say.
        place = GPUS.index(given.uuid)
        pid = max(node.pids())
        driver.gpus[place].compute_processes = [Process(pid, 512 * MIB)]
        (reading,) = source.read(1.0)
        used = GpuPodUse(pod_uid=uid, memory_mib=512)
        assert reading.gpus[place].pods == (used,)

        # From there to the job, by way of the message.
        meter = Meter("red", epoch=1, idle_percent=5.0, idle_limit_s=0.0)
        job = JobName("ml", Owner("Job", "train", "u"), "acme", "train", 1)
        meter.book.put(Pod(uid, "ml", holder.pod, NODE, job))
        message = NodeTelemetry(
            cluster="red",
            node=NODE,
            epoch=1,
            counter=1,
            observed_at_s=0.0,
            interval_s=1.0,
            source="nvml",
            gpus=reading.gpus,
        )
        meter.on_node(TELEMETRY.decode(encode(message)), 1.0)
        (figures,) = meter.take(31.0)
        assert (figures.id, figures.use.gpus, figures.use.utilization_percent) == ("train", 1, 80.0)
        assert (figures.disagreements, figures.nodes) == ((), (NODE,))

        # The pod goes, and the kubelet says so.
        node.stop_pod("train")
        nodes.until(lambda: not node.pids(), "the pod has ended")
        pods.begin()
        assert pods.pod_of(pid) is None

        def nobodys() -> bool:
            kubelet.ask()
            return not any(gpu.holders for gpu in source.read(2.0)[0].gpus)

        nodes.until(nobodys, "the kubelet has taken the GPU back")
        source.close()
