"""What a request cannot ask for in a queue that goes by way of the hub (``via: hub``). Pure.

Its job is a plain Job on the hub, which MultiKueue copies to a worker: nothing of ours is made
there beside it. Whoever takes the request says so at once; the hub's reconciler asks again, as a
queue may come to go by way of the hub when requests wait in it.
"""

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import JobRequest

_WAY_OUT = "a queue that is direct or via worker takes it"


def by_hub_refusal(request: JobRequest) -> Refusal | None:
    """What of it cannot be, and the way out."""
    if len(request.pod_sets) != 1:
        told = f"{len(request.pod_sets)} pod sets"
        return _nothing(["pod_sets"], told, "one pod set, as a plain Job has no more")
    pods = request.pod_sets[0]
    path: list[Step] = ["pod_sets", 0]
    if pods.gpus and pods.gpu_milli < 1000:
        right = "1000: by way of the hub there are no parts of a GPU"
        return _nothing([*path, "gpu_milli"], pods.gpu_milli, right)
    if pods.gpu_memory_mib:
        right = "nothing by way of the hub: name gpu_models"
        return _nothing([*path, "gpu_memory_mib"], pods.gpu_memory_mib, right)
    if pods.topology is not None:
        right = "nothing by way of the hub: its pods carry no label of ours"
        return _nothing([*path, "topology"], "topology", right)
    if request.runtime is not None and pods.count > 1:
        right = (
            f"1 with the runtime {request.runtime.name!r} by way of the hub, where nobody makes "
            "the Service that pods find each other by"
        )
        return _nothing([*path, "count"], pods.count, right)
    if request.deadline_s is not None:
        right = "nothing by way of the hub: the worker's own queue starts it, at a time of its own"
        return _nothing(["deadline_s"], request.deadline_s, right)
    return None


def _nothing(path: list[Step], value: object, right: str) -> Refusal:
    return invalid(path, value, f"{right}; {_WAY_OUT}")
