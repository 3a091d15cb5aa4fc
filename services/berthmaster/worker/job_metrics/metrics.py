"""Jobs' figures for Prometheus: a bounded number of time series, whatever runs in the cluster."""

from collections.abc import Iterable, Mapping
from typing import Final

from berthmaster.lib.messages.telemetry import GpuUse, HostUse, JobFigures
from berthmaster.lib.runtime.metrics import GaugeSeries, Metrics
from berthmaster.worker.job_metrics.core.attribution import Disagreement
from berthmaster.worker.job_metrics.core.figures import Figures

LABELS: Final = ("namespace", "job")
REST: Final = ("", "(others)")
OWNER_LABELS: Final = ("namespace", "owner")
# Metrics of pods and of the GPUs' links, by the field of HostUse or GpuUse: name, help.
OF_PODS: Final = {
    "cpu_cores": ("job_cpu_cores", "CPU cores that its pods use"),
    "memory_mib": ("job_memory_mib", "Memory of its nodes that its pods use, without file cache"),
    "disk_read_bytes_per_s": ("job_disk_read_bytes_per_second", "Read from disks by its pods"),
    "disk_write_bytes_per_s": ("job_disk_write_bytes_per_second", "Written to disks by its pods"),
    "network_receive_bytes_per_s": (
        "job_network_receive_bytes_per_second",
        "Received by its pods, loopback and the nodes' own network left out",
    ),
    "network_transmit_bytes_per_s": (
        "job_network_transmit_bytes_per_second",
        "Sent by its pods, loopback and the nodes' own network left out",
    ),
}
SUMMED: Final = ("memory_used_mib", "power_w", "pcie_bytes_per_s")


class FiguresMetrics:
    """Counters, and gauges read from the core."""

    def __init__(self, metrics: Metrics, shown: int) -> None:
        self._shown_jobs = shown
        self.sent = metrics.counter("messages", "Published usage messages of jobs")
        self.dropped = metrics.counter(
            "messages_dropped", "Usage messages of jobs not sent", ["why"]
        )
        self.unread = metrics.counter("telemetry_unread", "Ignored telemetry messages", ["why"])
        self._jobs = metrics.gauge("jobs", "Jobs with usage metrics")
        self._idle = metrics.gauge("jobs_idle", "Jobs with all GPUs idle for long")
        self._wrong = metrics.gauge(
            "disagreements", "Lasting contradictions about the owner of a GPU by kind", ["kind"]
        )
        of_gpus = {
            "gpus": metrics.gauge("job_gpus", "Allocated GPUs or fractions of the job", LABELS),
            "utilization_percent": metrics.gauge(
                "job_utilization_percent",
                "Mean utilization of the job's GPUs over half a minute",
                LABELS,
            ),
            "sm_active_percent": metrics.gauge(
                "job_sm_active_percent", "Mean share of SMs with work on the job's GPUs", LABELS
            ),
            "tensor_active_percent": metrics.gauge(
                "job_tensor_active_percent",
                "Mean share of cycles with work in tensor cores",
                LABELS,
            ),
            "dram_active_percent": metrics.gauge(
                "job_dram_active_percent", "Mean share of cycles in which DRAM moved data", LABELS
            ),
            "memory_bandwidth_percent": metrics.gauge(
                "job_memory_bandwidth_percent", "Mean share of time with accesses to DRAM", LABELS
            ),
            "pcie_bytes_per_s": metrics.gauge(
                "job_pcie_bytes_per_second", "Over PCIe, both directions, of its GPUs", LABELS
            ),
            "memory_used_mib": metrics.gauge(
                "job_memory_used_mib", "Used memory of the job's GPUs in MiB", LABELS
            ),
            "power_w": metrics.gauge("job_power_watts", "Power of the job's GPUs in watts", LABELS),
        }
        of_pods = {
            field: metrics.gauge(name, text, LABELS) for field, (name, text) in OF_PODS.items()
        }
        of_owners = {
            "gpus": metrics.gauge("owner_gpus", "GPUs that its jobs have", OWNER_LABELS),
            "utilization_percent": metrics.gauge(
                "owner_utilization_percent", "Mean over the GPUs of its jobs", OWNER_LABELS
            ),
        }
        idle = metrics.gauge(
            "job_idle_seconds", "Seconds for which all GPUs of the job are idle", LABELS
        )
        self._of_gpus = {field: GaugeSeries(gauge) for field, gauge in of_gpus.items()}
        self._of_pods = {field: GaugeSeries(gauge) for field, gauge in of_pods.items()}
        self._of_owners = {field: GaugeSeries(gauge) for field, gauge in of_owners.items()}
        self._idle_jobs = GaugeSeries(idle)
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
        uses = {_key(one): one.use for one in top}
        hosts = {_key(one): one.host or HostUse() for one in top}
        idle_s = {
            _key(one): max(0.0, now_s - one.idle_since_s) if one.idle_since_s else 0.0
            for one in top
        }
        if rest:
            uses[REST] = _sum(one.use for one in rest)
            hosts[REST] = _sum_of_pods(one.host for one in rest)
        _show(self._of_gpus, uses)
        _show(self._of_pods, hosts)
        self._idle_jobs.show(idle_s)
        self._show_owners(core.latest.values())

    def _show_owners(self, every: Iterable[JobFigures]) -> None:
        """Owners of several objects, such as RayJobs; the largest ones, as many as jobs."""
        uses = {
            (one.namespace, f"{one.owner.kind}/{one.owner.name}"): one.owner.use
            for one in every
            if one.owner is not None
        }
        largest = sorted(uses, key=lambda key: (-uses[key].gpus, key))[: self._shown_jobs]
        _show(self._of_owners, {key: uses[key] for key in largest})


def _show(
    gauges: Mapping[str, GaugeSeries], uses: Mapping[tuple[str, str], GpuUse | HostUse]
) -> None:
    """Set each gauge from its field of the uses. A field that is None has no series, because not
    measured is not zero.
    """
    for field, gauge in gauges.items():
        values = ((labels, getattr(use, field)) for labels, use in uses.items())
        gauge.show({labels: value for labels, value in values if value is not None})


def _key(figures: JobFigures) -> tuple[str, str]:
    """Return the job's name in labels: for a managed job its id."""
    return figures.namespace, figures.id or f"{figures.kind}/{figures.name}"


def _sum(uses: Iterable[GpuUse]) -> GpuUse:
    """Return the summable usage of the other jobs."""
    every = list(uses)
    found = {name: _known_sum(getattr(one, name) for one in every) for name in SUMMED}
    return GpuUse(gpus=sum(one.gpus for one in every), **found)  # type: ignore[arg-type]


def _sum_of_pods(uses: Iterable[HostUse | None]) -> HostUse:
    every = [one for one in uses if one is not None]
    found = {name: _known_sum(getattr(one, name) for one in every) for name in OF_PODS}
    return HostUse(pods=sum(one.pods for one in every), **found)


def _known_sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
