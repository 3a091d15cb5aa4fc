"""The fields of a request or runtime that no API server or kubelet accepts in a pod. Pure.

The walk follows worker/executor/core/manifest.py. Each text that a request or runtime puts into a
pod is checked by the rule of its field in the pod (lib/requests/names.py). Example: a toleration
``{"operator": "Exists", "value": "x"}`` is refused as ``tolerations[0].value``, and no cluster ever
sees the job.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.runtimes import ObjectKey, PodTemplate, RuntimeSidecar, RuntimeVolume
from berthmaster.lib.messages.workload import PodSet, RunSpec, SecretKey, Toleration
from berthmaster.lib.requests.names import (
    IMAGE_WORDS,
    LABEL_VALUE,
    LABEL_VALUE_WORDS,
    QUALIFIED_NAME,
    QUALIFIED_NAME_WORDS,
    SECRET_KEY,
    SECRET_KEY_WORDS,
    VARIABLE,
    VARIABLE_WORDS,
    is_image,
)

# Whether a text has a placeholder that requests fill in, so that the text is checked only then.
# None: all placeholders are filled in.
IsOpen = Callable[[str], object] | None

_MAX_USER_ID: Final = (1 << 31) - 1  # the message's bound allows one more, and cannot be narrowed
_NUL: Final = "\0"
_WITH_NUL: Final = "(a text with a NUL byte)"  # replaces the text, which may hold a secret
_NO_NUL: Final = "text without a NUL byte: no process can get one"


def run_fault(run: RunSpec) -> Refusal | None:
    """Return a refusal of the first field of a RunSpec that no cluster accepts, if any."""
    if not (run.image or run.env or run.secret_env or run.command or run.args):
        return None
    return next(_run_faults(run), None)


def nodes_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    """Return a refusal of the first label or toleration that no API server accepts, if any."""
    if not (pods.node_labels or pods.tolerations or pods.tpu_accelerators):
        return None
    return next(_nodes_faults(path, pods), None)


def template_faults(path: list[Step], template: PodTemplate, is_open: IsOpen) -> Iterator[Refusal]:
    """Yield a refusal of each field of a runtime's template that no cluster accepts."""
    yield from _container_faults(path, template, is_open)
    yield from _image_faults([*path, "image"], template.image, is_open)
    yield from _key_faults([*path, "config_env"], template.config_env)
    yield from _label_faults([*path, "node_labels"], template.node_labels, is_open)
    yield from _toleration_faults([*path, "tolerations"], template.tolerations, is_open)
    for field in ("run_as_user", "fs_group"):
        if (number := getattr(template, field)) is not None and number > _MAX_USER_ID:
            yield invalid([*path, field], number, f"a whole number from 1 to {_MAX_USER_ID}")
    for at, volume in enumerate(template.volumes):
        yield from _sub_path_faults([*path, "volumes", at, "sub_path"], volume)
    for at, sidecar in enumerate(template.sidecars):
        here: list[Step] = [*path, "sidecars", at]
        yield from _container_faults(here, sidecar, is_open)
        yield from _image_faults([*here, "image"], sidecar.image, is_open)


def _waits(is_open: IsOpen, text: str) -> bool:
    return is_open is not None and bool(is_open(text))


def _run_faults(run: RunSpec) -> Iterator[Refusal]:
    yield from _image_faults(["run", "image"], run.image, None)
    for field, names in (("env", run.env), ("secret_env", run.secret_env)):
        for name in names:
            if not VARIABLE.match(name):
                yield invalid(["run", field, name], name, VARIABLE_WORDS)
    yield from _key_faults(["run", "secret_env"], run.secret_env)
    yield from _words_faults(["run"], run.env, run.command, run.args)
    if run.command and not run.command[0].strip():
        yield invalid(["run", "command", 0], run.command[0], "a program to start")


def _nodes_faults(path: list[Step], pods: PodSet) -> Iterator[Refusal]:
    yield from _label_faults([*path, "node_labels"], pods.node_labels, None)
    yield from _toleration_faults([*path, "tolerations"], pods.tolerations, None)
    for at, kind in enumerate(pods.tpu_accelerators):
        if not LABEL_VALUE.match(kind):
            right = f"a value of the label {tpu.ACCELERATOR_LABEL}: {LABEL_VALUE_WORDS}"
            yield invalid([*path, "tpu_accelerators", at], kind, right)


def _container_faults(
    path: list[Step], of: PodTemplate | RuntimeSidecar, is_open: IsOpen
) -> Iterator[Refusal]:
    yield from _key_faults([*path, "secret_env"], of.secret_env)
    args = of.args if isinstance(of, RuntimeSidecar) else ()
    yield from _words_faults(path, of.env, of.command, args)
    if of.command and not of.command[0].strip() and not _waits(is_open, of.command[0]):
        yield invalid([*path, "command", 0], of.command[0], "a program to start")


def _image_faults(path: list[Step], image: str, is_open: IsOpen) -> Iterator[Refusal]:
    if image and not _waits(is_open, image) and not is_image(image):
        yield invalid(path, image, IMAGE_WORDS)


def _key_faults(
    path: list[Step], keys: Mapping[str, SecretKey] | Mapping[str, ObjectKey]
) -> Iterator[Refusal]:
    for name, of in keys.items():
        if not SECRET_KEY.match(of.key):
            yield invalid([*path, name, "key"], of.key, SECRET_KEY_WORDS)


def _words_faults(
    path: list[Step], env: Mapping[str, str], command: Iterable[str], args: Iterable[str]
) -> Iterator[Refusal]:
    for name, value in env.items():
        if _NUL in value:
            yield invalid([*path, "env", name], _WITH_NUL, _NO_NUL)
    for field, words in (("command", command), ("args", args)):
        for at, word in enumerate(words):
            if _NUL in word:
                yield invalid([*path, field, at], _WITH_NUL, _NO_NUL)


def _label_faults(
    path: list[Step], labels: Mapping[str, str], is_open: IsOpen
) -> Iterator[Refusal]:
    for key, value in labels.items():
        if not QUALIFIED_NAME.match(key):
            yield invalid([*path, key], key, f"a label of nodes: {QUALIFIED_NAME_WORDS}")
        if not _waits(is_open, value) and not LABEL_VALUE.match(value):
            yield invalid([*path, key], value, f"a label's value: {LABEL_VALUE_WORDS}")


def _toleration_faults(
    path: list[Step], tolerations: Iterable[Toleration], is_open: IsOpen
) -> Iterator[Refusal]:
    for at, each in enumerate(tolerations):
        here: list[Step] = [*path, at]
        if each.key and not _waits(is_open, each.key) and not QUALIFIED_NAME.match(each.key):
            yield invalid([*here, "key"], each.key, f"a taint's key: {QUALIFIED_NAME_WORDS}")
        if not each.key and each.operator != "Exists":
            right = '"Exists", as key is empty, or a key: an empty key with Exists is every taint'
            yield invalid([*here, "operator"], each.operator, right)
        if each.operator == "Exists" and each.value:
            right = "nothing, as operator is Exists, which takes any value"
            yield invalid([*here, "value"], each.value, right)
        elif not _waits(is_open, each.value) and not LABEL_VALUE.match(each.value):
            yield invalid([*here, "value"], each.value, f"a taint's value: {LABEL_VALUE_WORDS}")


def _sub_path_faults(path: list[Step], volume: RuntimeVolume) -> Iterator[Refusal]:
    sub = volume.sub_path
    if sub.startswith("/") or ".." in sub.split("/") or _NUL in sub:
        yield invalid(path, sub, "a relative path without ..")
