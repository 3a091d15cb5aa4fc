"""What requests of a queue may ask for, as its operator bounds it.

The gateway refuses what is beyond, and a trial of a request says the same. What was taken before a
bound was set runs on.
"""

from collections.abc import Iterable, Iterator

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueAllows, QueueSetting
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import JobRequest, PodSet

BEGINNINGS = ("/", ":")  # what a listed image ends in if it stands for all that begin with it


def request_refusal(setting: QueueSetting, request: JobRequest) -> Refusal | None:
    """Why this queue does not take this request, if so."""
    return priority_refusal(setting, request.priority) or next(
        _beyond(setting.queue, setting.allows, request), None
    )


def priority_refusal(setting: QueueSetting, priority: int) -> Refusal | None:
    """Why no request of this queue may have this priority, if so."""
    most = setting.max_priority
    if most is None or priority <= most:
        return None
    return invalid(["priority"], priority, f"at most {most} in the queue {setting.queue!r}")


def _beyond(queue: str, allows: QueueAllows, request: JobRequest) -> Iterator[Refusal]:
    image = request.run.image
    if image and allows.images is not None and not _is_listed(image, allows.images):
        yield _refused(["run", "image"], image, "an image", allows.images, queue)
    for at, pods in enumerate(request.pod_sets):
        where: list[Step] = ["pod_sets", at]
        yield from _models_beyond(where, queue, allows, pods)
        labels = allows.node_labels
        for key in pods.node_labels if labels is not None else ():
            if labels is not None and key not in labels:
                yield _refused([*where, "node_labels"], key, "labels", labels, queue)
        if allows.tolerations is None:
            continue
        for number, toleration in enumerate(pods.tolerations):
            if toleration.key not in allows.tolerations:  # an empty key tolerates every taint
                path = [*where, "tolerations", number, "key"]
                yield _refused(path, toleration.key, "taints", allows.tolerations, queue)


def _models_beyond(
    where: list[Step], queue: str, allows: QueueAllows, pods: PodSet
) -> Iterator[Refusal]:
    """TPUs are named among the models by their kind. What a claim brings nobody can tell."""
    yield from _resources_beyond([*where, "resources"], queue, allows, pods)
    if allows.gpu_models is None:
        return
    known = {model.casefold() for model in allows.gpu_models}
    asked = (("gpu_models", pods.gpus), ("tpu_accelerators", pods.tpus))
    for field in [field for field, number in asked if number]:
        models = getattr(pods, field)
        if not models:
            yield _refused([*where, field], (), "one or several", allows.gpu_models, queue)
        for model in models:
            if model.casefold() not in known:
                yield _refused([*where, field], model, "models", allows.gpu_models, queue)
    if pods.claims:
        why = f"no claims: the queue {queue!r} allows some GPU models, and claims may bring others"
        yield invalid([*where, "claims"], pods.claims, why)


def _resources_beyond(
    path: list[Step], queue: str, allows: QueueAllows, pods: PodSet
) -> Iterator[Refusal]:
    """Other makers' accelerators, shares of GPUs under other names, kvm and fuse are extended
    resources too: where models are listed and resources are not, none is allowed."""
    listed = allows.resources
    if listed is None and allows.gpu_models is not None:
        listed = ()
    if listed is None:
        return
    for name in pods.resources:
        if name not in listed:
            yield _refused([*path, name], name, "resources", listed, queue)


def _is_listed(image: str, listed: Iterable[str]) -> bool:
    return any(
        image == one or (one.endswith(BEGINNINGS) and image.startswith(one)) for one in listed
    )


def _refused(
    path: list[Step], value: object, what: str, allowed: tuple[str, ...], queue: str
) -> Refusal:
    names = ", ".join(allowed) or "(none)"
    return invalid(path, value, f"{what} of those that the queue {queue!r} allows: {names}")
