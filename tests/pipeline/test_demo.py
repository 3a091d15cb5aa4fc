"""`berth demo` from a cold start to its summary, in a folder that goes with it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.pipeline.running import alive, children_of, environment, run_berth
from tests.support.patience import hang_s

FLAGS = ("--duration", "8", "--jobs", "150", "--nodes", "40")


def test_the_demo_places_and_runs_its_jobs_and_sums_up(tmp_path: Path) -> None:
    done = run_berth("demo", *FLAGS, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    summary = report["summary"]
    assert 0 < report["first_placed_s"] < hang_s()
    assert summary["submitted"] == 150
    assert sum(summary["states"].values()) == 150
    assert summary["placed_at_least_once"] > 100
    assert summary["states"]["succeeded"] > 0
    assert (summary["void_events"], summary["impossible_events"]) == (0, 0)
    assert set(summary["latencies"]) == {
        "submit_to_placed",
        "placed_to_running",
        "submit_to_running",
    }
    assert 0 < report["gpus_used"] <= report["gpus"]
    assert report["restarts"] == 0
    no_model = [why for why in report["waiting"]["reasons"] if " have no " in why]
    assert no_model, "the one that wants what is not there waits, and the summary says why"


def test_ctrl_c_ends_the_demo_with_its_summary_and_without_its_processes(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "berthmaster.cli.main", "demo", "--duration", "300"]
    with subprocess.Popen(
        [*argv, "--jobs", "5000", "--nodes", "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if "running" in line:
                break
        children = children_of(process.pid)
        assert len(children) == 10
        process.terminate()
        out = process.stdout.read()
        assert process.wait(hang_s()) == 0
    assert out.startswith("Summary\n")
    assert not any(alive(pid) for pid in children)
