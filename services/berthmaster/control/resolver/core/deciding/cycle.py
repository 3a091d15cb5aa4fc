"""One view of everything: knowledge, clusters at one time, and settings.

Decisions and answers start with a cycle and use its methods, so an explanation never differs from
the decision.
"""

from berthmaster.control.resolver.core.deciding.worker_queue import Freed, WorkerGate
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleetview.components import Gate
from berthmaster.lib.engine.fleetview.ranking import Candidate
from berthmaster.lib.engine.fleetview.shortlist import Shortlist, bind, filter_and_rank
from berthmaster.lib.lifecycle.sizes import with_coming
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import JobRequest


class Cycle:
    """Knowledge at one time. ``renew``: as in ``Knowledge.snapshot``."""

    def __init__(
        self, know: Knowledge, policy: Policy, now_s: float, *, renew: bool = False
    ) -> None:
        self.know = know
        self.policy = policy
        self.now_s = now_s
        self.snapshot = know.snapshot(policy, now_s, renew=renew)
        # Placements of the draft, unknown to the clusters' own queues.
        self.drafted: dict[str, list[tuple[Target, JobRequest]]] = {}
        # Pods assumed to have left those queues, during a search.
        self.freed: dict[str, list[Freed]] = {}

    def shortlist(self, request: JobRequest, shape: Shape | None = None) -> Shortlist:
        """Return all clusters for a request, filtered and ranked. ``shape``: the request's shape,
        if known.
        """
        know = self.know
        setting = know.queues.get(request.queue)
        gate: Gate | None = None
        if setting is not None and setting.via != "direct":
            gate = WorkerGate(know.view, request, setting, self._pending, self.freed)
        shape = shape_of(request) if shape is None else shape
        return filter_and_rank(know.view, self.snapshot, request, shape, gate)

    def bind(self, request: JobRequest, shortlist: Shortlist) -> tuple[Candidate, Bound] | None:
        """Return nodes for all pods, in the best cluster that has enough."""
        return bind(self.know.view, request, shortlist)

    def bind_in(self, request: JobRequest, shape: Shape, cluster: str) -> Bound | None:
        """Places for all pods in one cluster."""
        shortlist = self.shortlist(request, shape)
        here = shortlist.candidates.only(cluster)
        if not here:
            return None
        found = self.bind(request, shortlist._replace(candidates=here))
        return found[1] if found is not None else None

    def _pending(self, cluster: str) -> list[tuple[Target, JobRequest]]:
        """Return placements and additional pods not admitted by a cluster's own queue.

        Pods admitted a moment ago count twice until their executor reports them running. That may
        delay a job, and never over-commits quota.
        """
        know = self.know
        waiting = (know.open[key] for key in know.derived.unadmitted.get(cluster, ()))
        pending = [(w.target, request) for w in waiting if (request := _asks_for(w)) is not None]
        return [*pending, *self.drafted.get(cluster, ())]


def _asks_for(workload: Workload) -> JobRequest | None:
    """Return the part of a workload that its cluster's queue has not admitted."""
    request = workload.request
    if request is None or workload.state is not State.RUNNING:
        return request
    return with_coming(request, workload.coming)
