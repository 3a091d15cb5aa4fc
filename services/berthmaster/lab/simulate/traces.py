"""Job lists and fleets from files, or generated: the only module of this package with I/O.

``muri-1`` and ``muri-3`` are the traces of Muri's simulator (SIGCOMM'22), for 8 nodes with 8 GPUs.
Two rules of its simulator apply: an iteration takes 1.015 times the listed time, and a restarted
job pays the overhead measured for its model.
"""

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from berthmaster.lab.emulator.fleets import BUILTIN, ClusterSpec, FleetError, NodeSpec, read_fleet
from berthmaster.lab.emulator.workloads import (
    OPENB_PODS,
    Arrival,
    WorkloadError,
    generated,
    parse_workloads,
)
from berthmaster.lab.simulate.model import Job, SimulationError
from berthmaster.lib.messages.workload import JobRequest, PodSet

TRACES_VARIABLE: Final = "BERTH_TRACES"
MURI: Final = {"muri-1": "muri/trace1.csv", "muri-3": "muri/trace3.csv"}
MURI_FLEET: Final = "8x8"
ITERATION_FACTOR: Final = 1.015
GPUS_A_NODE: Final = 8
# Seconds to start, by model and GPUs 1, 2, 4, 8, 16, 32: measured by the authors of Muri.
RESTART_S: Final[Mapping[str, tuple[int, ...]]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
OTHER_RESTART_S: Final = 10
_COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "iterations", "iteration_time", "model_name")


def traces_folder() -> Path:
    """Return the folder of the traces. Raises SimulationError if it is not set."""
    named = os.environ.get(TRACES_VARIABLE)
    if not named:
        raise SimulationError(f"set {TRACES_VARIABLE} to the folder with the traces")
    return Path(named)


def even_fleet(nodes: int, gpus: int, name: str = "sim") -> list[ClusterSpec]:
    """Return one cluster of equal nodes, with more CPU and memory than any GPU job requests."""
    specs = tuple(
        NodeSpec(f"node-{number:04}", 12_000 * max(gpus, 1), 65_536 * max(gpus, 1), gpus, "A100")
        for number in range(1, nodes + 1)
    )
    return [ClusterSpec(name, "eu-central", specs)]


def fleet_named(name: str, *, clusters: int, nodes: int | None) -> list[ClusterSpec]:
    """Return the fleet of ``builtin``, ``openb``, ``NxG`` (N nodes with G GPUs), or a node
    list's path."""
    counts = name.split("x")
    if len(counts) == 2 and all(count.isascii() and count.isdigit() for count in counts):
        many, gpus = (int(count) for count in counts)
        if not (1 <= many <= 100_000 and 1 <= gpus <= 64):
            raise SimulationError(f"fleet is {name!r}; N is 1 to 100000 nodes, G 1 to 64 GPUs")
        return even_fleet(many, gpus)
    path = name
    if name == "openb":
        path = str(traces_folder() / "openb/openb_node_list_gpu_node.csv")
    try:
        return read_fleet(path, clusters=clusters, nodes=nodes)
    except FleetError as error:
        hint = "" if name == BUILTIN else f"; a fleet is {BUILTIN}, openb, NxG or a file"
        raise SimulationError(f"{error}{hint}") from error


def jobs_named(name: str, *, seed: int, limit: int | None, rate_per_s: float) -> list[Job]:
    """Return the jobs of ``generated``, ``muri-1``, ``muri-3``, an openb list, or a pod list's
    path."""
    try:
        if name == "generated":
            made = generated(
                seed=seed, rate_per_s=rate_per_s, count=1000 if limit is None else limit
            )
            return [_from_arrival(arrival) for arrival in made]
        if name in MURI:
            return parse_muri((traces_folder() / MURI[name]).read_text())[:limit]
        path = traces_folder() / OPENB_PODS[name] if name in OPENB_PODS else Path(name)
        listed = parse_workloads(path.read_text(), seed=seed, rate_per_s=rate_per_s)
        return [_from_arrival(arrival) for arrival in listed[:limit]]
    except OSError as error:
        raise SimulationError(f"cannot read {error.filename or name}: {error.strerror}") from error
    except (WorkloadError, UnicodeDecodeError) as error:
        raise SimulationError(f"{name}: {error}") from error


def _from_arrival(arrival: Arrival) -> Job:
    duration_s = arrival.request.expected_duration_s
    if duration_s is None:
        raise SimulationError(f"job {arrival.request.id} has no duration")
    return Job(arrival.at_s, arrival.request, duration_s)


def parse_muri(text: str) -> list[Job]:
    """Return the jobs of a trace in the form of Muri's simulator. Raises SimulationError."""
    rows = csv.DictReader(io.StringIO(text))
    missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise SimulationError(f"the trace lacks {', '.join(missing)}")
    return [_muri_job(row, line) for line, row in enumerate(rows, 2)]


def _muri_job(row: Mapping[str, str], line: int) -> Job:
    try:
        gpus = int(row["num_gpu"])
        at_s = float(row["submit_time"]) / 1000
        iteration_s = float(row["iteration_time"]) * ITERATION_FACTOR / 1000
        duration_s = int(row["iterations"]) * iteration_s
        name = f"job-{int(row['job_id'])}"
    except (TypeError, ValueError) as error:
        raise SimulationError(f"line {line} of the trace: {error}") from error
    if gpus < 1 or not 0 <= at_s < 1e12 or not 0 < duration_s < 1e12:
        raise SimulationError(f"line {line} of the trace: a job has GPUs, a time and a duration")
    if gpus > GPUS_A_NODE and gpus % GPUS_A_NODE:
        raise SimulationError(f"line {line}: {gpus} GPUs are not whole nodes of {GPUS_A_NODE}")
    pods = PodSet(
        count=max(1, gpus // GPUS_A_NODE),
        cpu_milli=1000,
        memory_mib=1024,
        gpus=min(gpus, GPUS_A_NODE),
    )
    request = JobRequest(id=name, pod_sets=(pods,), labels={"model": row["model_name"]})
    return Job(at_s, request, duration_s, overhead_s=restart_s(row["model_name"], gpus))


def restart_s(model: str, gpus: int) -> float:
    """Return the seconds that a stop and start of a job costs."""
    by_size = RESTART_S.get(model)
    if by_size is None:
        return float(OTHER_RESTART_S)
    return float(by_size[min(len(by_size) - 1, max(0, gpus.bit_length() - 1))])
