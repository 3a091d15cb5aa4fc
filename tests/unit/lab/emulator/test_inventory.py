from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lab.emulator.inventory import Reports, gpu_uuid, profile
from berthmaster.lab.emulator.records import ForeignCame, GpuTurned, GpuUse, NodeTurned
from berthmaster.lab.emulator.telemetry import NodeModel
from berthmaster.lib.messages.families import FLEET_FACTS, TELEMETRY, encode
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    PodUse,
    Stamp,
)
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.worker.executor.core.cluster_protocol import Attempt, CreatePods

SPEC = ClusterSpec("berlin", "eu-central", (NodeSpec("n1", 64_000, 262_144, 2, "T4"),))
STAMP = Stamp(epoch=1, counter=2)
LABELS = {
    "topology.kubernetes.io/region": "eu-central",
    "berth/gpu-model": "T4",
    "nvidia.com/gpu.product": "Tesla-T4",
}


def test_a_report_shows_foreign_use_health_and_the_pods_that_are_ours() -> None:
    cluster = EmulatedCluster(SPEC, Nature(), 0)
    request = JobRequest(id="train", pod_sets=(PodSet(gpus=1, gpu_milli=300),))
    order = CreatePods(
        Attempt("acme", "train", 2), "e", (PodBinding(pod="main-0", node="n1"),), request, None
    )
    cluster.perform(order, 0)
    cluster.world.apply(ForeignCame(1, "n1", GpuUse(4000, 8192, 500, (0,)), 9))
    cluster.world.apply(GpuTurned("n1", 1, 9))
    cluster.world.apply(NodeTurned("n1", 9))

    report = Reports(cluster.world).report("n1", STAMP, 5.0)
    assert report == NodeReport(
        cluster="berlin",
        node="n1",
        stamp=STAMP,
        observed_at_s=5.0,
        ready=False,
        labels={
            **LABELS,
            "kubernetes.io/hostname": "n1",
            "nvidia.com/gpu.count": "2",
            "nvidia.com/gpu.memory": "16384",
        },
        allocatable=Amounts(cpu_milli=64_000, memory_mib=262_144, gpu_milli=2000),
        foreign=Amounts(cpu_milli=4000, memory_mib=8192, gpu_milli=500),
        gpus=(
            GpuDevice(
                index=0,
                uuid=gpu_uuid("berlin", "n1", 0),
                model="T4",
                memory_mib=16_384,
                foreign_milli=500,
            ),
            GpuDevice(
                index=1,
                uuid=gpu_uuid("berlin", "n1", 1),
                model="T4",
                memory_mib=16_384,
                healthy=False,
            ),
        ),
        pods=(
            PodUse(
                tenant="acme",
                workload="train",
                attempt=2,
                pod="main-0",
                cpu_milli=1000,
                memory_mib=1024,
                gpu_milli=300,
                gpus=(0,),
            ),
        ),
    )
    assert FLEET_FACTS.decode(encode(report)) == report
    assert cluster.take_dirty() == {"n1": True}
    assert cluster.take_dirty() == {}


def test_a_profile_says_what_the_cluster_is() -> None:
    assert profile(SPEC, STAMP, 5.0) == ClusterProfile(
        cluster="berlin",
        stamp=STAMP,
        observed_at_s=5.0,
        labels=LABELS,
        properties={"berth/runtime": "emulated"},
        nodes=1,
        gpus={"T4": 2},
    )


def readings(load_milli: int, dead: bool, count: int = 60) -> list[float | None]:
    cluster = EmulatedCluster(SPEC, Nature(), 0)
    node = cluster.world.nodes["n1"]
    node.take(GpuUse(0, 0, load_milli, (0,)))
    node.gpu_back_s[0] = 9.0 if dead else 0.0
    model = NodeModel("berlin", node, ("u0", "u1"), seed=4)
    values = []
    for counter in range(1, count + 1):
        message = model.telemetry(epoch=1, counter=counter, now_s=counter, interval_s=1.0)
        assert TELEMETRY.decode(encode(message)) == message
        values.append(message.gpus[0].utilization_percent)
    return values


def test_a_busy_gpu_gets_hot_and_draws_power_and_an_idle_one_does_not() -> None:
    cluster = EmulatedCluster(SPEC, Nature(), 0)
    node = cluster.world.nodes["n1"]
    node.take(GpuUse(0, 0, 1000, (0,)))
    model = NodeModel("berlin", node, ("u0", "u1"), seed=4)
    busy, idle = [
        model.telemetry(epoch=1, counter=counter, now_s=counter, interval_s=1.0).gpus
        for counter in range(1, 200)
    ][-1]
    assert busy.temperature_c is not None
    assert idle.temperature_c is not None
    assert busy.power_w is not None
    assert idle.power_w is not None
    assert 60 < busy.temperature_c < 95
    assert 25 < idle.temperature_c < 45
    assert 0.6 < busy.power_w / (busy.power_limit_w or 0) <= 1.0
    assert 0.05 < idle.power_w / (idle.power_limit_w or 0) < 0.2


def test_telemetry_follows_what_runs_with_noise_that_repeats() -> None:
    busy = [v for v in readings(1000, dead=False) if v is not None]
    assert 75 < min(busy) < max(busy) <= 100
    assert readings(0, dead=False) == [0.0] * 60
    assert readings(500, dead=False) == readings(500, dead=False)


def test_a_dead_gpu_is_lost_and_measures_nothing() -> None:
    assert readings(1000, dead=True) == [None] * 60
    cluster = EmulatedCluster(SPEC, Nature(), 0)
    cluster.world.apply(GpuTurned("n1", 1, 9))
    model = NodeModel("berlin", cluster.world.nodes["n1"], ("u0", "u1"), seed=4)
    gpu = model.telemetry(epoch=1, counter=1, now_s=1, interval_s=1.0).gpus[1]
    assert (gpu.health, gpu.health_reason, gpu.xid) == ("lost", "fell off the bus", 79)
