"""One look at everything: what is known, the clusters as of one time, and the settings.

Deciding and answering begin with a cycle and ask it the same questions, so that an explanation can
never differ from what is done.
"""

from berthmaster.control.resolver.core.deciding.gate import WorkerGate
from berthmaster.control.resolver.core.deciding.worker_queue import Freed
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
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
    """What is known, seen at one time. ``renew``: as in ``Knowledge.snapshot``."""

    def __init__(
        self, know: Knowledge, policy: Policy, now_s: float, *, renew: bool = False
    ) -> None:
        self.know = know
        self.policy = policy
        self.now_s = now_s
        self.snapshot = know.snapshot(policy, now_s, renew=renew)
        # Of the draft that is being made: what the clusters' own queues do not know of yet.
        self.drafted: dict[str, list[tuple[Target, JobRequest]]] = {}
        # While it is tried what would fit without them: pods that would leave those queues.
        self.freed: dict[str, list[Freed]] = {}

    def shortlist(self, request: JobRequest, shape: Shape | None = None) -> Shortlist:
        """All clusters for a request, filtered and ranked. ``shape``: its own, if it is known."""
        know = self.know
        setting = know.queues.get(request.queue)
        gate: Gate | None = None
        if setting is not None and setting.via != "direct":
            gate = WorkerGate(know.view, request, setting, self._pending, self.freed)
        shape = shape_of(request) if shape is None else shape
        return filter_and_rank(know.view, self.snapshot, request, shape, gate)

    def bind(self, request: JobRequest, shortlist: Shortlist) -> tuple[Candidate, Bound] | None:
        """Places for all pods in the best cluster that has them."""
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
        """What of ours a cluster's own queue has not let in: placements, and pods by which those
        grow that it has let in. Of these it may have let in some a moment ago: until their executor
        tells that they run they may count twice, which keeps others out and promises nothing."""
        know = self.know
        waiting = (know.open[key] for key in know.derived.unadmitted.get(cluster, ()))
        pending = [(w.target, request) for w in waiting if (request := _asks_for(w)) is not None]
        return [*pending, *self.drafted.get(cluster, ())]


def _asks_for(workload: Workload) -> JobRequest | None:
    """What its cluster's queue has not let in of it."""
    request = workload.request
    if request is None or workload.state is not State.RUNNING:
        return request
    return with_coming(request, workload.coming)
