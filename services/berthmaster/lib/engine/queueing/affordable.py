"""Which places a job may take where some nodes charge a part of a GPU more than others. Pure.

Example: a queue has 0.6 of a GPU left, and a job of two pods asks for 8 GiB of GPU memory each. A
GPU of 16 GiB charges each pod 0.5, one of 80 GiB 0.1. The job may have parts that cost at most 0.3:
the GPUs of 16 GiB are out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from berthmaster.lib.engine.fleet.needs import CappedPodSet
from berthmaster.lib.engine.fleet.shares import Charges
from berthmaster.lib.engine.queueing.queues import GPU, Ask, Models, prices_of
from berthmaster.lib.messages.workload import JobRequest, PodSet


def affordable(
    request: JobRequest,
    ask: Ask,
    charges: Sequence[Charges],
    left: Mapping[str, int],
    models: Models,
) -> JobRequest | None:
    """Return the request with price limits on GPU fractions, or None if no price is low enough.

    ``charges``: charges of one pod for each pod set, empty for whole GPUs. ``left``: GPU milli left
    for the job by resource. Within the limits, all pods together stay within ``left``, wherever
    placed. The first pod sets may be expensive as long as the others can be cheap.
    """
    total = {resource: ask.of(resource, models) for resource in left}
    sets: dict[int, PodSet] = dict(enumerate(request.pod_sets))
    narrowed = False
    for number, (pods, of_set) in enumerate(zip(request.pod_sets, charges, strict=True)):
        if not of_set:
            continue
        count = pods.count
        least = {r: count * min(prices_of(of_set, r), default=0) for r in left}
        allowed = []
        for model, milli in of_set:
            on = [r for r in left if r == GPU or prices_of(((model, milli),), r)]
            if all(total[r] - least[r] + count * milli <= left[r] for r in on):
                allowed.append((model, milli))
        if not allowed:
            return None
        for resource in left:
            most = max(prices_of(tuple(allowed), resource), default=0)
            total[resource] += count * most - least[resource]
        if len(allowed) < len(of_set):
            bounds = dict.fromkeys((model for model, _ in of_set), 0) | dict(sorted(allowed))
            sets[number], narrowed = _capped(pods, bounds), True
    return msgspec.structs.replace(request, pod_sets=tuple(sets.values())) if narrowed else request


def _capped(pods: PodSet, bounds: Mapping[str, int]) -> CappedPodSet:
    """Return the same pods with limits. Earlier limits stay for other models."""
    before: dict[str, int] = {}
    if isinstance(pods, CappedPodSet):
        before.update(pods.charged_at_most)
    fields: dict[str, Any] = {name: getattr(pods, name) for name in PodSet.__struct_fields__}
    return CappedPodSet(**fields, charged_at_most=tuple(sorted((before | dict(bounds)).items())))
