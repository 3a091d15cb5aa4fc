"""GPUs that telemetry calls lost: a node's report without them, though it may call them healthy.
Pure."""

from collections.abc import Collection

from msgspec.structs import replace

from berthmaster.lib.messages.fleet import NodeReport


def without_lost(report: NodeReport, indices: Collection[int]) -> NodeReport:
    """The report with the GPUs of these indices not healthy, so that they get no new pods and keep
    what runs on them. The same object where that changes nothing."""
    if not any(gpu.healthy and gpu.index in indices for gpu in report.gpus):
        return report
    gpus = tuple(
        replace(gpu, healthy=gpu.healthy and gpu.index not in indices) for gpu in report.gpus
    )
    return replace(report, gpus=gpus)
