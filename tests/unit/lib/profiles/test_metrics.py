"""Values that no job can have are left out, each by itself."""

from berthmaster.lib.messages.telemetry import GpuUse, HostUse, JobFigures, JobOwner
from berthmaster.lib.profiles.metrics import plausible, values_of


def figures(use: GpuUse, host: HostUse | None, owner: JobOwner | None = None) -> JobFigures:
    return JobFigures(
        cluster="red", epoch=1, counter=1, observed_at_s=0.0, use=use, host=host, owner=owner
    )


def test_plausible_refuses_absurd_values_one_by_one() -> None:
    owner = JobOwner(kind="JobSet", name="a", uid="u", use=GpuUse(pcie_bytes_per_s=-1.0))
    told = figures(
        GpuUse(gpus=1, utilization_percent=50.0, pcie_bytes_per_s=1e300),
        HostUse(pods=2, cpu_cores=1e9, memory_mib=4096.0, disk_read_bytes_per_s=-1.0),
        owner,
    )
    right, refused = plausible(told)
    assert refused == 4
    assert values_of(right) == {"gpu_utilization_percent": 50.0, "memory_mib": 4096.0}
    assert right.owner is not None
    assert right.owner.use.pcie_bytes_per_s is None


def test_plausible_allows_each_pod_what_one_node_has() -> None:
    told = figures(GpuUse(), HostUse(pods=3, cpu_cores=3 * 4096.0))
    assert plausible(told) == (told, 0)
    alone = figures(GpuUse(), HostUse(pods=1, cpu_cores=3 * 4096.0))
    assert plausible(alone)[1] == 1
