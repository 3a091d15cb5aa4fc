"""Which GPUs get no new pods: those found faulty, and those that operators cordoned. Pure.

Telemetry is an observation and closes nothing by itself. The scorer makes a fact of it
(``ClusterScore.closed_gpus``), and operators' orders are facts too, so a decision can be repeated.

Example: GPU 3 is closed since 12:00 for memory errors. At 12:30 an operator opens it: it takes pods
although the errors are still counted. A new error at 13:00 closes it again.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from berthmaster.lib.messages.control import GpuCordon
from berthmaster.lib.messages.fleet import ClosedGpu, NodeReport

NO_ORDERS: Mapping[int, GpuCordon] = {}


def is_closed(gpu: ClosedGpu, order: GpuCordon | None) -> bool:
    """Return whether a faulty GPU stays closed after the newest order about it."""
    return order is None or order.cordoned or order.set_at_s < gpu.since_s


def closed_indices(faulty: Iterable[ClosedGpu], orders: Mapping[int, GpuCordon]) -> tuple[int, ...]:
    """Return the indices of a node's GPUs that get no new pods. ``orders``: the newest of each."""
    found = {gpu.index for gpu in faulty if is_closed(gpu, orders.get(gpu.index))}
    found |= {index for index, order in orders.items() if order.cordoned}
    return tuple(sorted(found))


def without_closed(report: NodeReport, indices: Collection[int]) -> NodeReport:
    """Return the report with the GPUs of these indices not healthy.

    They get no new pods and keep what runs on them. The same object where that changes nothing."""
    if not any(gpu.healthy and gpu.index in indices for gpu in report.gpus):
        return report
    gpus = tuple(
        msgspec.structs.replace(gpu, healthy=gpu.healthy and gpu.index not in indices)
        for gpu in report.gpus
    )
    return msgspec.structs.replace(report, gpus=gpus)
