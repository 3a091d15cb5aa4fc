"""Maps pods that a hub's Kueue sent to this cluster to workloads.

Kueue writes the name of its Workload on each pod, in the same namespace as on the hub. The door
knows the workload behind that name if the workload is placed in this cluster. Pods of a Job that
Berthmaster made on the hub carry the Job's name.

Rules of this file:

- The executor asks the door about all unknown pods in one request, with growing pauses. Pods of a
  Kueue of this cluster alone stay unknown.
- The executor forgets a workload when its last pod is gone. Later pods belong to another attempt.
- A pod keeps its number after its end while another pod of the workload exists. A replacement
  takes over the number.
- Pods with the executor's own label do not count.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from berthmaster.lib.kube import labels
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.mirror import Change, mirrored
from berthmaster.lib.kube.reflector import Reflector
from berthmaster.lib.kube.resources import PODS
from berthmaster.lib.kueue.names import POD_SET_LABEL, WORKLOAD_ANNOTATION
from berthmaster.lib.messages.door import MAX_HUB_ASKED, HubPods, HubWork, HubWorkRequest
from berthmaster.lib.messages.families import HUB_WORK_REPLIES, UNREADABLE
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.periodic import beats
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.core.objects import PodObject

TICK_S: Final = 0.5
FIRST_PAUSE_S: Final = 1.0  # from one question about pods to the next
LONGEST_PAUSE_S: Final = 60.0
ABSENT_S: Final = 10.0  # interval of checks of a closed namespace
# Indices that controllers set: Jobs of a JobSet, pods of a Job, replicas of Kubeflow's trainer.
NUMBERS: Final = (
    "jobset.sigs.k8s.io/job-index",
    labels.INDEX,
    "training.kubeflow.org/replica-index",
)
# Initializers run before the job, so their state says nothing about the job.
INITIALIZERS: Final = ("dataset-initializer", "model-initializer")  # of a TrainJob


class Door(Protocol):
    """The door client's call used in this file."""

    async def ask(self, verb: str, request: msgspec.Struct | bytes) -> bytes:
        """One request. Raises BusError."""


class _Name(NamedTuple):
    """The key shared by all pods of one workload."""

    namespace: str
    workload: str  # Kueue's Workload; "" = not on the pod, as without Kueue's topology gate
    job: str = ""  # name of the Job, where workload is ""


class _Place(NamedTuple):
    """Position of a pod within its workload."""

    pod_set: str
    numbers: tuple[int, ...]
    name: str = ""  # name of the first pod at this position, if its controller sets no index


class _Group:
    def __init__(self, job: str) -> None:
        self.job = job
        self.pods: dict[str, PodObject] = {}
        self.places: dict[_Place, PodObject] = {}  # newest pod of each position, also after its end
        self.work: HubWork | None = None  # None: the door has not answered yet
        self.pause_s = FIRST_PAUSE_S
        self.due_s = 0.0

    @property
    def attempt(self) -> Attempt | None:
        """The attempt, or None before the door has answered."""
        work = self.work
        return Attempt(work.tenant, work.id, work.attempt) if work is not None else None

    def put(self, pod: PodObject) -> None:
        name = pod.metadata.name
        self.pods[name] = pod
        place = self._place_of(pod)
        there = self.places.get(place)
        named = there.metadata.name if there is not None else name
        if there is None or named == name or named not in self.pods or _is_before(there, pod):
            self.places[place] = pod

    def _place_of(self, pod: PodObject) -> _Place:
        meta = pod.metadata
        of = meta.labels.get(POD_SET_LABEL, "")
        numbers = tuple(_number(meta.labels, meta.annotations, key) for key in NUMBERS)
        if any(number >= 0 for number in numbers):
            return _Place(of, numbers)
        left = None
        for place, there in self.places.items():
            if place[:2] == (of, numbers):
                if there.metadata.name == meta.name:
                    return place
                if there.metadata.name not in self.pods:
                    left = left or place
        return left or _Place(of, numbers, meta.name)


OnPods = Callable[[Attempt, Sequence[PodObject], PodObject | None], None]
# Arguments: the attempt, its existing pods, and the changed pod (None = check all).


class HubJobs:
    """Hub pods in the namespaces of one executor."""

    def __init__(self, client: Client, namespaces: Sequence[str], door: Door, log: LogLike) -> None:
        self._door = door
        self._groups: dict[_Name, _Group] = {}
        self._attempts: dict[Attempt, _Group] = {}
        self._on_pods: OnPods = lambda attempt, pods, changed: None
        self._loop = asyncio.get_running_loop()
        self._mirrors = [
            Reflector(
                client,
                PODS,
                PodObject,
                namespace=namespace,
                label_selector=f"{POD_SET_LABEL},!{labels.EXECUTOR}",
                on_change=self._on_change,
                absent_s=ABSENT_S,
                log=log,
            )
            for namespace in namespaces
        ]

    async def run(self, stopping: asyncio.Event) -> None:
        watching = [asyncio.ensure_future(mirror.run(stopping)) for mirror in self._mirrors]
        try:
            async for _ in beats(TICK_S, stopping):
                await self._ask_who()
                for one in watching:
                    if one.done():
                        one.result()  # raises the error that ended the mirror
        finally:
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def tell(self, on_pods: OnPods) -> None:
        """Call ``on_pods`` at each change of pods with a known workload. Call this once."""
        self._on_pods = on_pods

    # Pods

    def pods_of(self, attempt: Attempt) -> tuple[PodObject, ...]:
        """Return the pods by number, ended ones included while another pod exists. The result is
        empty for an attempt without pods here."""
        group = self._attempts.get(attempt)
        return _ordered(group) if group is not None else ()

    def find(self, attempt: Attempt, name: str) -> PodObject | None:
        """Return an existing pod by name, even if a replacement exists."""
        group = self._attempts.get(attempt)
        return group.pods.get(name) if group is not None else None

    def number_of(self, attempt: Attempt, pod: PodObject) -> int:
        names = [each.metadata.name for each in self.pods_of(attempt)]
        return names.index(pod.metadata.name) if pod.metadata.name in names else len(names)

    def work_of(self, attempt: Attempt) -> HubWork | None:
        """Return the door's last answer."""
        group = self._attempts.get(attempt)
        return group.work if group is not None else None

    def stored(self, attempt: Attempt, sequence: int) -> None:
        group = self._attempts.get(attempt)
        if group is not None and group.work is not None:
            group.work = msgspec.structs.replace(group.work, sequence=sequence)

    def ask_again(self, attempt: Attempt) -> None:
        """Ask the door about this attempt at the next tick."""
        group = self._attempts.get(attempt)
        if group is not None:
            group.pause_s, group.due_s = FIRST_PAUSE_S, 0.0

    # Changes

    def _on_change(self, change: Change[PodObject]) -> None:
        found = mirrored(change)
        if found is None:
            return
        pod, gone = found
        name = _name_of(pod)
        if name is None:
            return
        group = self._groups.get(name)
        if gone:
            if group is not None:
                self._drop(name, group, pod)
            return
        if group is None:
            group = self._groups[name] = _Group(_job_of(pod))
        group.put(pod)
        if (attempt := group.attempt) is not None:
            self._on_pods(attempt, tuple(group.pods.values()), pod)

    def _drop(self, name: _Name, group: _Group, pod: PodObject) -> None:
        group.pods.pop(pod.metadata.name, None)
        attempt = group.attempt
        if attempt is not None:
            self._on_pods(attempt, tuple(group.pods.values()), None)
        if not group.pods:
            del self._groups[name]
            if attempt is not None and self._attempts.get(attempt) is group:
                del self._attempts[attempt]

    # Workloads of the pods

    async def _ask_who(self) -> None:
        now_s = self._loop.time()
        due = {name: group for name, group in self._groups.items() if group.due_s <= now_s}
        for names in _parts(list(due)):
            asked = (
                HubPods(namespace=name.namespace, workload=name.workload, job=due[name].job)
                for name in names
            )
            request = HubWorkRequest(asked=tuple(asked))
            try:
                reply = HUB_WORK_REPLIES.decode(await self._door.ask("hub_work", request))
            except (BusError, *UNREADABLE):
                reply = None  # the door is away
            found = reply.found if reply is not None else ()
            for number, name in enumerate(names):
                group = self._groups.get(name)
                if group is due[name]:
                    self._take(group, found[number] if number < len(found) else None)

    def _take(self, group: _Group, work: HubWork | None) -> None:
        group.due_s = self._loop.time() + group.pause_s
        group.pause_s = min(2 * group.pause_s, LONGEST_PAUSE_S)
        if work is None:
            return
        before = group.attempt
        group.work, group.due_s = work, float("inf")
        attempt = group.attempt
        assert attempt is not None
        if before is not None and before != attempt and self._attempts.get(before) is group:
            del self._attempts[before]
            self._on_pods(before, (), None)
        self._attempts[attempt] = group
        if before != attempt:
            for pod in list(group.pods.values()):
                self._on_pods(attempt, tuple(group.pods.values()), pod)


def _name_of(pod: PodObject) -> _Name | None:
    meta = pod.metadata
    if workload := meta.annotations.get(WORKLOAD_ANNOTATION, ""):
        return _Name(meta.namespace, workload)
    job = _job_of(pod)
    return _Name(meta.namespace, "", job) if job else None


def _job_of(pod: PodObject) -> str:
    """Return the Job that owns the pod; "" = none."""
    owners = [one for one in pod.metadata.owner_references if one.controller]
    return owners[0].name if owners and owners[0].kind == "Job" else ""


def _ordered(group: _Group) -> tuple[PodObject, ...]:
    names = group.work.pod_sets if group.work is not None else ()
    turns = {name: turn for turn, name in enumerate(names)}

    def order(place: _Place) -> tuple[bool, int, _Place]:
        of = place.pod_set
        return of in INITIALIZERS, turns.get(of, len(turns)), place

    return tuple(group.places[place] for place in sorted(group.places, key=order))


def _is_before(pod: PodObject, other: PodObject) -> bool:
    """Return whether the other pod replaced this one. Times have one format and sort as texts.
    Within a second, the ended pod is the older.
    """
    made, then = (one.metadata.creation_timestamp or "" for one in (pod, other))
    return (made, not pod.over) < (then, not other.over)


def _number(of_labels: Mapping[str, str], annotations: Mapping[str, str], key: str) -> int:
    """Return a number from a label or annotation; -1 = none."""
    told = of_labels.get(key) or annotations.get(key) or ""
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 9 else -1


def _parts(names: Sequence[_Name]) -> Iterable[Sequence[_Name]]:
    for at in range(0, len(names), MAX_HUB_ASKED):
        yield names[at : at + MAX_HUB_ASKED]
