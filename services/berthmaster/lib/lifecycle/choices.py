"""The configurations that a job may have: ``choose`` or ``trial`` of a pod set. Pure.

Example: ``gpus: 4, choose: {gpus: [4, 8], gpu_models: [H100, A100]}`` are four configurations: 4
H100, 4 A100, 8 H100, 8 A100. A ``trial`` lists its configurations one by one. A pending job is
counted with its smallest number of GPUs. While an attempt is open, ``request`` of the workload has
the chosen configuration, and ``wished`` has the request as submitted.
"""

from msgspec.structs import replace

from berthmaster.lib.messages.workload import (
    Choose,
    JobRequest,
    PodSet,
    Trial,
    TrialConfiguration,
)


def choice_of(request: JobRequest) -> Choose | None:
    """Return ``choose`` of the request, or None."""
    return next((pods.choose for pods in request.pod_sets if pods.choose is not None), None)


def trial_in(request: JobRequest) -> Trial | None:
    """Return ``trial`` of the request, or None."""
    return next((pods.trial for pods in request.pod_sets if pods.trial is not None), None)


def has_choice(request: JobRequest) -> bool:
    """Return whether the request lists several configurations."""
    return any(pods.choose is not None or pods.trial is not None for pods in request.pod_sets)


def as_written(request: JobRequest) -> JobRequest:
    """Return the request with values for GPUs and models that stand in ``choose`` or ``trial``
    alone: the first number, and all models.
    """
    if not has_choice(request):
        return request
    return replace(request, pod_sets=tuple(map(_filled, request.pod_sets)))


def _filled(pods: PodSet) -> PodSet:
    if (trial := pods.trial) is not None:
        listed = [each.gpu_models for each in trial.configurations]
        models = dict.fromkeys(model for each in listed for model in each) if all(listed) else {}
        gpus = pods.gpus or trial.configurations[0].gpus or 0
        return replace(pods, gpus=gpus, gpu_models=pods.gpu_models or tuple(models))
    choose = pods.choose
    if choose is None:
        return pods
    gpus = pods.gpus or next(iter(choose.gpus), 0)
    return replace(pods, gpus=gpus, gpu_models=pods.gpu_models or choose.gpu_models)


def configurations(request: JobRequest) -> tuple[JobRequest, ...]:
    """Return the request in each of its configurations, in the listed order."""
    if (trial := trial_in(request)) is not None:
        return tuple(_tried(request, each) for each in trial.configurations)
    choose = choice_of(request)
    if choose is None:
        return ()
    numbers: list[int | None] = [*choose.gpus] or [None]
    models: list[tuple[str, ...] | None] = [(model,) for model in choose.gpu_models]
    return tuple(_with(request, gpus, model) for gpus in numbers for model in models or [None])


def smallest(request: JobRequest) -> JobRequest:
    """Return the request with its smallest number of GPUs, on any of its models."""
    numbers = _gpus(request)
    return request if numbers is None else _with(request, min(numbers, default=None), None)


def largest(request: JobRequest) -> JobRequest:
    """Return the request with its largest number of GPUs, on any of its models."""
    numbers = _gpus(request)
    return request if numbers is None else _with(request, max(numbers, default=None), None)


def _gpus(request: JobRequest) -> list[int] | None:
    """Return the numbers of GPUs that configurations set; None without configurations."""
    for pods in request.pod_sets:
        if (trial := pods.trial) is not None:
            return [pods.gpus if each.gpus is None else each.gpus for each in trial.configurations]
        if pods.choose is not None:
            return list(pods.choose.gpus)
    return None


def _tried(request: JobRequest, one: TrialConfiguration) -> JobRequest:
    """Return the request in one configuration of its trial."""
    run = request.run
    if one.args is not None or one.env:
        args = run.args if one.args is None else one.args
        run = replace(run, args=args, env=run.env | one.env)
    return replace(_with(request, one.gpus, one.gpu_models or None), run=run)


def _with(request: JobRequest, gpus: int | None, models: tuple[str, ...] | None) -> JobRequest:
    """Return the request without a choice. None = as in the pod set."""
    sets = []
    for pods in request.pod_sets:
        if pods.choose is not None or pods.trial is not None:
            pods = replace(
                pods,
                gpus=pods.gpus if gpus is None else gpus,
                gpu_models=pods.gpu_models if models is None else models,
                choose=None,
                trial=None,
            )
        sets.append(pods)
    return replace(request, pod_sets=tuple(sets))
