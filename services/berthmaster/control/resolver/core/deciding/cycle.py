"""One view of everything: knowledge, clusters at one time, and settings.

Decisions and answers start with a cycle and use its methods, so an explanation never differs from
the decision.

**Clusters' own queues.** Kueue decides; this only keeps us from sending what must wait there for
long. lib/kueue/quota.py works out Kueue's answer. Placements of ours that Kueue has not admitted
yet are charged too, those of the open draft among them, since its report does not know them.
``WorkerGate`` is the gate of a request whose queue is ``via: worker``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleetview.components import Gate
from berthmaster.lib.engine.fleetview.ranking import Candidate
from berthmaster.lib.engine.fleetview.shortlist import Shortlist, bind, filter_and_rank
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.kueue.asks import Devices, asks_of, devices_of
from berthmaster.lib.kueue.quota import Gone, Quotas, closed, queue_of, without
from berthmaster.lib.lifecycle.pods import with_coming
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import QueueReport
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import JobRequest

ANYWHERE: Final = "*"
NO_QUEUE: Final = "has no LocalQueue"
NO_DEADLINE: Final = "its deadline cannot be kept where the cluster's own queue starts it"
Pending = Iterable[tuple[Target, JobRequest]]


class Freed(NamedTuple):
    """Pods assumed to have left a cluster's own queue."""

    target: Target
    request: JobRequest  # of so many
    nodes: Sequence[Mapping[str, str]]  # labels of their nodes


def target_in(setting: QueueSetting | None, cluster: str) -> Target:
    """How a queue's jobs are made in a cluster."""
    if setting is None:
        return Target()
    place = setting.places.get(cluster) or setting.places.get(ANYWHERE) or QueuePlace()
    if setting.via == "direct":
        return Target(namespace=place.namespace, service_account=place.service_account)
    # A job submitted before its queue changed to the hub is still placed here: no hub job exists
    # for it, and the worker's LocalQueue has the same name.
    return Target(
        via="worker",
        namespace=place.namespace,
        service_account=place.service_account,
        local_queue=place.local_queue or setting.queue,
    )


def target_of(workload: Workload, setting: QueueSetting | None, cluster: str) -> Target:
    origin = workload.origin
    if origin is not None and origin.system == "karmada":
        return Target(via="hub", namespace=origin.namespace)
    return target_in(setting, cluster)


class InLine(NamedTuple):
    """Where a request would stand in a cluster's own queue."""

    ahead: int  # pending jobs in its ClusterQueue
    admitted: int  # admitted jobs
    borrows: bool  # exceeds the rest of the queue's own quota


class Said(NamedTuple):
    """State of a cluster's own queue for a request."""

    out: str = ""  # why Kueue would not admit it now, or ""
    in_line: InLine | None = None  # position in the queue; None = unknown


def asked(
    cluster: Cluster,
    target: Target,
    request: JobRequest,
    pending: Pending,
    devices: Devices,
    freed: Iterable[Freed] = (),
) -> Said:
    """``pending``: placements in the cluster that Kueue has not admitted. ``devices``: resource
    names of its GPUs. ``freed``: pods assumed to have left. The report may include some pending
    ones, so the larger number counts.
    """
    if target.via != "worker":
        return Said()
    if request.deadline_s is not None:
        return Said(NO_DEADLINE)
    reports: Collection[QueueReport] = cluster.queues.values()
    found = queue_of(reports, target.namespace, target.local_queue)
    if found is None:
        return Said(f"{NO_QUEUE} {target.namespace}/{target.local_queue}")
    if problem := closed(*found):
        return Said(problem)
    report, _ = found
    if freed:
        reports = _less(cluster, freed, devices)
    quotas, ours = Quotas(reports, cluster.counted_as), 0
    for other, coming in pending:
        leads_to = queue_of(reports, other.namespace, other.local_queue)
        if leads_to is None:
            continue
        if not quotas.charge(leads_to[0].queue, asks_of(coming, devices)):
            ours += leads_to[0].queue == report.queue
    answer = quotas.answer(report.queue, asks_of(request, devices))
    if not answer.now:
        return Said(answer.never or answer.lacks)
    return Said("", InLine(max(report.pending, ours), report.admitted, answer.borrows))


def _less(cluster: Cluster, freed: Iterable[Freed], devices: Devices) -> list[QueueReport]:
    """Return the queues' reports without the freed pods."""
    left = dict(cluster.queues)
    for target, request, nodes in freed:
        found = queue_of(left.values(), target.namespace, target.local_queue)
        if found is not None:
            gone = [Gone(ask, nodes=nodes) for ask in asks_of(request, devices)]
            left[found[0].queue] = without(found[0], gone, cluster.counted_as)
    return list(left.values())


def others_wait(cluster: Cluster, target: Target) -> bool:
    """Return whether any job waits for quota of the target's queue, or of queues that
    lend to it.
    """
    found = queue_of(cluster.queues.values(), target.namespace, target.local_queue)
    if found is None:
        return False
    root = _root(found[0])
    return any(each.pending and _root(each) == root for each in cluster.queues.values())


def _root(report: QueueReport) -> str:
    """Return the top cohort of a queue, or its own name without a cohort."""
    above = {each.cohort: each.parent for each in report.cohorts}
    name = report.cohort
    for _ in above:  # reports of different moments may make a circle
        name = above.get(name) or name
    return f"cohort {name}" if name else report.queue


# Of a cluster: placements of ours that its own queue has not let in.
PendingIn = Callable[[str], list[tuple[Target, JobRequest]]]


class WorkerGate(Gate):
    """What the clusters' own queues say of a request."""

    via = "worker"

    def __init__(
        self,
        view: FleetView,
        request: JobRequest,
        setting: QueueSetting,
        pending: PendingIn,
        freed: Mapping[str, Sequence[Freed]],
    ) -> None:
        """``freed``: pods assumed to have left the queues of each cluster."""
        self._view = view
        self._freed = freed
        self._request = request
        self._setting = setting
        self._pending = pending
        self._said: dict[str, Said] = {}

    def why_not(self, cluster: str) -> str:
        return self._asked(cluster).out

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        return self._asked(cluster).in_line

    def _asked(self, cluster: str) -> Said:
        """Return the cached state of a cluster's own queue."""
        said = self._said.get(cluster)
        if said is None:
            known, target = self._view.clusters.peek(cluster), target_in(self._setting, cluster)
            pending, devices = self._pending(cluster), self._devices(cluster)
            freed = self._freed.get(cluster, ())
            said = asked(known, target, self._request, pending, devices, freed)
            self._said[cluster] = said
        return said

    def _devices(self, cluster: str) -> Devices:
        """Return the resource names of the cluster's GPUs."""
        fleet = self._view.fleet

        def worked_out() -> Devices:
            return devices_of(map(fleet.report_at, fleet.slots_of(cluster)))

        return self._view.derived.table.note(("devices", cluster), worked_out)


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
