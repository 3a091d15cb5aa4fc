"""Nodes that fail jobs of all tenants, and the evidence. Pure.

Example: the limit is 3 workloads in an hour. Jobs a, b and c of one tenant lose a GPU on node n1,
and no job succeeds there: n1 is cordoned. If a, b and c exit with an error, n1 is not cordoned,
because one tenant's faulty program is no fault of a node.

- Bad endings are: not started, node lost, GPU lost, and exit with an error. Exits count only if
  jobs of several tenants exited. Out of memory is the job's own fault.
- A success on the node clears the evidence.
- A workload with bad endings on several nodes is no evidence: the common cause is the workload.
- At most ``MOST_A_CLUSTER`` nodes of a cluster are cordoned within the time, so that no tenant can
  cordon a fleet. An operator sees the rest.
- An operator's cordon or uncordon clears the earlier evidence about the node.
"""

from collections import Counter
from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.attempts import CONTAGIOUS
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.control import FAILING_NODE_BY, Cordon
from berthmaster.lib.messages.workload import Evicted, Failed, Fault, Succeeded, WorkloadEvent

MOST_A_CLUSTER: Final = 2
MAX_NAMED: Final = 5

Place = tuple[str, str]  # cluster, node


class _Bad(NamedTuple):
    """Bad ending of an attempt on a node."""

    fault: Fault
    tenant: str
    at_s: float


class Suspects:
    """Evidence against each node."""

    def __init__(self, after: int, within_s: float) -> None:
        """Set the limit: ``after`` workloads within ``within_s``. 0 workloads means never."""
        self._after = after
        self._within_s = within_s
        self._bad: dict[Place, dict[Key, _Bad]] = {}
        self._of: dict[Key, set[Place]] = {}  # nodes with a bad ending of the workload
        self._set: dict[Place, Cordon] = {}  # last cordon or uncordon, by anyone

    def take(self, event: WorkloadEvent, work: Workload, stored_at_s: float) -> None:
        """Take an applied event. ``work`` is the workload after the event."""
        if not self._after:
            return
        match event:
            case Evicted() | Failed() if event.node and event.cluster:
                if event.fault == "exit" or event.fault in CONTAGIOUS:
                    place = (event.cluster, event.node)
                    bad = _Bad(event.fault, event.tenant, stored_at_s)
                    self._bad.setdefault(place, {})[work.key] = bad
                    self._of.setdefault(work.key, set()).add(place)
            case Succeeded():
                for binding in work.pods:
                    self._forget((event.cluster, binding.node), stored_at_s)
            case _:
                pass

    def said(self, fact: Cordon) -> None:
        """Take a cordon or an uncordon of a node."""
        if fact.node is not None:
            place = (fact.cluster, fact.node)
            self._set[place] = fact
            self._forget(place, fact.set_at_s)

    def due(self, now_s: float) -> list[Cordon]:
        """Return the due cordons, with the evidence."""
        if not self._after:
            return []
        since_s = now_s - self._within_s
        for place in list(self._bad):
            self._forget(place, since_s)
        recent = Counter(
            cluster
            for (cluster, _), fact in self._set.items()
            if fact.cordoned and fact.set_by == FAILING_NODE_BY and fact.set_at_s > since_s
        )
        found: list[Cordon] = []
        for place in sorted(self._bad):
            cluster, node = place
            said = self._set.get(place)
            if (said is not None and said.cordoned) or recent[cluster] >= MOST_A_CLUSTER:
                continue
            if reason := self._evidence(place):
                recent[cluster] += 1
                found.append(
                    Cordon(
                        cluster=cluster,
                        node=node,
                        cordoned=True,
                        reason=reason,
                        set_by=FAILING_NODE_BY,
                        set_at_s=now_s,
                    )
                )
        return found

    def _evidence(self, place: Place) -> str:
        """Return the evidence against a node, or "" if there is too little."""
        bad = {name: one for name, one in self._bad[place].items() if self._of[name] == {place}}
        hard = {name: one for name, one in bad.items() if one.fault in CONTAGIOUS}
        if len(hard) < self._after:
            if len(bad) < self._after or len({one.tenant for one in bad.values()}) < 2:
                return ""
            hard = bad
        named = [f"{name} {one.fault}" for name, one in sorted(hard.items())[:MAX_NAMED]]
        more = f" and {len(hard) - MAX_NAMED} more" if len(hard) > MAX_NAMED else ""
        within = f"{self._within_s / 60:g} min"
        return (
            f"{len(hard)} jobs ended badly there within {within}, and none succeeded since: "
            f"{', '.join(named)}{more}"
        )

    def _forget(self, place: Place, until_s: float) -> None:
        kept = self._bad.get(place)
        if kept is None:
            return
        for name in [name for name, one in kept.items() if one.at_s <= until_s]:
            del kept[name]
            places = self._of[name]
            places.discard(place)
            if not places:
                del self._of[name]
        if not kept:
            del self._bad[place]
