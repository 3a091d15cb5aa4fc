"""Clusters that a Workload avoids: Kueue there looks at no copies, or its job's name is taken.

**Attention.** A worker with a dead Kueue runs nothing, so it looks emptiest and attracts
everything. Facts of nodes and queues do not show this, copies do. Example: a copy in w1 has no
condition after ``neglect_s`` of heartbeats, while Kueue in w2 reacted within the last minute. Then
w1 goes last.

Rules of this file:

- A copy that Kueue ignored for some seconds, during heartbeats of its cluster and reactions
  elsewhere within a minute, shows a dead Kueue there, and not a slow hub or an unreachable cluster.
- Also one patience that ran out is evidence, unless that Kueue answered that quota is used up, or
  the cluster was silent: a returning cluster is as good as any.
- The evidence holds for all Workloads until an admission there. After ten minutes without new
  evidence one Workload may try again, since no admission happens without one.

Reasons of evictions in the log carry the evidence (``RAN_OUT`` and ``NEGLECTED``), so a restarted
process knows it too. Times are the server's.

**Names taken.** Kueue can make no job there. An attempt that ends for it has a reason that begins
with ``NAME_TAKEN``, so that every replica and every later process run leaves the cluster out, for
this Workload alone. Somebody may remove that object: five minutes later the cluster may be tried
again.

Example: ``evicted`` of job-train from w1 at 100 s, with "name taken: w1 has another Job
team/train". Until 400 s job-train is not sent to w1.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.fleet import CopyReport, QueueReport
from berthmaster.lib.messages.workload import Admitted, Evicted, WorkloadEvent

RAN_OUT: Final = "not admitted within"
NEGLECTED: Final = "nobody has looked at its copy"
SAME_S: Final = 0.5  # facts of one moment are stored within
ELSEWHERE_S: Final = 60.0  # age of reactions elsewhere that still show a working bus
LAST_FOR_S: Final = 600.0
AWAY_S: Final = 5.0  # gap between heartbeats that counts as out of reach
BACK_S: Final = 30.0  # reconnect time of managers that lost their API server
_FIRST_HAND: Final = (RAN_OUT, NEGLECTED)
_Copy = tuple[str, str]  # namespace, Workload


class Attention:
    def __init__(self) -> None:
        self._unseen: dict[str, dict[_Copy, float]] = {}  # ignored copies -> since when
        self._looked_at_s: dict[str, float] = {}  # at any copy there, last
        self._alive_at_s: dict[str, float] = {}  # when Kueue there wrote anything, last
        self._heard_at_s: dict[str, float] = {}  # the cluster's sign of life, last
        # Evidence against a cluster, with its text
        self._failed_at_s: dict[str, tuple[float, str]] = {}

    # Events

    def sign_of_life(self, cluster: str, at_s: float) -> None:
        """Apply a heartbeat. After a gap, copies count from the time at which Kueue
        could be back.
        """
        unseen = self._unseen.get(cluster, {})
        if at_s > self._heard_at_s.get(cluster, at_s) + AWAY_S:
            unseen.update(dict.fromkeys(unseen, at_s + BACK_S))
        self._heard_at_s[cluster] = at_s

    def copy_reported(self, now: CopyReport, before: CopyReport | None, at_s: float) -> None:
        """Apply a report of a copy. ``before``: the last report."""
        unseen, key = self._unseen.setdefault(now.cluster, {}), (now.namespace, now.workload)
        if not now.gone and not now.looked_at:
            unseen.setdefault(key, at_s)
            return
        unseen.pop(key, None)
        if now.gone:
            return
        if before is None or not before.looked_at:
            self._looked_at_s[now.cluster] = self._alive_at_s[now.cluster] = at_s
        if now.admitted and before is not None and not before.admitted:
            self._failed_at_s.pop(now.cluster, None)

    def queue_reported(self, now: QueueReport, before: QueueReport | None, at_s: float) -> None:
        """Apply a report of a queue. Only Kueue changes its counts, so a change shows that Kueue
        works.
        """
        counts = (now.pending, now.admitted, _used(now))
        if before is not None and counts != (before.pending, before.admitted, _used(before)):
            self._alive_at_s[now.cluster] = at_s

    def copy_gone(self, cluster: str, namespace: str, workload: str) -> None:
        """Remove a copy missing from a new listing."""
        self._unseen.get(cluster, {}).pop((namespace, workload), None)

    def learn(self, event: WorkloadEvent, at_s: float) -> None:
        """Apply an event of the log."""
        if isinstance(event, Admitted):
            self._failed_at_s.pop(event.cluster, None)
        elif isinstance(event, Evicted) and event.reason.startswith(_FIRST_HAND):
            self._failed_at_s[event.cluster] = at_s, event.reason

    # Results

    def neglected_s(self, copy: CopyReport, now_s: float, limit_s: float) -> float:
        """Return for how long Kueue has ignored a copy, if that shows a dead Kueue; else 0."""
        key = (copy.namespace, copy.workload)
        since_s = self._unseen.get(copy.cluster, {}).get(key)
        heard_s = self._heard_at_s.get(copy.cluster, float("-inf"))
        if since_s is None or min(now_s, heard_s) < since_s + limit_s:
            return 0.0
        elsewhere = (at for name, at in self._looked_at_s.items() if name != copy.cluster)
        lately = max(elsewhere, default=float("-inf")) >= since_s - ELSEWHERE_S
        alive_s = self._alive_at_s.get(copy.cluster, float("-inf"))
        return now_s - since_s if lately and alive_s < since_s - SAME_S else 0.0

    def demoted(
        self, copies: Mapping[tuple[str, str, str], CopyReport], now_s: float, limit_s: float
    ) -> dict[str, str]:
        """Return the clusters that go last, with reasons. ``limit_s``: tolerated time of an ignored
        copy.
        """
        found = {
            cluster: words
            for cluster, (at_s, words) in self._failed_at_s.items()
            if now_s < at_s + LAST_FOR_S
        }
        for cluster, unseen in self._unseen.items():
            for at in unseen if cluster not in found else ():
                copy = copies.get((cluster, *at))
                if copy is not None and self.neglected_s(copy, now_s, limit_s):
                    found[cluster] = f"{NEGLECTED} for {limit_s:g} s, while others are looked at"
                    break
        return found


def _used(report: QueueReport) -> list[int]:
    return [one.used for flavor in report.flavors for one in flavor.resources.values()]


NAME_TAKEN: Final = "name taken"
TAKEN_FOR_S: Final = 300.0


def taken_words(cluster: str, blocked_by: str) -> str:
    """Return the reason of an attempt that ends for an object such as "Job team/train"."""
    kind, _, name = blocked_by.partition(" ")
    return f"{NAME_TAKEN}: {cluster} has another {kind} of this name ({name})"


class NamesTaken:
    def __init__(self) -> None:
        self._found: dict[Key, dict[str, tuple[float, str]]] = {}  # -> cluster -> time, text

    def learn(self, event: WorkloadEvent, at_s: float) -> None:
        """Apply an event of the log."""
        if isinstance(event, Evicted) and event.reason.startswith(NAME_TAKEN):
            words = event.reason.removeprefix(f"{NAME_TAKEN}: {event.cluster} ")
            name = key(event.tenant, event.id)
            self._found.setdefault(name, {})[event.cluster] = (at_s, words)

    def forget(self, name: Key) -> None:
        """Drop an ended workload."""
        self._found.pop(name, None)

    def why_not(self, name: Key, cluster: str, now_s: float) -> str:
        """Return why a workload cannot go to a cluster, or ""."""
        at_s, words = self._found.get(name, {}).get(cluster, (float("-inf"), ""))
        return words if now_s < at_s + TAKEN_FOR_S else ""
