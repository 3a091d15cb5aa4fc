"""How many pods an attempt has, between the least and the most that its request allows. Pure.

A request says how many are wished for (``count``). While an attempt is open its request is read as
it stands: ``count`` is how many pods it has, so whoever adds up what it takes is right.
"""

from collections.abc import Mapping, Sequence

import msgspec

from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet


def least(pods: PodSet) -> int:
    """With fewer it does not run."""
    return pods.count if pods.min_count is None else pods.min_count


def most(pods: PodSet) -> int:
    """With more it cannot do anything."""
    return pods.count if pods.max_count is None else pods.max_count


def is_elastic(request: JobRequest) -> bool:
    """Whether it may have another number of pods than it wishes for."""
    return any(map(is_set_elastic, request.pod_sets))


def is_set_elastic(pods: PodSet) -> bool:
    """Whether the number of these may be another than is wished for."""
    return pods.min_count is not None or pods.max_count is not None


def set_of(pod: str) -> str:
    """The pod set of ``<pod set>-<index>``."""
    return pod.rpartition("-")[0]


def index_of(pod: str) -> int:
    """Its number in its pod set; those of the highest go first."""
    index = pod.rpartition("-")[2]
    return int(index) if index.isascii() and index.isdecimal() else -1


def counts_of(pods: Sequence[PodBinding]) -> dict[str, int]:
    """How many there are of each pod set."""
    counts: dict[str, int] = {}
    for each in pods:
        name = set_of(each.pod)
        counts[name] = counts.get(name, 0) + 1
    return counts


def sized(request: JobRequest, counts: Mapping[str, int]) -> JobRequest:
    """The request with so many pods of its elastic pod sets, within their bounds, which are told in
    it. Sets that are not named stay as they are."""
    if not is_elastic(request):
        return request
    sets = []
    for pods in request.pod_sets:
        if is_set_elastic(pods):
            low, high = least(pods), most(pods)
            count = min(max(counts.get(pods.name) or pods.count, low), high)
            pods = msgspec.structs.replace(pods, count=count, min_count=low, max_count=high)
        sets.append(pods)
    return msgspec.structs.replace(request, pod_sets=tuple(sets))


def with_bound(request: JobRequest, pods: Sequence[PodBinding]) -> JobRequest:
    """The request with as many pods as these."""
    return sized(request, counts_of(pods)) if is_elastic(request) else request


def with_coming(request: JobRequest, count: int) -> JobRequest:
    """Of a request of one pod set, so many of its pods alone."""
    [pods] = request.pod_sets
    more = msgspec.structs.replace(pods, count=count, min_count=None, max_count=None)
    return msgspec.structs.replace(request, pod_sets=(more,))


def without(held: Sequence[PodBinding], bindings: Sequence[PodBinding]) -> tuple[PodBinding, ...]:
    """Those of the held that are not kept."""
    names = {each.pod for each in bindings}
    return tuple(each for each in held if each.pod not in names)


def together(held: Sequence[PodBinding], more: Sequence[PodBinding]) -> tuple[PodBinding, ...]:
    """The held, and those of the others that are not among them."""
    if not more:
        return tuple(held)
    return (*held, *without(more, held))


def least_request(request: JobRequest) -> JobRequest:
    """With as few pods as it can run with."""
    return sized(request, _up_to_wished(request)[0])


def steps(request: JobRequest, low: Mapping[str, int], high: Mapping[str, int]) -> int:
    """How many sizes there are above the low one, up to the high one: see ``at_step``."""
    return max((high[p.name] - low[p.name] for p in request.pod_sets), default=0)


def at_step(low: Mapping[str, int], high: Mapping[str, int], step: int, of: int) -> dict[str, int]:
    """The size that is so many steps above the low one: all pod sets grow alike.

    For example, from (2, 1) to (6, 3) there are 4 steps, and two of them make (4, 2).
    """
    if not of:
        return dict(low)
    return {name: low[name] + (high[name] - low[name]) * step // of for name in low}


def size_steps(request: JobRequest) -> int:
    """How many sizes there are above the least, up to what is wished for."""
    return steps(request, *_up_to_wished(request))


def at_size(request: JobRequest, step: int) -> JobRequest:
    """The request so many sizes above the least."""
    low, high = _up_to_wished(request)
    return sized(request, at_step(low, high, step, steps(request, low, high)))


def _up_to_wished(request: JobRequest) -> tuple[dict[str, int], dict[str, int]]:
    low = {pods.name: least(pods) for pods in request.pod_sets}
    return low, {pods.name: pods.count for pods in request.pod_sets}
