"""Names, labels, variables and images that Kubernetes accepts in a pod. Pure.

Each pattern is the API server's own rule, so that the gateway refuses a request at its submission,
instead of a cluster afterwards. A text with the valid form is next to each pattern. Two rules are
the kubelet's: the image, which the API server accepts as any text, and the NUL byte, which no
process can get in its arguments or environment.

The rule for variables is that of Kubernetes 1.32 and later (RelaxedEnvironmentVariableValidation is
on by default since then): printable ASCII without "=". An older API server may refuse such a name.
The job then fails at once with the API server's message.

Requests may not set variables that select a container's devices, as device plugins do. Example:
with ``NVIDIA_VISIBLE_DEVICES=all`` a pod without a GPU would see all GPUs of its node, and a pod
with a GPU fraction would use the whole. The rule covers all vendors, and also variables that only
hide devices, since a sharing layer computes its limits from the visible devices.
NVIDIA_DRIVER_CAPABILITIES is refused with a value that adds device files, such as ``display``.
LD_PRELOAD is allowed: no runtime reads that variable, and its process reaches no device beyond
those of its container.
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
    """Return whether the kubelet can parse an image: [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""
    found = _IMAGE.match(text)
    if found is None or _DIGEST_ALONE.match(text):
        return False
    return len(found["name"]) <= _MAX_IMAGE_NAME_CHARS


def gpu_env_fault(run: RunSpec) -> Refusal | None:
    """Return a refusal of the first variable that selects devices, if any."""
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
