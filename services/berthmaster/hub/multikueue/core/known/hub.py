"""Objects of a hub's API server: Workloads, their jobs, and the clusters allowed to each.

Objects are stored as received. The rules of each LocalQueue are derived from queues, checks and
configurations, and cached until any of these changes. An invalid object affects only what depends
on it. ``Rules.problem`` has the error.

**Lives.** Ended or deleted Workloads that the log does not contain yet.

A Workload may begin, end and be deleted while the log is not writable. An ended Workload counts as
missing in two cases. Other ended Workloads predate this service.

- This process saw the Workload before its end.
- The Workload ended after the last event of the previous process, or up to UNSURE_S before, since
  that process may have been killed before writing the end.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from berthmaster.lib.kube.labels import TENANT, WORKLOAD
from berthmaster.lib.kube.objects import Object, key_of, seconds
from berthmaster.lib.kube.selector import Selector, SelectorError, parse_selector
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.lib.kueue.names import FINISHED, MULTIKUEUE, SELECTOR_ANNOTATION
from berthmaster.lib.kueue.podsets.reading import tenant_of, workload_id
from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue
from berthmaster.lib.kueue.workloads import KueueWorkload, WorkloadStatus
from berthmaster.lib.lifecycle.workload import Key, key

UNSURE_S: Final = 600.0
MOST_GONE: Final = 10_000  # deleted Workloads, and Jobs, kept until the log contains their end
T = TypeVar("T")


class Lives:
    def __init__(self) -> None:
        self.written_until_s = float("inf")  # time of the previous process's last event
        self.gone: OrderedDict[Key, KueueWorkload] = OrderedDict()  # last state of each
        # Jobs that had ended when they were deleted, perhaps before their Workload said so
        self.ended_jobs: OrderedDict[Key, HubJob] = OrderedDict()
        self._seen: dict[Key, str] = {}  # uid of each Workload seen before its end

    def seen(self, name: Key, workload: KueueWorkload) -> None:
        """Note a Workload that the log does not contain."""
        if not workload.holds(FINISHED):
            self._seen[name] = workload.metadata.uid

    def lost(self, name: Key, workload: KueueWorkload, *, is_open: bool) -> None:
        """Keep a Workload that was deleted before the log contained its end. ``is_open``: the log
        contains its beginning.
        """
        finished = workload.holds(FINISHED) or name in self.ended_jobs
        if finished if is_open else self.is_unwritten(name, workload):
            _keep(self.gone, name, workload)

    def job_lost(self, name: Key, job: HubJob) -> None:
        """Keep an ended Job that was deleted before the log contained its end."""
        _keep(self.ended_jobs, name, job)

    def began(self, name: Key) -> None:
        """Note that the log contains the beginning."""
        self._seen.pop(name, None)

    def ended(self, name: Key) -> None:
        """Note that the log contains the end."""
        self._seen.pop(name, None)
        self.gone.pop(name, None)
        self.ended_jobs.pop(name, None)

    def is_unwritten(self, name: Key, workload: KueueWorkload) -> bool:
        """Return whether an ended Workload is missing in the log and belongs there."""
        if self._seen.get(name) == workload.metadata.uid:
            return True
        try:
            return seconds(_over_at(workload)) > self.written_until_s - UNSURE_S
        except ValueError:
            return False


def _keep(kept: OrderedDict[Key, T], name: Key, thing: T) -> None:
    kept[name] = thing
    if len(kept) > MOST_GONE:
        kept.popitem(last=False)


def _over_at(workload: KueueWorkload) -> str:
    """Return the time of the end, or of the creation for a Workload deleted before its end."""
    finished = workload.condition(FINISHED)
    at = finished.last_transition_time if finished is not None and finished.true else ""
    return at or workload.metadata.creation_timestamp or ""


ObjectKey = tuple[str, str]  # namespace, name
DRAINING = "draining: its Placement selects it no longer"


class ClusterRef(NamedTuple):
    """One cluster of a MultiKueueConfig."""

    hub_name: str  # MultiKueueCluster
    name: str  # in the fleet
    closed: str  # why Kueue cannot use it, or ""


class Rules(NamedTuple):
    """Rules common to all Workloads of a LocalQueue."""

    cluster_queue: str
    check: str  # MultiKueue's
    config: str
    clusters: tuple[ClusterRef, ...]  # in the configuration's order
    selectors: tuple[Selector, ...]  # over clusters' labels; all must match
    own_checks: tuple[str, ...]  # checks of ours
    problem: str = ""  # why nothing can be sent at all
    stopped: str = ""  # stopped queue of the hub, with its policy


class Hub:
    def __init__(self, tenants: Mapping[str, str], former: Iterable[str] = ()) -> None:
        """``former``: ids of hubs that no longer exist, whose objects never return."""
        self._tenants = tenants
        self._former = frozenset(former)
        self.id = ""  # id of its cluster; "" = unknown yet
        self.complete = False  # every kind was listed, so missing objects do not exist
        self.trouble = ""  # why updates are missing; "" = up to date
        # Start of uninterrupted updates; infinite without updates
        self.heard_since_s = float("-inf")
        self.kueue_since_s = float("-inf")  # start of Kueue's activity; infinite while silent
        self.kueue_writes = 0  # seen of Kueue's own hand; ours and people's are none
        self.workloads: dict[ObjectKey, KueueWorkload] = {}
        self.jobs: dict[ObjectKey, HubJob] = {}
        self.local_queues: dict[ObjectKey, LocalQueue] = {}
        self.cluster_queues: dict[str, ClusterQueue] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        self.configs: dict[str, MultiKueueConfig] = {}
        self.clusters: dict[str, MultiKueueCluster] = {}
        # Parameters of Berthmaster checks; a text = the error
        self.parameters: dict[str, Selector | str] = {}
        self.workload_of: dict[Key, ObjectKey] = {}
        self.job_of: dict[Key, ObjectKey] = {}  # jobs created by Berthmaster
        self.lives = Lives()
        self.seen_jobs: set[Key] = set()  # of ours, in this life of the process
        self._names: dict[ObjectKey, Key] = {}
        self._owned: dict[ObjectKey, set[ObjectKey]] = {}  # Job -> its Workloads
        self._rules: dict[ObjectKey, Rules | None] = {}

    def is_mine(self, home: str) -> bool:
        """Return whether this service is responsible for objects of the hub with this id. "" = a
        workload without a hub yet.
        """
        return home in ("", self.id) or home in self._former

    def hears(self, trouble: str, now_s: float) -> None:
        """Note whether the mirror is up to date."""
        if trouble:
            self.heard_since_s = float("inf")
        elif self.trouble:
            self.heard_since_s = now_s
        self.trouble = trouble

    # Changes

    def put(self, thing: Object) -> set[Key]:
        """Store an object. Return the affected workloads, possibly all."""
        at = key_of(thing.metadata)
        match thing:
            case KueueWorkload():
                self._count(_written(self.workloads.get(at)), _written(thing))
                self.workloads[at] = thing
                kind, owner = thing.owner
                if kind == "Job":
                    self._owned.setdefault((at[0], owner), set()).add(at)
                return self._name_workload(at, thing)
            case HubJob():
                self.jobs[at] = thing
                return self._name_job(at, thing)
            case _:
                return self._put_rule(at, thing)

    def _put_rule(self, at: ObjectKey, thing: Object) -> set[Key]:
        """Store an object that rules depend on. Kueue's frequent status updates change no rule."""
        before: Object | None
        match thing:
            case LocalQueue():
                before = self.local_queues.get(at)
                self.local_queues[at] = thing
            case ClusterQueue():
                before = self.cluster_queues.get(at[1])
                self.cluster_queues[at[1]] = thing
            case AdmissionCheck():
                before = self.checks.get(at[1])
                self.checks[at[1]] = thing
            case MultiKueueConfig():
                before = self.configs.get(at[1])
                self.configs[at[1]] = thing
            case MultiKueueCluster():
                before = self.clusters.get(at[1])
                self.clusters[at[1]] = thing
            case _:
                raise TypeError(f"{type(thing).__name__} is nothing that a hub's mirror holds")
        self._count(_written(before), _written(thing))
        if before is not None and _meaning(before) == _meaning(thing):
            return set()
        return self._all()

    def drop(self, thing: Object) -> set[Key]:
        at = key_of(thing.metadata)
        match thing:
            case KueueWorkload():
                self._count(_written(self.workloads.pop(at, None)), None)
                jobs = self._owned.get((at[0], thing.owner[1]), set())
                jobs.discard(at)
                if not jobs:
                    self._owned.pop((at[0], thing.owner[1]), None)
                name = self._names.pop(at, None)
                if name is None:
                    return set()
                if self.workload_of.get(name) == at:
                    del self.workload_of[name]
                return {name}
            case HubJob():
                touched = self._names_of_job(at)
                self.jobs.pop(at, None)
                for name in [name for name in touched if self.job_of.get(name) == at]:
                    del self.job_of[name]
                return touched
            case LocalQueue():
                self.local_queues.pop(at, None)
            case ClusterQueue():
                self.cluster_queues.pop(at[1], None)
            case AdmissionCheck():
                self.checks.pop(at[1], None)
            case MultiKueueConfig():
                self.configs.pop(at[1], None)
            case MultiKueueCluster():
                self.clusters.pop(at[1], None)
        return self._all()

    def set_parameters(self, check: str, found: Selector | str) -> set[Key]:
        """Store the parameters of a Berthmaster check, or the error."""
        if self.parameters.get(check) == found:
            return set()
        self.parameters[check] = found
        return self._all()

    def is_over_unwritten(self, name: Key) -> bool:
        """Return whether a Workload has ended, or is gone, and the log still has to say so."""
        found = self.workload(name)
        if found is not None and not found.holds(FINISHED):
            return False
        found = found or self.lives.gone.get(name)
        return found is not None and self.lives.is_unwritten(name, found)

    def _all(self) -> set[Key]:
        self._rules.clear()
        return set(self.workload_of)

    def _count(self, before: object, after: object) -> None:
        if before != after:
            self.kueue_writes += 1

    def owns(self, job: ObjectKey) -> bool:
        """Whether Kueue has made a Workload of a Job."""
        return job in self._owned

    def _names_of_job(self, job: ObjectKey) -> set[Key]:
        """Return the workloads of a Job: those that it was made for, and its Workloads'."""
        made = {name for name, at in self.job_of.items() if at == job}
        owned = (self._names.get(at) for at in self._owned.get(job, ()))
        return made | {name for name in owned if name is not None}

    # Names of Workloads

    def _name_workload(self, at: ObjectKey, workload: KueueWorkload) -> set[Key]:
        kind, owner = workload.owner
        job = self.jobs.get((at[0], owner)) if kind == "Job" else None
        if kind == "Job" and job is None:
            return set()  # its job gives the name: that arrives later, or both go
        name = labelled(job) if job is not None else None
        if name is None:
            meta = workload.metadata
            name = key(tenant_of(at[0], self._tenants), workload_id(meta.name, meta.uid))
        before = self._names.get(at)
        if before is not None and before != name and self.workload_of.get(before) == at:
            del self.workload_of[before]
        self._names[at] = name
        self.workload_of[name] = at
        return {name} if before in (None, name) else {name, before}

    def _name_job(self, at: ObjectKey, job: HubJob) -> set[Key]:
        touched: set[Key] = set()
        name = labelled(job)
        if name is not None:
            self.job_of[name] = at
            self.seen_jobs.add(name)
            touched.add(name)
        for where in sorted(self._owned.get(at, ())):
            workload = self.workloads[where]
            if any(o.uid == job.metadata.uid for o in workload.metadata.owner_references):
                touched |= self._name_workload(where, workload)
        return touched

    def name_of(self, at: ObjectKey) -> Key | None:
        """Return the name of a Workload on the bus."""
        return self._names.get(at)

    def workload(self, name: Key, uid: str = "") -> KueueWorkload | None:
        """Return the Workload of a name on the bus, if present (with this uid)."""
        at = self.workload_of.get(name)
        if at is None or self._names.get(at) != name:
            return None
        found = self.workloads.get(at)
        if found is None:
            return None
        return found if not uid or found.metadata.uid == uid else None

    def job(self, name: Key) -> HubJob | None:
        """Return Berthmaster's job of a workload, or the job that owns its Workload."""
        at = self.job_of.get(name)
        if at is None:
            workload = self.workload(name)
            if workload is None or workload.owner[0] != "Job":
                return None
            at = (workload.metadata.namespace, workload.owner[1])
        return self.jobs.get(at)

    # Allowed clusters

    def rules(self, workload: KueueWorkload) -> Rules | None:
        """Return the rules of a Workload; None without MultiKueue."""
        return self.rules_at((workload.metadata.namespace, workload.spec.queue_name))

    def rules_at(self, local_queue: ObjectKey) -> Rules | None:
        """Return the rules of a LocalQueue."""
        if local_queue not in self._rules:
            self._rules[local_queue] = self._rules_of(local_queue)
        return self._rules[local_queue]

    def _rules_of(self, at: ObjectKey) -> Rules | None:
        local = self.local_queues.get(at)
        queue = self.cluster_queues.get(local.spec.cluster_queue) if local is not None else None
        if local is None or queue is None:
            return None
        checks = [self.checks[name] for name in queue.check_names if name in self.checks]
        found = [c for c in checks if c.spec.controller_name == MULTIKUEUE]
        if not found:
            return None
        own = tuple(c.metadata.name for c in checks if c.for_dispatcher)
        selectors, problem = self._selectors(queue, local, own)
        clusters: tuple[ClusterRef, ...] = ()
        name, wrong = _config_name(found[0])
        if not wrong and name not in self.configs:
            wrong = f"MultiKueueConfig {name} does not exist"
        if not wrong:
            clusters = self._refs(self.configs[name])
        return Rules(
            cluster_queue=queue.metadata.name,
            check=found[0].metadata.name,
            config=name,
            clusters=clusters,
            selectors=selectors,
            own_checks=own,
            problem=wrong or problem,
            stopped=_stopped(queue, local),
        )

    def _selectors(
        self, queue: ClusterQueue, local: LocalQueue, own: tuple[str, ...]
    ) -> tuple[tuple[Selector, ...], str]:
        selectors: list[Selector] = []
        problem = ""
        for owner in (queue, local):
            text = owner.metadata.annotations.get(SELECTOR_ANNOTATION, "")
            if not text:
                continue
            try:
                selectors.append(parse_selector(text))
            except SelectorError as error:
                kind = type(owner).__name__
                problem = f"{kind} {owner.metadata.name}: {SELECTOR_ANNOTATION}: {error}"
        for name in own:
            parameters = self.parameters.get(name, "not read yet")
            if isinstance(parameters, Selector):
                selectors.append(parameters)
            else:
                problem = problem or f"AdmissionCheck {name}: {parameters}"
        return tuple(selectors), problem

    def _refs(self, config: MultiKueueConfig) -> tuple[ClusterRef, ...]:
        refs: list[ClusterRef] = []
        taken: dict[str, str] = {}
        for hub_name in config.clusters:
            cluster = self.clusters.get(hub_name)
            if cluster is None:
                refs.append(ClusterRef(hub_name, hub_name, "no such MultiKueueCluster"))
                continue
            name = cluster.fleet_name
            closed = _inactive(cluster)
            if hub_name in config.draining:
                closed = DRAINING
            if name in taken:
                closed = f"stands for {name}, as {taken[name]} does"
            taken.setdefault(name, hub_name)
            refs.append(ClusterRef(hub_name, name, closed))
        return tuple(refs)


def labelled(job: HubJob) -> Key | None:
    """Return the workload of a job created by Berthmaster."""
    labels, annotations = job.metadata.labels, job.metadata.annotations
    if not labels.get(TENANT) or not labels.get(WORKLOAD):
        return None
    return key(
        annotations.get(TENANT) or labels[TENANT], annotations.get(WORKLOAD) or labels[WORKLOAD]
    )


def _written(thing: Object | None) -> object:
    """Return the parts of an object that only Kueue writes."""
    match thing:
        case KueueWorkload(status=None):
            return ()
        case KueueWorkload(status=WorkloadStatus() as status):
            return status.conditions, status.admission, status.cluster_name
        case AdmissionCheck() if thing.spec.controller_name != MULTIKUEUE:
            return None
        case LocalQueue() | ClusterQueue() | AdmissionCheck() | MultiKueueCluster():
            return thing.status
        case _:
            return None


def _meaning(thing: Object) -> tuple[object, ...]:
    """Return the parts of an object that rules depend on."""
    match thing:
        case LocalQueue() | ClusterQueue():
            return thing.spec, thing.metadata.annotations
        case MultiKueueConfig():
            return thing.spec, thing.draining
        case AdmissionCheck():
            return thing.spec, thing.status
        case MultiKueueCluster():
            return thing.status, thing.metadata.annotations
        case _:
            return (thing,)


def _stopped(queue: ClusterQueue, local: LocalQueue) -> str:
    """Describe the stop. The ClusterQueue comes first, because its LocalQueue shows it too."""
    if queue.held:
        return f"ClusterQueue {queue.metadata.name} of the hub is stopped (stopPolicy {queue.held})"
    if local.held:
        return f"LocalQueue {local.metadata.name} of the hub is stopped (stopPolicy {local.held})"
    return ""


def _config_name(check: AdmissionCheck) -> tuple[str, str]:
    """Return the name of the MultiKueueConfig, and the error."""
    name = check.metadata.name
    parameters = check.spec.parameters
    if parameters is None or not parameters.name:
        return "", f"AdmissionCheck {name} has no parameters: it must name a MultiKueueConfig"
    if parameters.kind != "MultiKueueConfig":
        return "", f"AdmissionCheck {name} names a {parameters.kind}, no MultiKueueConfig"
    return parameters.name, ""


def _inactive(cluster: MultiKueueCluster) -> str:
    active = cluster.condition("Active")
    if active is None:
        return "not active: Kueue says nothing of it yet"
    if active.true:
        return ""
    return f"not active: {active.reason}: {active.message}"[:300]
