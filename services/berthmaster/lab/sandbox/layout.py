"""The contents of the lab: clusters, nodes, labels, quota, and the command that joins them. Pure.

Example: worker-1 has two nodes with four T4 each and the label accelerator=nvidia-tesla-t4.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.nodes import GPU, Node, gpu_node

HUB: Final = "hub"
NAMESPACE: Final = "team"
LOCAL_QUEUE: Final = "main"
# kwok ends the pod of a Job after 0.3 s, unless an annotation overrides that (stages/pods.yaml).
RUN_FOREVER: Final = "berth.test/run-s=forever"
_ACCELERATOR: Final = "accelerator"


@dataclass(frozen=True, kw_only=True)
class WorkerLayout:
    """One worker cluster."""

    name: str
    model: str  # name in GPU feature discovery
    memory_mib: int  # of one GPU
    nodes: int
    gpus_per_node: int
    accelerator: str  # value of the label `accelerator`

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def make_nodes(self) -> list[Node]:
        return [
            gpu_node(
                f"{self.name}-gpu-{number}",
                gpus=self.gpus_per_node,
                model=self.model,
                memory_mib=self.memory_mib,
                labels={_ACCELERATOR: self.accelerator},
            )
            for number in range(1, self.nodes + 1)
        ]

    @property
    def quota(self) -> dict[str, dict[str, str | int]]:
        """Return the quota of its ClusterQueue, by flavor: all its GPUs."""
        return {"default": {"cpu": "1000", "memory": "10Ti", GPU: self.gpus}}


_T4: Final = ("Tesla-T4", 15_360, "nvidia-tesla-t4")
_A100: Final = ("NVIDIA-A100-SXM4-40GB", 40_960, "nvidia-tesla-a100")


def _worker(name: str, kind: tuple[str, int, str], nodes: int, gpus: int) -> WorkerLayout:
    model, memory_mib, accelerator = kind
    return WorkerLayout(
        name=name,
        model=model,
        memory_mib=memory_mib,
        nodes=nodes,
        gpus_per_node=gpus,
        accelerator=accelerator,
    )


WORKERS: Final = (
    _worker("worker-1", _T4, 2, 4),
    _worker("worker-2", _A100, 1, 8),
    _worker("worker-3", _T4, 1, 4),
)


def hub_quota(workers: Sequence[WorkerLayout]) -> dict[str, dict[str, str | int]]:
    """Return the quota of the hub's ClusterQueue: the GPUs of all workers."""
    gpus = sum(worker.gpus for worker in workers)
    return {"default": {"cpu": "1000", "memory": "10Ti", GPU: gpus}}


def merge_kubeconfigs(texts: Mapping[str, str]) -> str:
    """Return one kubeconfig with a context per cluster, from one JSON kubeconfig per cluster."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": HUB}
    contexts = []
    for kind in ("clusters", "users"):
        merged[kind] = []
    for name, text in texts.items():
        found = json.loads(text)
        for kind in ("clusters", "users"):
            [one] = found[kind]
            merged[kind].append(one | {"name": name})
        contexts.append({"name": name, "context": {"cluster": name, "user": name}})
    return json.dumps(merged | {"contexts": contexts}, indent=1)


def up_command(
    python: str, kubeconfig: Path, data: Path, workers: Sequence[WorkerLayout]
) -> list[str]:
    """Return the `berth up` command for the lab's clusters."""

    def target(name: str) -> str:
        return f"{name}={kubeconfig}:{name}"

    argv = [python, "-m", "berthmaster.cli.main", "up", "--json", "--data", str(data)]
    argv += ["--sync", "default", "--mode", "dispatch", "--namespaces", NAMESPACE]
    argv += ["--hub", target(HUB)]
    for worker in workers:
        label = f"{worker.name}:{_ACCELERATOR}={worker.accelerator}"
        argv += ["--worker", target(worker.name), "--label", label]
    return argv
