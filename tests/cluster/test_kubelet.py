"""A job's figures and its log from a real kubelet, real control groups and a device plugin: only
the GPU is made up. Needs root, Debian's containerd and the kubelet that
`python -m berthmaster.lab.controlplane.build kubelet` compiles. Elsewhere the tests are skipped."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from berthmaster.client import Client, RefusedError, lines_of
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.families import TELEMETRY, encode
from berthmaster.lib.messages.telemetry import GpuPodUse, NodeTelemetry
from berthmaster.lib.messages.workload import Progressed
from berthmaster.worker.job_metrics.core.meter import Meter
from berthmaster.worker.job_metrics.core.pods import JobName, Owner, Pod
from berthmaster.worker.telemetry.core.nvml_driver import Process, Rates
from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.pods import Pods
from berthmaster.worker.telemetry.held import Held
from berthmaster.worker.telemetry.kubelet import KubeletWatch
from berthmaster.worker.telemetry.proc import ProcFolder
from tests.bus.shells import gateway
from tests.bus.tools import eventually, story
from tests.cluster.executing import job, site
from tests.controlplane import node as nodes
from tests.controlplane.logs import reach
from tests.support.patience import ANSWER_S, wait_until
from tests.unit.worker.telemetry.fake_driver import MIB, FakeDriver, FakeGpu

GPUS = [f"GPU-{number:08x}-3f7a-4f6e-9f0e-0123456789ab" for number in range(2)]
RESOURCE = "nvidia.com/gpu"
NODE = "gpu-node"


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
        wait_until(lambda: len(node.pids()) == 2, "the pod's sandbox and container run")

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
        wait_until(
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
        used = GpuPodUse(pod_uid=uid, memory_mib=512, sm_percent=80)  # alone on it
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
        wait_until(lambda: not node.pids(), "the pod has ended")
        pods.begin()
        assert pods.pod_of(pid) is None

        def nobodys() -> bool:
            kubelet.ask()
            return not any(gpu.holders for gpu in source.read(2.0)[0].gpus)

        wait_until(nobodys, "the kubelet has taken the GPU back")
        source.close()


@pytest.mark.skipif(bool(nodes.why_not()), reason=nodes.why_not())
@story
async def test_a_jobs_log_is_read_from_a_real_kubelet_by_way_of_its_agent_and_the_bus(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """The Job, its pod and the API server are a cluster's; the container is one of a real kubelet,
    which has the pod under the same name, and which the API server finds by the node."""
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin, gateway(berlin.url):
        await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        [pod] = berlin.pods()
        name, _, suffix = pod["metadata"]["name"].rpartition("-")
        async with (
            on_a_kubelet(suffix, name, namespace) as node,
            Client.connect(berlin.url, tenant="acme", timeout_s=ANSWER_S) as berth,
        ):
            reach(worker.api, "n1", node.port)

            async def has_a_log() -> bool:
                return bool(await lines(berth, tail=1))

            await eventually(has_a_log)
            # Followed from where it begins: nothing is left out, nothing comes twice.
            followed: list[bytes] = []
            async for piece in berth.logs("train", follow=True):
                followed += [line.text for line in lines_of(piece)]
                if len(followed) > 30:
                    break
            steps = steps_of(followed)
            assert steps == list(range(1, len(steps) + 1))
            assert (await lines(berth, since_s=3600.0))[:1] == [b"step 1"]
            assert await lines(berth, pod=0, tail=1) != []
            [none] = [piece async for piece in berth.logs("train", pod=1)]
            assert none.note == "pod 1: it has pods 0 to 0"

            # What it says of itself is in the log of events, and `berth job` shows it.
            progressed = await berlin.until("train", "Progressed")
            assert isinstance(progressed, Progressed)
            assert progressed.progress.step is not None
            assert progressed.progress.step % 10 == 0

            with pytest.raises(RefusedError, match="it has had 1 attempts"):
                await lines(berth, previous=True)
            # It makes room, and its pod goes: what it wrote last was read from the kubelet before.
            # Its last line may be one for machines, which comes after every tenth step.
            so_far = steps_of(await lines(berth, tail=2))[-1]
            await berlin.make_room("train")
            await berlin.until("train", "Evicted")
            await berlin.place_again("train", "n1")
            before = [piece async for piece in berth.logs("train", previous=True)]
            assert [(one.attempt, one.kept, one.ended) for one in before] == [(1, True, True)]
            ended = [line.text for one in before for line in lines_of(one)]
            last = steps_of(ended)
            assert last == list(range(1, len(last) + 1))
            assert last[-1] >= so_far
            await berlin.until("train", "Claimed", times=2)
            await berlin.cancel("train")

            async def is_over() -> bool:
                return "Cancelled" in await berlin.kinds("train")

            await eventually(is_over)
        await berlin.clean()


async def lines(berth: Client, **how: Any) -> list[bytes]:
    return [line.text async for piece in berth.logs("train", **how) for line in lines_of(piece)]


def steps_of(told: list[bytes]) -> list[int]:
    return [int(one.split()[1]) for one in told if one.startswith(b"step ")]


@asynccontextmanager
async def on_a_kubelet(node_name: str, pod: str, namespace: str) -> AsyncIterator[nodes.Node]:
    """A container of this pod, which says how far it is."""
    with ExitStack() as owned:

        def start() -> nodes.Node:
            folder = owned.enter_context(
                TemporaryDirectory(prefix="node-", ignore_cleanup_errors=True)
            )
            node = owned.enter_context(nodes.running(Path(folder), node_name))
            node.run_pod(pod, namespace=namespace, args=("train",))
            wait_until(lambda: len(node.pids()) == 2, "the pod's sandbox and container run")
            return node

        try:
            yield await asyncio.to_thread(start)
        finally:
            await asyncio.to_thread(owned.close)
