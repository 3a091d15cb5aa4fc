"""What Kueue lets in: one table, held against our arithmetic and against Kueue.

Each row is a small cluster (queues, flavors, cohorts, what already runs there) and one request with
what becomes of it: it is let in with these flavors, it waits, or it can never be let in. Rows are
Kueue's documents, so that everybody reads the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
Amounts = Mapping[str, str]  # by resource, as people write them
NEVER: Final = "never"
WAITS: Final = "waits"
GPU: Final = "nvidia.com/gpu"
PRODUCT: Final = "nvidia.com/gpu.product"
API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
PIN: Final = "berth.test/flavor"  # label of every flavor, so that what runs can be put there


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor; those without anything special need not be named."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Json] = ()
    tolerations: Sequence[Json] = ()


def quota(nominal: str, *, borrow: str | None = None, lend: str | None = None) -> Json:
    limits = {"borrowingLimit": borrow, "lendingLimit": lend}
    return {"nominalQuota": nominal} | {k: v for k, v in limits.items() if v is not None}


Group = Mapping[str, Mapping[str, str | Json]]  # flavor -> resource -> its quota


@dataclass(frozen=True)
class Queue:
    """A ClusterQueue; several groups are resource groups."""

    groups: Sequence[Group]
    cohort: str = ""
    prefers_own: bool = False
    used: Mapping[str, Amounts] = field(default_factory=dict)  # flavor -> resource


@dataclass(frozen=True)
class Cohort:
    """A Cohort."""

    parent: str = ""
    groups: Sequence[Group] = ()


@dataclass(frozen=True)
class Pods:
    """A pod set."""

    requests: Amounts
    count: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    models: Sequence[str] = ()  # of GPUs, as their nodes' label says
    tolerations: Sequence[Json] = ()


@dataclass(frozen=True)
class Row:
    """``then``: NEVER, WAITS, or the flavor of each resource, pod set by pod set."""

    what: str
    queues: Mapping[str, Queue]  # the first is the one that is asked
    asks: Sequence[Pods]
    then: str | Sequence[Mapping[str, str]]
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    coming: Sequence[tuple[str, Pods]] = ()  # placements that Kueue has not let in yet
    borrows: bool = False
    why: str = ""  # part of our words

    @property
    def queue(self) -> str:
        return next(iter(self.queues))


def gpus(gpus_a_pod: int, **more: Any) -> Pods:
    """A pod with so many GPUs and no other wish."""
    return Pods({GPU: str(gpus_a_pod)}, **more)


def only(*queues: Queue) -> dict[str, Queue]:
    return {f"q{number}": queue for number, queue in enumerate(queues)}


def of_gpus(*flavors: str | tuple[str, str | Json], **more: Any) -> Queue:
    """A queue of one resource: GPUs; eight in a flavor where nothing else is said."""
    named = [(each, "8") if isinstance(each, str) else each for each in flavors]
    return Queue([{flavor: {GPU: amount} for flavor, amount in named}], **more)


def got(*flavors: str) -> list[dict[str, str]]:
    """GPUs of these flavors, one for each pod set."""
    return [{GPU: flavor} for flavor in flavors]


T4: Final = Flavor({PRODUCT: "Tesla-T4"})
H100: Final = Flavor({PRODUCT: "NVIDIA-H100-80GB-HBM3"})
HOST: Final = {"cpu": "8", "memory": "32Gi"}
TAINT: Final = {"key": "dear", "value": "yes", "effect": "NoSchedule"}
PAIR: Final = {
    "left": Cohort(parent="root"),
    "right": Cohort(parent="root"),
    "root": Cohort(),
}

ROWS: Final[Sequence[Row]] = (
    # What is granted at all
    Row("a queue with room lets in", only(of_gpus("a")), [gpus(8)], got("a")),
    Row(
        "GPUs of another maker are no GPUs of this one",
        only(Queue([{"a": {**HOST, "amd.com/gpu": "8"}}])),
        [gpus(1)],
        NEVER,
        why="grants no nvidia.com/gpu",
    ),
    Row(
        "GPUs that are asked for by their maker's name",
        only(Queue([{"a": {**HOST, "amd.com/gpu": "8"}}])),
        [Pods({"cpu": "1", "amd.com/gpu": "1"})],
        [{"cpu": "a", "amd.com/gpu": "a"}],
    ),
    Row(
        "more than all of its quota",
        only(of_gpus("a")),
        [gpus(9)],
        NEVER,
        why="grants 8 nvidia.com/gpu at most, 9 are asked for",
    ),
    Row(
        "more than is left of its quota",
        only(of_gpus("a", used={"a": {GPU: "4"}})),
        [gpus(5)],
        WAITS,
        why="no quota left: needs 5 nvidia.com/gpu, 4 left",
    ),
    Row("all pods of a set count", only(of_gpus("a")), [gpus(3, count=3)], NEVER),
    Row("no quota at all", only(of_gpus(("a", "0"))), [gpus(1)], NEVER),
    Row(
        "a job that asks for no GPU needs none left",
        only(Queue([{"a": {**HOST, GPU: "2"}}], used={"a": {GPU: "2"}})),
        [Pods({"cpu": "2", "memory": "1Gi"})],
        [{"cpu": "a", "memory": "a"}],
    ),
    Row(
        "cores in thousandths",
        only(Queue([{"a": {"cpu": "2500m"}}], used={"a": {"cpu": "1"}})),
        [Pods({"cpu": "501m"}, count=3)],
        WAITS,
        why="no quota left: needs 1.503 cpu, 1.5 left",
    ),
    Row(
        "a resource that the queue does not name, beside one that it does",
        only(Queue([{"a": {"cpu": "8"}}])),
        [Pods({"cpu": "1", "memory": "1Gi"})],
        NEVER,
        why="grants no memory",
    ),
    # Parts of GPUs
    Row(
        "a slice of a GPU where slices are granted",
        only(Queue([{"a": {"cpu": "8", "nvidia.com/mig-3g.40gb": "4"}}])),
        [Pods({"cpu": "1", "nvidia.com/mig-3g.40gb": "1"}, count=4)],
        [{"cpu": "a", "nvidia.com/mig-3g.40gb": "a"}],
    ),
    Row(
        "a slice of another size is another resource",
        only(Queue([{"a": {"cpu": "8", "nvidia.com/mig-1g.10gb": "7"}}])),
        [Pods({"cpu": "1", "nvidia.com/mig-3g.40gb": "1"})],
        NEVER,
        why="grants no nvidia.com/mig-3g.40gb",
    ),
    Row(
        "a slice is no whole GPU",
        only(Queue([{"a": {"nvidia.com/mig-3g.40gb": "4"}}])),
        [gpus(1)],
        NEVER,
    ),
    Row(
        "a replica of a shared GPU",
        only(
            Queue(
                [{"a": {"nvidia.com/gpu.shared": "4"}}],
                used={"a": {"nvidia.com/gpu.shared": "3"}},
            )
        ),
        [Pods({"nvidia.com/gpu.shared": "1"})],
        [{"nvidia.com/gpu.shared": "a"}],
    ),
    # Resource groups and flavors
    Row(
        "one flavor has to give all of a group: GPUs of one and cores of the other are no room",
        only(
            Queue(
                [{"a": {"cpu": "8", GPU: "8"}, "b": {"cpu": "8", GPU: "8"}}],
                used={"a": {"cpu": "8"}, "b": {GPU: "8"}},
            )
        ),
        [Pods({"cpu": "4", GPU: "4"})],
        WAITS,
    ),
    Row(
        "one flavor would never be enough for all of a group",
        only(Queue([{"a": {"cpu": "1", GPU: "8"}, "b": {"cpu": "8", GPU: "1"}}])),
        [Pods({"cpu": "4", GPU: "4"})],
        NEVER,
        why="has enough of everything",
    ),
    Row(
        "each group gives its own flavor",
        only(Queue([{"host": {"cpu": "8"}}, {"a": {GPU: "2"}, "b": {GPU: "8"}}])),
        [Pods({"cpu": "4", GPU: "4"})],
        [{"cpu": "host", GPU: "b"}],
    ),
    Row(
        "a group that has no room holds up the others",
        only(
            Queue([{"host": {"cpu": "8"}}, {"a": {GPU: "8"}}], used={"host": {"cpu": "6"}}),
        ),
        [Pods({"cpu": "4", GPU: "4"})],
        WAITS,
        why="needs 4 cpu, 2 left",
    ),
    Row("the first flavor with room", only(of_gpus("a", "b")), [gpus(4)], got("a")),
    Row(
        "the next flavor when the first is taken",
        only(of_gpus("a", "b", used={"a": {GPU: "5"}})),
        [gpus(4)],
        got("b"),
    ),
    Row(
        "the next flavor when the first is too small",
        only(of_gpus(("a", "2"), "b")),
        [gpus(4)],
        got("b"),
    ),
    Row(
        "it may fit later while one flavor could ever hold it",
        only(of_gpus(("a", "2"), "b", used={"b": {GPU: "5"}})),
        [gpus(4)],
        WAITS,
        why="needs 4 nvidia.com/gpu, 3 left",
    ),
    # Whose nodes
    Row(
        "an H100 is not to be had of T4s",
        only(of_gpus("t4")),
        [gpus(1, models=["NVIDIA-H100-80GB-HBM3"])],
        NEVER,
        flavors={"t4": T4},
        why="is of the nodes that are asked for",
    ),
    Row(
        "the flavor whose nodes are asked for",
        only(of_gpus("t4", "h100")),
        [gpus(1, models=["NVIDIA-H100-80GB-HBM3"])],
        got("h100"),
        flavors={"t4": T4, "h100": H100},
    ),
    Row(
        "a flavor that says nothing of its model may have it",
        only(of_gpus("any")),
        [gpus(1, models=["NVIDIA-H100-80GB-HBM3"])],
        got("any"),
    ),
    Row(
        "the right flavor is taken, the wrong one is free: it waits",
        only(of_gpus("t4", "h100", used={"h100": {GPU: "8"}})),
        [gpus(1, models=["NVIDIA-H100-80GB-HBM3"])],
        WAITS,
        flavors={"t4": T4, "h100": H100},
        why="needs 1 nvidia.com/gpu, 0 left",
    ),
    Row(
        "a label with another value keeps pods away",
        only(of_gpus("a")),
        [gpus(1, labels={"zone": "west"})],
        NEVER,
        flavors={"a": Flavor({"zone": "east"})},
    ),
    Row(
        "a label that the flavor does not name does not",
        only(of_gpus("a")),
        [gpus(1, labels={"disk": "fast", "zone": "east"})],
        got("a"),
        flavors={"a": Flavor({"zone": "east"})},
    ),
    Row(
        "a taint keeps pods away that do not tolerate it",
        only(of_gpus("a", "b")),
        [gpus(1)],
        got("b"),
        flavors={"a": Flavor(taints=[TAINT])},
    ),
    Row(
        "nobody tolerates the only flavor",
        only(of_gpus("a")),
        [gpus(1, tolerations=[{"key": "dear", "operator": "Equal", "value": "no"}])],
        NEVER,
        flavors={"a": Flavor(taints=[TAINT])},
    ),
    Row(
        "who tolerates the taint gets in",
        only(of_gpus("a")),
        [gpus(1, tolerations=[{"key": "dear", "operator": "Exists"}])],
        got("a"),
        flavors={"a": Flavor(taints=[TAINT])},
    ),
    Row(
        "a flavor may tolerate its own taint",
        only(of_gpus("a")),
        [gpus(1)],
        got("a"),
        flavors={
            "a": Flavor(
                taints=[TAINT],
                tolerations=[{"key": "dear", "operator": "Exists", "effect": "NoSchedule"}],
            )
        },
    ),
    Row(
        "a taint that only discourages is none",
        only(of_gpus("a")),
        [gpus(1)],
        got("a"),
        flavors={"a": Flavor(taints=[{"key": "slow", "effect": "PreferNoSchedule"}])},
    ),
    # Several pod sets
    Row(
        "what one pod set gets is gone for the next",
        only(of_gpus("a")),
        [gpus(5), gpus(5)],
        NEVER,
        why="grants 8 nvidia.com/gpu at most, 10 are asked for",
    ),
    Row(
        "each pod set gets a flavor of its own",
        only(of_gpus("a", "b")),
        [gpus(5), gpus(5)],
        got("a", "b"),
    ),
    Row(
        "pod sets of different nodes",
        only(of_gpus("a", "b")),
        [gpus(5, labels={"zone": "b"}), gpus(5, labels={"zone": "a"})],
        got("b", "a"),
        flavors={"a": Flavor({"zone": "a"}), "b": Flavor({"zone": "b"})},
    ),
    Row(
        "an earlier pod set takes what only a later one can use: it is tried with the next flavor",
        only(of_gpus("a", "b")),
        [gpus(5), gpus(5, labels={"zone": "a"})],
        got("b", "a"),
        flavors={"a": Flavor({"zone": "a"}), "b": Flavor({"zone": "b"})},
    ),
    Row(
        "the next flavors of all earlier pod sets are tried at once",
        only(of_gpus("a", "b", "c")),
        [gpus(5), gpus(5), gpus(5, labels={"zone": "a"})],
        got("b", "c", "a"),
        flavors={
            "a": Flavor({"zone": "a"}),
            "b": Flavor({"zone": "b"}),
            "c": Flavor({"zone": "c"}),
        },
    ),
    # Pods as a resource
    Row(
        "pods are counted where they are granted",
        only(Queue([{"a": {"cpu": "8", "pods": "4"}}], used={"a": {"cpu": "1", "pods": "1"}})),
        [Pods({"cpu": "1"}, count=3)],
        [{"cpu": "a", "pods": "a"}],
    ),
    Row(
        "more pods than are granted",
        only(Queue([{"a": {"cpu": "8", "pods": "4"}}])),
        [Pods({"cpu": "1"}, count=5)],
        NEVER,
        why="grants 4 pods at most, 5 are asked for",
    ),
    # On their way
    Row(
        "what is on its way is charged",
        only(of_gpus("a")),
        [gpus(4)],
        WAITS,
        coming=[("q0", gpus(5))],
        why="needs 4 nvidia.com/gpu, 3 left",
    ),
    Row(
        "what is on its way takes the first flavor",
        only(of_gpus("a", "b")),
        [gpus(4)],
        got("b"),
        coming=[("q0", gpus(5))],
    ),
    Row(
        "what cannot be let in uses nothing",
        only(of_gpus("a")),
        [gpus(4)],
        got("a"),
        coming=[("q0", gpus(9))],
    ),
    # Cohorts
    Row(
        "what the cohort has left may be borrowed",
        only(of_gpus(("a", "2"), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(10)],
        got("a"),
        borrows=True,
    ),
    Row(
        "no more than all of the cohort",
        only(of_gpus(("a", "2"), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(11)],
        NEVER,
        why="grants 10 nvidia.com/gpu at most, 11 are asked for",
    ),
    Row(
        "who owns it uses it now",
        only(of_gpus(("a", "2"), cohort="all"), of_gpus("a", cohort="all", used={"a": {GPU: "5"}})),
        [gpus(6)],
        WAITS,
        why="needs 6 nvidia.com/gpu, 5 left",
    ),
    Row(
        "somebody has borrowed ours",
        only(of_gpus("a", cohort="all"), of_gpus(("a", "0"), cohort="all", used={"a": {GPU: "6"}})),
        [gpus(3)],
        WAITS,
        why="needs 3 nvidia.com/gpu, 2 left",
    ),
    Row(
        "up to the borrowing limit",
        only(of_gpus(("a", quota("2", borrow="4")), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(6)],
        got("a"),
        borrows=True,
    ),
    Row(
        "and not beyond it",
        only(of_gpus(("a", quota("2", borrow="4")), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(7)],
        NEVER,
        why="grants 6 nvidia.com/gpu at most, 7 are asked for",
    ),
    Row(
        "what is borrowed already counts against the limit",
        only(
            of_gpus(("a", quota("2", borrow="4")), cohort="all", used={"a": {GPU: "4"}}),
            of_gpus("a", cohort="all"),
        ),
        [gpus(3)],
        WAITS,
        why="needs 3 nvidia.com/gpu, 2 left",
    ),
    Row(
        "who may not borrow has its own",
        only(of_gpus(("a", quota("2", borrow="0")), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(3)],
        NEVER,
    ),
    Row(
        "nothing of its own, all of it borrowed",
        only(of_gpus(("a", "0"), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(1)],
        got("a"),
        borrows=True,
    ),
    Row(
        "another cohort lends nothing",
        only(of_gpus(("a", "2"), cohort="all"), of_gpus("a", cohort="others")),
        [gpus(3)],
        NEVER,
    ),
    Row(
        "a flavor that only others have is none of this queue's",
        only(of_gpus(("a", "2"), cohort="all"), of_gpus("b", cohort="all")),
        [gpus(3)],
        NEVER,
    ),
    Row(
        "a lending limit: what is kept is used first",
        only(
            of_gpus("a", cohort="all"),
            of_gpus(("a", quota("8", lend="3")), cohort="all", used={"a": {GPU: "7"}}),
        ),
        [gpus(9)],
        got("a"),
        borrows=True,
    ),
    Row(
        "a lending limit: what is lent is used too",
        only(
            of_gpus("a", cohort="all"),
            of_gpus(("a", quota("8", lend="3")), cohort="all", used={"a": {GPU: "7"}}),
        ),
        [gpus(10)],
        WAITS,
        why="needs 10 nvidia.com/gpu, 9 left",
    ),
    Row(
        "a lending limit: what is kept is never lent",
        only(
            of_gpus("a", cohort="all"),
            of_gpus(("a", quota("8", lend="3")), cohort="all", used={"a": {GPU: "7"}}),
        ),
        [gpus(12)],
        NEVER,
        why="grants 11 nvidia.com/gpu at most, 12 are asked for",
    ),
    Row(
        "who lends nothing still has it",
        only(
            of_gpus(("a", quota("8", lend="0")), cohort="all"),
            of_gpus(("a", "0"), cohort="all"),
        ),
        [gpus(8)],
        got("a"),
    ),
    Row(
        "what is on its way to a queue of the cohort is charged",
        only(of_gpus(("a", "2"), cohort="all"), of_gpus("a", cohort="all")),
        [gpus(6)],
        WAITS,
        coming=[("q1", gpus(6))],
        why="needs 6 nvidia.com/gpu, 4 left",
    ),
    Row(
        "it borrows in the first flavor",
        only(
            of_gpus(("a", "2"), "b", cohort="all"),
            of_gpus("a", cohort="all"),
        ),
        [gpus(4)],
        got("a"),
        borrows=True,
    ),
    Row(
        "it tries the next flavor before it borrows",
        only(
            of_gpus(("a", "2"), "b", cohort="all", prefers_own=True),
            of_gpus("a", cohort="all"),
        ),
        [gpus(4)],
        got("b"),
    ),
    Row(
        "it borrows in the first flavor when all have to",
        only(
            of_gpus(("a", "2"), ("b", "2"), cohort="all", prefers_own=True),
            of_gpus("a", "b", cohort="all"),
        ),
        [gpus(4)],
        got("a"),
        borrows=True,
    ),
    # Cohorts of cohorts
    Row(
        "a cohort borrows of its sister",
        only(of_gpus(("a", "2"), cohort="left"), of_gpus("a", cohort="right")),
        [gpus(10)],
        got("a"),
        cohorts=PAIR,
        borrows=True,
    ),
    Row(
        "a parent that nobody has made is a cohort too",
        only(of_gpus(("a", "2"), cohort="left"), of_gpus("a", cohort="right")),
        [gpus(10)],
        got("a"),
        cohorts={"left": Cohort(parent="root"), "right": Cohort(parent="root")},
        borrows=True,
    ),
    Row(
        "a cohort has quota of its own",
        only(of_gpus(("a", "2"), cohort="all")),
        [gpus(6)],
        got("a"),
        cohorts={"all": Cohort(groups=[{"a": {GPU: "4"}}])},
        borrows=True,
    ),
    Row(
        "and that is all",
        only(of_gpus(("a", "2"), cohort="all")),
        [gpus(7)],
        NEVER,
        cohorts={"all": Cohort(groups=[{"a": {GPU: "4"}}])},
        why="grants 6 nvidia.com/gpu at most",
    ),
    Row(
        "a cohort without queues lends its own",
        only(of_gpus(("a", "2"), cohort="left")),
        [gpus(8)],
        got("a"),
        cohorts={
            "left": Cohort(parent="root"),
            "pool": Cohort(parent="root", groups=[{"a": {GPU: quota("8", lend="6")}}]),
        },
        borrows=True,
    ),
    Row(
        "and no more than it lends",
        only(of_gpus(("a", "2"), cohort="left")),
        [gpus(9)],
        NEVER,
        cohorts={
            "left": Cohort(parent="root"),
            "pool": Cohort(parent="root", groups=[{"a": {GPU: quota("8", lend="6")}}]),
        },
        why="grants 8 nvidia.com/gpu at most",
    ),
    Row(
        "a cohort's borrowing limit holds for all its queues together",
        only(
            of_gpus(("a", "2"), cohort="left"),
            of_gpus(("a", "0"), cohort="left", used={"a": {GPU: "2"}}),
            of_gpus("a", cohort="right"),
        ),
        [gpus(4)],
        WAITS,
        cohorts={
            "left": Cohort(parent="root", groups=[{"a": {GPU: quota("0", borrow="3")}}]),
            "right": Cohort(parent="root"),
        },
        why="needs 4 nvidia.com/gpu, 3 left",
    ),
    Row(
        "a cohort's lending limit holds for all its queues together",
        only(of_gpus(("a", "2"), cohort="left"), of_gpus("a", cohort="right")),
        [gpus(6)],
        NEVER,
        cohorts={
            "left": Cohort(parent="root"),
            "right": Cohort(parent="root", groups=[{"a": {GPU: quota("0", lend="3")}}]),
        },
        why="grants 5 nvidia.com/gpu at most",
    ),
    Row(
        "it borrows from nearest",
        only(
            of_gpus(("a", "2"), ("b", "2"), cohort="left", prefers_own=True),
            of_gpus("b", cohort="left"),
            of_gpus("a", cohort="right"),
        ),
        [gpus(4)],
        got("b"),
        cohorts=PAIR,
        borrows=True,
    ),
)


class Documents:
    """A row as Kueue's documents, its names made its own by a prefix."""

    def __init__(self, row: Row, prefix: str = "", namespace: str = "team") -> None:
        self.row = row
        self._prefix = prefix
        self._namespace = namespace

    def name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def flavors(self) -> Iterator[Json]:
        groups = [group for queue in self.row.queues.values() for group in queue.groups]
        groups += [group for cohort in self.row.cohorts.values() for group in cohort.groups]
        for name in sorted({flavor for group in groups for flavor in group}):
            known = self.row.flavors.get(name, Flavor())
            spec: Json = {"nodeLabels": {**known.labels, PIN: self.name(name)}}
            if known.taints:
                spec["nodeTaints"] = list(known.taints)
            if known.tolerations:
                spec["tolerations"] = list(known.tolerations)
            yield self._object("ResourceFlavor", name, spec)

    def cohorts(self) -> Iterator[Json]:
        for name, cohort in self.row.cohorts.items():
            spec: Json = {"resourceGroups": self._groups(cohort.groups)}
            if cohort.parent:
                spec["parentName"] = self.name(cohort.parent)
            yield self._object("Cohort", name, spec)

    def queues(self) -> Iterator[Json]:
        for name, queue in self.row.queues.items():
            spec: Json = {
                "namespaceSelector": {},
                "queueingStrategy": "BestEffortFIFO",
                "resourceGroups": self._groups(queue.groups),
            }
            if queue.cohort:
                spec["cohortName"] = self.name(queue.cohort)
            if queue.prefers_own:
                spec["flavorFungibility"] = {"whenCanBorrow": "TryNextFlavor"}
            yield self._object("ClusterQueue", name, spec)

    def local_queues(self) -> Iterator[Json]:
        for name in self.row.queues:
            spec = {"clusterQueue": self.name(name)}
            yield self._object("LocalQueue", name, spec, self._namespace)

    def running(self) -> Iterator[Json]:
        """Workloads that use what the row says is used, each pinned to its flavor."""
        for queue, found in self.row.queues.items():
            for flavor, used in found.used.items():
                taints = self.row.flavors.get(flavor, Flavor()).taints
                pods = Pods(
                    {name: amount for name, amount in used.items() if name != "pods"},
                    labels={PIN: self.name(flavor)},
                    tolerations=[{"operator": "Exists"}] if taints else (),
                )
                yield self.workload(f"runs-{queue}-{flavor}", queue, [pods])

    def coming(self) -> Iterator[Json]:
        for number, (queue, pods) in enumerate(self.row.coming):
            yield self.workload(f"coming-{number}", queue, [pods])

    def asked(self) -> Json:
        return self.workload("asked", self.row.queue, self.row.asks)

    def workload(self, name: str, queue: str, asks: Sequence[Pods]) -> Json:
        pod_sets = [
            {"name": f"set-{number}", "count": pods.count, "template": {"spec": pod_of(pods)}}
            for number, pods in enumerate(asks)
        ]
        spec = {"queueName": self.name(queue), "podSets": pod_sets, "active": True}
        return self._object("Workload", name, spec, self._namespace)

    def _object(self, kind: str, name: str, spec: Json, namespace: str = "") -> Json:
        meta = {"name": self.name(name), **({"namespace": namespace} if namespace else {})}
        return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}

    def _groups(self, groups: Sequence[Group]) -> list[Json]:
        return [
            {
                "coveredResources": list(next(iter(group.values()))),
                "flavors": [
                    {
                        "name": self.name(flavor),
                        "resources": [
                            {"name": name} | (quota(amount) if isinstance(amount, str) else amount)
                            for name, amount in amounts.items()
                        ],
                    }
                    for flavor, amounts in group.items()
                ],
            }
            for group in groups
        ]


def pod_of(pods: Pods) -> Json:
    """The pods' specification."""
    limits = {name: amount for name, amount in pods.requests.items() if "/" in name}
    resources: Json = {"requests": dict(pods.requests)} | ({"limits": limits} if limits else {})
    spec: Json = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }
    if pods.labels:
        spec["nodeSelector"] = dict(pods.labels)
    if pods.tolerations:
        spec["tolerations"] = list(pods.tolerations)
    if pods.models:
        has = {"key": PRODUCT, "operator": "In", "values": list(pods.models)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [has]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec["affinity"] = {"nodeAffinity": required}
    return spec
