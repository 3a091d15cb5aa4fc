"""Whether a queue takes a request of this tenant, and why not. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from berthmaster.lib.engine.queueing.queues import ask_of
from berthmaster.lib.engine.queueing.tree import DEFAULT_QUEUE
from berthmaster.lib.lifecycle.sizes import is_elastic, is_set_elastic
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import JobDefaults, QueueSetting
from berthmaster.lib.messages.explain import invalid, nearest, shorten
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests.bounds import request_refusal
from berthmaster.lib.requests.by_hub import by_hub_refusal
from berthmaster.lib.requests.dividing import via_refusal
from berthmaster.lib.requests.queue_tree import inner_refusal
from berthmaster.lib.requests.runtimes import filled_in

NO_QUEUES: Final = {DEFAULT_QUEUE: QueueSetting(queue=DEFAULT_QUEUE)}  # while no operator set one
MAX_QUEUES_NAMED: Final = 20


def taken(
    queues: Mapping[str, QueueSetting],
    runtimes: Mapping[str, RuntimeSetting],
    tenant: str,
    request: JobRequest,
    waiting: Mapping[str, int],
) -> JobRequest | Refusal:
    """The request with what its runtime brings, or why it is not taken. What a runtime brings is
    bounded by whoever allows it, but for its image, which the queue has its say in."""
    filled = filled_in(request, tenant, runtimes)
    if isinstance(filled, Refusal):  # of a queue that is not this tenant's nothing is told
        return _not_open(queues, tenant, request.queue) or filled
    asked = replace(request, run=filled.run)
    return refusal_of(queues, tenant, asked, waiting) or filled


def refusal_of(
    queues: Mapping[str, QueueSetting],
    tenant: str,
    request: JobRequest,
    waiting: Mapping[str, int],
) -> Refusal | None:
    """Why the request's queue does not take it, if so. ``waiting``: queue -> how many wait."""
    refusal = _not_open(queues, tenant, request.queue) or inner_refusal(
        queues, tenant, request.queue
    )
    if refusal is not None:
        return refusal
    setting = queues[request.queue]
    if setting.via == "hub" and is_elastic(request):
        return _not_elastic(setting, request)
    if setting.via == "hub" and (refusal := by_hub_refusal(request)):
        return refusal
    if setting.via == "worker" and request.deadline_s is not None:
        why = f"the Kueue of a cluster starts the jobs of the queue {setting.queue!r}, at its time"
        return invalid(["deadline_s"], request.deadline_s, f"nothing: {why}")
    if refusal := via_refusal(setting, request):
        return refusal
    return request_refusal(setting, request) or _too_much(setting, request, waiting)


def with_defaults(setting: QueueSetting, request: JobRequest, body: bytes) -> JobRequest:
    """The request with what its queue says where it says nothing itself. ``body``: as it was sent,
    since a request that is preemptible may have said so or not."""
    defaults = {
        name: default
        for name in JobDefaults.__struct_fields__
        if (default := getattr(setting.defaults, name)) is not None
    }
    if not defaults:
        return request
    said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.structs.replace(
        request,
        **{
            name: default
            for name, default in defaults.items()
            if name not in said or bytes(said[name]) == b"null"
        },
    )


def _not_open(queues: Mapping[str, QueueSetting], tenant: str, queue: str) -> Refusal | None:
    """Why this tenant cannot submit to this queue, if so. Names only queues that are open to it."""
    setting = queues.get(queue)
    open_to_it = setting is not None and (not setting.tenants or tenant in setting.tenants)
    if setting is not None and open_to_it and not setting.deleted:
        return None
    usable = sorted(
        name
        for name, other in queues.items()
        if not other.deleted and (not other.tenants or tenant in other.tenants)
    )
    near = nearest(queue, usable)
    hint = f"did you mean {near!r}? " if near else ""
    named = ", ".join(usable[:MAX_QUEUES_NAMED]) + (", …" if usable[MAX_QUEUES_NAMED:] else "")
    wrong = "it was deleted" if open_to_it else "this one does not exist or is not open to it"
    return Refusal(
        code="forbidden" if open_to_it else "not_found",
        field="queue",
        value=shorten(queue),
        expected=f"a queue that takes requests of tenant {tenant!r}; {wrong}. "
        f"{hint}There are: {named or 'none'}",
    )


def _not_elastic(setting: QueueSetting, request: JobRequest) -> Refusal:
    """Who starts its pods starts all of them, and changes their number by no word of ours."""
    at, pods = next((at, pods) for at, pods in enumerate(request.pod_sets) if is_set_elastic(pods))
    field = "min_count" if pods.min_count is not None else "max_count"
    why = f"the queue {setting.queue!r} goes by way of the hub's Kueue, which starts all pods"
    return invalid(["pod_sets", at, field], getattr(pods, field), f"nothing: {why}")


def _too_much(
    setting: QueueSetting, request: JobRequest, waiting: Mapping[str, int]
) -> Refusal | None:
    """Why the queue does not take this request, if so: it is too large, or too many wait."""
    most = setting.max_job_gpu_milli if setting.via == "direct" else None
    milli = ask_of(request).gpu_milli  # nodes may charge more: the resolver decides that
    if most is not None and milli > most:
        return Refusal(
            code="invalid",
            field="pod_sets",
            value=f"{milli / 1000:g} GPUs in all pods",
            expected=f"at most {most / 1000:g} GPUs in a job of the queue {setting.queue!r}",
        )
    limit = setting.max_waiting_jobs
    if limit is not None and waiting.get(setting.queue, 0) >= limit:
        why = f"the queue {setting.queue!r} lets {limit} jobs wait, and they do"
        return Refusal(code="overloaded", field="", value="", expected=why, retry=True)
    return None
