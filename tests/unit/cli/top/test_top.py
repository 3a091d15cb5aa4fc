"""The rows of `berth top`: sorted, and with the figures of jobs."""

from berthmaster.cli.top.rows import JobRow, column_named, in_order, job_rows
from berthmaster.cli.top.screen import jobs
from berthmaster.lib.engine.fleetview.rows import ClusterRow
from berthmaster.lib.messages.api import WorkloadView
from berthmaster.lib.messages.quality import QueueQuality
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from tests.unit.cli.screens import screen

CLUSTERS = [
    ClusterRow(cluster="c10", freshness="fresh", seen_s=1.0, gpus=8),
    ClusterRow(cluster="c2", freshness="fresh", seen_s=None, gpus=64),
    ClusterRow(cluster="c1", freshness="stale", seen_s=40.0, gpus=16),
]


def by(title: str, *, reverse: bool = False) -> list[str]:
    column = column_named("clusters", title)
    assert column is not None
    return [row.cluster for row in in_order("clusters", CLUSTERS, column, reverse=reverse)]


def test_in_order_sorts_names_naturally_and_unknown_values_last() -> None:
    assert by("cluster") == ["c1", "c2", "c10"]
    assert by("SEEN") == ["c1", "c10", "c2"]
    assert by("SEEN", reverse=True) == ["c10", "c1", "c2"]


def test_in_order_sorts_queues_by_their_figures() -> None:
    queues = [QueueQuality(queue="a", waiting=1), QueueQuality(queue="b", waiting=5)]
    column = column_named("queues", "wait")
    assert column is not None
    assert [row.queue for row in in_order("queues", queues, column, reverse=False)] == ["b", "a"]


def test_jobs_table_fits_80_columns_with_all_figures() -> None:
    row = JobRow(
        tenant="research",
        id="train-a-model-with-a-long-name",
        state="running",
        cluster="a-cluster-with-a-long-name",
        gpus=64.0,
        age_s=90.0,
        utilization_percent=97.2,
        sm_active_percent=81.0,
        memory_used_mib=70 * 1024,
        memory_total_mib=80 * 1024,
        idle_s=None,
        step=1200,
        left_s=7200.0,
    )
    assert screen(jobs([row])) == (
        "JOB             STATE    CLUSTER   GPUS  UTIL     MEM  IDLE  STEP   LEFT    AGE\n"
        "research/trai…  running  a-clust…    64   97%  70/80G     -  1200  2h00m  1m30s"
    )


def test_jobs_have_their_figures_and_those_that_nobody_listed_are_there_too() -> None:
    view = WorkloadView(
        tenant="acme",
        id="a",
        state="running",
        queue="q",
        gpus=2.0,
        cluster="c1",
        submitted_at_s=10.0,
    )
    told = {
        ("acme", "a"): figures("acme", "a", 75.0),
        ("", "ns/Job/other"): figures("", "", 5.0, idle_since_s=70.0),
    }
    mine, other = job_rows([view], told, now_s=110.0)
    assert (mine.utilization_percent, mine.age_s, mine.idle_s) == (75.0, 100.0, None)
    assert (other.id, other.state, other.gpus, other.idle_s) == (
        "ns/Job/other",
        "running",
        2.0,
        30.0,
    )
    assert [row.id for row in in_order("jobs", [mine, other], 5, reverse=False)] == [
        "a",
        "ns/Job/other",
    ]
    assert (column_named("jobs", "util"), column_named("jobs", "cow")) == (5, None)


def figures(
    tenant: str, workload: str, percent: float, *, idle_since_s: float | None = None
) -> JobFigures:
    return JobFigures(
        cluster="c1",
        tenant=tenant,
        id=workload,
        epoch=1,
        counter=1,
        observed_at_s=100.0,
        use=GpuUse(gpus=2, measured=2, utilization_percent=percent),
        idle_since_s=idle_since_s,
    )
