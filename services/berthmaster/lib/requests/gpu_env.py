"""Variables that say which devices a container sees: device plugins set them, requests may not.

Pure. A pod that asked for none would see all GPUs of its node, and one that asked for a part would
take the whole. Variables of all makers count, and those that only hide devices as well: a sharing
layer counts its limits by the devices that are left. NVIDIA_DRIVER_CAPABILITIES counts with a value
that brings device files, such as ``display``. LD_PRELOAD does not: no runtime reads that, and a
process that sets it reaches no device that its container does not have.
"""

from itertools import chain

from berthmaster.lib.jobs.pods import LIBRARIES_ONLY, is_for_device_plugins
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.workload import RunSpec


def gpu_env_fault(run: RunSpec) -> Refusal | None:
    """The first variable of that kind, if any."""
    for field, name, value in chain(
        (("env", name, value) for name, value in run.env.items()),
        (("secret_env", name, None) for name in run.secret_env),
    ):
        if is_for_device_plugins(name, value):
            if name.endswith("_DRIVER_CAPABILITIES") and value is not None:
                right = f"of {', '.join(LIBRARIES_ONLY)}: others bring device files of the display"
                return invalid(["run", field, name], value, right)
            right = "no such name: a pod sees the GPUs that it asks for by gpus, gpu_milli, …"
            return invalid(["run", field, name], name, right)
    return None
