"""Lists and fleets by name, and Muri's published averages where its traces are."""

from pathlib import Path

import pytest

from berthmaster.lab.simulate.model import Job, SimulationError
from berthmaster.lab.simulate.traces import (
    MURI,
    TRACES_VARIABLE,
    fleet_named,
    jobs_named,
    parse_muri,
    restart_s,
)
from berthmaster.lib.messages.workload import JobRequest, PodSet

HEAD = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time"
)


def test_a_line_of_muris_trace_is_a_job_of_whole_nodes_with_its_iterations_time() -> None:
    [small, wide] = parse_muri(
        f"{HEAD}\n0,4,1500,1000,bert,4,0,0,200\n1,32,2000,10,newnet,4,0,0,1000\n"
    )
    pods = PodSet(gpus=4, cpu_milli=1000, memory_mib=1024)
    assert small == Job(
        1.5,
        JobRequest(id="job-0", pod_sets=(pods,), labels={"model": "bert"}),
        1000 * (200.0 * 1.015 / 1000),
        overhead_s=10.0,
    )
    assert (wide.gpus, wide.request.pod_sets[0].count, wide.request.pod_sets[0].gpus) == (32, 4, 8)


def test_restarts_cost_what_was_measured_for_model_and_size() -> None:
    assert [restart_s("a2c", gpus) for gpus in (1, 2, 4, 8, 16, 32, 64)] == [
        38, 39, 39, 46, 46, 46, 46,
    ]  # fmt: skip
    assert restart_s("never-heard-of", 8) == 10


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0,x,0,1,bert,4,0,0,1", "line 2 of the trace: invalid literal"),
        ("0,1,0,0,bert,4,0,0,1", "line 2 of the trace: a job has GPUs, a time and a duration"),
        ("0,12,0,5,bert,4,0,0,1", "line 2: 12 GPUs are not whole nodes of 8"),
        ("0,1,nan,5,bert,4,0,0,1", "line 2 of the trace: a job has GPUs"),
        ("0", "line 2 of the trace"),
    ],
)
def test_a_line_that_is_no_job_is_told(line: str, why: str) -> None:
    with pytest.raises(SimulationError, match=why):
        parse_muri(f"{HEAD}\n{line}\n")


def test_a_trace_without_its_columns_is_told() -> None:
    with pytest.raises(SimulationError, match="the trace lacks num_gpu, submit_time"):
        parse_muri("job_id,iterations\n")


def test_fleets_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [even] = fleet_named("3x8", clusters=1, nodes=None)
    assert (len(even.nodes), even.gpus) == (3, {"A100": 24})
    assert sum(len(c.nodes) for c in fleet_named("builtin", clusters=4, nodes=50)) == 50
    with pytest.raises(SimulationError, match="N is 1 to 100000 nodes, G 1 to 64"):
        fleet_named("0x8", clusters=1, nodes=None)
    with pytest.raises(SimulationError, match="a fleet is builtin, openb, NxG or a file"):
        fleet_named("no-such-file", clusters=1, nodes=None)
    monkeypatch.delenv(TRACES_VARIABLE, raising=False)
    with pytest.raises(SimulationError, match="set BERTH_TRACES to the folder"):
        fleet_named("openb", clusters=1, nodes=None)
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    with pytest.raises(SimulationError, match=r"cannot read .*trace1.csv: No such file"):
        jobs_named("muri-1", seed=0, limit=None, rate_per_s=1)


def test_job_lists_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = jobs_named("generated", seed=3, limit=7, rate_per_s=0.1)
    assert len(made) == 7
    assert made == jobs_named("generated", seed=3, limit=7, rate_per_s=0.1)
    pods = tmp_path / "pods.csv"
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,10,1,500\n")
    [one] = jobs_named(str(pods), seed=0, limit=None, rate_per_s=1)
    assert (one.request.id, one.gpus) == ("a", 0.5)
    pods.write_text("nothing\n")
    with pytest.raises(SimulationError, match=r"pods.csv: the pod list lacks"):
        jobs_named(str(pods), seed=0, limit=None, rate_per_s=1)
    (tmp_path / "muri").mkdir()
    (tmp_path / MURI["muri-3"]).write_text(f"{HEAD}\n0,1,0,5,bert,4,0,0,1\n")
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    assert len(jobs_named("muri-3", seed=0, limit=None, rate_per_s=1)) == 1
