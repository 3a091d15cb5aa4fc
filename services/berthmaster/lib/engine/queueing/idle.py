"""Which running jobs are idle, and what their queue says of them. Pure.

The gateway measures and appends ``idle_changed`` to the log; deciders read the log alone. A verdict
counts for ``VALID_S``: the gateway renews it while the job stays idle and takes it back at the
first sample that says otherwise. So a gateway that is gone makes nobody idle for long.

Example: a queue says ``idle_after_s=7200, idle_then="hold"``. Its job train leaves 8 GPUs below 5 %
for two hours. A waiting job that fits nowhere else may have them: train is evicted for it by the
right "idle", and is held.

Rules of this file:

- Nothing happens to an idle job as long as no job waits for its GPUs.
- ``shrink`` takes pods of elastic jobs down to their least number, and evicts none.
- Only jobs that are preemptible lose anything, within the budgets of evictions.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import IdleThen, QueueSetting

VALID_S: Final = 900.0


def idle_action(
    workload: Workload, queues: Mapping[str, QueueSetting], now_s: float
) -> IdleThen | None:
    """Return what may happen to a job for being idle; None if nothing may."""
    idle, request = workload.idle, workload.request
    if idle is None or request is None or not request.preemptible:
        return None
    if now_s - idle.seen_s > VALID_S:
        return None
    setting = queues.get(request.queue)
    if setting is None or setting.idle_after_s is None or setting.idle_then == "report":
        return None
    # Of a setting that asks for more than the verdict says, the verdict is too weak.
    lasts = idle.seen_s - idle.since_s >= setting.idle_after_s
    below = idle.utilization_percent < setting.idle_below_percent
    return setting.idle_then if lasts and below else None
