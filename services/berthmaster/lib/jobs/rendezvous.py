"""How the pods of a gang find each other: a Service that gives them names, and variables. Pure.

The Service has no address (headless) and belongs to the job object, so it goes with it. With it a
pod is ``<host>.<service>``, from before it is ready: whoever waits for the others must find them.

Pods are numbered over all pod sets, in the order of the request. The number within a pod set is the
Job's index, which the API hands in. What has to be added to it for later pod sets only a shell can
add, so requests of several pod sets that name a runtime and a command are started by ``/bin/sh``;
others of several pod sets are told both numbers and no rank.

A part of a job that is divided over clusters is a world of its own: no cluster knows the names of
another. Where the job says at which address its first pod is reachable, all parts are one world,
and the pods of later parts are numbered on from those of the parts before, as those of later pod
sets are.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.pods import Document, from_annotation
from berthmaster.lib.lifecycle.pods import is_elastic, least, most
from berthmaster.lib.messages.workload import JobRequest, PodSet

SERVICE: Final = "berthmaster.io/service"  # annotation: the Service that its pods are named by
PORT: Final = 29500  # torchrun's own
JAX_PORT: Final = 8476
MEGASCALE_PORT: Final = 8080
MAX_HOSTS_CHARS: Final = 32 * 1024  # an object has a size, and so has a variable
_RANKS: Final = ("RANK", "NODE_RANK", "PET_NODE_RANK", "JAX_PROCESS_ID")
_SHELL: Final = "; ".join(
    (
        "r=$((BERTH_RANK_OFFSET + JOB_COMPLETION_INDEX))",
        f"export {' '.join(f'{name}=$r' for name in _RANKS)}",
        'exec "$@"',
    )
)


class Peers(NamedTuple):
    """Who is in a gang."""

    service: str  # "" = nobody else is
    hosts: tuple[str, ...]  # of each pod set: what the names of its pods begin with
    counts: tuple[int, ...]
    before: int = 0  # pods of the same world in other clusters, which are numbered before these
    beyond: int = 0  # and after these
    address: str = ""  # of the first pod of the world; "" = it is here
    kind: JobKind = JOB  # of their job object

    @property
    def pods(self) -> int:
        """How many there are in this world."""
        return self.before + sum(self.counts) + self.beyond

    @property
    def number_source(self) -> Document:
        """A pod's number within its set, as the API hands it to its containers."""
        return from_annotation(self.kind.index_annotation)

    @property
    def is_offset(self) -> bool:
        """Whether some pods have another rank than their index."""
        return len(self.counts) > 1 or self.before > 0

    def host(self, set_number: int, index: int) -> str:
        """Where a pod is found."""
        if not self.service:
            return "localhost"
        return f"{self.hosts[set_number]}{index}.{self.service}"

    def offset(self, set_number: int) -> int:
        """How many pods come before those of a set."""
        return self.before + sum(self.counts[:set_number])


NOBODY: Final = Peers("", (), ())


def peers_of(request: JobRequest, name: str, kind: JobKind = JOB) -> Peers:
    """Return the peers of a gang, ``NOBODY`` where their controller has them find each other.
    ``name``, ``kind``: of the job object."""
    if not kind.joins_peers:
        return NOBODY
    counts = tuple(pods.count for pods in request.pod_sets)
    hosts = tuple(kind.host_prefix(name, number) for number in range(len(counts)))
    # Services may have to begin with a letter, and ids need not.
    some = sum(map(most, request.pod_sets)) > 1
    peers = Peers(f"g-{name}" if some else "", hosts, counts, kind=kind)
    if (part := request.part) is not None and part.address:
        before, beyond = sum(part.pods[: part.number]), sum(part.pods[part.number + 1 :])
        peers = peers._replace(before=before, beyond=beyond, address=part.address)
    return peers


def is_told(request: JobRequest, peers: Peers) -> bool:
    """Whether pods are told of each other. One alone is if it names a runtime, which counts on
    it."""
    return peers.pods > 1 or (peers.pods == 1 and request.runtime is not None)


def join(spec: Document, request: JobRequest, peers: Peers, set_number: int) -> None:
    """Tell the pods of a set who they are and where the others are. What the request itself sets
    stays. The variables come first, since others may be made of them."""
    pods = request.pod_sets[set_number]
    [main] = spec["containers"]
    own = {each["name"] for each in main.get("env", [])}
    env = [one for one in _env(request, peers, set_number, pods) if one["name"] not in own]
    main["env"] = [*env, *main.get("env", [])]
    if peers.service:
        spec["subdomain"] = peers.service
    command = main.get("command")
    if peers.is_offset and request.runtime is not None and command:
        main["command"] = ["/bin/sh", "-c", _SHELL, command[0], *command]


def service(name: str, whose: Document, owner: Document) -> Document:
    """The Service, owned by the job object. ``whose``: labels that all pods of the attempt have."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": whose, "ownerReferences": [owner]},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": whose,
        },
    }


def _env(request: JobRequest, peers: Peers, set_number: int, pods: PodSet) -> Iterator[Document]:
    first, offset = peers.address or peers.host(0, 0), peers.offset(set_number)
    processes = str(max(1, pods.gpus))
    yield _set("BERTH_PODS", str(peers.pods))
    yield _set("BERTH_POD_SET", pods.name)
    yield _set("BERTH_RANK_OFFSET", str(offset))
    yield {"name": "BERTH_POD_INDEX", "valueFrom": peers.number_source}
    yield _set("BERTH_PROCESSES", processes)
    if peers.service:
        hosts = zip(peers.hosts, peers.counts, strict=True)
        yield _set("BERTH_SERVICE", peers.service)
        yield _set("BERTH_PEERS", " ".join(f"{host}:{count}" for host, count in hosts))
    yield _set("MASTER_ADDR", first)
    yield _set("MASTER_PORT", str(PORT))
    yield _set("WORLD_SIZE", str(peers.pods))
    if not peers.is_offset:
        for name in _RANKS:
            yield {"name": name, "valueFrom": peers.number_source}
    yield _set("PET_NNODES", _nodes(request, peers))
    yield _set("PET_NPROC_PER_NODE", processes)
    yield _set("PET_MASTER_ADDR", first)
    yield _set("PET_MASTER_PORT", str(PORT))
    yield _set("JAX_COORDINATOR_ADDRESS", f"{first}:{JAX_PORT}")
    yield _set("JAX_NUM_PROCESSES", str(peers.pods))
    if pods.tpus:
        yield from _of_tpus(request.pod_sets, peers, set_number)


def _nodes(request: JobRequest, peers: Peers) -> str:
    """As torchrun's ``--nnodes`` has it: with the least and the most, if their number varies."""
    if not is_elastic(request):
        return str(peers.pods)
    return f"{sum(map(least, request.pod_sets))}:{sum(map(most, request.pod_sets))}"


def _of_tpus(sets: Sequence[PodSet], peers: Peers, set_number: int) -> Iterator[Document]:
    """Each pod set of TPUs is a slice of its own, or several of one pod each."""
    yield {"name": "TPU_WORKER_ID", "valueFrom": peers.number_source}
    hosts = ",".join(peers.host(set_number, n) for n in range(peers.counts[set_number]))
    if len(hosts) <= MAX_HOSTS_CHARS:
        yield _set("TPU_WORKER_HOSTNAMES", hosts)
    slices = [number for number, pods in enumerate(sets) if pods.tpus]
    if len(slices) > 1:
        yield _set("MEGASCALE_NUM_SLICES", str(len(slices)))
        yield _set("MEGASCALE_SLICE_ID", str(slices.index(set_number)))
        first = peers.host(slices[0], 0)
        yield _set("MEGASCALE_COORDINATOR_ADDRESS", f"{first}:{MEGASCALE_PORT}")


def _set(name: str, value: str) -> Document:
    return {"name": name, "value": value}
