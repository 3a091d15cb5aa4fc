"""Details made on request: a node with its GPUs and their jobs. Pure."""

from typing import Any

import numpy as np

from berthmaster.control.dashboard.core.board import Scope
from berthmaster.control.dashboard.core.dashboard import Dashboard
from berthmaster.control.dashboard.core.grid import HISTORY, UNKNOWN, Grid, Node, held_milli
from berthmaster.control.dashboard.core.jobs import row_of
from berthmaster.control.dashboard.core.series import AllSeries
from berthmaster.lib.lifecycle.workload import Workload, key
from berthmaster.lib.messages.fleet import GpuDevice


def node_document(known: Dashboard, cluster: str, name: str) -> dict[str, Any] | None:
    """Return one node, or None if unknown."""
    grid = known.grids.get(cluster)
    node = grid.nodes.get(name) if grid is not None else None
    if grid is None or node is None:
        return None
    report = node.report
    held, _ = held_milli(report)
    return {
        "cluster": cluster,
        "node": name,
        "ready": report.ready,
        "schedulable": report.schedulable and not node.closed,
        "draining": known.drains(cluster, name),
        "labels": report.labels,
        "taints": [f"{taint.key}={taint.value}:{taint.effect}" for taint in report.taints],
        "cpu_milli": report.allocatable.cpu_milli,
        "memory_mib": report.allocatable.memory_mib,
        "foreign_cpu_milli": report.foreign.cpu_milli,
        "heard_at_s": node.heard_s or None,
        "fractions": report.fractions,
        "shares": [
            {"resource": share.resource, "milli": share.milli, "count": share.count,
             "kind": share.kind}
            for share in report.shares
        ],
        "pods": [
            {"tenant": use.tenant, "id": use.workload, "pod": use.pod, "gpu_milli": use.gpu_milli,
             "gpus": list(use.gpus), "cpu_milli": use.cpu_milli, "memory_mib": use.memory_mib}
            for use in report.pods
        ],
        "gpus": [_gpu(grid, node, gpu, held[gpu.index]) for gpu in report.gpus],
    }  # fmt: skip


def _gpu(grid: Grid, node: Node, gpu: GpuDevice, held: int) -> dict[str, Any]:
    reading = node.readings.get(gpu.index)
    row = grid.place_of(node.report.node, gpu.index)
    found: dict[str, Any] = {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "offered": gpu.healthy,
        "held_milli": held,
        "foreign_milli": gpu.foreign_milli,
        "holders": [
            {"tenant": use.tenant, "id": use.workload, "milli": use.gpu_milli, "pod": use.pod}
            for use in node.report.pods
            if gpu.index in use.gpus
        ],
        "busy": _history(grid, row) if row is not None else [],
    }
    if reading is not None:
        found |= {
            "health": reading.health,
            "health_reason": reading.health_reason,
            "utilization_percent": reading.utilization_percent,
            "sm_active_percent": reading.sm_active_percent,
            "memory_used_mib": reading.memory_used_mib,
            "memory_total_mib": reading.memory_total_mib,
            "power_w": reading.power_w,
            "power_limit_w": reading.power_limit_w,
            "temperature_c": reading.temperature_c,
            "sm_clock_mhz": reading.sm_clock_mhz,
            "throttle_reasons": list(reading.throttle_reasons),
            "ecc_uncorrected": reading.ecc_uncorrected,
            "xid": reading.xid,
            "mig": [
                {"profile": slice_.profile, "memory_mib": slice_.memory_mib,
                 "memory_used_mib": slice_.memory_used_mib,
                 "utilization_percent": slice_.utilization_percent}
                for slice_ in reading.mig
            ],
        }  # fmt: skip
    return found


def _history(grid: Grid, row: int) -> list[int | None]:
    """Return the last seconds of one GPU's utilization, oldest first, from the first measured one
    on.
    """
    line = np.roll(grid.history[row], -grid.at)
    known = np.flatnonzero(line != UNKNOWN)
    if not len(known):
        return []
    return [None if value == UNKNOWN else int(value) for value in line[known[0] : HISTORY]]


def gpus_of_job(known: Dashboard, work: Workload) -> list[dict[str, Any]]:
    """Return the current GPUs of a job, with their activity."""
    grid, rows = known.rows_of(work)
    if grid is None:
        return []
    wanted = set(rows)
    found = []
    for name in dict.fromkeys(pod.node for pod in work.pods):
        node = grid.nodes.get(name)
        if node is None or node.number < 0:
            continue
        for index, rank in node.rank.items():
            if node.first + rank in wanted:
                busy, held, memory, heat, marks = (int(v) for v in grid.rows[node.first + rank])
                one = {"node": name, "index": index, "busy": busy, "held": held}
                found.append(one | {"memory": memory, "heat": heat, "marks": marks})
    return found


def job_document(known: Dashboard, work: Workload) -> dict[str, Any]:
    name = key(work.tenant, work.id)
    return {
        "job": row_of(work),
        "pods": [
            {"pod": pod.pod, "node": pod.node, "gpus": list(pod.gpus)} for pod in work.pods[:512]
        ],
        "gpus": gpus_of_job(known, work) if work.live else [],
        "series": _series(known.series, work),
        "unreadable": known.jobs.unreadable.get(name, ""),
    }


def _series(all_series: AllSeries, work: Workload) -> dict[str, Any] | None:
    series = all_series.known(key(work.tenant, work.id))
    return series.columns() if series is not None else None


def may_see_nodes(scope: Scope) -> bool:
    """Return whether the user may see nodes, which name the jobs of all tenants."""
    return scope.everything
