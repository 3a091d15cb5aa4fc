"""From files and flags to job requests: text in, a request out or a sentence on what is wrong."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from berthmaster.lib.engine.fleet.shares import profile_milli
from berthmaster.lib.engine.scoring.profiles import COMPONENTS
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import explain_validation
from berthmaster.lib.messages.families import JOB_REQUESTS
from berthmaster.lib.messages.workload import JobRequest

T = TypeVar("T")
_DURATION: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)w)?(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?"
    r"(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?",
    re.ASCII,
)
_UNITS_S: Final = (604_800, 86_400, 3600, 60, 1, 0.001)  # of the groups, the largest first
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_MOST_S: Final = 36_525 * 86_400.0  # a century: longer is a slip, and no clock has it
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([KMGT]i?)B?)", re.ASCII)
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
_MIB: Final = {
    "K": Fraction(1, 1024),
    "M": Fraction(1),
    "G": Fraction(1024),
    "T": Fraction(1024 * 1024),
}


class WrongInput(ValueError):
    """What was given cannot be a request; the text says where and what would be right."""


def parse_duration_s(text: str, *, zero: bool = False) -> float:
    """Seconds of 90, 90s, 1.5m, 2h, 1h30m, 1w2d. Each number has its unit, the larger first, or one
    number alone counts seconds. ``zero``: 0 will do. Raises WrongInput."""
    right = "right are 90s, 1.5m, 2h, 1h30m" + (", 0s" if zero else "")
    text = text.strip()
    wrong = WrongInput(f"{text[:64]!r} is no duration; {right}")
    if _NUMBER.fullmatch(text):
        total = float(text)
    elif text and (found := _DURATION.fullmatch(text)) is not None:
        pairs = zip(found.groups(), _UNITS_S, strict=True)
        total = sum(float(number) * unit_s for number, unit_s in pairs if number is not None)
    else:
        raise wrong
    if total > _MOST_S or (total <= 0 and not zero):
        raise wrong
    return total


def parse_memory_mib(text: str) -> int:
    """MiB of 512, 512Mi, 16Gi, 1.5T, rounded up: what is not 0 never becomes 0, which is no limit.
    A number alone counts whole MiB; K, M, G and T count as Ki, Mi, Gi and Ti. Raises WrongInput."""
    text = text.strip()
    if _NUMBER.fullmatch(text) and text.isdecimal():
        return int(text)
    found = _SIZE.fullmatch(text)
    if found is None:
        raise WrongInput(f"{text!r} is no amount of memory; right are 512 (MiB), 512Mi, 16Gi")
    return math.ceil(Fraction(found[1]) * _MIB[found[2][0]])


def parse_cpu_milli(text: str) -> int:
    """Thousandths of 4, 0.5, 250m, rounded up: what is not 0 never becomes 0. Raises WrongInput."""
    text = text.strip()
    number = text.removesuffix("m")
    if not _NUMBER.fullmatch(number):
        raise WrongInput(f"{text!r} is no number of CPUs; right are 4, 0.5, 250m")
    return math.ceil(Fraction(number) * (1 if number != text else 1000))


def parse_gpus(text: str) -> tuple[int, int]:
    """(GPUs, milli of each): 8, 1, or a share of one such as 0.5. Raises WrongInput."""
    milli = exactly(text, 1000)
    if milli is not None and 0 < milli < 1000:
        return 1, milli
    if milli is not None and milli % 1000 == 0 and milli <= 10**9:
        return milli // 1000, 1000
    right = "0, 1, 8, a share such as 0.5, or its memory such as 8Gi"
    raise WrongInput(f"{text!r} is no number of GPUs; right are {right}")


def exactly(text: str, parts: int) -> int | None:
    """How many parts of one a number comes to; None where the text is no number, or no whole number
    of parts: 2.5 is 2500 thousandths, 0.0005 is none."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    found = Fraction(text) * parts
    return found.numerator if found.denominator == 1 else None


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
        if part not in COMPONENTS or not -10 <= weight <= 10:
            what = f"PART=N, N from -10 to 10 and PART one of {', '.join(COMPONENTS)}"
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
    "grace": ("grace_s", partial(parse_duration_s, zero=True)),
    "max_run": ("max_run_s", parse_duration_s),
    "set_name": ("set", str),
    "retries": ("retries", int),
    "backoff": ("backoff_s", partial(parse_duration_s, zero=True)),
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
    if text is not None and _SIZE.fullmatch(text.strip()):
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
