"""Variables that say which devices a container sees: device plugins set them, requests may not.

Pure. A pod that asked for none would see all GPUs of its node, and one that asked for a part would
take the whole. Variables of all makers count, and those that only hide devices as well: a sharing
layer counts its limits by the devices that are left.
"""

from itertools import chain

from berthmaster.lib.jobs.pods import is_for_device_plugins
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.workload import RunSpec


def gpu_env_fault(run: RunSpec) -> Refusal | None:
    """The first variable of that kind, if any."""
    for field, name in chain(
        (("env", name) for name in run.env), (("secret_env", name) for name in run.secret_env)
    ):
        if is_for_device_plugins(name):
            right = "no such name: a pod sees the GPUs that it asks for by gpus, gpu_milli, …"
            return invalid(["run", field, name], name, right)
    return None
