"""Rendezvous of a gang's pods: a Service for their host names, and variables. Pure.

The Service is headless and owned by the job object, so Kubernetes deletes both together. A pod's
host name is ``<host>.<service>``, published before the pod is ready, because peers wait for each
other at their start.

Pods are numbered over all pod sets, in the order of the request. The number within a pod set is the
Job's index, set by the API. For later pod sets only a shell can add the offset. Requests with
several pod sets, a runtime and a command therefore start by ``/bin/sh``. Other requests with
several pod sets get both numbers and no rank.

Each part of a job divided over clusters is a world of its own, because no cluster resolves names of
another. If the job states an address of its first pod, all parts form one world. The pods of later
parts are then numbered after those of earlier parts.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.pods import Document, from_annotation
from berthmaster.lib.lifecycle.pods import is_elastic, least, most
from berthmaster.lib.messages.workload import JobRequest, PodSet

SERVICE: Final = "berthmaster.io/service"  # annotation: Service of the pods' host names
PORT: Final = 29500  # torchrun's default
JAX_PORT: Final = 8476
MEGASCALE_PORT: Final = 8080
MAX_HOSTS_CHARS: Final = 32 * 1024  # limit, as objects and variables are limited in size
_RANKS: Final = ("RANK", "NODE_RANK", "PET_NODE_RANK", "JAX_PROCESS_ID")
_SHELL: Final = "; ".join(
    (
        "r=$((BERTH_RANK_OFFSET + JOB_COMPLETION_INDEX))",
        f"export {' '.join(f'{name}=$r' for name in _RANKS)}",
        'exec "$@"',
    )
)


class Peers(NamedTuple):
    """The members of a gang."""

    service: str  # "" = no other members
    hosts: tuple[str, ...]  # of each pod set: prefix of its pods' host names
    counts: tuple[int, ...]
    before: int = 0  # pods in other clusters with lower ranks in this world
    beyond: int = 0  # pods in other clusters with higher ranks
    address: str = ""  # of the world's first pod; "" = in this cluster
    kind: JobKind = JOB  # of the gang's job object

    @property
    def pods(self) -> int:
        """The number of pods in this world."""
        return self.before + sum(self.counts) + self.beyond

    @property
    def number_source(self) -> Document:
        """The source of a pod's number within its set, for a variable."""
        return from_annotation(self.kind.index_annotation)

    @property
    def is_offset(self) -> bool:
        """Whether the rank of some pod differs from its index."""
        return len(self.counts) > 1 or self.before > 0

    def host(self, set_number: int, index: int) -> str:
        """Return the host name of a pod."""
        if not self.service:
            return "localhost"
        return f"{self.hosts[set_number]}{index}.{self.service}"

    def offset(self, set_number: int) -> int:
        """Return the number of pods before a pod set."""
        return self.before + sum(self.counts[:set_number])


NOBODY: Final = Peers("", (), ())


def peers_of(request: JobRequest, name: str, kind: JobKind = JOB) -> Peers:
    """Return the peers of a gang, or ``NOBODY`` if the kind's controller joins its pods.

    ``name`` and ``kind`` belong to the job object.
    """
    if not kind.joins_peers:
        return NOBODY
    counts = tuple(pods.count for pods in request.pod_sets)
    hosts = tuple(kind.host_prefix(name, number) for number in range(len(counts)))
    # Some clusters require a Service name to begin with a letter, but an id may begin with a digit.
    some = sum(map(most, request.pod_sets)) > 1
    peers = Peers(f"g-{name}" if some else "", hosts, counts, kind=kind)
    if (part := request.part) is not None and part.address:
        before, beyond = sum(part.pods[: part.number]), sum(part.pods[part.number + 1 :])
        peers = peers._replace(before=before, beyond=beyond, address=part.address)
    return peers


def is_told(request: JobRequest, peers: Peers) -> bool:
    """Return whether pods get the variables. A single pod does if its runtime needs them."""
    return peers.pods > 1 or (peers.pods == 1 and request.runtime is not None)


def join(spec: Document, request: JobRequest, peers: Peers, set_number: int) -> None:
    """Add rank and peers to the pods of a set. Variables of the request are kept.

    The new variables come first, because others may refer to them.
    """
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
    """Return the Service, owned by the job object. ``whose``: labels of all pods of the attempt."""
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
    """Return torchrun's ``--nnodes``: minimum and maximum if the number of pods varies."""
    if not is_elastic(request):
        return str(peers.pods)
    return f"{sum(map(least, request.pod_sets))}:{sum(map(most, request.pod_sets))}"


def _of_tpus(sets: Sequence[PodSet], peers: Peers, set_number: int) -> Iterator[Document]:
    """Yield the TPU variables. A pod set with TPUs is one slice, or several of one pod each."""
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
