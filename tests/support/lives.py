"""Events that fit a workload as it stands: a test names the kind and what is special about it."""

from typing import Any

from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    CarriedWorkload,
    Checkpoint,
    Checkpointed,
    Claimed,
    Committed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Held,
    HoldReleased,
    IdleChanged,
    LimitExceeded,
    MoveRequested,
    PartPlace,
    Placed,
    Progress,
    Progressed,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    State,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.builders import job

TENANT = "team-a"
ID = "train-1"
REQUEST = job(ID)
DIGEST = request_digest(REQUEST)
PODS = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)
CLUSTER = "c1"
ENDINGS = (Succeeded, Failed, Cancelled)
CLAIMED = CarriedWorkload(
    state=State.CLAIMED,
    request=REQUEST,
    digest=DIGEST,
    submitted_sequence=3,
    submitted_at_s=1.0,
    attempt=2,
    evictions=1,
    cluster=CLUSTER,
    pods=PODS,
    decision=4,
    placed_at_s=2.0,
    claimed_at_s=3.0,
    executor="executor/1",
)  # as it is carried into a new log


def new() -> Workload:
    return Workload(tenant=TENANT, id=ID)


def fitting(kind: type[WorkloadEvent], workload: Workload, **changes: Any) -> WorkloadEvent:
    """An event of this kind whose ``after``, attempt and cluster are those of the workload."""
    fields: dict[str, Any] = {
        "tenant": workload.tenant,
        "id": workload.id,
        "after": workload.sequence,
        "at_s": 0.0,
        "by": "test",
    }
    cluster = workload.cluster or ("" if workload.parts else CLUSTER)
    if kind is Submitted:
        fields |= {"request": REQUEST, "digest": DIGEST}
    elif kind is Released:
        pass
    elif kind is Reprioritized:
        fields |= {"priority": 7}
    elif kind in (Held, HoldReleased):
        fields |= {"who": "tenant team-a"}
    elif kind is CancelRequested:
        fields |= {"cluster": cluster, "reason": "asked"}
    elif kind in ENDINGS:
        fields |= {
            "attempt": workload.attempt,
            "cluster": workload.cluster,
            "digest": DIGEST,
            "submitted_at_s": workload.submitted_at_s,
            "reason": "over",
        }
    elif kind is Carried:
        fields |= {"after": 0, "cluster": CLUSTER, "workload": CLAIMED}
    elif kind is Divided:
        parts = tuple(PartPlace(id=f"{ID}--1-{n}", cluster=f"c{n}", pods=1) for n in (0, 1))
        fields |= {"attempt": workload.attempt + 1, "parts": parts, "decision": 1}
    else:
        fields |= {"cluster": cluster, "attempt": workload.attempt}
    if kind is Placed:
        fields |= {
            "cluster": CLUSTER,
            "attempt": workload.attempt + 1,
            "pods": PODS,
            "request": REQUEST,
            "decision": workload.attempt + 1,
        }
    elif kind is Withdrawn:
        fields |= {"reason": "not claimed", "decision": workload.attempt + 1}
    elif kind is Committed:
        fields |= {"decision": 2}
    elif kind is Claimed:
        fields |= {"executor": "executor/1"}
    elif kind is Running:
        fields |= {"pods": PODS}
    elif kind is Evicted:
        fields |= {"reason": "node lost"}
    elif kind is MoveRequested:
        fields |= {"how": "move", "who": "tenant team-a"}
    elif kind is Checkpointed:
        fields |= {"checkpoint": Checkpoint(step=100, uri="s3://runs/train-1/100")}
    elif kind is Progressed:
        fields |= {"progress": Progress(step=100, loss=0.5, eta_s=60.0)}
    elif kind is IdleChanged:
        fields |= {"idle": True, "since_s": 900.0, "utilization_percent": 1.0}
    elif kind is LimitExceeded:
        fields |= {"limit": "memory", "granted": 1000, "used": 2000}
    elif kind is EvictionRequested:
        fields |= {"reason": "room for another", "decision": 2}
    elif kind is ResizeRequested:
        fields |= {"reason": "room for another", "decision": 2, "pods": PODS}
    elif kind is Resized:
        fields |= {"pods": PODS}
    return kind(**(fields | changes))


def lived(*kinds: type[WorkloadEvent]) -> Workload:
    """A workload after these events, one a second, stored under 10, 20, 30 …"""
    workload = new()
    for number, kind in enumerate(kinds, 1):
        event = fitting(kind, workload)
        assert offer(workload, event, 10 * number, float(number)) is Verdict.COUNTED
    return workload
