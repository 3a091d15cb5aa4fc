"""Jobs' figures for Prometheus: a bounded number of time series, whatever runs in the cluster."""

from collections.abc import Iterable
from typing import Final

from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.worker.job_metrics.core.attribution import Disagreement
from berthmaster.worker.job_metrics.core.figures import Figures

LABELS: Final = ("namespace", "job")
REST: Final = ("", "(others)")


class FiguresMetrics:
    """Counters, and gauges read from the core."""

    def __init__(self, metrics: Metrics, shown: int) -> None:
        self._shown_jobs = shown
        self.sent = metrics.counter("messages", "Figures of jobs given to NATS")
        self.dropped = metrics.counter("messages_dropped", "Figures of jobs not sent", ["why"])
        self.unread = metrics.counter("telemetry_unread", "Telemetry that does not count", ["why"])
        self._jobs = metrics.gauge("jobs", "Jobs that have figures")
        self._idle = metrics.gauge("jobs_idle", "Jobs that have left all their GPUs idle for long")
        self._wrong = metrics.gauge(
            "disagreements", "Contradictions on whose a GPU is that last, by kind", ["kind"]
        )
        self._gauges = {
            "gpus": metrics.gauge("job_gpus", "GPUs, or parts of them, that a job has", LABELS),
            "utilization_percent": metrics.gauge(
                "job_utilization_percent", "Mean over the job's GPUs and half a minute", LABELS
            ),
            "sm_active_percent": metrics.gauge(
                "job_sm_active_percent", "Mean share of its GPUs' SMs that had work", LABELS
            ),
            "memory_used_mib": metrics.gauge(
                "job_memory_used_mib", "Memory of its GPUs that is used", LABELS
            ),
            "power_w": metrics.gauge("job_power_watts", "Of its GPUs together", LABELS),
        }
        self._idle_jobs = metrics.gauge(
            "job_idle_seconds", "For how long all of a job's GPUs have done nothing", LABELS
        )
        self._series: set[tuple[str, str]] = set()
        self._before: dict[str, int] = {}

    def show(self, core: Figures, now_s: float) -> None:
        """Take over the present values."""
        self._jobs.set(core.meter.jobs)
        self._idle.set(core.idle)
        found = core.meter.disagreements()
        for kind in Disagreement:
            self._wrong.labels(kind.value).set(found[kind])
        for why, count in core.meter.dropped.items():
            self.unread.labels(why).inc(count - self._before.get(why, 0))
            self._before[why] = count
        by_size = sorted(core.latest.values(), key=lambda one: (-one.use.gpus, _key(one)))
        top, rest = by_size[: self._shown_jobs], by_size[self._shown_jobs :]
        shown = {_key(one): one for one in top}
        for key, one in shown.items():
            self._set(key, one.use)
            since_s = one.idle_since_s
            self._idle_jobs.labels(*key).set(max(0.0, now_s - since_s) if since_s else 0.0)
        now = set(shown)
        if rest:
            now.add(REST)
            self._set(REST, _sum(one.use for one in rest))
        for key in self._series - now:
            for gauge in (*self._gauges.values(), self._idle_jobs):
                self._remove(gauge, key)
        self._series = now

    def _set(self, key: tuple[str, str], use: GpuUse) -> None:
        for name, gauge in self._gauges.items():
            value = getattr(use, name)
            if value is None:
                self._remove(gauge, key)  # not measured is not zero
            else:
                gauge.labels(*key).set(value)

    @staticmethod
    def _remove(gauge: object, key: tuple[str, str]) -> None:
        try:
            gauge.remove(*key)  # type: ignore[attr-defined]
        except KeyError:
            pass


def _key(figures: JobFigures) -> tuple[str, str]:
    """Return the job's name in labels: for a managed job its id."""
    return figures.namespace, figures.id or f"{figures.kind}/{figures.name}"


def _sum(uses: Iterable[GpuUse]) -> GpuUse:
    """Return the summable usage of the other jobs."""
    every = list(uses)
    used = [one.memory_used_mib for one in every if one.memory_used_mib is not None]
    power = [one.power_w for one in every if one.power_w is not None]
    return GpuUse(
        gpus=sum(one.gpus for one in every),
        memory_used_mib=sum(used) if used else None,
        power_w=sum(power) if power else None,
    )
