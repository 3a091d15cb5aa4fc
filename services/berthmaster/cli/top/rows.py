"""The rows of `berth top`: their sources, and their order. Pure.

An unknown value is last in either direction.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from berthmaster.lib.engine.fleetview.rows import ClusterRow, NodeRow, natural
from berthmaster.lib.messages.api import WorkloadView
from berthmaster.lib.messages.quality import QueueQuality
from berthmaster.lib.messages.telemetry import JobFigures

Kind = Literal["clusters", "nodes", "jobs", "queues"]


class JobRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job in `berth top --jobs`. None is "not known", never zero."""

    tenant: str
    id: str
    state: str
    queue: str = ""
    priority: int = 0
    cluster: str = ""
    gpus: float = 0.0  # requested; of an unmanaged job, allocated
    age_s: float | None = None  # seconds since its submission
    utilization_percent: float | None = None  # mean of its GPUs over half a minute
    utilization_max_percent: float | None = None  # the busiest of its GPUs
    sm_active_percent: float | None = None  # fraction of SMs with work, in percent
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    power_w: float | None = None
    idle_s: float | None = None  # seconds without work on any of its GPUs; None = busy
    step: int | None = None  # from the job's last report
    loss: float | None = None
    left_s: float | None = None  # seconds until its end, from its last report


def job_rows(
    views: Sequence[WorkloadView], figures: Mapping[tuple[str, str], JobFigures], now_s: float
) -> list[JobRow]:
    """Return a row per listed job, and per job with GPU usage metrics only."""
    rows = []
    listed = set()
    for view in views:
        listed.add((view.tenant, view.id))
        rows.append(
            _with(
                JobRow(
                    tenant=view.tenant,
                    id=view.id,
                    state=view.state,
                    queue=view.queue,
                    priority=view.priority,
                    cluster=view.cluster,
                    gpus=view.gpus,
                    age_s=max(0.0, now_s - view.submitted_at_s) if view.submitted_at_s else None,
                    **_progress(view, now_s),
                ),
                figures.get((view.tenant, view.id)),
            )
        )
    for name, report in figures.items():
        if name not in listed:
            row = JobRow(
                tenant=report.tenant,
                id=name[1],
                state="running",
                cluster=report.cluster,
                gpus=float(report.use.gpus),
            )
            rows.append(_with(row, report))
    return rows


def _progress(view: WorkloadView, now_s: float) -> dict[str, Any]:
    report = view.progress
    if report is None or view.state != "running":
        return {}
    age_s = max(0.0, now_s - view.progress_at_s)
    left_s = None if report.eta_s is None else max(0.0, report.eta_s - age_s)
    return {"step": report.step, "loss": report.loss, "left_s": left_s}


def _with(row: JobRow, report: JobFigures | None) -> JobRow:
    if report is None:
        return row
    use = report.use
    idle = (
        None
        if report.idle_since_s is None
        else max(0.0, report.observed_at_s - report.idle_since_s)
    )
    return msgspec.structs.replace(
        row,
        utilization_percent=use.utilization_percent,
        utilization_max_percent=use.utilization_max_percent,
        sm_active_percent=use.sm_active_percent,
        memory_used_mib=use.memory_used_mib,
        memory_total_mib=use.memory_total_mib,
        power_w=use.power_w,
        idle_s=idle,
    )


class Column(NamedTuple):
    """A column, with its sort key; largest first where users look for large values."""

    title: str
    value: Callable[[Any], Any]
    biggest_first: bool = False


COLUMNS: Final[Mapping[Kind, tuple[Column, ...]]] = {
    "clusters": (
        Column("CLUSTER", lambda row: natural(row.cluster)),
        Column("SEEN", lambda row: row.seen_s, True),
        Column("GPUS", lambda row: row.gpus, True),
        Column("FREE", lambda row: row.free_gpus, True),
        Column("USED", lambda row: row.used_share, True),
        Column("IDLE", lambda row: row.idle_gpu_percent, True),
        Column("FRAG", lambda row: row.fragmentation_percent, True),
    ),
    "nodes": (
        Column("NODE", lambda row: natural(row.node)),
        Column("HELD", lambda row: sum(row.gpu_milli_used), True),
        Column("UTIL", lambda row: row.utilization_percent, True),
        Column("POWER", lambda row: row.power_w, True),
        Column("PODS", lambda row: row.pods, True),
    ),
    "jobs": (
        Column("AGE", lambda row: row.age_s),
        Column("JOB", lambda row: (row.tenant, natural(row.id))),
        Column("STATE", lambda row: row.state),
        Column("CLUSTER", lambda row: natural(row.cluster)),
        Column("GPUS", lambda row: row.gpus, True),
        Column("UTIL", lambda row: row.utilization_percent, True),
        Column("SM", lambda row: row.sm_active_percent, True),
        Column("MEM", lambda row: row.memory_used_mib, True),
        Column("IDLE", lambda row: row.idle_s, True),
        Column("STEP", lambda row: row.step, True),
        Column("LEFT", lambda row: row.left_s),
    ),
    "queues": (
        Column("QUEUE", lambda row: natural(row.queue)),
        Column("PLACED", lambda row: row.live, True),
        Column("WAIT", lambda row: row.waiting, True),
        Column("GPUS", lambda row: row.used_gpu_milli, True),
        Column("MEAN WAIT", lambda row: row.mean_wait_s, True),
        Column("DONE", lambda row: row.succeeded, True),
        Column("MEAN TIME", lambda row: row.mean_completion_s, True),
        Column("EVICTED", lambda row: row.evicted, True),
    ),
}


def name_of(row: object) -> tuple[str, ...]:
    match row:
        case ClusterRow():
            return (row.cluster,)
        case NodeRow():
            return (row.node,)
        case JobRow():
            return (row.tenant, row.id)
        case QueueQuality():
            return (row.queue,)
    raise TypeError(type(row).__name__)


def column_named(kind: Kind, title: str) -> int | None:
    """Return the index of a column by its title, in any case."""
    titles = [column.title for column in COLUMNS[kind]]
    return titles.index(title.upper()) if title.upper() in titles else None


def in_order(kind: Kind, rows: Sequence[Any], column: int, *, reverse: bool) -> list[Any]:
    """Return the sorted rows, with unknown values last."""
    by = COLUMNS[kind][column]
    known = [row for row in rows if by.value(row) is not None]
    unknown = [row for row in rows if by.value(row) is None]
    known.sort(key=name_of)
    known.sort(key=by.value, reverse=by.biggest_first != reverse)
    return known + sorted(unknown, key=name_of)
