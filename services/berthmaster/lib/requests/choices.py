"""Checks the configurations that a job lists: ``choose`` and ``trial`` of pod sets. Pure.

Example: ``gpus: 2, choose: {gpus: [1, 4]}`` is refused, because the job could not run as written. A
trial with 16 GPUs is refused in a queue with at most 8 GPUs a job, as the job itself would be.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from berthmaster.lib.lifecycle.choices import configurations, trial_in
from berthmaster.lib.lifecycle.pods import is_set_elastic
from berthmaster.lib.lifecycle.trials import trial_gpu_s, trial_id, trial_requests
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import (
    MAX_CHOICES,
    WHOLE_MILLI,
    Choose,
    JobRequest,
    PodSet,
    Trial,
)

_WITHOUT: Final = "nothing, as the pod set has choose"
MAX_ID_CHARS: Final = 52
_HOUR_S: Final = 3600.0
_WITHOUT_TRIAL: Final = "nothing, as the pod set has a trial"


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


def trial_fault(
    request: JobRequest, check: Callable[[JobRequest], Refusal | None]
) -> Refusal | None:
    """Return a refusal of the first field that a job with a trial may not have, if any.

    ``check``: checks the request in one configuration.
    """
    tried = [(at, pods) for at, pods in enumerate(request.pod_sets) if pods.trial is not None]
    if not tried:
        return None
    if len(tried) > 1:
        right = f"nothing: pod_sets[{tried[0][0]}] has a trial, and one pod set of a job may"
        return invalid(["pod_sets", tried[1][0], "trial"], "a second one", right)
    at, pods = tried[0]
    assert pods.trial is not None  # found above
    return _job_fault(request) or _configurations_fault(request, at, pods, pods.trial, check)


def _job_fault(request: JobRequest) -> Refusal | None:
    """Return a refusal of fields beside the trial."""
    for at, pods in enumerate(request.pod_sets):
        if pods.choose is not None:
            return invalid(["pod_sets", at, "choose"], f"by {pods.choose.by}", _WITHOUT_TRIAL)
        for field in ("min_count", "max_count"):
            if (value := getattr(pods, field)) is not None:
                return invalid(["pod_sets", at, field], value, _WITHOUT_TRIAL)
    if request.divide is not None:
        right = "nothing: a job with a trial runs in one cluster"
        return invalid(["divide"], request.divide.by, right)
    if request.depends_on:
        right = "nothing: a job with a trial waits for its own trials only"
        return invalid(["depends_on"], request.depends_on[0].id, right)
    trial = trial_in(request)
    assert trial is not None
    longest = MAX_ID_CHARS - len(trial_id("", len(trial.configurations) - 1))
    if len(request.id) > longest:
        right = f"at most {longest} characters, as the ids of trials are longer by -t<number>"
        return invalid(["id"], request.id, right)
    return None


def _configurations_fault(
    request: JobRequest,
    at: int,
    pods: PodSet,
    trial: Trial,
    check: Callable[[JobRequest], Refusal | None],
) -> Refusal | None:
    each = configurations(request)
    path: list[Step] = ["pod_sets", at, "trial", "configurations"]
    for number, one in enumerate(each):
        if one in each[:number]:
            same = f"another configuration than number {each.index(one)}"
            return invalid([*path, number], "the same", same)
        if not one.pod_sets[at].gpus:
            right = "1 or more: trials use idle GPUs"
            return invalid([*path, number, "gpus"], 0, right)
        if (fault := check(one)) is not None:
            where = invalid([*path, number], "", "").field
            return msgspec.structs.replace(fault, field=f"{where}: {fault.field}")
    return None


def trial_refusal(
    setting: QueueSetting,
    request: JobRequest,
    check: Callable[[QueueSetting, JobRequest], Refusal | None],
) -> Refusal | None:
    """Return a refusal if jobs of this queue may not try configurations, or not these.

    ``check``: checks the request in one configuration against the queue's bounds.
    """
    at = next((at for at, pods in enumerate(request.pod_sets) if pods.trial is not None), None)
    if at is None:
        return None
    field: list[Step] = ["pod_sets", at, "trial"]
    if setting.via != "direct":
        right = f"nothing: Kueue orders the jobs of the queue {setting.queue!r}"
        return invalid(field, "a trial", right)
    if not setting.trial_gpu_h_a_day:
        right = f"nothing: the queue {setting.queue!r} has no GPU hours for trials (--trials)"
        return invalid(field, "a trial", right)
    for number, (one, tried) in enumerate(
        zip(configurations(request), trial_requests(request), strict=True)
    ):
        if (fault := check(setting, one)) is not None:
            where = invalid([*field, "configurations", number], "", "").field
            return msgspec.structs.replace(fault, field=f"{where}: {fault.field}")
        hours = trial_gpu_s(tried) / _HOUR_S
        if hours > setting.trial_gpu_h_a_day:
            right = (
                f"at most {setting.trial_gpu_h_a_day:g} GPU hours for one trial, as the queue "
                f"{setting.queue!r} has a day"
            )
            return invalid([*field, "configurations", number], f"{hours:.3g} GPU hours", right)
    return None
