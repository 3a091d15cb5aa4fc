"""What people see of the GPUs of jobs."""

from berthmaster.cli.job import screen
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures, JobOwner

USE = GpuUse(
    gpus=8,
    measured=8,
    utilization_percent=3.4,
    memory_used_mib=40_960,
    memory_total_mib=655_360,
    power_w=812.4,
)
IDLE = JobFigures(
    cluster="red",
    namespace="ml",
    kind="JobSet",
    name="train-1",
    tenant="acme",
    id="train",
    epoch=1,
    counter=1,
    observed_at_s=0.0,
    use=USE,
    idle_since_s=1_000.0,
    idle_for_long=True,
    disagreements=("ml/p has processes on GPU 3 of n1, which nobody gave it",),
    owner=JobOwner(kind="TrainJob", name="big", uid="u", jobs=2, use=GpuUse(gpus=16)),
)
FOREIGN = JobFigures(
    cluster="blue", namespace="web", name="x", epoch=1, counter=1, observed_at_s=0.0,
    use=GpuUse(gpus=1),
)  # fmt: skip


def test_a_jobs_gpus_in_lines() -> None:
    assert screen.figures_lines([IDLE], now_s=4_600.0) == [
        (
            "red: 8 GPUs, 3% busy, 40.0 GiB of 640.0 GiB, 812 W; "
            "no GPU of it has done anything for 1h00m"
        ),
        "all of TrainJob big: 16 GPUs, - busy",
        "ml/p has processes on GPU 3 of n1, which nobody gave it",
    ]
    assert screen.figures_lines([FOREIGN], now_s=0.0) == ["blue: 1 GPU, - busy"]
