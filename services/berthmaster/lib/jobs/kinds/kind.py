"""The properties of a kind of job object. Pure.

A new kind is a file with one `JobKind` object, and a line in the table (table.py). The defaults fit
most kinds.
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
    """The inputs of a job object's specification."""

    request: JobRequest
    templates: Sequence[Document]  # pod template of each pod set
    left_s: int | None = None  # remaining run time of the pods; None = no limit
    service: str = ""  # Service of the pods' host names; "" = none
    queue: str = ""  # Volcano's queue
    scheduler: str = ""  # name of the pods' scheduler


class Failure(NamedTuple):
    """Why an object failed, where no pod is left to show the reason."""

    reason: str
    by_job: bool  # the job itself failed; False: its controller did not run the job
    exit_code: int | None = None


class JobKind(Protocol):
    """One kind of job object."""

    name: ClassVar[str]  # name in a cluster's profile, such as RayJob
    resource: ClassVar[Resource]
    max_name_chars: ClassVar[int]  # of an object; its pods' names must fit into 63
    object_type: ClassVar[type[JobObject]] = JobObject
    setting: ClassVar[str] = ""  # value of the setting `jobs` for this kind; "" = always enabled
    has_substitute: ClassVar[bool] = False  # without the rights, another kind is used instead
    needs_letter: ClassVar[bool] = False  # names must begin with a letter
    index_annotation: ClassVar[str] = INDEX  # of a pod: its number within its pod set
    joins_peers: ClassVar[bool] = True  # the executor adds variables with the peers
    is_gang: ClassVar[bool] = False  # its scheduler starts all pods or none
    lacks_gangs: ClassVar[frozenset[Gangs]] = frozenset()  # groups that its pods cannot name
    has_queue: ClassVar[bool] = False  # its scheduler's queue admits the job before pods exist
    stops_by_suspending: ClassVar[bool] = False  # suspending ends all pods and starts none
    replaces_pods: ClassVar[bool] = False  # its controller creates failed pods again
    ends_on_eviction: ClassVar[bool] = False  # one evicted pod ends all pods
    pod_failures: ClassVar[frozenset[str]] = frozenset()  # reasons that only mean: a pod failed

    @property
    def definition(self) -> str:
        """The name of the kind's CustomResourceDefinition. The built-in Job has none."""
        return f"{self.resource.plural}.{self.resource.group}"

    def fits(self, request: JobRequest, via: Via) -> bool:
        """Return whether a request can use this kind, in a cluster that serves the kind."""
        ...

    def spec(self, plan: JobPlan) -> Document:
        """Return the specification of the object."""
        ...

    def part_name(self, name: str, number: int) -> str:
        """Return the name of an object's part for one of its pod sets."""
        return f"{name}-s{number}"

    def host_prefix(self, name: str, number: int) -> str:
        """Return the prefix of a pod set's host names, before a pod's index."""
        return f"{self.part_name(name, number)}-"

    def complete_pod(self, spec: Document, left_s: int | None) -> None:
        """Add fields to a pod that other kinds' controllers add by themselves."""
        return

    def failure(self, why: Condition) -> Failure | None:
        """Return the controller's reason for a failure, or None if only pods show the reason."""
        return None
