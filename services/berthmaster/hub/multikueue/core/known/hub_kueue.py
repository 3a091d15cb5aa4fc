"""Whether the hub's Kueue works, by its writes.

Kueue publishes no state of itself on a hub. But while something waits for Kueue, it writes soon: a
Workload for a new Job, a condition about quota, a copy for a nomination. A long time without any
write, while something waits, means that its manager is down or cut off. Waits for others, such as a
worker's quota, prove nothing.
"""

from typing import Final

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, Rules
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.kueue.contract import forbidden, held_back
from berthmaster.lib.kueue.names import FINISHED, MULTIKUEUE, QUEUE_LABEL, QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload

EVERY_S: Final = 1.0  # all Workloads are looked through at most so often


class HubKueue:
    """One hub's manager, seen from outside."""

    def __init__(self) -> None:
        self.waiting = 0  # number of objects that wait for Kueue
        self.silent_since_s = float("inf")  # infinite while it works, or nothing waits
        self.back_at_s = float("-inf")  # end of the last silence
        self._writes = -1  # number of Kueue's writes in the mirror
        self._wrote_at_s = float("-inf")
        self._waits_since_s = float("inf")
        self._looked_at_s = float("-inf")
        self._moved = False  # Kueue wrote since the last check

    @property
    def silent(self) -> bool:
        return self.silent_since_s < float("inf")

    @property
    def due_s(self) -> float:
        """When to look again: only while something waits, or may wait since its last write."""
        is_due = self.waiting or self._moved
        return self._looked_at_s + EVERY_S if is_due else float("inf")

    def look(self, hub: Hub, know: BusState, policy: HubPolicy, now_s: float) -> bool:
        """Check Kueue. Return whether the result changed."""
        if hub.kueue_writes != self._writes:
            self._writes, self._wrote_at_s = hub.kueue_writes, now_s
            self._waits_since_s = float("inf")
            self._moved = True
        # A manager at work writes hundreds of times a second: what waits is not counted each time.
        if now_s < self._looked_at_s + EVERY_S and not (self._moved and self.silent):
            return False
        self._moved = False
        self._looked_at_s = now_s
        self.waiting = 0 if hub.trouble or not hub.complete else _waiting(hub, know, policy, now_s)
        if self.waiting:
            self._waits_since_s = min(self._waits_since_s, now_s)
        else:
            self._waits_since_s = float("inf")
        was = self.silent
        since_s = max(self._wrote_at_s, self._waits_since_s)
        self.silent_since_s = since_s if now_s >= since_s + policy.hub_mute_s else float("inf")
        if was and not self.silent:
            self.back_at_s = now_s
        return was != self.silent

    @property
    def since_s(self) -> float:
        """Return the start of Kueue's activity; infinite while silent."""
        return float("inf") if self.silent else self.back_at_s

    def silent_s(self, now_s: float) -> float:
        """Return the duration of the silence; 0 while it works."""
        return now_s - self.silent_since_s if self.silent else 0.0

    def words(self, now_s: float) -> str:
        """Describe the silence, or ""."""
        if not self.silent:
            return ""
        wait = "waits" if self.waiting == 1 else "wait"
        return (
            f"the hub's Kueue has written nothing for {now_s - self.silent_since_s:.0f} s while "
            f"{self.waiting} {wait}: does its manager run?"
        )


def _waiting(hub: Hub, know: BusState, policy: HubPolicy, now_s: float) -> int:
    """How many Jobs and Workloads of MultiKueue's queues only its manager can bring further."""
    jobs = sum(
        job.spec.managed_by == MULTIKUEUE
        and not job.metadata.deletion_timestamp
        and not job.ended
        and not hub.owns(at)
        and hub.rules_at((at[0], job.metadata.labels.get(QUEUE_LABEL, ""))) is not None
        for at, job in hub.jobs.items()
    )
    return jobs + sum(
        _waits(workload, rules, know, policy, now_s)
        for workload in hub.workloads.values()
        if (rules := hub.rules(workload)) is not None
    )


def _waits(
    workload: KueueWorkload, rules: Rules, know: BusState, policy: HubPolicy, now_s: float
) -> bool:
    if workload.holds(FINISHED) or workload.deleting or not workload.active or rules.problem:
        return False
    if workload.condition(QUOTA_RESERVED) is None:
        return True  # Kueue reports here, whatever the error of its queue
    if forbidden(workload, rules.check) or held_back(workload, rules.check, ()):
        return False
    if not workload.nominated:
        return False  # dispatch mode nominates, and AllAtOnce needs no nomination
    meta = workload.metadata
    clusters = [ref for ref in rules.clusters if ref.hub_name in workload.nominated]
    copies = [know.copies.get((ref.name, meta.namespace, meta.name)) for ref in clusters]
    if any(copy is not None for copy in copies):
        return False
    return any(
        not ref.closed
        and now_s - know.view.clusters.peek(ref.name).alive_at_s <= policy.stale_after_s
        and know.local_queue(ref.name, meta.namespace, workload.spec.queue_name) is not None
        for ref in clusters
    )
