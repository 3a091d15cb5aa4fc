"""The README's section on real clusters as it stands: doctor, up, a Job by kubectl, a request by
NATS, and both come back done. Then the same side by side in pods' clothes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube import labels
from tests.controlplane.jobs import RUN
from tests.support.patience import Hung, hang_s, wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINES = [
    line
    for block in re.findall(r"^```shell\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    for line in re.sub(r"\\\n *", "", block).strip().splitlines()
]
MODELS = {"worker-1": ("Tesla-T4", 2), "worker-2": ("Tesla-T4", 8), "worker-3": ("Tesla-T4", 4)}


def kubeconfig_of(planes: Planes, path: Path) -> Path:
    """One file with a context for each plane, as a platform team has it."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "hub"}
    for kind in ("clusters", "users", "contexts"):
        merged[kind] = []
    for plane in planes:
        told = yaml.safe_load(plane.kubeconfig.read_text())
        for kind in ("clusters", "users"):
            [one] = told[kind]
            merged[kind].append(one | {"name": plane.name})
        context = {"cluster": plane.name, "user": plane.name}
        merged["contexts"].append({"name": plane.name, "context": context})
    path.write_text(yaml.safe_dump(merged))
    path.chmod(0o600)
    return path


class Terminal:
    """A shell in a folder, with a kubeconfig and our own programs."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        kept = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
        self.env = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder),
        }

    def say(self, line: str) -> str:
        """Type a line; what it printed, and it must have succeeded."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=hang_s(),
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, line: str) -> Any:
        """What it printed as JSON."""
        return json.loads(self.say(f"{line} --json"))

    def page(self, path: str) -> Any:
        """What the page that `berth up` has printed answers."""
        said = (self.folder / "up.log").read_text()
        [found] = re.findall(r"^Dashboard: (\S+)", said, re.MULTILINE)
        with urllib.request.urlopen(f"{found}{path}", timeout=hang_s()) as answer:
            return json.load(answer)

    @contextmanager
    def running(self, line: str) -> Iterator["subprocess.Popen[bytes]"]:
        """In a terminal of its own, up until the block ends; Ctrl-C then."""
        log = self.folder / "up.log"
        with log.open("wb") as output:
            up = subprocess.Popen(
                line.split(), cwd=self.folder, env=self.env, stdout=output, stderr=output
            )
        try:

            def is_up() -> bool:
                assert up.poll() is None, log.read_text()
                return "Up after" in log.read_text()

            wait_until(is_up, f"{line}: {log.read_text()}")
            yield up
        finally:
            if up.poll() is None:
                up.send_signal(signal.SIGINT)
            assert up.wait(hang_s()) == 0, log.read_text()


@pytest.fixture
def team(planes: Planes) -> Iterator[str]:
    """The namespace of the README, in every plane."""
    for plane in planes:
        plane.make_namespace("team")
    yield "team"
    planes.mend()
    for plane in planes:
        # `berth up` has ended while jobs ran, so that nobody reads how they end.
        jobs = "/apis/batch/v1/namespaces/team/jobs"
        for job in plane.api.items(jobs):
            if labels.FINALIZER in job["metadata"].get("finalizers", ()):
                path = f"{jobs}/{job['metadata']['name']}"
                plane.api.merge(path, {"metadata": {"finalizers": None}})
        plane.api.delete("/api/v1/namespaces/team/pods", gracePeriodSeconds=0)
        plane.api.delete("/api/v1/namespaces/team")
    for plane in planes:
        wait_until(
            lambda p=plane: p.api.find("/api/v1/namespaces/team") is None,  # type: ignore[misc]
            f"team is gone in {plane.name}",
        )


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh")
def test_the_readmes_commands_run_a_job_of_kubectl_and_one_of_nats(
    planes: Planes, team: str, tmp_path: Path
) -> None:
    """The worker with most free GPUs is worker-2: the hub's Job goes there, though worker-1 is
    first in the MultiKueueConfig. Two of the tour's jobs of four GPUs fill it, or one of them and
    worker-3."""
    for name, (model, gpus) in MODELS.items():
        make_nodes(planes[name], [gpu_node("a", gpus=gpus, model=model)])
    terminal = Terminal(tmp_path, kubeconfig_of(planes, tmp_path / "kubeconfig"))
    asks = {"cpu": "1", "nvidia.com/gpu": "1"}
    job = builders.job(team, "from-kubectl", "main", requests=asks, run_s="2")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    tours = [line for line in LINES if line.startswith("berth tour")]
    [doctor, up, *rest] = [line for line in LINES if line not in tours]
    with Kueue(planes, team, options=Options(dispatcher="berthmaster.io/dispatcher")) as kueue:
        assert doctor.startswith("berth doctor --hub hub --worker worker-1")
        assert "Nothing blocks the mode observe." in terminal.say(doctor)
        with terminal.running(up):
            said = {}
            for line in rest:
                if line.startswith("kubectl ") and shutil.which("kubectl") is None:
                    planes.hub.api.create(f"/apis/batch/v1/namespaces/{team}/jobs", job)
                    continue
                said[line] = terminal.say(line)
            wait_until(lambda: kueue.cluster_of("from-kubectl") == "worker-2", "nominated")
            wait_until(lambda: kueue.has("from-kubectl", "Finished"), "its end is on the hub")

            def ended(name: str) -> bool:
                view = terminal.json(f"berth job {name}")["workload"]
                return bool(view["state"] == "succeeded")

            wait_until(lambda: ended("from-nats"), "from-nats succeeded", poll_s=0.5)
            [why] = [text for line, text in said.items() if line.startswith("berth why")]
            assert terminal.json("berth job from-nats")["workload"]["cluster"] in why
            # The Job of kubectl is a workload of the bus as well, its namespace its tenant.
            jobs = terminal.json(f"berth jobs --tenant {team}")["workloads"]
            [mine] = [
                one for one in jobs if "from-kubectl" in one["id"]
            ]  # as its Workload is named
            wait_until(
                lambda: (
                    terminal.json(f"berth job {mine['id']} --tenant {team}")["workload"]["state"]
                    == "succeeded"
                ),
                "the hub's job succeeded on the bus",
                poll_s=0.5,
            )
            # The page tells of it like of any other, and where it came from.
            [row] = terminal.page("api/jobs?q=from-kubectl")["rows"]
            assert (row["tenant"], row["state"], row["cluster"]) == (team, "succeeded", "worker-2")
            assert (row["namespace"], "from-kubectl" in row["origin"]) == (team, True)
            people_and_shares_move_what_runs(terminal, planes, team)
            # kwok ends a Job's pod at once unless it is told; the tours' shall hold their GPUs.
            for line in tours:
                told = terminal.json(f"{line} --annotation {RUN}=forever")
                assert told["right"], told
                went = {one["cluster"] for one in told["jobs"]}
                assert went == ({"worker-1"} if "labels" in line else {"worker-2", "worker-3"})
            assert "Clean." in terminal.say("berth audit")


def people_and_shares_move_what_runs(terminal: Terminal, planes: Planes, team: str) -> None:
    """Shrink, reclaim, move and drain, as `berth` tells it and as the clusters have it."""
    forever = "--image busybox --env BERTH_TEST_RUN_S=forever -- sleep 1d"

    def stands(name: str) -> tuple[str, str]:
        view = terminal.json(f"berth job {name}")["workload"]
        return view["state"], view.get("cluster", "")

    def until_stands(name: str, *wanted: str) -> None:
        try:
            wait_until(lambda: stands(name) == wanted, f"{name} is {wanted}", poll_s=0.5)
        except Hung as late:
            told = [terminal.say(f"berth why {name}"), terminal.say("berth jobs")]
            told += [terminal.say(f"berth job {one}") for one in ("lent", name)]
            for pod in planes["worker-2"].api.items(f"/api/v1/namespaces/{team}/pods"):
                told.append(json.dumps({k: pod[k] for k in ("metadata", "status")})[:1500])
            raise AssertionError("\n".join([f"{late}", *told])) from late

    def running(plane: str) -> list[str]:
        """Whose pods run there, one each."""
        found = planes[plane].api.items(f"/api/v1/namespaces/{team}/pods")
        ours = [one for one in found if "deletionTimestamp" not in one["metadata"]]
        names = [one["metadata"]["labels"].get("berthmaster.io/workload", "") for one in ours]
        return sorted(name for name in names if name in ("lent", "half", "whole"))

    for queue, guarantee in (("lent", 0), ("mine", 8)):
        terminal.say(f"berth queue set {queue} --via direct --place {team} --guarantee {guarantee}")
    asks = "--queue lent --cluster worker-2 --gpus 2 --count 4 --min-count 2 --grace 1s"
    terminal.say(f"berth submit --id lent {asks} {forever}")
    until_stands("lent", "running", "worker-2")
    # Of what it is lent it gives back half before anybody is ended, then all.
    terminal.say(f"berth submit --id half --queue mine --cluster worker-2 --gpus 4 {forever}")
    until_stands("half", "running", "worker-2")
    wait_until(lambda: running("worker-2") == ["half", "lent", "lent"], "it has shrunk")
    terminal.say(f"berth submit --id whole --queue mine --gpus 4 --cluster worker-2 {forever}")
    until_stands("whole", "running", "worker-2")
    wait_until(lambda: running("worker-2") == ["half", "whole"], "it has gone")
    assert stands("lent")[0] == "queued"
    assert "what its queue borrowed is another queue's guarantee" in terminal.say("berth job lent")
    for name in ("lent", "half", "whole"):
        terminal.say(f"berth cancel {name}")
    wait_until(lambda: running("worker-2") == [], "all have gone")
    # A person moves one, and a drain sends it back.
    places = "--cluster worker-2 --cluster worker-3"
    terminal.say(f"berth submit --id whole-2 --queue mine --gpus 4 {places} {forever}")
    wait_until(lambda: stands("whole-2")[0] == "running", "it runs", poll_s=0.5)
    [there] = {"worker-2", "worker-3"} - {stands("whole-2")[1]}
    terminal.say(f"berth move whole-2 --to {there}")
    until_stands("whole-2", "running", there)
    [back] = {"worker-2", "worker-3"} - {there}
    terminal.say(f"berth drain {there} --reason kernel")
    until_stands("whole-2", "running", back)
    [cordon] = terminal.json("berth problems cordons")["cordons"]
    assert (cordon["cluster"], cordon.get("jobs", 0)) == (there, 0)
    terminal.say(f"berth uncordon {there}")
    terminal.say("berth cancel whole-2")
    wait_until(lambda: stands("whole-2")[0] == "cancelled", "it has ended", poll_s=0.5)


def test_the_readme_shows_each_of_them() -> None:
    assert [line.split()[:2] for line in LINES[:2]] == [["berth", "doctor"], ["berth", "up"]]
    assert any(line.startswith("kubectl --context hub -n team create") for line in LINES)
    assert any(line.startswith("berth submit --id from-nats") for line in LINES)


def test_two_workers_that_are_one_cluster_are_refused_and_a_deaf_one_is_left_out(
    planes: Planes, tmp_path: Path
) -> None:
    path = kubeconfig_of(planes, tmp_path / "kubeconfig")
    told = yaml.safe_load(path.read_text())
    told["clusters"].append({"name": "deaf", "cluster": {"server": "https://127.0.0.1:9"}})
    told["contexts"] += [
        {"name": "again", "context": {"cluster": "worker-1", "user": "worker-1"}},
        {"name": "deaf", "context": {"cluster": "deaf", "user": "worker-1"}},
    ]
    path.write_text(yaml.safe_dump(told))
    terminal = Terminal(tmp_path, path)
    up = "berth up --services gateway,resolver,scorer,door,accounts,inventory"
    refused = subprocess.run(
        [*up.split(), "--worker", "worker-1", "--worker", "again"],
        cwd=tmp_path,
        env=terminal.env,
        capture_output=True,
        text=True,
        timeout=hang_s(),
        check=False,
    )
    assert refused.returncode != 0
    assert "workers 'worker-1' and 'again' are one cluster" in refused.stderr
    with terminal.running(f"{up} --worker worker-1 --worker deaf"):
        said = (tmp_path / "up.log").read_text()
        assert "going on without deaf (https://127.0.0.1:9: no connection" in said

        def is_told() -> bool:
            rows = terminal.json("berth top --once")
            return [row["cluster"] for row in rows] == ["worker-1"]

        wait_until(is_told, "the cluster that answers is in the fleet", poll_s=0.5)
