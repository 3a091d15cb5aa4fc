"""Usage as annotations on Jobs: content, timing and removal. Pure.

A write of a Job costs its API server and every watcher far more than a message. So a Job is written
again only after ``every_s``, and only after a relevant change. Begin and end of idleness are
written at once. The profile of the attempt goes along with a write that is due. Annotations are
removed at the end of the job. A label marks annotated Jobs, so that leftovers of an earlier process
run are found.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.kube.objects import timestamp
from berthmaster.lib.kube.resources import JOB_SETS, JOBS
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.profiles.bound_by import bound_by
from berthmaster.lib.profiles.sketch import Sketch
from berthmaster.lib.profiles.spreads import add, medians, spreads
from berthmaster.worker.job_metrics.core.instructions import Annotate

PREFIX: Final = "berthmaster.io/"
UTILIZATION: Final = f"{PREFIX}gpu-utilization-percent"
MEMORY: Final = f"{PREFIX}gpu-memory-used-mib"
POWER: Final = f"{PREFIX}gpu-power-w"
IDLE: Final = f"{PREFIX}gpus-idle-since"
BOUND_BY: Final = f"{PREFIX}bound-by"
PROFILE: Final = f"{PREFIX}profile"  # JSON: p50, p95 and peak of each metric of this attempt so far
MARK: Final = f"{PREFIX}figures"  # label
ALL: Final = (UTILIZATION, MEMORY, POWER, IDLE, BOUND_BY, PROFILE)
STEP_PERCENT: Final = 10.0  # of utilization
STEP_SHARE: Final = 0.2  # of memory and power
RESOURCES: Final = {one.kind: one for one in (JOBS, JOB_SETS)}
AGAIN_S: Final = 30.0  # retry interval


class _Written(NamedTuple):
    at_s: float
    figures: JobFigures | None  # None: from an earlier process run, or unknown
    bound_by: str = ""


class Notes:
    """Annotations on the Jobs of one cluster."""

    def __init__(self, namespaces: tuple[str, ...], every_s: float) -> None:
        self._namespaces = frozenset(namespaces)
        self._every_s = every_s
        self._written: dict[str, _Written] = {}  # by uid
        self._sketches: dict[str, dict[str, Sketch]] = {}  # by uid, of jobs that may be written on

    def serves(self, figures: JobFigures) -> bool:
        return figures.namespace in self._namespaces and figures.kind in RESOURCES

    def write(self, figures: JobFigures, now_s: float) -> list[Annotate]:
        """Return the writes for a message."""
        if not self.serves(figures):
            return []
        known = self._written.get(figures.uid)
        if figures.ended:
            self._sketches.pop(figures.uid, None)
            return self._clear(figures) if known is not None else []
        sketches = self._sketches.setdefault(figures.uid, {})
        add(sketches, figures)
        if known is not None and not self._is_due(known, figures, now_s):
            return []
        host = figures.host
        pods = host.pods if host is not None else figures.pods
        bound = bound_by(medians(sketches), pods).bound_by
        if known is not None and not _differs(known, figures, bound):
            return []
        self._written[figures.uid] = _Written(now_s, figures, bound)
        use = figures.use
        idle = figures.idle_since_s if figures.idle_for_long else None
        told: dict[str, str | None] = {
            UTILIZATION: _text(use.utilization_percent),
            MEMORY: _text(use.memory_used_mib),
            POWER: _text(use.power_w),
            IDLE: None if idle is None else timestamp(idle),
            BOUND_BY: bound or None,
            PROFILE: _spreads(sketches),
        }
        return [_annotate(figures.kind, figures.namespace, figures.name, figures.uid, told, "true")]

    def _is_due(self, known: _Written, figures: JobFigures, now_s: float) -> bool:
        """Return whether the interval permits a write: most messages end here."""
        if known.figures is None:
            return now_s - known.at_s >= AGAIN_S
        is_urgent = known.figures.idle_for_long != figures.idle_for_long
        return is_urgent or now_s - known.at_s >= self._every_s

    def failed(self, write: Annotate, now_s: float) -> None:
        if write.uid in self._written:
            self._written[write.uid] = _Written(now_s, None)

    def left_over(self, kind: str, namespace: str, name: str, uid: str) -> list[Annotate]:
        """Return the writes that clean an ended, marked Job."""
        self.gone(uid)
        if namespace not in self._namespaces:
            return []
        gone: Mapping[str, str | None] = dict.fromkeys(ALL)
        return [_annotate(kind, namespace, name, uid, gone, None)]

    def gone(self, uid: str) -> None:
        self._written.pop(uid, None)
        self._sketches.pop(uid, None)

    def _clear(self, figures: JobFigures) -> list[Annotate]:
        return self.left_over(figures.kind, figures.namespace, figures.name, figures.uid)


def _differs(known: _Written, figures: JobFigures, bound: str) -> bool:
    """Return whether the annotations would change enough for a write."""
    if known.figures is None or known.figures.idle_for_long != figures.idle_for_long:
        return True
    was, now = known.figures.use, figures.use
    return (
        known.bound_by != bound
        or _moved(was.utilization_percent, now.utilization_percent, STEP_PERCENT, 0.0)
        or _moved(was.memory_used_mib, now.memory_used_mib, 0.0, STEP_SHARE)
        or _moved(was.power_w, now.power_w, 0.0, STEP_SHARE)
    )


def _annotate(
    kind: str,
    namespace: str,
    name: str,
    uid: str,
    told: Mapping[str, str | None],
    mark: str | None,
) -> Annotate:
    return Annotate(RESOURCES[kind], namespace, name, uid, told, {MARK: mark})


def _spreads(sketches: Mapping[str, Sketch]) -> str | None:
    found = spreads(sketches)
    return msgspec.json.encode(found).decode() if found else None


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _moved(was: float | None, now: float | None, step: float, share: float) -> bool:
    if was is None or now is None:
        return was is not now
    return abs(now - was) >= max(step, share * abs(was), 1.0)
