"""`berth simulate`: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from berthmaster.cli.simulate import simulate


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(simulate, list(args), env={"BERTH_TRACES": "", "COLUMNS": "80"})
    return result.exit_code, result.stdout, result.stderr


PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,scheduled_time,deletion_time\n"
    "a,1000,10,2,1000,0,0,100\nb,1000,10,1,1000,10,10,20\nc,1000,10,1,1000,10,10,40\n"
)


@pytest.fixture
def pods(tmp_path: Path) -> str:
    path = tmp_path / "pods.csv"
    path.write_text(PODS)
    return str(path)


def test_a_line_a_policy_with_what_was_asked_for_above(pods: str) -> None:
    code, out, _ = run("--fleet", "1x2", "--jobs", pods, "--policy", "fifo", "--policy", "sjf")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    # The path of the list is as long as it is; what follows is the same everywhere.
    times, shares, legend = out.split("seed 1\n")[1].split("\n\n")
    assert [line.split("  ")[0] for line in legend.splitlines()] == [
        "COMPLETION",
        "MAKESPAN",
        "USED",
        "WHEN BUSY",
        "FRAGMENTED",
        "FAIRNESS",
    ]
    assert [line.rstrip() for line in times.splitlines()] == [
        "POLICY  COMPLETION       P50    P99   WAIT      P50      P99",
        "fifo      1.78 min  1.67 min  2 min  1 min  1.5 min  1.5 min",
        "sjf       1.78 min  1.67 min  2 min  1 min  1.5 min  1.5 min",
    ]
    assert [line.split()[0] for line in shares.splitlines()] == ["POLICY", "fifo", "sjf"]


def test_json_holds_every_figure_and_the_same_seed_gives_the_same(pods: str) -> None:
    args = (
        "--fleet",
        "1x2",
        "--jobs",
        pods,
        "--policy",
        "easy",
        "--durations",
        "factor-two",
        "--json",
    )
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    assert run(*args)[1] == out
    document = json.loads(out)
    assert {k: v for k, v in document.items() if k != "policies"} == {
        "fleet": "1x2",
        "jobs": pods,
        "durations": "factor-two",
        "seed": 1,
        "gpus": 2,
    }
    [easy] = document["policies"]
    assert easy["completion"] == {
        "mean_s": (100 + 100 + 120) / 3,
        "p50_s": 100.0,
        "p99_s": 120.0,
        "longest_s": 120.0,
    }


def test_a_picture_is_written_where_it_was_asked_for(pods: str, tmp_path: Path) -> None:
    target = tmp_path / "out.svg"
    code, _, err = run("--fleet", "1x2", "--jobs", pods, "--policy", "fifo", "--plot", str(target))
    assert (code, err) == (0, f"The picture is in {target}.\n")
    assert target.read_text().startswith("<svg ")
    nowhere = str(tmp_path / "no" / "x.svg")
    code, _, err = run("--fleet", "1x2", "--jobs", pods, "--policy", "fifo", "--plot", nowhere)
    assert code == 1
    assert "cannot write" in err


def test_what_cannot_be_simulated_says_why(pods: str) -> None:
    code, _, err = run("--fleet", "1x1", "--jobs", pods)
    assert code == 1
    assert "job a asks for 2 GPUs and 1 CPUs and fits into no cluster" in err
    code, _, err = run("--jobs", "muri-1")
    assert code == 2
    assert "set BERTH_TRACES to the folder with the traces" in err
    assert run("--policy", "best")[0] == 2
    assert run("--fleet", "0x0")[0] == 2
