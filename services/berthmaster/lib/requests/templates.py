"""Checks a runtime that an operator sets. Pure.

The schema enforces least privilege (lib/messages/runtimes.py): unsafe options have no field.
Kubernetes' own names of such options are refused with a reason. Checked here is the rest: names,
placeholders, and the objects within reach of a parameter. A parameter may select a Secret, a
ConfigMap, a claim or a folder of a claim only among choices that the operator listed, or among
objects whose names begin with the tenant's name.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from berthmaster.lib.accelerators.table import ASKED_BY, How, how_of, is_resource_name
from berthmaster.lib.jobs.pods import CONTAINER, is_for_device_plugins
from berthmaster.lib.jobs.templates import SHARED_MEMORY
from berthmaster.lib.lifecycle.workload import content_digest
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, decoded, first_unknown_field, invalid
from berthmaster.lib.messages.families import RUNTIME_REQUESTS
from berthmaster.lib.messages.runtimes import (
    ObjectKey,
    PodTemplate,
    RuntimeParameter,
    RuntimeSetting,
    RuntimeSidecar,
    RuntimeVolume,
)
from berthmaster.lib.messages.terms import Name
from berthmaster.lib.requests.names import OBJECT, OBJECT_WORDS, VARIABLE, VARIABLE_WORDS
from berthmaster.lib.requests.pod_fields import template_faults
from berthmaster.lib.requests.runtimes import PLACEHOLDER, TENANT, value_fault
from berthmaster.lib.requests.secrecy import secret_fault

# every request of the runtime carries the template through the log
MAX_TEMPLATE_BYTES: Final = 64 * 1024
MAX_SET_BY_CHARS: Final = 256
_OWN: Final = f"{{{{{TENANT}}}}}."  # prefix of the names of a tenant's own objects
_NO_MOUNT: Final = ("/proc", "/sys", "/dev", "/var/run/secrets/kubernetes.io")
_SOURCES: Final = ("claim", "secret", "config_map", "scratch_mib")
# Options that pods of requests never get, in any spelling, and the reason.
_NEVER: Final = {
    "privileged": "no container is privileged",
    "allowprivilegeescalation": "no container gains rights",
    "capabilities": "every capability is dropped",
    "securitycontext": "it is ours to set; run_as_user and fs_group can be said",
    "hostnetwork": "pods have a network of their own",
    "hostpid": "pods see no processes of the host",
    "hostipc": "pods share no memory with the host; shared_memory_mib gives them their own",
    "hostusers": "it is the cluster's to say",
    "hostpath": "no file of a node is mounted; use claim or scratch_mib",
    "hostport": "pods open no port of their node",
    "hostaliases": "names come from the cluster",
    "serviceaccount": "the account is the queue's to say (berth queue set --place …@ACCOUNT)",
    "serviceaccountname": "the account is the queue's to say (berth queue set --place …@ACCOUNT)",
    "automountserviceaccounttoken": "a token is handed in only where the queue names an account",
    "projected": "no token is mounted",
    "procmount": "it is the container runtime's default",
    "seccompprofile": "it is the container runtime's default",
    "nodename": "where pods run is decided for each job",
    "schedulername": "the executor of a cluster says it",
    "priorityclassname": "priorities are the request's and its queue's",
    "resourceclaims": "devices are asked for by the request",
    "gpus": "accelerators are asked for by the request",
    "tpus": "accelerators are asked for by the request",
}


def runtime_setting(data: bytes) -> RuntimeSetting | Refusal:
    """Return the body of ``runtime`` with its version, or a refusal."""
    setting = decoded(RuntimeSetting, RUNTIME_REQUESTS, data)
    if isinstance(setting, Refusal):
        return setting
    fault = _unknown(data) or runtime_fault(setting)
    return fault or with_version(setting)


def with_version(setting: RuntimeSetting) -> RuntimeSetting:
    """Return the setting with a version derived from its content."""
    plain = replace(setting, version="", set_by="", set_at_s=0.0, deleted=False)
    # decoded again, since 1 is not 1.0
    read = msgspec.json.decode(msgspec.json.encode(plain), type=RuntimeSetting)
    return replace(setting, version=content_digest(read)[:12])


def runtime_fault(setting: RuntimeSetting) -> Refusal | None:
    """Return a refusal of the first invalid field, if any."""
    return next(_faults(setting), None)


def _unknown(data: bytes) -> Refusal | None:
    """Return a refusal of a field that templates lack. Well-known ones are refused with a
    reason.
    """
    refusal = first_unknown_field(RuntimeSetting, data)
    if refusal is None:
        return None
    name = re.split(r"[.\"\[\]]+", refusal.field.rstrip('"]'))[-1]
    why = _NEVER.get(name.replace("_", "").lower())
    return refusal if why is None else replace(refusal, expected=f"no such field: {why}")


def _faults(setting: RuntimeSetting) -> Iterator[Refusal]:
    if not _is_name(setting.runtime):
        right = "1 to 63 lower-case letters, digits or '-', the first and the last no '-'"
        yield invalid(["runtime"], setting.runtime, right)
    if len(setting.set_by) > MAX_SET_BY_CHARS:
        yield invalid(["set_by"], setting.set_by, f"at most {MAX_SET_BY_CHARS} characters")
    for name, parameter in setting.parameters.items():
        yield from _parameter_faults(name, parameter)
    if (secret := secret_fault(setting)) is not None:
        right = "no secret: name a Secret of the pods' namespace in secret_env"
        yield replace(secret, expected=right)
    size = len(msgspec.json.encode(setting.template))
    if size > MAX_TEMPLATE_BYTES:
        right = f"at most {MAX_TEMPLATE_BYTES} bytes: every job of it carries it"
        yield invalid(["template"], f"{size} bytes", right)
    yield from _placeholder_faults(setting)
    yield from _template_faults(setting)


def _is_name(text: str) -> bool:
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True


def _parameter_faults(name: str, parameter: RuntimeParameter) -> Iterator[Refusal]:
    path: list[Step] = ["parameters", name]
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None or name == TENANT:
        right = f"a name of letters, digits, '_' and '-' that is not {TENANT!r}"
        yield invalid(path, name, right)
    bounds = parameter.minimum, parameter.maximum
    if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
        yield invalid([*path, "minimum"], parameter.minimum, f"at most {parameter.maximum:g}")
    for at, choice in enumerate(parameter.choices):
        if right := value_fault(replace(parameter, choices=()), choice):
            yield invalid([*path, "choices", at], choice, right)
    if parameter.default is not None and (right := value_fault(parameter, parameter.default)):
        yield invalid([*path, "default"], parameter.default, right)


def _placeholder_faults(setting: RuntimeSetting) -> Iterator[Refusal]:
    known = {*setting.parameters, TENANT}
    names = ", ".join(sorted(known))
    for path, text in _texts(["template"], msgspec.to_builtins(setting.template)):
        for name in PLACEHOLDER.findall(text):
            if name not in known:
                right = f"a parameter of this runtime in {{{{…}}}}: {names}"
                yield invalid(path, name, right)
    shared = setting.template.shared_memory_mib
    if isinstance(shared, str):
        found = PLACEHOLDER.fullmatch(shared)
        parameter = setting.parameters.get(found[1]) if found else None
        if parameter is None or not _counts(parameter):
            right = "MiB, or a parameter {{…}} of type integer with a minimum of 0 or more"
            yield invalid(["template", "shared_memory_mib"], shared, right)


def _counts(parameter: RuntimeParameter) -> bool:
    least = parameter.minimum
    return parameter.type == "integer" and least is not None and least >= 0


def _texts(path: list[Step], value: object) -> Iterator[tuple[list[Step], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _texts([*path, name], each)
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _texts([*path, at], each)


def _template_faults(setting: RuntimeSetting) -> Iterator[Refusal]:
    template, path = setting.template, list[Step](["template"])
    yield from _env_faults(path, setting, template)
    yield from template_faults(path, template, is_open=PLACEHOLDER.search)
    for field in ("env_from_secrets", "env_from_config_maps", "image_pull_secrets"):
        for at, name in enumerate(getattr(template, field)):
            yield from _object_faults([*path, field, at], setting, name)
    if template.runtime_class and not OBJECT.match(template.runtime_class):
        yield invalid([*path, "runtime_class"], template.runtime_class, OBJECT_WORDS)
    yield from _resource_faults([*path, "resources"], template.resources)
    yield from _volume_faults([*path, "volumes"], setting, template.volumes)
    volumes = {volume.name for volume in template.volumes}
    seen = {CONTAINER}
    for at, sidecar in enumerate(template.sidecars):
        here: list[Step] = [*path, "sidecars", at]
        if sidecar.name in seen:
            yield invalid([*here, "name"], sidecar.name, "a name that no other container has")
        seen.add(sidecar.name)
        yield from _env_faults(here, setting, sidecar)
        for number, name in enumerate(sidecar.volumes):
            if name not in volumes or name in sidecar.volumes[:number]:
                right = f"a volume of this template, once: {', '.join(sorted(volumes)) or '(none)'}"
                yield invalid([*here, "volumes", number], name, right)


def _env_faults(
    path: list[Step], setting: RuntimeSetting, of: PodTemplate | RuntimeSidecar
) -> Iterator[Refusal]:
    config = of.config_env if isinstance(of, PodTemplate) else {}
    kinds: tuple[tuple[str, Iterable[str]], ...] = (
        ("env", of.env),
        ("secret_env", of.secret_env),
        ("config_env", config),
    )
    seen: set[str] = set()
    for field, names in kinds:
        for name in names:
            here: list[Step] = [*path, field, name]
            if not VARIABLE.match(name):
                yield invalid(here, name, VARIABLE_WORDS)
            if name in seen:
                yield invalid(here, name, "a name that no other variable has")
            if is_for_device_plugins(name, of.env.get(name)):
                right = "no such name: a pod sees the GPUs that its request asks for"
                yield invalid(here, name, right)
            seen.add(name)
    for field, keys in (("secret_env", of.secret_env), ("config_env", config)):
        for name, key in keys.items():
            yield from _key_faults([*path, field, name], setting, key)


def _key_faults(path: list[Step], setting: RuntimeSetting, key: ObjectKey) -> Iterator[Refusal]:
    yield from _object_faults([*path, "name"], setting, key.name)


def _object_faults(path: list[Step], setting: RuntimeSetting, name: str) -> Iterator[Refusal]:
    """Refuse a name that is invalid or filled in by a parameter without choices, unless the name
    begins with the tenant's.
    """
    yield from _choice_faults(path, setting, name)
    if not OBJECT.match(PLACEHOLDER.sub("x", name)):
        yield invalid(path, name, OBJECT_WORDS)


def _choice_faults(path: list[Step], setting: RuntimeSetting, text: str) -> Iterator[Refusal]:
    own = text.startswith(_OWN)
    for name in PLACEHOLDER.findall(text):
        parameter = setting.parameters.get(name)
        if parameter is None:
            continue  # the tenant, or reported already
        if not own and not parameter.choices:
            right = (
                f"a text without {{{{{name}}}}}, or one whose parameter has choices, or one that "
                f"begins with {_OWN}: else a request could name whatever is in the namespace"
            )
            yield invalid(path, text, right)


def _resource_faults(path: list[Step], resources: Iterable[str]) -> Iterator[Refusal]:
    for name in resources:
        how = how_of(name)
        if how is not None and how is not How.OTHER:
            right = f"no accelerator: a request asks for it by {ASKED_BY[how]}"
            yield invalid([*path, name], name, right)
        elif not is_resource_name(name):
            right = "an extended resource of nodes by its full name, such as rdma/hca"
            yield invalid([*path, name], name, right)


def _volume_faults(
    path: list[Step], setting: RuntimeSetting, volumes: tuple[RuntimeVolume, ...]
) -> Iterator[Refusal]:
    names, mounts = {SHARED_MEMORY}, set[str]()
    for at, volume in enumerate(volumes):
        here: list[Step] = [*path, at]
        if volume.name in names:
            right = f"a name that no other volume has, nor {SHARED_MEMORY!r}, which is /dev/shm"
            yield invalid([*here, "name"], volume.name, right)
        names.add(volume.name)
        given = [field for field in _SOURCES if getattr(volume, field)]
        if len(given) != 1:
            right = f"just one of {', '.join(_SOURCES)}"
            yield invalid(here, ", ".join(given) or "none of them", right)
        for field in ("claim", "secret", "config_map"):
            if field in given:
                yield from _object_faults([*here, field], setting, getattr(volume, field))
        yield from _path_faults(here, setting, volume)
        if volume.mount_path in mounts:
            yield invalid([*here, "mount_path"], volume.mount_path, "a path that no other has")
        mounts.add(volume.mount_path)


def _path_faults(
    here: list[Step], setting: RuntimeSetting, volume: RuntimeVolume
) -> Iterator[Refusal]:
    path = volume.mount_path
    parts = path.split("/")
    plain = path.startswith("/") and path != "/" and not {"..", "."} & set(parts)
    if (
        not plain
        or not path.isprintable()
        or ":" in path
        or PLACEHOLDER.search(path)
        or _is_below(path, _NO_MOUNT)
    ):
        right = f"an absolute path without .., : and parameters, not in {', '.join(_NO_MOUNT)}"
        yield invalid([*here, "mount_path"], path, right)
    sub = volume.sub_path
    whole = "".join(itertools.takewhile(lambda c: c != "/", sub))
    if whole != f"{{{{{TENANT}}}}}":
        yield from _choice_faults([*here, "sub_path"], setting, sub)
    if volume.scratch_mib is not None and sub:
        yield invalid([*here, "sub_path"], sub, "nothing: the folder is empty")


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)
