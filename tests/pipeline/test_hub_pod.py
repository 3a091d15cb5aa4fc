"""The hub's pods as the chart says, without the containers that ask an API server."""

import copy
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import yaml

from berthmaster.lib.supervisor.hub_folder import BUS_SECRET, KEYS_SECRET, parts, prepare
from tests.pipeline.running import environment, run_berth
from tests.support.chart import Manifest, pod_of, render
from tests.support.containers import RunningBus, running, write_files

ASKS_AN_API_SERVER: Final = ("keys", "members", "multikueue")


def without_kubernetes(pod: Manifest) -> Manifest:
    """The pod without the containers that ask an API server."""
    found = copy.deepcopy(pod)
    for kind in ("initContainers", "containers"):
        found["spec"][kind] = [
            each for each in found["spec"][kind] if each["name"] not in ASKS_AN_API_SERVER
        ]
    return found


def test_hub_pods_take_jobs_and_let_an_agent_in_and_keep_both_over_a_restart(
    tmp_path: Path,
) -> None:
    objects = render("hub", {"bus": {"replicas": 1}})
    data, memory = tmp_path / "data", tmp_path / "memory"
    memory.mkdir()
    bus = RunningBus(objects, tmp_path)

    def berth(*argv: str) -> str:
        done = run_berth(*argv, "--data", str(data), home=tmp_path)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def clusters() -> list[tuple[str, bool]]:
        listed = json.loads(berth("cluster", "list", "--json"))
        return [(one["cluster"], one["connected"]) for one in listed]

    first: object = None
    for life in ("first", "second"):
        prepare(
            data,
            url=f"tls://127.0.0.1:{bus.port}",
            names=["berth-nats.berth-system.svc"],
            external=["localhost"],
            monitors=[f"http://127.0.0.1:{bus.monitor}"],
        )
        made = parts(data, "own")
        keys = write_files(tmp_path / "keys", made[KEYS_SECRET])
        with ExitStack() as owned:
            owned.enter_context(bus.running(made[BUS_SECRET]))
            accounts, hub = (
                owned.enter_context(
                    running(
                        without_kubernetes(pod_of(objects, name)),
                        tmp_path / life / name,
                        volumes=volumes,
                        env=environment(tmp_path),
                        addresses=bus.addresses,
                    )
                )
                for name, volumes in (
                    ("berth-accounts", {"data": data}),
                    ("berth-hub", {"data": memory, "keys": keys}),
                )
            )
            for pod in (accounts, hub):
                pod.wait_ready()
            if life == "first":
                berth("submit", "--id", "train", "--gpus", "1")
                added = berth("cluster", "add", "berlin", "--namespaces", "ml", "--stdout")
                first = yaml.safe_load(added)
                assert isinstance(first, dict)
                assert first["stringData"]["url"] == f"tls://localhost:{bus.port}"
            assert clusters() == [("berlin", False)]
            again = berth("cluster", "add", "berlin", "--namespaces", "ml", "--stdout")
            assert yaml.safe_load(again) == first
            assert json.loads(berth("job", "train", "--json"))["workload"]["id"] == "train"
            for pod in (accounts, hub):
                assert set(pod.end().values()) == {0}
                assert "permission violation" not in pod.log()
