"""Variables that say which GPUs a container sees are for device plugins, never for a request. Pure.

A pod that asked for none would see all GPUs of its node, and one that asked for a part would take
the whole. What is left of CUDA_VISIBLE_DEVICES only hides GPUs that the pod has, and is allowed.
"""

from itertools import chain

from berthmaster.kubernetes.pods import is_for_device_plugins
from berthmaster.messages.api import Refusal
from berthmaster.messages.explain import invalid
from berthmaster.messages.workload import RunSpec


def gpu_env_fault(run: RunSpec) -> Refusal | None:
    """The first variable of that kind, if any."""
    for field, name in chain(
        (("env", name) for name in run.env), (("secret_env", name) for name in run.secret_env)
    ):
        if is_for_device_plugins(name):
            right = "no such name: a pod sees the GPUs that it asks for by gpus, gpu_milli, …"
            return invalid(["run", field, name], name, right)
    return None
