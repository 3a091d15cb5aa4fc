"""GPUs that were on their way to a cluster and that its nodes show by now, so that they are not
counted twice until the hub says that the job runs, which takes Kueue a second or two.

Pods of jobs made with kubectl carry no name of ours, and nodes report them as other people's. What
other people's pods take *more* of since a job was sent there is therefore taken for that job's, the
oldest first, until it has all that it asked for. If strangers' pods come in just that moment, a
little too much room is seen there until the job runs. Nothing is known of what came before the
first report of a node in this life of the process: then time decides, as without this module.
"""

from collections.abc import Callable, Mapping

from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.fleet import NodeReport

_Uses = tuple[float, dict[Key, float]]  # GPUs of other people's pods, and of ours by workload


class Arrivals:
    """What nodes show of what is on its way."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], _Uses] = {}  # cluster, node
        self._arrived: dict[tuple[str, Key], float] = {}  # cluster, workload -> GPUs

    def of(self, cluster: str, name: Key) -> float:
        """GPUs that the cluster's nodes show of a workload on its way there."""
        return self._arrived.get((cluster, name), 0.0)

    def report(self, fact: NodeReport, coming: Callable[[], Mapping[Key, float]]) -> None:
        """A node as it is now. ``coming``: what may have come there, GPUs by workload; asked only
        where more is used than before, since most reports say nothing of that."""
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
        """It is not on its way there any more."""
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
