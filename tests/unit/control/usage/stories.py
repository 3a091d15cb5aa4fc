"""Stories of jobs for the tests of the usage service: valid, and timed by their reader."""

from collections.abc import Iterator
from typing import Any

from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.placement import HUB_CELL, MAIN_CELL, PodBinding
from berthmaster.lib.messages.workload import (
    Admitted,
    Claimed,
    Evicted,
    Failed,
    Fault,
    HubObject,
    JobRequest,
    Placed,
    PodSet,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

HOUR_S = 3600.0


class Story:
    """One job; each step is stored at the time that is said."""

    def __init__(
        self,
        workload_id: str = "train-1",
        *,
        tenant: str = "acme",
        queue: str = "default",
        gpus: int = 2,
        gpu_milli: int = 1000,
        labels: dict[str, str] | None = None,
        models: tuple[str, ...] = ("H100",),
        hub: str = "",
        sequence: int = 1,
        owner: str = "",
    ) -> None:
        self.tenant, self.id = tenant, workload_id
        self.events: list[RecordedEvent] = []
        self._next, self._after, self._attempt, self._cluster = sequence, 0, 0, ""
        pods = PodSet(gpus=gpus, gpu_milli=gpu_milli, gpu_models=models)
        self.request = JobRequest(
            id=workload_id, queue=queue, pod_sets=(pods,), labels=labels or {}
        )
        self._cell = HUB_CELL if hub else MAIN_CELL
        self._origin = (
            HubObject(namespace="team", name=workload_id, hub=hub, owner=owner) if hub else None
        )

    def submitted(self, at_s: float) -> "Story":
        return self._store(
            Submitted(
                **self._head(),
                request=self.request,
                digest="d",
                cell=self._cell,
                origin=self._origin,
            ),
            at_s,
        )

    def placed(self, at_s: float, cluster: str = "c1", *, pods: bool = True) -> "Story":
        self._attempt, self._cluster = self._attempt + 1, cluster
        gpus = tuple(range(self.request.pod_sets[0].gpus))
        binding = PodBinding(pod="main-0", node="n1", gpus=gpus)
        return self._store(
            Placed(
                **self._head(),
                cluster=cluster,
                attempt=self._attempt,
                pods=(binding,) if pods else (),
                request=self.request,
                decision=1,
                cell=self._cell,
            ),
            at_s,
        )

    def claimed(self, at_s: float) -> "Story":
        return self._store(Claimed(**self._head(), **self._at(), executor="e"), at_s)

    def admitted(self, at_s: float) -> "Story":
        return self._store(Admitted(**self._head(), **self._at()), at_s)

    def running(self, at_s: float) -> "Story":
        return self._store(Running(**self._head(), **self._at(), pods=()), at_s)

    def evicted(self, at_s: float, *, blameless: bool = False) -> "Story":
        return self._store(
            Evicted(**self._head(), **self._at(), reason="preempted", blameless=blameless), at_s
        )

    def succeeded(self, at_s: float) -> "Story":
        return self._ended(Succeeded, at_s)

    def failed(self, at_s: float, fault: Fault = "") -> "Story":
        return self._ended(Failed, at_s, fault=fault)

    def ran(self, placed_s: float, until_s: float, cluster: str = "c1") -> "Story":
        """Submitted when placed, at once running, succeeded."""
        self.submitted(placed_s).placed(placed_s, cluster).claimed(placed_s)
        return self.running(placed_s).succeeded(until_s)

    def __iter__(self) -> Iterator[RecordedEvent]:
        return iter(self.events)

    def _head(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant,
            "id": self.id,
            "after": self._after,
            "at_s": 0.0,
            "by": "test",
        }

    def _at(self) -> dict[str, Any]:
        return {"cluster": self._cluster, "attempt": self._attempt}

    def _ended(self, kind: type[Succeeded] | type[Failed], at_s: float, **more: Any) -> "Story":
        head = self._head() | self._at() | more
        return self._store(kind(**head, digest="d", submitted_at_s=0.0, reason="over"), at_s)

    def _store(self, event: WorkloadEvent, at_s: float) -> "Story":
        recorded = RecordedEvent(sequence=self._next, stored_at_s=at_s, event=event)
        self.events.append(recorded)
        self._after, self._next = self._next, self._next + 1
        return self
