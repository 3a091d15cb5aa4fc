"""What a kind of job object has to say for itself. Pure.

A new kind is a file with one object of `JobKind`, and a line of the table (table.py). Its defaults
are what most kinds are like.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from berthmaster.lib.jobs.gangs import Gangs
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.kube.labels import INDEX
from berthmaster.lib.kube.objects import Condition
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest


class JobPlan(NamedTuple):
    """What the specification of a job object is made from."""

    request: JobRequest
    templates: Sequence[Document]  # of the pods of each pod set
    left_s: int | None = None  # seconds that its pods may run; None = no limit
    service: str = ""  # Service by which its pods find each other; "" = they do not
    queue: str = ""  # Volcano's queue
    scheduler: str = ""  # name of the scheduler that starts the pods


class Failure(NamedTuple):
    """Why an object failed, where no pod is left to say so."""

    reason: str
    by_job: bool  # the job failed by itself; False: its controller did not run it
    exit_code: int | None = None


class JobKind(Protocol):
    """One kind of job object."""

    name: ClassVar[str]  # in a cluster's profile, such as RayJob
    resource: ClassVar[Resource]
    max_name_chars: ClassVar[int]  # of an object; the names of its pods must fit into 63
    object_type: ClassVar[type[JobObject]] = JobObject
    setting: ClassVar[str] = ""  # value of the setting `jobs` that turns it on; "" = always on
    has_substitute: ClassVar[bool] = False  # where rights are missing, another kind is made instead
    needs_letter: ClassVar[bool] = False  # a name must begin with a letter
    index_annotation: ClassVar[str] = INDEX  # of a pod: its number within its pod set
    joins_peers: ClassVar[bool] = True  # we tell its pods of each other
    is_gang: ClassVar[bool] = False  # its scheduler starts all of its pods or none
    lacks_gangs: ClassVar[frozenset[Gangs]] = frozenset()  # groups that its pods cannot name
    has_queue: ClassVar[bool] = False  # its own scheduler's queue admits it, then pods are made
    stops_by_suspending: ClassVar[bool] = False  # suspended, it ends its pods and starts none
    replaces_pods: ClassVar[bool] = False  # its controller creates a failed pod again
    ends_on_eviction: ClassVar[bool] = False  # and ends all pods when one of them is evicted
    pod_failures: ClassVar[frozenset[str]] = frozenset()  # reasons that say only: a pod failed

    @property
    def definition(self) -> str:
        """Name of its CustomResourceDefinition; a Job, which is built in, has none."""
        return f"{self.resource.plural}.{self.resource.group}"

    def fits(self, request: JobRequest, via: Via) -> bool:
        """Whether a request can be such an object, in a cluster that serves the kind."""
        ...

    def spec(self, plan: JobPlan) -> Document:
        """Return the specification of the object."""
        ...

    def part_name(self, name: str, number: int) -> str:
        """Name the part of an object that is made for one of its pod sets."""
        return f"{name}-s{number}"

    def host_prefix(self, name: str, number: int) -> str:
        """Return the beginning of the host names of a pod set, before a pod's index."""
        return f"{self.part_name(name, number)}-"

    def complete_pod(self, spec: Document, left_s: int | None) -> None:
        """Add to a pod what other kinds' controllers add by themselves."""
        return

    def failure(self, why: Condition) -> Failure | None:
        """Return why an object failed as its controller says, None if only pods say why."""
        return None
