"""Whether the hub's Kueue is at work, as far as what it writes shows it.

Kueue says nothing of itself on a hub. But while something waits for its hand it writes soon: a
Workload for a new Job, a word about quota, a copy where a cluster is nominated. If much time passes
without a single write while something waits, its manager does not run, or does not get through.
Whatever waits for somebody else (a worker's quota, a worker that is away) proves nothing here.
"""

from typing import Final

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, Rules
from berthmaster.hub.multikueue.settings import HubPolicy
from berthmaster.lib.kueue.contract import forbidden, held_back
from berthmaster.lib.kueue.names import FINISHED, MULTIKUEUE, QUEUE_LABEL, QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload

EVERY_S: Final = 1.0  # all Workloads are looked through at most so often


class HubKueue:
    """One hub's manager, seen from outside."""

    def __init__(self) -> None:
        self.waiting = 0  # for its hand
        self.silent_since_s = float("inf")  # infinite while it is at work, or nothing waits
        self.back_at_s = float("-inf")  # when it last broke a silence
        self._writes = -1  # of its own, as the mirror counts them
        self._wrote_at_s = float("-inf")
        self._waits_since_s = float("inf")
        self._looked_at_s = float("-inf")
        self._moved = False  # it has written since that look

    @property
    def silent(self) -> bool:
        """Whether it is taken for dead."""
        return self.silent_since_s < float("inf")

    @property
    def due_s(self) -> float:
        """When to look again: only while something waits, or may wait since its last write."""
        is_due = self.waiting or self._moved
        return self._looked_at_s + EVERY_S if is_due else float("inf")

    def look(self, hub: Hub, know: BusState, policy: HubPolicy, now_s: float) -> bool:
        """Whether what is thought of it has changed."""
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
        """Since when it is at work, as far as is known; infinite while it is not."""
        return float("inf") if self.silent else self.back_at_s

    def silent_s(self, now_s: float) -> float:
        """For how long it has been silent; 0 while it is not."""
        return now_s - self.silent_since_s if self.silent else 0.0

    def words(self, now_s: float) -> str:
        """What people are told of it, or ""."""
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
        return True  # whatever is wrong with its queue, Kueue says so here
    if forbidden(workload, rules.check) or held_back(workload, rules.check, ()):
        return False
    if not workload.nominated:
        return False  # in dispatch we nominate, and AllAtOnce asks no nomination of anybody
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
