"""The configurations that a job may have: ``choose`` of a pod set. Pure.

Example: ``gpus: 4, choose: {gpus: [4, 8], gpu_models: [H100, A100]}`` are four configurations: 4
H100, 4 A100, 8 H100, 8 A100. A pending job is counted with its smallest number of GPUs. While an
attempt is open, ``request`` of the workload has the chosen configuration, and ``wished`` has the
request as submitted.
"""

from msgspec.structs import replace

from berthmaster.lib.messages.workload import Choose, JobRequest, PodSet


def choice_of(request: JobRequest) -> Choose | None:
    """Return the configurations that the request lists, or None."""
    return next((pods.choose for pods in request.pod_sets if pods.choose is not None), None)


def as_written(request: JobRequest) -> JobRequest:
    """Return the request with values for GPUs and models that stand in ``choose`` alone: the first
    number, and all models.
    """
    if choice_of(request) is None:
        return request
    return replace(request, pod_sets=tuple(map(_filled, request.pod_sets)))


def _filled(pods: PodSet) -> PodSet:
    choose = pods.choose
    if choose is None:
        return pods
    gpus = pods.gpus or next(iter(choose.gpus), 0)
    return replace(pods, gpus=gpus, gpu_models=pods.gpu_models or choose.gpu_models)


def configurations(request: JobRequest) -> tuple[JobRequest, ...]:
    """Return the request in each of its configurations, in the listed order."""
    choose = choice_of(request)
    if choose is None:
        return ()
    numbers: list[int | None] = [*choose.gpus] or [None]
    models: list[tuple[str, ...] | None] = [(model,) for model in choose.gpu_models]
    return tuple(_with(request, gpus, model) for gpus in numbers for model in models or [None])


def smallest(request: JobRequest) -> JobRequest:
    """Return the request with its smallest number of GPUs, on any of its models."""
    choose = choice_of(request)
    return request if choose is None else _with(request, min(choose.gpus, default=None), None)


def largest(request: JobRequest) -> JobRequest:
    """Return the request with its largest number of GPUs, on any of its models."""
    choose = choice_of(request)
    return request if choose is None else _with(request, max(choose.gpus, default=None), None)


def _with(request: JobRequest, gpus: int | None, models: tuple[str, ...] | None) -> JobRequest:
    """Return the request without a choice. None = as in the pod set."""
    sets = []
    for pods in request.pod_sets:
        if pods.choose is not None:
            pods = replace(
                pods,
                gpus=pods.gpus if gpus is None else gpus,
                gpu_models=pods.gpu_models if models is None else models,
                choose=None,
            )
        sets.append(pods)
    return replace(request, pod_sets=tuple(sets))
