"""From files and flags to job requests: text in, a request out or a sentence on what is wrong."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from berthmaster.engine.fleet.shares import profile_milli
from berthmaster.engine.scoring.profiles import PARTS
from berthmaster.messages.api import Refusal
from berthmaster.messages.explain import explain_validation
from berthmaster.messages.families import JOB_REQUESTS
from berthmaster.messages.workload import JobRequest

T = TypeVar("T")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(Mi|Gi|Ti|M|G|T)?i?B?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_FLAGS_OF: Final = {  # where a flag is not named as its field
    "gpu_models": "--model",
    "prefer_gpu_models": "--prefer-model",
    "mig_profile": "--mig",
    "data": "--data-at",
    "depends_on": "--after",
    "divide": "--divide",
    "gpu_memory_mib": "--gpu-memory",
    "resources": "--resource",
    "claims": "--claim",
    "tpu_accelerators": "--tpu-accelerator",
    "tpu_topology": "--tpu-topology",
    "cpu_milli": "--cpu",
    "memory_mib": "--memory",
    "node_labels": "--node-label",
    "clusters": "--cluster",
    "cluster_labels": "--cluster-label",
    "labels": "--label",
    "weights": "--weight",
    "expected_duration_s": "--duration",
    "deadline_s": "--deadline",
    "checkpoint_every_s": "--checkpoint-every",
    "preemptible": "--not-preemptible",
    "grace_s": "--grace",
    "max_run_s": "--max-run",
    "run": "--image or the command",
}
_MIB: Final = {"m": 1, "g": 1024, "t": 1024 * 1024}


class WrongInput(ValueError):
    """What was given cannot be a request; the text says where and what would be right."""


def parse_duration_s(text: str) -> float:
    """90, 90s, 1.5m, 2h, 1h30m. Raises WrongInput."""
    total, at = 0.0, 0
    for match in _DURATION.finditer(text.strip()):
        if match.start() != at:
            break
        total += float(match[1]) * _SECONDS[match[2]]
        at = match.end()
    if not text.strip() or at != len(text.strip()) or total <= 0:
        raise WrongInput(f"{text!r} is no duration; right are 90s, 1.5m, 2h, 1h30m")
    return total


def parse_memory_mib(text: str) -> int:
    """512, 512Mi, 16Gi, 1.5T; a bare number is MiB. Raises WrongInput."""
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        raise WrongInput(f"{text!r} is no amount of memory; right are 512 (MiB), 512Mi, 16Gi")
    return round(float(match[1]) * _MIB[(match[2] or "M")[0].lower()])


def parse_cpu_milli(text: str) -> int:
    """4, 0.5, 250m. Raises WrongInput."""
    try:
        milli = int(text[:-1]) if text.endswith("m") else round(float(text) * 1000)
    except (ValueError, OverflowError):
        milli = -1
    if milli < 0:
        raise WrongInput(f"{text!r} is no number of CPUs; right are 4, 0.5, 250m")
    return milli


def parse_gpus(text: str) -> tuple[int, int]:
    """(GPUs, milli of each): 8, 1, or a share of one such as 0.5. Raises WrongInput."""
    right = "0, 1, 8, a share such as 0.5, or its memory such as 8Gi"
    wrong = WrongInput(f"{text!r} is no number of GPUs; right are {right}")
    try:
        value = float(text)
    except ValueError:
        raise wrong from None
    if 0.001 <= value < 1:
        return 1, round(value * 1000)
    if 0 <= value <= 1e6 and value == int(value):  # not NaN, not infinite
        return int(value), 1000
    raise wrong


def parse_pairs(texts: Sequence[str], what: str = "label") -> dict[str, str]:
    """key=value, several. Raises WrongInput."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongInput(f"{text!r} is no {what}; right is key=value")
        pairs[name] = value
    return pairs


def parse_secrets(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """VARIABLE=SECRET/KEY, several. Raises WrongInput."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        variable, _, place = text.partition("=")
        name, _, key = place.partition("/")
        if not (variable and name and key):
            # Not repeated: somebody may have given the secret itself.
            raise WrongInput(f"--secret-env {variable[:64]!r}: right is VARIABLE=NAME/KEY")
        found[variable] = {"name": name, "key": key}
    return found


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """part=number, several: what parts of the score count. Raises WrongInput."""
    weights: dict[str, float] = {}
    for text in texts:
        part, _, number = text.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if part not in PARTS or not -10 <= weight <= 10:
            what = f"PART=N, N from -10 to 10 and PART one of {', '.join(PARTS)}"
            raise WrongInput(f"{text!r} is no weight; right is {what}")
        weights[part] = weight
    return weights


def parse_resources(texts: Sequence[str]) -> dict[str, int]:
    """NAME=N, each name once. Raises WrongInput."""
    resources: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (name and equals and re.fullmatch(r"[0-9]{1,9}", number)):
            raise WrongInput(f"--resource: {text!r} is none; right is rdma/hca=1, in whole pieces")
        if name in resources:
            raise WrongInput(f"--resource: {name} is given twice; add it up")
        resources[name] = int(number)
    return resources


Read = Callable[[Any], Any]
_OF_PODS: Final[Mapping[str, tuple[str, Read]]] = {  # flag: its field and how it is read
    "min_count": ("min_count", int),
    "max_count": ("max_count", int),
    "model": ("gpu_models", list),
    "prefer_model": ("prefer_gpu_models", list),
    "cpu": ("cpu_milli", parse_cpu_milli),
    "memory": ("memory_mib", parse_memory_mib),
    "node_label": ("node_labels", parse_pairs),
    "isolation": ("isolation", str),
    "tpus": ("tpus", int),
    "tpu_accelerator": ("tpu_accelerators", list),
    "tpu_topology": ("tpu_topology", str),
    "resource": ("resources", parse_resources),
    "claim": ("claims", list),
}
_OF_REQUEST: Final[Mapping[str, tuple[str, Read]]] = {
    "queue": ("queue", str),
    "priority": ("priority", int),
    "profile": ("profile", str),
    "cluster": ("clusters", list),
    "cluster_label": ("cluster_labels", parse_pairs),
    "weight": ("weights", parse_weights),
    "data_at": ("data", list),
    "label": ("labels", parse_pairs),
    "duration": ("expected_duration_s", parse_duration_s),
    "deadline": ("deadline_s", parse_duration_s),
    "checkpoint_every": ("checkpoint_every_s", parse_duration_s),
    "not_preemptible": ("preemptible", operator.not_),
    "grace": ("grace_s", parse_duration_s),
    "max_run": ("max_run_s", parse_duration_s),
    "set_name": ("set", str),
    "retries": ("retries", int),
    "backoff": ("backoff_s", parse_duration_s),
    "no_retry_exit_code": ("no_retry_exit_codes", list),
}


def parse_parameters(texts: Sequence[str]) -> dict[str, str | int | float | bool]:
    """NAME=VALUE of a runtime: numbers, true and false are that; all else, and what stands in
    quotes, is a text. Raises WrongInput."""
    parameters: dict[str, str | int | float | bool] = {}
    for name, text in parse_pairs(texts, "parameter").items():
        try:
            parameters[name] = msgspec.json.decode(text, type=str | int | float | bool)
        except (msgspec.DecodeError, UnicodeEncodeError):
            parameters[name] = text
    return parameters


def from_flags(flags: Mapping[str, Any], command: Sequence[str], fallback_id: str) -> JobRequest:
    """A request of one pod set out of the flags of `berth submit`. Raises WrongInput."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    pods: dict[str, Any] = {"count": given.get("count", 1)} | _gpus_of(given)
    request: dict[str, Any] = {"id": given.get("id", fallback_id), "pod_sets": [pods]}
    for fields, rows in ((pods, _OF_PODS), (request, _OF_REQUEST)):
        for flag, (field, read) in rows.items():
            if flag in given:
                fields[field] = read(given[flag])
    if "param" in given and "runtime" not in given:
        raise WrongInput("--param: give the runtime whose parameter it is with --runtime")
    if "runtime" in given:
        parameters = parse_parameters(given.get("param", ()))
        request["runtime"] = {"name": given["runtime"], "parameters": parameters}
    if "after" in given:
        request["depends_on"] = given["after"]
    if "divide" in given or "min_part" in given:
        request["divide"] = {
            name: given[flag]
            for name, flag in (("by", "divide"), ("min_part", "min_part"))
            if flag in given
        }
    if topology := _topology_of(given):
        pods["topology"] = topology
    if command or any(flag in given for flag in ("image", "env", "secret_env")):
        request["run"] = {
            "image": given.get("image", ""),
            "command": list(command),
            "env": parse_pairs(given.get("env", ()), "variable"),
            "secret_env": parse_secrets(given.get("secret_env", ())),
        }
    try:
        return JOB_REQUESTS.convert(request)
    except msgspec.ValidationError as error:
        told = explain_validation(JobRequest, msgspec.json.encode(request), error)
        what = f"{told.field} would be {told.value}; right is {told.expected}"
        raise WrongInput(f"{_flag_of(told.field)}: {what}") from error


def _gpus_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Number and size of the GPUs of each pod. Raises WrongInput."""
    text, profile = given.get("gpus"), given.get("mig")
    memory = {}
    if "gpu_memory" in given:
        memory["gpu_memory_mib"] = parse_memory_mib(given["gpu_memory"])
    if profile is not None:
        milli = profile_milli(profile)
        if milli is None:
            raise WrongInput(f"--mig: {profile!r} is no MIG profile; right is 1g.10gb")
        if text not in (None, "1"):
            raise WrongInput(f"--mig: {profile} is a part of one GPU; leave out --gpus {text}")
        return {"gpus": 1, "gpu_milli": milli, "mig_profile": profile} | memory
    if text is not None and text[-1:].isalpha() and _MEMORY.fullmatch(text):
        if memory:
            raise WrongInput(f"--gpu-memory: --gpus {text} is the part's memory already")
        if (part_mib := parse_memory_mib(text)) < 1:
            raise WrongInput(f"--gpus: {text} is no part of a GPU; right is its memory such as 8Gi")
        # The part is as large as its memory asks for: see PodSet.
        return {"gpus": 1, "gpu_milli": 1, "gpu_memory_mib": part_mib}
    gpus, milli = parse_gpus("0" if text is None else text)
    return {"gpus": gpus, "gpu_milli": milli} | memory


def _topology_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """How its pods are to stand to each other, as far as flags say."""
    said = {name: given[name] for name in ("same", "max_pods_a_node") if name in given}
    if given.get("fewest_nodes"):
        said["nodes"] = "fewest"
    if given.get("one_gpu_domain"):
        said["gpu_domain"] = "required"
    return said


def _flag_of(field: str) -> str:
    """The flag that fills a field: pod_sets[0].gpu_memory_mib -> --gpu-memory."""
    name = field.rpartition("pod_sets[0].")[2].partition("[")[0]
    if name.startswith("topology."):
        return f"--{name.partition('.')[2].replace('_', '-')}"
    name = name.partition(".")[0]
    return _FLAGS_OF.get(name, f"--{name}")


def read_requests(data: bytes, where: str) -> list[bytes]:
    """The bodies of a file: one object, an array of them, or an object a line. They are sent as
    they were written; the gateway is who checks them. Raises WrongInput when it is no JSON."""
    text = data.strip()
    if not text:
        raise WrongInput(f"{where} is empty; expected a job request as JSON")
    try:
        if text.startswith(b"["):
            raws = msgspec.json.decode(text, type=list[msgspec.Raw])
            if not raws:
                raise WrongInput(f"{where} holds no job request: the array is empty")
            return [bytes(raw) for raw in raws]
        msgspec.json.decode(text, type=msgspec.Raw)
        return [text]
    except msgspec.DecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            for line in lines:
                msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            raise WrongInput(f"{where} is not JSON: {error}") from error
        return lines


def read_named(
    data: bytes,
    where: str,
    what: str,
    read: Callable[[bytes], T | Refusal],
    name_of: Callable[[T], str],
) -> list[T]:
    """All settings of a file, each checked by ``read`` as the gateway does, no name twice. Raises
    WrongInput."""
    found: dict[str, T] = {}
    for number, body in enumerate(read_requests(data, where), 1):
        setting = read(body)
        if isinstance(setting, Refusal):
            at = f"{where}, {what} {number}: {setting.field or 'the whole'}"
            raise WrongInput(f"{at} is {setting.value}; right is {setting.expected}")
        if (name := name_of(setting)) in found:
            raise WrongInput(f"{where}, {what} {number}: {name!r} is there twice")
        found[name] = setting
    return list(found.values())


def id_of(body: bytes) -> str:
    """The id in a body that may be anything; "" if it has none."""
    try:
        return msgspec.json.decode(body, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class _Named(msgspec.Struct):
    """As much of a request as an error message needs, whatever is wrong with the rest."""

    id: str = ""
