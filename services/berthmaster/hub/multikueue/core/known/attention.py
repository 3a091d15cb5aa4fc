"""In which clusters Kueue does not look at what it is sent: those go last, for all Workloads.

A worker whose Kueue is dead is a magnet: nothing runs there, so it looks emptiest. Facts of nodes
and queues do not show it, copies do. Rules of this file:

- A copy that nobody has looked at for some seconds in which its cluster was heard, while copies in
  another were looked at within the last minute, says that Kueue is dead there, and not that the hub
  is slow or the cluster out of reach.
- So does one patience that ran out, unless Kueue there answered that its quota is used up, or the
  cluster was silent altogether: once it is heard again it is as good as any.
- Either holds for all Workloads until a copy is admitted there; after ten minutes without new
  evidence one may try again, since nobody admits where nothing is sent.

Both are told in the log (``RAN_OUT`` and ``NEGLECTED`` begin the reasons of evictions), so that
whoever starts anew knows them too. Times are the server's.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.lib.messages.fleet import CopyReport, QueueReport
from berthmaster.lib.messages.workload import Admitted, Evicted, WorkloadEvent

RAN_OUT: Final = "not admitted within"
NEGLECTED: Final = "nobody has looked at its copy"
SAME_S: Final = 0.5  # facts of one moment are stored within
ELSEWHERE_S: Final = 60.0  # copies looked at elsewhere so lately show that facts come through
LAST_FOR_S: Final = 600.0
AWAY_S: Final = 5.0  # between two signs of life: it was out of reach
BACK_S: Final = 30.0  # managers that lost their API server wait so long before they try again
_FIRST_HAND: Final = (RAN_OUT, NEGLECTED)
_Copy = tuple[str, str]  # namespace, Workload


class Attention:
    def __init__(self) -> None:
        self._unseen: dict[str, dict[_Copy, float]] = {}  # copies nobody looked at -> since when
        self._looked_at_s: dict[str, float] = {}  # at any copy there, last
        self._alive_at_s: dict[str, float] = {}  # when Kueue there wrote anything, last
        self._heard_at_s: dict[str, float] = {}  # the cluster's sign of life, last
        self._failed_at_s: dict[str, tuple[float, str]] = {}  # evidence against it, and its words

    # What is heard

    def sign_of_life(self, cluster: str, at_s: float) -> None:
        """The cluster itself is there, whatever its Kueue does. What lay there while it was away
        counts from when its Kueue had its time to come back, too."""
        unseen = self._unseen.get(cluster, {})
        if at_s > self._heard_at_s.get(cluster, at_s) + AWAY_S:
            unseen.update(dict.fromkeys(unseen, at_s + BACK_S))
        self._heard_at_s[cluster] = at_s

    def copy_reported(self, now: CopyReport, before: CopyReport | None, at_s: float) -> None:
        """``before``: as it was reported last."""
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
        """Only Kueue counts what waits and what it has let in: where that changes, it lives, also
        if it looks at a copy only when its turn has come."""
        counts = (now.pending, now.admitted, _used(now))
        if before is not None and counts != (before.pending, before.admitted, _used(before)):
            self._alive_at_s[now.cluster] = at_s

    def copy_gone(self, cluster: str, namespace: str, workload: str) -> None:
        """A relisting did not find it."""
        self._unseen.get(cluster, {}).pop((namespace, workload), None)

    def learn(self, event: WorkloadEvent, at_s: float) -> None:
        """An event of the log that counted."""
        if isinstance(event, Admitted):
            self._failed_at_s.pop(event.cluster, None)
        elif isinstance(event, Evicted) and event.reason.startswith(_FIRST_HAND):
            self._failed_at_s[event.cluster] = at_s, event.reason

    # What follows

    def neglected_s(self, copy: CopyReport, now_s: float, limit_s: float) -> float:
        """For how long nobody has looked at a copy, if that says that Kueue is dead there; or 0."""
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
        """The clusters that go last, and why. ``limit_s``: for which a copy may lie unseen."""
        found = {
            cluster: words
            for cluster, (at_s, words) in self._failed_at_s.items()
            if now_s < at_s + LAST_FOR_S
        }
        for cluster, unseen in self._unseen.items():
            for key in unseen if cluster not in found else ():
                copy = copies.get((cluster, *key))
                if copy is not None and self.neglected_s(copy, now_s, limit_s):
                    found[cluster] = f"{NEGLECTED} for {limit_s:g} s, while others are looked at"
                    break
        return found


def _used(report: QueueReport) -> list[int]:
    return [one.used for flavor in report.flavors for one in flavor.resources.values()]
