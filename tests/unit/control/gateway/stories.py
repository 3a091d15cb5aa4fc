"""Events and requests for the gateway's stories: valid, and stating only what a story is about."""

from typing import Any

import msgspec

from berthmaster.control.gateway.core.events import CaughtUp, Logged, QueuesKnown, Requested
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.gateway.core.shared_state import Limits
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    Cancelled,
    Claimed,
    Evicted,
    JobRequest,
    Placed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

BY = "gateway-1"
PODS = (PodBinding(pod="main-0", node="n1"),)


def fresh(*, caught_up: bool = True, **limits: Any) -> Gateway:
    gateway = Gateway(by=BY, limits=Limits(**limits))
    assert gateway.handle(QueuesKnown(), 0.0) == []
    if caught_up:
        assert gateway.handle(CaughtUp(), 0.0) == []
    return gateway


def ask(verb: str, body: object, *, ref: str = "r1", tenant: str | None = "ann") -> Requested:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Requested(ref=ref, verb=verb, data=data, tenant=tenant)


def job(name: str = "train", **rest: Any) -> JobRequest:
    return JobRequest(id=name, **rest)


def submitted(request: JobRequest, *, at_s: float = 1.0, ref: str = "r1") -> Submitted:
    return Submitted(
        tenant="ann",
        id=request.id,
        after=0,
        at_s=at_s,
        by=BY,
        cause=ref,
        request=request,
        digest=request_digest(request),
    )


def placed(request: JobRequest, after: int, *, attempt: int = 1, cluster: str = "c1") -> Placed:
    return Placed(
        tenant="ann",
        id=request.id,
        after=after,
        at_s=1.0,
        by="resolver",
        cluster=cluster,
        attempt=attempt,
        pods=PODS,
        request=request,
        decision=1,
    )


def claimed(request: JobRequest, after: int, *, attempt: int = 1) -> Claimed:
    return Claimed(
        tenant="ann",
        id=request.id,
        after=after,
        at_s=1.0,
        by="executor",
        cluster="c1",
        attempt=attempt,
        executor="e1",
    )


def running(request: JobRequest, after: int) -> Running:
    return Running(
        tenant="ann",
        id=request.id,
        after=after,
        at_s=1.0,
        by="executor",
        cluster="c1",
        attempt=1,
        pods=PODS,
    )


def evicted(request: JobRequest, after: int) -> Evicted:
    return Evicted(
        tenant="ann",
        id=request.id,
        after=after,
        at_s=1.0,
        by="executor",
        cluster="c1",
        attempt=1,
        reason="gpu_lost",
    )


def succeeded(request: JobRequest, after: int, *, attempt: int = 1) -> Succeeded:
    return Succeeded(
        tenant="ann",
        id=request.id,
        after=after,
        at_s=1.0,
        by="executor",
        cluster="c1" if attempt else "",
        attempt=attempt,
        digest=request_digest(request),
        submitted_at_s=1.0,
    )


def cancelled(request: JobRequest, after: int, *, attempt: int = 0) -> Cancelled:
    return Cancelled(
        tenant="ann",
        id=request.id,
        after=after,
        at_s=1.0,
        by=BY,
        attempt=attempt,
        digest=request_digest(request),
        submitted_at_s=1.0,
    )


def log(gateway: Gateway, *events: WorkloadEvent, start: int = 1) -> int:
    """Let the gateway read these under the sequences from ``start``; the last one."""
    for sequence, event in enumerate(events, start):
        told = gateway.handle(
            Logged(event=event, sequence=sequence, stored_at_s=float(sequence)), float(sequence)
        )
        assert told == []
    return start + len(events) - 1
