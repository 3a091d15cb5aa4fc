"""From files and flags to job requests: text in, a request out or a sentence on what is wrong."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from berthmaster.engine.fleet.shares import profile_milli
from berthmaster.engine.scoring.profiles import PARTS
from berthmaster.gateway.explain import explain_validation
from berthmaster.messages.families import JOB_REQUESTS
from berthmaster.messages.workload import JobRequest

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(Mi|Gi|Ti|M|G|T)?i?B?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_FLAGS_OF: Final = {  # where a flag is not named as its field
    "gpu_models": "--model",
    "prefer_gpu_models": "--prefer-model",
    "mig_profile": "--mig",
    "data": "--data-at",
    "gpu_memory_mib": "--gpu-memory",
    "cpu_milli": "--cpu",
    "memory_mib": "--memory",
    "node_labels": "--node-label",
    "clusters": "--cluster",
    "cluster_labels": "--cluster-label",
    "labels": "--label",
    "weights": "--weight",
    "expected_duration_s": "--duration",
    "deadline_s": "--deadline",
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


def parse_pairs(texts: Sequence[str]) -> dict[str, str]:
    """key=value, several. Raises WrongInput."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongInput(f"{text!r} is no label; right is key=value")
        pairs[name] = value
    return pairs


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


def from_flags(flags: Mapping[str, Any], command: Sequence[str], fallback_id: str) -> JobRequest:
    """A request of one pod set out of the flags of `berth submit`. Raises WrongInput."""
    pods: dict[str, Any] = {"count": flags.get("count") or 1} | _gpus_of(flags)
    request: dict[str, Any] = {"id": flags.get("id") or fallback_id, "pod_sets": [pods]}
    if flags.get("model"):
        pods["gpu_models"] = list(flags["model"])
    if flags.get("prefer_model"):
        pods["prefer_gpu_models"] = list(flags["prefer_model"])
    topology = _topology_of(flags)
    if topology:
        pods["topology"] = topology
    if flags.get("cpu"):
        pods["cpu_milli"] = parse_cpu_milli(flags["cpu"])
    if flags.get("memory"):
        pods["memory_mib"] = parse_memory_mib(flags["memory"])
    if flags.get("node_label"):
        pods["node_labels"] = parse_pairs(flags["node_label"])
    for name in ("queue", "priority", "profile"):
        if flags.get(name) is not None:
            request[name] = flags[name]
    if flags.get("cluster"):
        request["clusters"] = list(flags["cluster"])
    if flags.get("cluster_label"):
        request["cluster_labels"] = parse_pairs(flags["cluster_label"])
    if flags.get("weight"):
        request["weights"] = parse_weights(flags["weight"])
    if flags.get("data_at"):
        request["data"] = list(flags["data_at"])
    if flags.get("label"):
        request["labels"] = parse_pairs(flags["label"])
    if flags.get("duration"):
        request["expected_duration_s"] = parse_duration_s(flags["duration"])
    if flags.get("deadline"):
        request["deadline_s"] = parse_duration_s(flags["deadline"])
    if flags.get("image") or command:
        request["run"] = {"image": flags.get("image") or "", "command": list(command)}
    try:
        return JOB_REQUESTS.convert(request)
    except msgspec.ValidationError as error:
        told = explain_validation(JobRequest, msgspec.json.encode(request), error)
        what = f"{told.field} would be {told.value}; right is {told.expected}"
        raise WrongInput(f"{_flag_of(told.field)}: {what}") from error


def _gpus_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Number and size of the GPUs of each pod. Raises WrongInput."""
    text, profile = flags.get("gpus") or "", flags.get("mig") or ""
    memory = parse_memory_mib(flags["gpu_memory"]) if flags.get("gpu_memory") else 0
    if profile:
        milli = profile_milli(profile)
        if milli is None:
            raise WrongInput(f"--mig: {profile!r} is no MIG profile; right is 1g.10gb")
        if text not in ("", "1"):
            raise WrongInput(f"--mig: {profile} is a part of one GPU; leave out --gpus {text}")
        found = {"gpus": 1, "gpu_milli": milli, "mig_profile": profile}
    elif text[-1:].isalpha() and _MEMORY.fullmatch(text):
        if memory:
            raise WrongInput(f"--gpu-memory: --gpus {text} is the part's memory already")
        # The part is as large as its memory asks for: see PodSet.
        return {"gpus": 1, "gpu_milli": 1, "gpu_memory_mib": max(1, parse_memory_mib(text))}
    else:
        gpus, milli = parse_gpus(text or "0")
        found = {"gpus": gpus, "gpu_milli": milli}
    return found | ({"gpu_memory_mib": memory} if memory else {})


def _topology_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """How its pods are to stand to each other, as far as flags say."""
    said = {
        "same": flags.get("same"),
        "max_pods_a_node": flags.get("max_pods_a_node"),
        "nodes": "fewest" if flags.get("fewest_nodes") else "",
        "gpu_domain": "required" if flags.get("one_gpu_domain") else "",
    }
    return {name: value for name, value in said.items() if value}


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


def id_of(body: bytes) -> str:
    """The id in a body that may be anything; "" if it has none."""
    try:
        return msgspec.json.decode(body, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class _Named(msgspec.Struct):
    """As much of a request as an error message needs, whatever is wrong with the rest."""

    id: str = ""
