"""Job requests from the flags of `berth submit`."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import click
import msgspec

from berthmaster.cli.completion import CLUSTER, MODEL, QUEUE, RUNTIME
from berthmaster.cli.flags import FieldOptions, Flag
from berthmaster.cli.values import SIZE, WrongInput, exactly, parse_memory_mib, parse_pairs
from berthmaster.lib.engine.fleet.shares import profile_milli
from berthmaster.lib.engine.scoring.profiles import COMPONENTS, PROFILES
from berthmaster.lib.messages.explain import explain_validation
from berthmaster.lib.messages.families import JOB_REQUESTS
from berthmaster.lib.messages.workload import JobRequest


def parse_gpus(text: str) -> tuple[int, int]:
    """Return (GPUs, milli of each) of 8, 1, or a fraction such as 0.5. Raises WrongInput."""
    milli = exactly(text, 1000)
    if milli is not None and 0 < milli < 1000:
        return 1, milli
    if milli is not None and milli % 1000 == 0 and milli <= 10**9:
        return milli // 1000, 1000
    right = "0, 1, 8, a share such as 0.5, or its memory such as 8Gi"
    raise WrongInput(f"{text!r} is no number of GPUs; right are {right}")


def parse_secrets(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the secrets of several VARIABLE=SECRET/KEY texts. Raises WrongInput."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        variable, _, place = text.partition("=")
        name, _, key = place.partition("/")
        if not (variable and name and key):
            # Do not repeat the text, because a user may have typed the secret itself.
            raise WrongInput(f"--secret-env {variable[:64]!r}: right is VARIABLE=NAME/KEY")
        found[variable] = {"name": name, "key": key}
    return found


def parse_resources(texts: Sequence[str]) -> dict[str, int]:
    """Return the resources of NAME=N texts, each name once. Raises WrongInput."""
    resources: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (name and equals and re.fullmatch(r"[0-9]{1,9}", number)):
            raise WrongInput(f"--resource: {text!r} is none; right is rdma/hca=1, in whole pieces")
        if name in resources:
            raise WrongInput(f"--resource: {name} is given twice; add it up")
        resources[name] = int(number)
    return resources


def parse_parameters(texts: Sequence[str]) -> dict[str, str | int | float | bool]:
    """Return a runtime's parameters from NAME=VALUE texts.

    Numbers, true and false keep their type. All other values, and quoted ones, are text. Raises
    WrongInput.
    """
    parameters: dict[str, str | int | float | bool] = {}
    for name, text in parse_pairs(texts, "parameter").items():
        try:
            parameters[name] = msgspec.json.decode(text, type=str | int | float | bool)
        except (msgspec.DecodeError, UnicodeEncodeError):
            parameters[name] = text
    return parameters


def parse_after(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return the dependencies of ID, ID:succeeded or ID:ended. Raises WrongInput."""
    found = []
    for text in texts:
        name, _, until = text.partition(":")
        if not name or until not in ("", "succeeded", "ended"):
            raise WrongInput(f"--after {text!r}: right is ID, ID:succeeded or ID:ended")
        found.append({"id": name} | ({"until": until} if until else {}))
    return found


OPTIONS: Final = FieldOptions(
    JobRequest,
    {
        "id": Flag(note="[default: a random one]"),
        "queue": Flag(type=QUEUE),
        "pod_sets.name": None,
        "pod_sets.cpu_milli": Flag(help="CPUs of each pod."),
        "pod_sets.gpus": Flag(
            type=click.STRING,
            help="GPUs of each pod: 0, 1, 8, a fraction such as 0.5, or its memory such as 8Gi.",
        ),
        "pod_sets.gpu_milli": None,  # set by --gpus and --mig
        "pod_sets.gpu_models": Flag("--model", type=MODEL),
        "pod_sets.prefer_gpu_models": Flag("--prefer-model", type=MODEL, metavar="MODEL"),
        "pod_sets.mig_profile": Flag("--mig", metavar="PROFILE"),
        "pod_sets.gpu_resource": None,
        "pod_sets.isolation": Flag(type=click.STRING, metavar="HOW"),
        "pod_sets.tpu_accelerators": Flag(metavar="KIND"),
        "pod_sets.tpu_topology": Flag(metavar="AxB"),
        "pod_sets.resources": Flag(metavar="NAME=N", read=parse_resources),
        "pod_sets.claims": Flag(metavar="NAME"),
        "pod_sets.choose": Flag("--choose"),
        "pod_sets.trial": None,  # a job file
        "pod_sets.topology.same": Flag(metavar="LABEL"),
        "pod_sets.topology.nodes": Flag(
            "--fewest-nodes", switch="fewest", help="Run all pods on as few nodes as possible."
        ),
        "pod_sets.topology.gpu_domain": Flag(
            "--one-gpu-domain",
            switch="required",
            help="Take the GPUs of each pod from one NVLink or NUMA domain.",
        ),
        "pod_sets.tolerations": None,
        "clusters": Flag(type=CLUSTER),
        "run.command": None,  # the words after --
        "run.args": None,
        "run.secret_env": Flag(metavar="K=NAME/KEY", read=parse_secrets),
        "run.env": Flag(read=partial(parse_pairs, what="variable")),
        "expected_duration_s": Flag("--duration"),
        "max_evictions": None,
        "runtime.name": Flag("--runtime", type=RUNTIME, metavar="NAME"),
        "runtime.parameters": Flag("--param", read=parse_parameters),
        "runtime_used": None,
        "preemptible": Flag("--not-preemptible", help="Do not preempt the job once it is claimed."),
        "profile": Flag(metavar="NAME", note=f"Profiles: {', '.join(PROFILES)}."),
        "weights": Flag(note=f"Parts: {', '.join(COMPONENTS)}."),
        "data": Flag("--data-at", metavar="PLACE"),
        "set": Flag(metavar="NAME"),
        "set_at_most": None,  # set by --array
        "array_index": None,
        "depends_on": Flag("--after", metavar="ID[:succeeded|ended]", read=parse_after),
        "divide.by": Flag(
            "--divide",
            help="Run pods in several clusters. room: in as few as possible, where no cluster has "
            "room for all; weight: in all that have room.",
        ),
        "divide.weights": None,
        "divide.gang": None,
        "divide.address": None,
        "part": None,
        "trial_of": None,
    },
)
ARRAY: Final = click.option(
    "--array",
    metavar="0-99%8",
    help="Submit jobs ID-0 to ID-99 of the set ID, of which at most 8 are placed at once; their "
    "pods have BERTH_ARRAY_INDEX.",
)


def from_flags(flags: Mapping[str, Any], command: Sequence[str], fallback_id: str) -> JobRequest:
    """Return a request of one pod set from the flags of `berth submit`. Raises WrongInput."""
    request = {"id": fallback_id} | OPTIONS.values(flags)
    pods = request.get("pod_sets", {})
    request["pod_sets"] = [pods | _gpus_of(pods)]
    if "name" not in request.get("runtime", {"name": ""}):
        raise WrongInput("--param: give the runtime whose parameter it is with --runtime")
    if command or "run" in request:
        request["run"] = {"command": list(command)} | request.get("run", {})
    try:
        return JOB_REQUESTS.convert(request)
    except msgspec.ValidationError as error:
        fault = explain_validation(JobRequest, msgspec.json.encode(request), error)
        of_command = fault.field.startswith("run.command")
        name = "--image or the command" if of_command else OPTIONS.name_of(fault.field)
        what = f"{fault.field} would be {fault.value}; right is {fault.expected}"
        raise WrongInput(f"{name}: {what}") from error


def _gpus_of(pods: Mapping[str, Any]) -> dict[str, Any]:
    """Return number and size of each pod's GPUs. Raises WrongInput."""
    text, profile = pods.get("gpus"), pods.get("mig_profile")
    if profile is not None:
        milli = profile_milli(profile)
        if milli is None:
            raise WrongInput(f"--mig: {profile!r} is no MIG profile; right is 1g.10gb")
        if text not in (None, "1"):
            raise WrongInput(f"--mig: {profile} is a part of one GPU; leave out --gpus {text}")
        return {"gpus": 1, "gpu_milli": milli}
    if text is not None and SIZE.fullmatch(text.strip()):
        if "gpu_memory_mib" in pods:
            raise WrongInput(f"--gpu-memory: --gpus {text} is the part's memory already")
        if (part_mib := parse_memory_mib(text)) < 1:
            raise WrongInput(f"--gpus: {text} is no part of a GPU; right is its memory such as 8Gi")
        # The requested memory determines the fraction: see PodSet.
        return {"gpus": 1, "gpu_milli": 1, "gpu_memory_mib": part_mib}
    gpus, milli = parse_gpus("0" if text is None else text)
    return {"gpus": gpus, "gpu_milli": milli}
