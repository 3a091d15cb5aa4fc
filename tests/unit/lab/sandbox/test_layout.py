"""The lab's clusters: nodes, quota, kubeconfig and the command that serves them."""

import itertools
import json
from pathlib import Path

from berthmaster.cli.up.commands import labels_of
from berthmaster.lab.controlplane.nodes import GPU
from berthmaster.lab.sandbox.layout import (
    WORKERS,
    hub_quota,
    merge_kubeconfigs,
    up_command,
)
from berthmaster.lib.supervisor.plan import kube_target


def test_nodes_hold_the_gpus_that_the_quota_admits() -> None:
    for worker in WORKERS:
        nodes = worker.make_nodes()
        assert sum(int(node.capacity[GPU]) for node in nodes) == worker.gpus
        assert worker.quota["default"][GPU] == worker.gpus
        assert {node.labels["nvidia.com/gpu.product"] for node in nodes} == {worker.model}
    assert hub_quota(WORKERS)["default"][GPU] == 20


def test_merged_kubeconfig_has_a_context_for_each_cluster() -> None:
    def one(server: str) -> str:
        return json.dumps(
            {
                "clusters": [{"name": "x", "cluster": {"server": server}}],
                "users": [{"name": "x", "user": {"token": server}}],
            }
        )

    merged = json.loads(merge_kubeconfigs({"hub": one("a"), "worker-1": one("b")}))
    assert merged["current-context"] == "hub"
    assert merged["clusters"] == [
        {"name": "hub", "cluster": {"server": "a"}},
        {"name": "worker-1", "cluster": {"server": "b"}},
    ]
    assert [user["user"]["token"] for user in merged["users"]] == ["a", "b"]
    assert merged["contexts"][1] == {
        "name": "worker-1",
        "context": {"cluster": "worker-1", "user": "worker-1"},
    }


def test_up_command_names_hub_workers_and_labels(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    argv = up_command("python", kubeconfig, tmp_path / "berth", WORKERS)
    pairs = list(itertools.pairwise(argv))
    hub = kube_target(dict(pairs)["--hub"], Path.is_file)
    assert (hub.name, hub.kubeconfig, hub.context) == ("hub", kubeconfig, "hub")
    workers = [kube_target(text, Path.is_file).name for flag, text in pairs if flag == "--worker"]
    assert workers == [worker.name for worker in WORKERS]
    assert labels_of([text for flag, text in pairs if flag == "--label"]) == {
        "worker-1": ("accelerator=nvidia-tesla-t4",),
        "worker-2": ("accelerator=nvidia-tesla-a100",),
        "worker-3": ("accelerator=nvidia-tesla-t4",),
    }
