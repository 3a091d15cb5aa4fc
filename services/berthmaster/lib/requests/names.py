"""Which names, labels, variables and images Kubernetes accepts in a pod. Pure.

Each pattern is the API server's own rule, so that a request is refused when it is submitted and not
by a cluster afterwards. Beside each pattern stands what would be right. Two rules are not the API
server's but the kubelet's: the image, which the API server takes as any text, and the NUL byte,
which no process can get in its arguments or environment.

The rule for variables is that of Kubernetes 1.32 and later (RelaxedEnvironmentVariableValidation is
on by default since then): printable ASCII without "=". An older API server may refuse such a name;
then the job fails at once with the API server's words.

Requests may not set variables that say which devices a container sees, as device plugins set those.
A pod that asked for no GPU would see all GPUs of its node, and one that asked for a part would take
the whole. Variables of all makers count, and those that only hide devices as well: a sharing layer
counts its limits by the devices that are left. NVIDIA_DRIVER_CAPABILITIES counts with a value that
brings device files, such as ``display``. LD_PRELOAD does not: no runtime reads that, and a process
that sets it reaches no device that its container does not have.
"""

import re
from itertools import chain
from typing import Final

from berthmaster.lib.jobs.pods import LIBRARIES_ONLY, is_for_device_plugins
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.workload import RunSpec

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_QUALIFIED: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

OBJECT: Final = re.compile(rf"(?=.{{1,253}}\Z){_DNS}\Z")
OBJECT_WORDS: Final = "a name of Kubernetes (lower-case letters, digits, '-' and '.')"
QUALIFIED_NAME: Final = re.compile(rf"(?:(?=[^/]{{1,253}}/){_DNS}/)?{_QUALIFIED}\Z")
QUALIFIED_NAME_WORDS: Final = (
    "[DOMAIN/]NAME, the name of at most 63 letters, digits, '-', '_' and '.', the first and the "
    "last a letter or digit, such as example.com/pool"
)
LABEL_VALUE: Final = re.compile(rf"(?:{_QUALIFIED})?\Z")
LABEL_VALUE_WORDS: Final = (
    "at most 63 letters, digits, '-', '_' and '.', the first and the last a letter or digit"
)
VARIABLE: Final = re.compile(r"[ -<>-~]+\Z")
VARIABLE_WORDS: Final = "a variable's name: printable ASCII characters other than '='"
SECRET_KEY: Final = re.compile(r"(?!\.\Z|\.\.)[-._a-zA-Z0-9]{1,253}\Z")
SECRET_KEY_WORDS: Final = (
    "a key: at most 253 letters, digits, '-', '_' and '.', neither '.' nor beginning with '..'"
)
IMAGE_WORDS: Final = (
    "an image such as registry.example.com:5000/team/train:1.2 or NAME@sha256:DIGEST, "
    "without spaces, the path in lower case"
)

_HOST_PART: Final = r"[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?"
_HOST: Final = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PATH_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH: Final = rf"{_PATH_PART}(?:/{_PATH_PART})*"
_TAG: Final = r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}"
_ALGORITHM: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*"
_IMAGE: Final = re.compile(
    rf"(?P<name>(?:(?P<host>{_HOST})/)?{_PATH})(?::{_TAG})?(?:@{_ALGORITHM}:[0-9a-fA-F]{{32,}})?\Z"
)
_DIGEST_ALONE: Final = re.compile(r"[0-9a-f]{64}\Z")
_MAX_IMAGE_NAME_CHARS: Final = 255


def is_image(text: str) -> bool:
    """Return whether the kubelet can read this as an image: [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""
    found = _IMAGE.match(text)
    if found is None or _DIGEST_ALONE.match(text):
        return False
    return len(found["name"]) <= _MAX_IMAGE_NAME_CHARS


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
