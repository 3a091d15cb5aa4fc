"""The hub's own Kueue, seen from outside: whether it is at work, and how fast it serves.

Kueue publishes no state of itself on a hub. But while something waits for Kueue, it writes soon: a
Workload for a new Job, a condition about quota, a copy for a nomination. A long time without any
write, while something waits, means that its manager is down or cut off. Waits for others, such as a
worker's quota, prove nothing.

**Pace.** The hub's manager serves one Workload after another, with about five calls a second to a
worker: under 80 Jobs a quarter of a minute goes by before a copy is made, and no worker is to blame
for that. So patience counts

- from when the copy is there, as the worker tells it;
- where no copy is heard of, from when the hub made one for a Workload that was nominated later,
  since it has passed this one over; and at the latest a second after the nomination for each
  Workload that waits for a copy, which is more than the hub needs.

For example, of 40 nominated at once the last one's patience counts from when its copy comes, say
after 20 s. One whose copy never comes begins to count when the next one's has come, or after 40 s.

A start of the manager puts every Workload that is there behind all news, and a failed try leaves it
there: such a Workload waits for minutes. Any write to it puts it at the end of the usual line. So
``is_held`` says that a Workload should be written, and ``nudged`` notes the write. For example, A
is nominated at 0 s and the manager restarts at 1 s. B is nominated at 2 s and has its copy at 3 s.
A is written at 10 s and has its copy at 11 s. A second write needs new signs and twice the time.

After a nomination is taken back the hub's manager needs the same time to remove the copy, which
``clears_until_s`` estimates where no copy was reported.
"""

from collections import deque
from typing import Final

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub, Rules
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.kueue.contract import forbidden, held_back
from berthmaster.lib.kueue.names import FINISHED, MULTIKUEUE, QUEUE_LABEL, QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key

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


A_WORKLOAD_S: Final = 1.0  # maximum time of the hub for one Workload
HELD_S: Final = 10.0  # nominated without a copy for so long: the hub's manager may hold it back
MOST_DOUBLINGS: Final = 6
CLEAR_S: Final = 2.0  # maximum time of an idle hub to remove a copy
LONGEST_CLEAR_S: Final = 60.0
LATELY_S: Final = 60.0  # validity of a measured delay
ORDER_S: Final = 1.0  # distance of writes that are seen in order
_Nominated = tuple[str, int]  # cluster, attempt


class _Waiting:
    __slots__ = (
        "nominated",
        "nudges",
        "passed_at_s",
        "passed_in",
        "served_at_s",
        "since_s",
        "until_s",
    )

    def __init__(self, nominated: _Nominated, since_s: float, until_s: float) -> None:
        self.nominated = nominated
        self.since_s = since_s  # time of the nomination, or of the last wake-up write
        self.until_s = until_s  # time at which the hub has surely handled it
        self.served_at_s: float | None = None  # first report of its copy
        self.nudges = 0  # number of wake-up writes
        self.passed_at_s = float("inf")  # time at which a later nomination got its copy
        self.passed_in: set[str] = set()  # clusters of those, since the last wake-up write


class HubPace:
    """The pace of one hub in this process run. Losing it costs time only."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._unserved: dict[Key, None] = {}  # the oldest first
        self._served_at_s = float("-inf")  # time of the last copy
        self._newest_served_s = float("-inf")  # latest nomination with a copy
        self._delays: deque[tuple[float, float]] = deque()  # when served, after how long; falling

    def since_s(self, view: WorkloadView, now_s: float) -> float:
        """From when on patience counts for it; ``now_s`` or later: not yet."""
        bus, name = view.bus, view.name
        if bus is None or bus.state is not State.CLAIMED or bus.cluster not in view.nominated:
            if view.hub is not None and view.hub.cluster_name and name in self._unserved:
                self._served(name, now_s)
            self.over(name)
            return now_s
        nominated = (bus.cluster, bus.attempt)
        one = self._waiting.get(name)
        if one is None or one.nominated != nominated:
            self._unserved.pop(name, None)
            self._unserved[name] = None
            until_s = now_s + A_WORKLOAD_S * len(self._unserved)
            one = self._waiting[name] = _Waiting(nominated, now_s, until_s)
        if one.served_at_s is None and view.copy is not None:
            self._served(name, now_s)
        if one.served_at_s is not None:
            return one.served_at_s
        return min(one.until_s, one.passed_at_s)

    def is_held(self, name: Key, now_s: float) -> bool:
        """Return whether the hub's manager holds the Workload back: later ones passed it, or none
        is served.
        """
        one = self._waiting.get(name)
        if one is None or one.served_at_s is not None:
            return False
        limit_s = HELD_S * 2.0 ** min(one.nudges, MOST_DOUBLINGS)
        idle = now_s >= self._served_at_s + limit_s
        return now_s >= one.since_s + limit_s and (idle or bool(one.passed_in))

    def nudged(self, name: Key, now_s: float) -> None:
        """Note a wake-up write, which moves the Workload to the end of the hub's queue."""
        one = self._waiting.get(name)
        if one is None or one.served_at_s is not None:
            return
        self._unserved.pop(name, None)
        self._unserved[name] = None
        one.nudges += 1
        one.since_s = now_s
        one.passed_in.clear()

    def is_refused(self, name: Key) -> bool:
        """Return whether the cluster takes no copies: the hub creates copies elsewhere, for later
        nominations too, and none of this one despite a write. Otherwise the hub is only slow.
        """
        one = self._waiting.get(name)
        if one is None or one.served_at_s is not None or not one.nudges:
            return False
        return bool(one.passed_in) and one.nominated[0] not in one.passed_in

    def clears_until_s(self, cleared_at_s: float, now_s: float) -> float:
        """Until when the hub may not have seen that a nomination was taken back then."""
        if self._newest_served_s > cleared_at_s + ORDER_S:
            return cleared_at_s  # it has served later changes
        while self._delays and self._delays[0][0] < now_s - LATELY_S:
            self._delays.popleft()
        slowest_s = self._delays[0][1] if self._delays else 0.0
        line_s = A_WORKLOAD_S * len(self._unserved)
        return cleared_at_s + min(LONGEST_CLEAR_S, max(CLEAR_S, slowest_s, line_s))

    def over(self, name: Key) -> None:
        """Remove a Workload without a nomination."""
        self._waiting.pop(name, None)
        self._unserved.pop(name, None)

    def _served(self, name: Key, now_s: float) -> None:
        one = self._waiting[name]
        one.served_at_s = self._served_at_s = now_s
        self._newest_served_s = max(self._newest_served_s, one.since_s)
        delay_s = now_s - one.since_s
        while self._delays and self._delays[-1][1] <= delay_s:
            self._delays.pop()
        self._delays.append((now_s, delay_s))
        self._unserved.pop(name, None)
        for each in self._unserved:
            other = self._waiting[each]
            if other.since_s >= one.since_s:
                break
            other.passed_at_s = min(other.passed_at_s, now_s)
            other.passed_in.add(one.nominated[0])
