"""The hub's pod as deploy/kubernetes says, without the containers that ask an API server."""

import json
from pathlib import Path
from typing import Final

import yaml

from berthmaster.runtime.ports import free_ports
from tests.pipeline.running import environment, run_berth
from tests.support.containers import running
from tests.support.kustomize import Manifest, render

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
ASKS_AN_API_SERVER: Final = ("inventory", "multikueue")


def hub_template(port: int, monitor_port: int) -> Manifest:
    """The pod without the services that ask an API server, on other ports."""
    [owner] = [
        each for each in render(DEPLOY / "overlays/observe") if each["kind"] == "StatefulSet"
    ]
    template: Manifest = owner["spec"]["template"]
    spec = template["spec"]
    spec["containers"] = [
        each for each in spec["containers"] if each["name"] not in ASKS_AN_API_SERVER
    ]
    spec["initContainers"][0]["command"] += [
        *("--port", str(port), "--monitor-port", str(monitor_port)),
    ]
    return template


def test_hub_pod_takes_jobs_and_lets_an_agent_in_and_keeps_both_over_a_restart(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    port, monitor_port = free_ports(2)

    def berth(*argv: str) -> str:
        done = run_berth(*argv, "--data", str(data), home=tmp_path)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def clusters() -> list[tuple[str, bool]]:
        listed = json.loads(berth("cluster", "list", "--json"))
        return [(one["cluster"], one["connected"]) for one in listed]

    first: object = None
    for life in ("first", "second"):
        with running(
            hub_template(port, monitor_port),
            tmp_path / life,
            volumes={"data": data},
            env=environment(tmp_path),
            config={"BERTH_HUB_EXTERNAL": "localhost", "BERTH_HUB_SYNC": "default"},
            ports={4222: port},
        ) as pod:
            pod.wait_ready()
            if life == "first":
                berth("submit", "--id", "train", "--gpus", "1")
                added = yaml.safe_load(
                    berth("cluster", "add", "berlin", "--namespaces", "ml", "--stdout")
                )
                first = added
                assert added["stringData"]["url"] == f"tls://localhost:{port}"
            assert clusters() == [("berlin", False)]
            again = berth("cluster", "add", "berlin", "--namespaces", "ml", "--stdout")
            assert yaml.safe_load(again) == first
            assert json.loads(berth("job", "train", "--json"))["workload"]["id"] == "train"
            assert set(pod.end().values()) == {0}
            assert "permission violation" not in pod.log()
