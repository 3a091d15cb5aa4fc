"""What the doctor says of a worker whose GPUs nobody reads, or not on every node."""

from berthmaster.cli.doctor import telemetry
from berthmaster.cli.doctor.facts import GpuNode, Telemetry, WorkerFacts
from berthmaster.cli.doctor.objects import DaemonSet, exporter
from berthmaster.cli.doctor.objects import telemetry as told
from berthmaster.lib.kube.objects import Metadata

NODES = tuple(GpuNode(name=f"n{number}", gpus=8) for number in range(3))


def found(agents: Telemetry | None, **more: object) -> list[tuple[str, str]]:
    facts = {"gpu_nodes": NODES, **more}
    worker = WorkerFacts(name="w1", telemetry=agents, **facts)  # type: ignore[arg-type]
    return [(one.level, one.what) for one in telemetry.findings(worker, "sys")]


def test_a_worker_whose_gpus_nobody_reads_is_told_how() -> None:
    assert found(None) == [("note", "nobody reads what the GPUs of 3 nodes do")]
    exporter = "gpu-operator/nvidia-dcgm-exporter"
    worker = WorkerFacts(name="w1", gpu_nodes=NODES, exporter=exporter)
    (finding,) = telemetry.findings(worker, "sys")
    assert "DaemonSet gpu-operator/nvidia-dcgm-exporter is there" in finding.means
    assert finding.change.endswith("deploy/chart --set role=worker --set worker.telemetry=nodes")
    # None of NVIDIA's: there is nothing that could be read.
    assert found(None, gpu_nodes=(GpuNode(name="a", gpus=8, vendor="amd"),)) == []


def test_agents_that_are_not_on_every_node_or_not_ready_are_warned_of() -> None:
    assert found(Telemetry(wanted=3, ready=3)) == [
        ("ok", "an agent reads the GPUs of each of 3 nodes")
    ]
    assert found(Telemetry(wanted=2, ready=1)) == [
        ("warning", "telemetry agents are wanted on 2 of 3 nodes with GPUs"),
        ("warning", "1 of 2 telemetry agents are ready"),
    ]


def test_who_reads_is_known_by_daemon_sets() -> None:
    assert told(None) is None
    assert told(DaemonSet()) == Telemetry(wanted=0, ready=0)
    other = DaemonSet(metadata=Metadata(namespace="kube-system", name="kube-proxy"))
    theirs = DaemonSet(metadata=Metadata(namespace="ops", name="nvidia-dcgm-exporter"))
    assert (exporter([other]), exporter([other, theirs])) == ("", "ops/nvidia-dcgm-exporter")
