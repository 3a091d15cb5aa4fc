"""What runs here by way of a hub: its pods, and which workloads they are of.

Nobody here made them. Kueue says on each pod which of its Workloads it is of, in the namespace in
which that is on the hub too, and the door says which workload of ours that is, if it is placed in
this cluster. Pods of a Job that we made on the hub are known by its name. Rules of this file:

- The door is asked about pods that nobody has told of yet, all of them together, ever more seldom:
  pods of a Kueue that is this cluster's own stay nobody's.
- A workload whose pods have all gone is forgotten: what comes after them is another attempt.
- Each pod has a place, and so a number, that it keeps when it has gone, while any of them is there;
  one that its controller makes in its stead takes it over.
- The executor's own pods have its label, and are none of these.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from berthmaster.bus.errors import BusError
from berthmaster.executor.cluster_protocol import Attempt
from berthmaster.executor.kinds import PodObject
from berthmaster.kubernetes import labels
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.mirror import Change, mirrored
from berthmaster.kubernetes.reflector import Reflector
from berthmaster.kubernetes.resources import PODS
from berthmaster.kueue.names import POD_SET_LABEL, WORKLOAD_ANNOTATION
from berthmaster.messages.door import MAX_HUB_ASKED, HubPods, HubWork, HubWorkRequest
from berthmaster.messages.families import HUB_WORK_REPLIES, UNREADABLE
from berthmaster.runtime.log import LogLike
from berthmaster.runtime.periodic import beats

TICK_S: Final = 0.5
FIRST_PAUSE_S: Final = 1.0  # from one question about pods to the next
LONGEST_PAUSE_S: Final = 60.0
ABSENT_S: Final = 10.0  # between two looks at a namespace that is closed
# Numbers that controllers give: of a JobSet's Jobs, a Job's pods, replicas of Kubeflow's trainer.
NUMBERS: Final = (
    "jobset.sigs.k8s.io/job-index",
    labels.INDEX,
    "training.kubeflow.org/replica-index",
)
# They come before the job itself begins, and say nothing of it.
INITIALIZERS: Final = ("dataset-initializer", "model-initializer")  # of a TrainJob


class Door(Protocol):
    """Of the door what is needed here."""

    async def ask(self, verb: str, request: msgspec.Struct | bytes) -> bytes:
        """One request. Raises BusError."""


class _Name(NamedTuple):
    """What pods of one workload have in common."""

    namespace: str
    workload: str  # of Kueue; "" = they do not say, as where its topology gate is off
    job: str = ""  # then it is that of a Job


class _Place(NamedTuple):
    """Of a pod among those of its workload."""

    pod_set: str
    numbers: tuple[int, ...]
    name: str = ""  # of the first pod there, where its controller gives no numbers


class _Group:
    def __init__(self, job: str) -> None:
        self.job = job
        self.pods: dict[str, PodObject] = {}
        self.places: dict[_Place, PodObject] = {}  # the newest of each, those that have gone too
        self.work: HubWork | None = None  # None: nobody has said
        self.pause_s = FIRST_PAUSE_S
        self.due_s = 0.0

    @property
    def attempt(self) -> Attempt | None:
        """Which one they are, if that is known."""
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
# An attempt, those of its pods that are there, and which of them has changed; None = look at all.


class HubJobs:
    """What of them is in the namespaces of one executor."""

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
                        one.result()  # what ended it ends us
        finally:
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def tell(self, on_pods: OnPods) -> None:
        """From now on, of each change of pods whose workload is known. Called once."""
        self._on_pods = on_pods

    # Who is there

    def pods_of(self, attempt: Attempt) -> tuple[PodObject, ...]:
        """In their order, those that have gone too while others are there; none if there is no such
        attempt here."""
        group = self._attempts.get(attempt)
        return _ordered(group) if group is not None else ()

    def find(self, attempt: Attempt, name: str) -> PodObject | None:
        """One of its pods that are there, also one in whose stead there is another by now."""
        group = self._attempts.get(attempt)
        return group.pods.get(name) if group is not None else None

    def number_of(self, attempt: Attempt, pod: PodObject) -> int:
        names = [each.metadata.name for each in self.pods_of(attempt)]
        return names.index(pod.metadata.name) if pod.metadata.name in names else len(names)

    def work_of(self, attempt: Attempt) -> HubWork | None:
        """What the door said of it last."""
        group = self._attempts.get(attempt)
        return group.work if group is not None else None

    def stored(self, attempt: Attempt, sequence: int) -> None:
        group = self._attempts.get(attempt)
        if group is not None and group.work is not None:
            group.work = msgspec.structs.replace(group.work, sequence=sequence)

    def ask_again(self, attempt: Attempt) -> None:
        """What is known of it is old."""
        group = self._attempts.get(attempt)
        if group is not None:
            group.pause_s, group.due_s = FIRST_PAUSE_S, 0.0

    # What changes

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

    # Whose they are

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
    """The Job that made it, "" = none did."""
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
    """Whether the other was made in its stead. Such times have one form, in order as texts; of two
    of one second the one that is over was first."""
    made, then = (one.metadata.creation_timestamp or "" for one in (pod, other))
    return (made, not pod.over) < (then, not other.over)


def _number(of_labels: Mapping[str, str], annotations: Mapping[str, str], key: str) -> int:
    """-1 = it has none."""
    told = of_labels.get(key) or annotations.get(key) or ""
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 9 else -1


def _parts(names: Sequence[_Name]) -> Iterable[Sequence[_Name]]:
    for at in range(0, len(names), MAX_HUB_ASKED):
        yield names[at : at + MAX_HUB_ASKED]
