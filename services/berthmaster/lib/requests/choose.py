"""Checks ``choose`` of pod sets: the configurations that a job may have. Pure.

Example: ``gpus: 2, choose: {gpus: [1, 4]}`` is refused, because the job could not run as written.
"""

from typing import Final

from berthmaster.lib.lifecycle.choices import configurations
from berthmaster.lib.lifecycle.pods import is_set_elastic
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import (
    MAX_CHOICES,
    WHOLE_MILLI,
    Choose,
    JobRequest,
    PodSet,
)

_WITHOUT: Final = "nothing, as the pod set has choose"


def choose_fault(request: JobRequest) -> Refusal | None:
    """Return a refusal of the first field that a job with ``choose`` may not have, if any."""
    chosen = [(at, pods) for at, pods in enumerate(request.pod_sets) if pods.choose is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        right = f"nothing: pod_sets[{chosen[0][0]}] has choose, and one pod set of a job may"
        return invalid(["pod_sets", chosen[1][0], "choose"], "a second one", right)
    if request.divide is not None:
        right = "nothing: the configuration of a divided job is fixed"
        return invalid(["divide"], request.divide.by, right)
    at, pods = chosen[0]
    assert pods.choose is not None  # found above
    path: list[Step] = ["pod_sets", at]
    fault = _list_fault([*path, "choose"], pods.choose) or _fields_fault(path, pods, pods.choose)
    if fault is None and (number := len(configurations(request))) > MAX_CHOICES:
        right = f"at most {MAX_CHOICES} numbers of GPUs times models"
        return invalid([*path, "choose"], f"{number} configurations", right)
    return fault


def _list_fault(path: list[Step], choose: Choose) -> Refusal | None:
    if not (choose.gpus or choose.gpu_models):
        return invalid(path, "no configuration", "gpus, gpu_models or both: a list of each")
    for field in ("gpus", "gpu_models"):
        values = getattr(choose, field)
        for at, value in enumerate(values):
            if value in values[:at]:
                return invalid([*path, field, at], value, "a value that is not there before it")
    return None


def _fields_fault(path: list[Step], pods: PodSet, choose: Choose) -> Refusal | None:
    """Return a refusal of the pod set's own fields beside the choice."""
    if choose.gpus and pods.gpus not in choose.gpus:
        named = ", ".join(map(str, choose.gpus))
        right = f"one of choose.gpus ({named}), or nothing for the first of them"
        return invalid([*path, "gpus"], pods.gpus, right)
    if not pods.gpus:
        return invalid([*path, "choose"], "models for pods without GPUs", "gpus of 1 or more too")
    if choose.gpu_models and pods.gpu_models not in ((), choose.gpu_models):
        right = "nothing, as choose has gpu_models"
        return invalid([*path, "gpu_models"], pods.gpu_models, right)
    if choose.gpu_models and pods.prefer_gpu_models:
        right = "nothing, as choose has gpu_models, the preferred first"
        return invalid([*path, "prefer_gpu_models"], pods.prefer_gpu_models, right)
    if pods.gpu_milli != WHOLE_MILLI:
        right = f"{WHOLE_MILLI}, as the pod set has choose: it is for whole GPUs"
        return invalid([*path, "gpu_milli"], pods.gpu_milli, right)
    if is_set_elastic(pods):
        field = "min_count" if pods.min_count is not None else "max_count"
        return invalid([*path, field], getattr(pods, field), _WITHOUT)
    linked = pods.topology is not None and pods.topology.gpu_domain
    if linked and min(choose.gpus, default=pods.gpus) < 2:
        right = "numbers from 2, as topology.gpu_domain is for pods with several GPUs"
        return invalid([*path, "choose", "gpus"], choose.gpus, right)
    return None


def hub_refusal(setting: QueueSetting, request: JobRequest) -> Refusal | None:
    """Return a refusal if jobs of this queue cannot choose: the hub's Kueue starts them."""
    for at, pods in enumerate(request.pod_sets):
        if pods.choose is not None and setting.via == "hub":
            right = f"nothing: the queue {setting.queue!r} goes by way of the hub's Kueue"
            return invalid(["pod_sets", at, "choose"], f"by {pods.choose.by}", right)
    return None
