"""Choice of the agent's source, by settings and machine.

"auto" uses the driver if present, else an answering dcgm-exporter, and never emulated GPUs. Only
the used source is imported, so an agent loads no other libraries.
"""

import time
from typing import Protocol

from berthmaster.lib.runtime.log import Log
from berthmaster.worker.telemetry.core.source import Source, SourceAbsent, SourceFailed
from berthmaster.worker.telemetry.settings import TelemetrySettings

DCGM_TIMEOUT_S = 3.0  # for the whole page; below READ_LIMIT_S, so that its error shows
HINT = "use --source dcgm where a dcgm-exporter runs, or --source emulated to try the agent"


class Opener(Protocol):
    """Opens a source; blocks, and is called in the source's own thread. Raises SourceAbsent."""

    def __call__(self, settings: TelemetrySettings, log: Log) -> Source:
        """The source, ready to be read."""
        ...


def open_source(settings: TelemetrySettings, log: Log) -> Source:
    """Return the configured source. Raises SourceAbsent with a remedy."""
    source = _gpu_source(settings, log)
    if settings.dcgm_fleet and source.kind == "dcgm":
        return source  # of other nodes, whose pods this one does not see
    from berthmaster.worker.telemetry.pod_usage import PodUsageReader, WithPodUsage

    return WithPodUsage(source, PodUsageReader(settings.proc, settings.cgroup))


def _gpu_source(settings: TelemetrySettings, log: Log) -> Source:
    match settings.source:
        case "nvml":
            try:
                return _nvml(settings, log)
            except SourceAbsent as absent:
                raise SourceAbsent(f"{absent}; {HINT}") from absent
        case "dcgm":
            return _dcgm(settings)
        case "emulated":
            return _emulated(settings)
        case "auto":
            return _auto(settings, log)


def _auto(settings: TelemetrySettings, log: Log) -> Source:
    try:
        return _nvml(settings, log)
    except SourceAbsent as absent:
        dcgm = _dcgm(settings)
        try:
            dcgm.read(time.monotonic())
        except SourceFailed as failed:
            dcgm.close()
            raise SourceAbsent(f"{absent}, and no dcgm-exporter ({failed}); {HINT}") from failed
        log.info("source_chosen", source="dcgm", why=str(absent))
        return dcgm


def _nvml(settings: TelemetrySettings, log: Log) -> Source:
    from berthmaster.worker.telemetry.nvml import open_nvml

    reader, version = open_nvml(settings.proc)
    log.info("driver_opened", version=version)
    from berthmaster.worker.telemetry.held import Held
    from berthmaster.worker.telemetry.kubelet import KubeletWatch

    return Held(reader, KubeletWatch(settings.kubelet))


def _dcgm(settings: TelemetrySettings) -> Source:
    if settings.dcgm_fleet:
        from berthmaster.worker.telemetry.dcgm_fleet import DcgmFleet

        return DcgmFleet(url=settings.dcgm_url, timeout_s=DCGM_TIMEOUT_S)
    from berthmaster.worker.telemetry.dcgm import DcgmSource

    return DcgmSource(url=settings.dcgm_url, node=settings.node, timeout_s=DCGM_TIMEOUT_S)


def _emulated(settings: TelemetrySettings) -> Source:
    from berthmaster.worker.telemetry.emulated import EmulatedSource

    return EmulatedSource(
        node=settings.node_name,
        gpus=8,
        model="a100",
        seed=0,
    )
