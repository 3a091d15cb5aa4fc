"""Checks of messages: impossible ones are ignored, and counted by reason. Pure.

Only inputs of scores are checked. JSON cannot carry NaN or infinite values, but the core has other
callers than its own decoder.
"""

import enum
import math

from berthmaster.lib.messages.fleet import Amounts, NodeReport
from berthmaster.lib.messages.telemetry import NodeTelemetry

MAX_GPUS_A_NODE = 1024
MAX_TPUS_A_NODE = 4096
MAX_CPU_MILLI = 100_000_000  # 100,000 cores. The largest machines have some thousands
MAX_MEMORY_MIB = 1 << 30  # 1 PiB
MAX_INTERVAL_S = 300.0  # maximum setting of our own agent. Telemetry is live for three
MAX_COUNTER = 1 << 62


class Drop(enum.StrEnum):
    """Why a message had no effect."""

    UNDECODABLE = "undecodable"
    WRONG_SUBJECT = "wrong_subject"  # subject and body name different things
    OLD = "old"  # a newer message is known
    UNKNOWN_NODE = "unknown_node"  # telemetry of a node without a fact
    FUTURE = "from_the_future"
    NOT_FINITE = "not_finite"
    ABSURD = "absurd"
    DUPLICATE_GPU = "duplicate_gpu"


def judge_telemetry(told: NodeTelemetry, now_s: float, future_limit_s: float) -> Drop | None:
    """Return why telemetry is rejected, or None."""
    if not (math.isfinite(told.observed_at_s) and math.isfinite(told.interval_s)):
        return Drop.NOT_FINITE
    if told.observed_at_s > now_s + future_limit_s:
        return Drop.FUTURE
    if not 0 < told.interval_s <= MAX_INTERVAL_S or len(told.gpus) > MAX_GPUS_A_NODE:
        return Drop.ABSURD
    if not (0 <= told.epoch <= MAX_COUNTER and 0 <= told.counter <= MAX_COUNTER):
        return Drop.ABSURD
    for gpu in told.gpus:
        percent = gpu.utilization_percent
        if percent is not None and not 0 <= percent <= 100:
            return Drop.ABSURD if math.isfinite(percent) else Drop.NOT_FINITE
    return None


def judge_report(told: NodeReport) -> Drop | None:
    """Return why a node's report is rejected, or None."""
    if not (_sensible(told.allocatable) and _sensible(told.foreign)):
        return Drop.ABSURD
    if len(told.gpus) > MAX_GPUS_A_NODE:
        return Drop.ABSURD
    if any(
        not (0 <= pod.cpu_milli <= MAX_CPU_MILLI and 0 <= pod.memory_mib <= MAX_MEMORY_MIB)
        or not (0 <= pod.gpu_milli <= 1000 and 0 <= pod.tpus <= MAX_TPUS_A_NODE)
        for pod in told.pods
    ):
        return Drop.ABSURD
    if any(not 0 <= gpu.foreign_milli <= MAX_GPUS_A_NODE * 1000 for gpu in told.gpus):
        return Drop.ABSURD
    if len({gpu.index for gpu in told.gpus}) < len(told.gpus):
        return Drop.DUPLICATE_GPU
    uuids = [gpu.uuid for gpu in told.gpus if gpu.uuid]
    return Drop.DUPLICATE_GPU if len(set(uuids)) < len(uuids) else None


def believable_interval(interval_s: float) -> float:
    """Return the interval that a reporter announces, or 0 if impossible."""
    return interval_s if math.isfinite(interval_s) and 0 < interval_s <= MAX_INTERVAL_S else 0.0


def _sensible(amounts: Amounts) -> bool:
    return (
        0 <= amounts.cpu_milli <= MAX_CPU_MILLI
        and 0 <= amounts.memory_mib <= MAX_MEMORY_MIB
        and 0 <= amounts.gpu_milli <= MAX_GPUS_A_NODE * 1000
        and 0 <= amounts.tpus <= MAX_TPUS_A_NODE
    )
