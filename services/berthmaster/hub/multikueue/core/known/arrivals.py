"""GPUs on their way to a cluster that its nodes already show.

Example: a job of 4 GPUs was nominated for w1. A node of w1 then reports 4 more GPUs used by
unmanaged pods. The job counts as arrived there, although the hub reports it running only a second
or two later.

Pods of jobs created with kubectl carry no labels of Berthmaster, so nodes report them as unmanaged.
Growth of unmanaged usage is credited to jobs on their way, the oldest first. If other pods start in
that second, a little too much capacity is assumed. Nothing is known before the first report of a
node in this process run. Then time decides.
"""

from collections.abc import Callable, Mapping

from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.fleet import NodeReport

_Uses = tuple[float, dict[Key, float]]  # GPUs of other people's pods, and of ours by workload


class Arrivals:
    """Arrived GPUs of jobs on their way."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], _Uses] = {}  # cluster, node
        self._arrived: dict[tuple[str, Key], float] = {}  # cluster, workload -> GPUs

    def of(self, cluster: str, name: Key) -> float:
        """Return the GPUs of a workload that the cluster's nodes already show."""
        return self._arrived.get((cluster, name), 0.0)

    def report(self, fact: NodeReport, coming: Callable[[], Mapping[Key, float]]) -> None:
        """Apply a node report. ``coming``: returns GPUs on their way by workload, called only after
        growth.
        """
        now = self._uses_of(fact)
        before = self._uses.get((fact.cluster, fact.node))
        self._uses[fact.cluster, fact.node] = now
        if before is None:
            return
        grown = max(0.0, now[0] - before[0])
        if not grown and now[1] == before[1]:
            return
        for name, wants in coming().items():
            seen = self.of(fact.cluster, name)
            own = now[1].get(name)
            if own is not None:
                more = own - before[1].get(name, 0.0)
            else:
                more = min(grown, max(0.0, wants - seen))
                grown -= more
            if more > 0:
                self._arrived[fact.cluster, name] = min(wants, seen + more)

    def forget(self, cluster: str, name: Key) -> None:
        """Remove a workload that is no longer on its way."""
        self._arrived.pop((cluster, name), None)

    def drop_node(self, cluster: str, node: str) -> None:
        self._uses.pop((cluster, node), None)

    @staticmethod
    def _uses_of(fact: NodeReport) -> _Uses:
        ours: dict[Key, float] = {}
        for pod in fact.pods:
            name = key(pod.tenant, pod.workload)
            ours[name] = ours.get(name, 0.0) + pod.gpu_milli * len(pod.gpus) / 1000
        return fact.foreign.gpu_milli / 1000, ours
