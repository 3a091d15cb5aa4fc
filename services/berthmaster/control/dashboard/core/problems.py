"""Faults and notes, worst first, one line each. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from berthmaster.control.dashboard.core.grid import DEGRADED, LOST, MARKS, NOT_READY, SILENT, Grid
from berthmaster.control.dashboard.core.known import Known
from berthmaster.lib.engine.fleetview.fleet_problems import (
    Problem,
    many,
    of_cluster,
    of_cordons,
    of_gpus,
    of_letters,
    of_nodes,
)
from berthmaster.lib.engine.fleetview.rows import ClusterRow
from berthmaster.lib.event_log.damage import REMEDY

BROKEN: Final = "broken"
NOTE: Final = "note"
DECIDER_SILENT_S: Final = 20.0
MOST: Final = 100


def problems(
    rows: Sequence[ClusterRow],
    known: Known,
    services: Sequence[Mapping[str, Any]],
    now_s: float,
) -> list[dict[str, Any]]:
    """Return all problems, faults first."""
    found = [_line(BROKEN, f"{each}; {REMEDY}") for each in known.damage]
    found += [
        _line(BROKEN, f"{service['service']} does not answer", service=service)
        for service in services
        if not service["heard"]
    ]
    found += [
        _line(BROKEN, f"the decider of cell {cell} is silent")
        for cell, (_, heard_s) in known.quality.items()
        if now_s - heard_s > DECIDER_SILENT_S
    ]
    for row in rows:
        found += _of_cluster(row, known, now_s)
    found += map(_told, of_letters(known.letters, now_s))
    if known.jobs.unreadable:
        found.append(_line(BROKEN, f"{len(known.jobs.unreadable)} jobs have unreadable events"))
    found.sort(key=lambda line: line["level"] != BROKEN)
    return found[:MOST]


def _of_cluster(row: ClusterRow, known: Known, now_s: float) -> Iterable[dict[str, Any]]:
    alive = known.alive.get(row.cluster)
    for found in of_cluster(row, alive.interval_s if alive else 0.0):
        yield _told(found)
    yield from map(_told, of_gpus(row.cluster, known.fleet.faulty_gpus(row.cluster)))
    yield from map(_told, of_cordons(known.fleet.cordons_of(row.cluster)))
    if (grid := known.grids.get(row.cluster)) is not None:
        yield from _of_grid(row.cluster, grid)
        yield from map(_told, of_nodes(row.cluster, (n.report for n in grid.nodes.values())))


def _of_grid(cluster: str, grid: Grid) -> Iterable[dict[str, Any]]:
    marks = grid.rows[:, MARKS]
    if lost := int(np.count_nonzero(marks & LOST)):
        yield _line(BROKEN, f"{many(lost, 'GPU')} lost", cluster=cluster)
    if degraded := int(np.count_nonzero(marks & DEGRADED)):
        yield _line(NOTE, f"{many(degraded, 'GPU')} degraded", cluster=cluster)
    away = sum(1 for node in grid.nodes.values() if not node.report.ready)
    if away:
        yield _line(BROKEN, f"{many(away, 'node')} not ready", cluster=cluster)
    measured = [node for node in grid.nodes.values() if node.number >= 0]
    silent = sum(1 for node in measured if not node.heard_s)
    if silent and silent < len(measured):
        yield _line(NOTE, f"{many(silent, 'node')} without readings", cluster=cluster)
    elif silent and bool(((marks & (SILENT | NOT_READY)) == SILENT).any()):
        yield _line(NOTE, "no readings of its GPUs", cluster=cluster)


def _line(
    level: str, text: str, *, cluster: str = "", service: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    since = service["last_at_s"] if service is not None else None
    return {"level": level, "cluster": cluster, "text": text, "since_s": since}


def _told(found: Problem) -> dict[str, Any]:
    """Return a line without the names of tenants' jobs, because every user sees it."""
    told = {"level": found.level, "cluster": found.cluster, "text": found.text}
    return told | {"since_s": found.since_s}
