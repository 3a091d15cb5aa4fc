"""While the bus is away: every Workload that waits for a nomination gets one in the order of its
configuration, one cluster at a time, so that no queue stands still for want of a ranking.

Nothing is decided and nothing is told: replicas that do this side by side nominate the same
clusters, additions are guarded by the resource version, and when the bus is back the log follows
what Kueue did.
"""

from berthmaster.kueue.contract import forbidden, held_back
from berthmaster.multikueue.instructions import Nominate
from berthmaster.multikueue.known.hub import Hub, ObjectKey
from berthmaster.multikueue.settings import HubPolicy


class Blind:
    """What was noticed while the bus is away."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # uid -> last nominated, or first seen
        self._under_way: dict[str, ObjectKey] = {}
        self._number = 0

    def over(self) -> None:
        """The bus is back."""
        self._since_s.clear()
        self._under_way.clear()

    def on_answer(self, ref: str) -> None:
        """A nomination was written, or not."""
        self._under_way.pop(ref, None)

    def look(self, hub: Hub, policy: HubPolicy, now_s: float) -> list[Nominate]:
        """The next nominations."""
        out: list[Nominate] = []
        busy = set(self._under_way.values())
        seen: set[str] = set()
        for at, workload in hub.workloads.items():
            rules = hub.rules(workload)
            if rules is None or at in busy or forbidden(workload, rules.check):
                continue
            if held_back(workload, rules.check, rules.own_checks):
                continue
            uid = workload.metadata.uid
            seen.add(uid)
            since_s = self._since_s.setdefault(uid, now_s)
            pause_s = policy.patience_s if workload.nominated else policy.silent_s
            if now_s < since_s + pause_s:
                continue
            left = (
                r.hub_name
                for r in rules.clusters
                if not r.closed and r.hub_name not in workload.nominated
            )
            cluster = next(left, None)
            if cluster is None:
                continue
            self._number += 1
            ref = f"blind/{self._number}"
            self._under_way[ref] = at
            self._since_s[uid] = now_s
            out.append(Nominate(ref, None, at, uid, rules.check, cluster))
        for uid in [uid for uid in self._since_s if uid not in seen]:
            del self._since_s[uid]
        return out
