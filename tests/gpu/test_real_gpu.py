"""What our agent tells of a real GPU, and what our manifests do on one."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.telemetry import GpuPodUse, GpuReading
from berthmaster.lib.messages.workload import PodSet
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.job_metrics.core.meter import HOLDERS_LACK
from berthmaster.worker.telemetry.core.nvml_counting import COUNTERS_S
from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from tests.gpu.conftest import Start
from tests.gpu.cuda import Process
from tests.pipeline.telemetry.tools import Agent, Listener
from tests.support.patience import wait_until
from tests.unit.worker.executor.test_devices import pod_template, with_share

IntoPod = Callable[[Process], str]
WORKS_S = 1.2  # the driver tells of the last second


def read(reader: NvmlReader, now_s: float) -> GpuReading:
    (node,) = reader.read(now_s)
    return node.gpus[0]


def by_pod(gpu: GpuReading) -> dict[str, GpuPodUse]:
    return {use.pod_uid: use for use in gpu.pods}


def test_a_gpu_is_what_nvidia_smi_says_it_is(reader: NvmlReader) -> None:
    wanted = (
        "uuid,name,memory.total,power.limit,temperature.gpu,ecc.errors.uncorrected.volatile.total"
    )
    found = subprocess.run(
        ["nvidia-smi", "-i", "0", f"--query-gpu={wanted}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    uuid, model, memory, limit_w, heat, errors = found.stdout.strip().split(", ")
    gpu = read(reader, 0.0)
    assert (gpu.uuid, gpu.model, gpu.health) == (uuid, model, "ok")
    assert (gpu.memory_total_mib, gpu.power_limit_w) == (int(memory), float(limit_w))
    assert gpu.temperature_c is not None
    assert abs(gpu.temperature_c - int(heat)) <= 3
    assert errors in (str(gpu.ecc_uncorrected), "[N/A]")


def test_two_pods_on_one_gpu_have_each_what_is_theirs(
    start: Start, into_pod: IntoPod, tmp_path: Path
) -> None:
    busy, idle = start(), start()
    worker, sleeper = into_pod(busy), into_pod(idle)
    assert (busy.do("hold 512"), idle.do("hold 2048")) == ("ok", "ok")
    busy.begin("spin 20 0")
    with (
        Server(tmp_path / "nats", ServerConfig(sync="default")) as server,
        Listener(server.url) as listener,
        Agent("--nats-url", server.url, "--source", "nvml", "--interval-s", "0.5") as agent,
    ):

        def told() -> dict[str, GpuPodUse] | None:
            for message in reversed(listener.messages()):
                uses = by_pod(message.gpus[0])
                shares = [uses[uid].sm_percent for uid in (worker, sleeper) if uid in uses]
                if len(shares) == 2 and (shares[0] or 0) > 80 and shares[1] == 0:
                    return uses
            return None

        uses = wait_until(told, "what both do")
        assert 512 <= (uses[worker].memory_mib or 0) < 2048 <= (uses[sleeper].memory_mib or 0)
        told_of = listener.messages()[-1].lacks  # here may be no kubelet
        assert all(lack.startswith(HOLDERS_LACK) for lack in told_of)
        assert agent.stop() == 0


def test_a_gpu_that_is_busy_all_the_time_may_use_few_of_its_sms(
    reader: NvmlReader, start: Start
) -> None:
    process = start()
    seen = []
    for turn, blocks in enumerate((1, 0)):
        process.begin(f"spin {3 * WORKS_S} {blocks}")
        time.sleep(WORKS_S)
        read(reader, 2 * turn * COUNTERS_S)
        time.sleep(WORKS_S)
        seen.append(read(reader, (2 * turn + 1) * COUNTERS_S))
        assert process.answer() == "ok"
    assert all((one.utilization_percent or 0) > 90 for one in seen)
    assert [one.processes[0].sm_percent for one in seen] == [
        one.utilization_percent for one in seen
    ]
    few, all_ = (one.sm_active_percent for one in seen)
    if few is not None and all_ is not None:  # of Hopper and later
        assert few < 5
        assert all_ > 80


def test_under_mps_pods_are_held_to_their_part_and_the_server_is_nobodys(
    reader: NvmlReader, start: Start, into_pod: IntoPod, mps: dict[str, str]
) -> None:
    total_mib = read(reader, 0.0).memory_total_mib or 0
    before = start()  # it is no client of MPS: it would take turns with all that are
    whole_sms = int(before.do("sms"))
    before.__exit__()
    # Half the GPU a replica, of which this pod asks for half.
    half = Share(
        resource="nvidia.com/gpu.shared", milli=500, memory_mib=total_mib // 2, count=2,
        isolation="memory",
    )  # fmt: skip
    asked = PodSet(gpus=1, gpu_milli=250)
    [container] = pod_template(asked, with_share(half, total_mib))["spec"]["containers"]
    held = {one["name"]: one["value"] for one in container["env"]}
    first, second = start(**mps, **held), start(**mps)
    ours, theirs = into_pod(first), into_pod(second)
    assert abs(int(first.do("sms")) / whole_sms - 0.25) < 0.05
    assert int(second.do("sms")) == whole_sms
    assert first.do(f"hold {total_mib // 4}") == "CUDA_ERROR_OUT_OF_MEMORY"  # its context counts
    assert first.do(f"hold {total_mib // 4 - 2048}") == "ok"

    # Nobody does anything; one does, and which is not known; one is alone.
    time.sleep(WORKS_S)
    gpu = read(reader, 100.0)
    assert [one.serves_mps for one in gpu.processes].count(True) == 1
    assert {use.sm_percent for use in gpu.pods} == {0.0}
    assert by_pod(gpu).keys() == {ours, theirs}
    first.begin(f"spin {6 * WORKS_S} 0")
    time.sleep(2 * WORKS_S)
    (node,) = reader.read(200.0)
    assert {use.sm_percent for use in node.gpus[0].pods} == {None}
    assert "clients of MPS" in node.lacks[0]
    second.__exit__()
    time.sleep(2 * WORKS_S)
    (use,) = read(reader, 300.0).pods
    assert (use.pod_uid, (use.sm_percent or 0) > 80) == (ours, True)


def test_a_program_that_writes_where_nothing_is_leaves_an_xid_and_a_sound_gpu(
    reader: NvmlReader, start: Start
) -> None:
    read(reader, 0.0)
    assert start().do("fault") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    now_s = iter(range(1, 1000))
    gpu = wait_until(lambda: (found := read(reader, next(now_s))).xid and found, "its XID")
    assert isinstance(gpu, GpuReading)
    assert (gpu.xid, gpu.health) == (31, "ok")
