"""Applies a runtime to a request. Pure.

The parameters are checked and filled in. The template's node requirements become part of the pod
sets, so that every decider sees them all.

A request is filled in once, at its submission. The result is stored with the request
(``runtime_used``), so that a later change of the template changes no job, and the record shows
which version ran.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, invalid, nearest
from berthmaster.lib.messages.runtimes import (
    ParameterValue,
    PodTemplate,
    Runtime,
    RuntimeParameter,
    RuntimeSetting,
    RuntimeUse,
)
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.requests.names import OBJECT, OBJECT_WORDS
from berthmaster.lib.requests.pod_fields import template_faults

# name of a placeholder that every template may use, besides its parameters
TENANT: Final = "tenant"
PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z0-9_-]+)\s*\}\}")
MAX_RUNTIMES_NAMED: Final = 20
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_WORDS: Final = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def filled_in(
    request: JobRequest, tenant: str, runtimes: Mapping[str, RuntimeSetting]
) -> JobRequest | Refusal:
    """Return the request with its runtime's fields, unchanged without a runtime, or a refusal."""
    asked = request.runtime
    if asked is None:
        return request
    setting = _allowed(asked, request.queue, runtimes)
    if isinstance(setting, Refusal):
        return setting
    values = _values(setting, asked)
    if isinstance(values, Refusal):
        return values
    try:
        template = _filled(setting.template, {**values, TENANT: tenant})
    except msgspec.ValidationError as error:  # such as a text that is too long after filling in
        right = f"values with which the runtime {setting.runtime!r} is one ({error})"
        return invalid(["runtime", "parameters"], asked.parameters, right)
    for name in names_in(template):
        if not OBJECT.match(name):
            right = f"such that {OBJECT_WORDS} comes of it"
            return invalid(["runtime", "parameters"], name, right)
    if (fault := next(template_faults([], template, is_open=None), None)) is not None:
        of = f"for {fault.field} of the runtime {setting.runtime!r}, which parameters fill in"
        return replace(fault, field="runtime.parameters", expected=f"{fault.expected}; {of}")
    if template.needs_command and not (request.run.command or request.run.args):
        right = f"what the runtime {setting.runtime!r} is to start"
        return invalid(["run", "args"], [], right)
    return _with_template(request, setting, template)


def names_in(template: PodTemplate) -> Iterator[str]:
    """Yield the names of the template's objects in the pods' namespace."""
    yield from template.env_from_secrets
    yield from template.env_from_config_maps
    yield from template.image_pull_secrets
    for keys in (template.secret_env, template.config_env):
        yield from (key.name for key in keys.values())
    for sidecar in template.sidecars:
        yield from (key.name for key in sidecar.secret_env.values())
    for volume in template.volumes:
        yield from filter(None, (volume.claim, volume.secret, volume.config_map))


def value_fault(parameter: RuntimeParameter, value: ParameterValue) -> str:
    """Return the valid form of a parameter's value; "" if the value is valid."""
    kind = parameter.type
    right_type = isinstance(value, _TYPES[kind])
    if not right_type or (isinstance(value, bool) and kind != "boolean"):
        return _WORDS[kind]
    if parameter.choices and value not in parameter.choices:
        return "one of " + ", ".join(_spelled(each) for each in parameter.choices)
    size = len(value) if isinstance(value, str) else float(value)
    of = "a length of " if isinstance(value, str) else ""
    if parameter.minimum is not None and size < parameter.minimum:
        return f"{of}at least {parameter.minimum:g}"
    if parameter.maximum is not None and size > parameter.maximum:
        return f"{of}at most {parameter.maximum:g}"
    return ""


def _allowed(
    asked: Runtime, queue: str, runtimes: Mapping[str, RuntimeSetting]
) -> RuntimeSetting | Refusal:
    setting = runtimes.get(asked.name)
    if setting is not None and not setting.deleted and is_of(setting, queue):
        return setting
    names = sorted(n for n, one in runtimes.items() if not one.deleted and is_of(one, queue))
    near = nearest(asked.name, names)
    meant = f"; did you mean {near!r}?" if near else ""
    shown = ", ".join(names[:MAX_RUNTIMES_NAMED]) or "(none)"
    more = " …" if len(names) > MAX_RUNTIMES_NAMED else ""
    right = f"a runtime that is allowed in the queue {queue!r}{meant}; these are: {shown}{more}"
    refusal = invalid(["runtime", "name"], asked.name, right)
    return replace(refusal, code="not_found")


def is_of(setting: RuntimeSetting, queue: str) -> bool:
    """Return whether requests of a queue may use the runtime."""
    return not setting.queues or queue in setting.queues


def _values(setting: RuntimeSetting, asked: Runtime) -> dict[str, ParameterValue] | Refusal:
    path: list[Step] = ["runtime", "parameters"]
    known = setting.parameters
    for name, value in asked.parameters.items():
        if name not in known:
            names = ", ".join(known) or "(none)"
            near = nearest(name, known)
            meant = f"; did you mean {near!r}?" if near else ""
            right = f"a parameter of the runtime {setting.runtime!r}{meant}; these are: {names}"
            return invalid([*path, name], name, right)
        if right := value_fault(known[name], value):
            return invalid([*path, name], value, right)
    values: dict[str, ParameterValue] = {}
    for name, parameter in known.items():
        given = asked.parameters.get(name, parameter.default)
        if given is None:
            told = f": {parameter.description}" if parameter.description else ""
            right = f"{_WORDS[parameter.type]}; the runtime {setting.runtime!r} needs it{told}"
            return replace(invalid([*path, name], None, right), value="(missing)")
        values[name] = given
    return values


def _filled(template: PodTemplate, values: Mapping[str, ParameterValue]) -> PodTemplate:
    """Return the template with every placeholder replaced. Placeholders of numbers become
    numbers.
    """

    def text(found: re.Match[str]) -> str:
        return _spelled(values[found[1]]) if found[1] in values else found[0]

    filled = map_texts(template, lambda one: PLACEHOLDER.sub(text, one))
    if isinstance(filled.shared_memory_mib, str):
        filled = replace(filled, shared_memory_mib=int(filled.shared_memory_mib))
    return filled


def map_texts(template: PodTemplate, change: Callable[[str], str]) -> PodTemplate:
    """Return the template with each of its texts changed, but not the names of fields and
    variables.
    """

    def mapped(value: object) -> object:
        match value:
            case str():
                return change(value)
            case list() | tuple():
                return [mapped(each) for each in value]
            case dict():
                return {name: mapped(each) for name, each in value.items()}
            case _:
                return value

    return msgspec.convert(mapped(msgspec.to_builtins(template)), PodTemplate)


def _with_template(
    request: JobRequest, setting: RuntimeSetting, template: PodTemplate
) -> JobRequest | Refusal:
    clusters = request.clusters
    if setting.clusters:
        clusters = tuple(c for c in clusters or setting.clusters if c in setting.clusters)
        if not clusters:
            names = ", ".join(setting.clusters)
            right = f"one that the runtime {setting.runtime!r} allows: {names}"
            return invalid(["clusters"], request.clusters, right)
    sets: list[PodSet] = []
    for at, pods in enumerate(request.pod_sets):
        for key, value in template.node_labels.items():
            if pods.node_labels.get(key, value) != value:
                right = f"{value!r}, as the runtime {setting.runtime!r} says, or nothing"
                path: list[Step] = ["pod_sets", at, "node_labels", key]
                return invalid(path, pods.node_labels[key], right)
        sets.append(_of_nodes(pods, template))
    run = request.run if request.run.image else replace(request.run, image=template.image)
    used = RuntimeUse(version=setting.version, template=template, digest=request_digest(request))
    full = replace(request, clusters=clusters, pod_sets=tuple(sets), run=run, runtime_used=used)
    return _bounded(full, setting.runtime)


def _of_nodes(pods: PodSet, template: PodTemplate) -> PodSet:
    """Return the pod set with the template's node requirements added."""
    resources = dict(pods.resources)
    if pods.gpus or pods.tpus:
        resources = {**template.resources, **resources}
    return replace(
        pods,
        cpu_milli=pods.cpu_milli + sum(one.cpu_milli for one in template.sidecars),
        memory_mib=pods.memory_mib + sum(one.memory_mib for one in template.sidecars),
        resources=resources,
        node_labels={**template.node_labels, **pods.node_labels},
        tolerations=tuple(dict.fromkeys((*pods.tolerations, *template.tolerations))),
    )


def _bounded(request: JobRequest, runtime: str) -> JobRequest | Refusal:
    """Return the request, or a refusal if the filled-in request exceeds the bounds of a readable
    one.
    """
    try:
        msgspec.convert(msgspec.to_builtins(request), JobRequest)
    except msgspec.ValidationError as error:
        right = f"less: with what the runtime {runtime!r} adds it is no request any more ({error})"
        return invalid(["runtime", "name"], runtime, right)
    return request


def _spelled(value: ParameterValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
