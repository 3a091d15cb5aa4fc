"""Findings about a worker's telemetry: whether an agent reads the GPUs of every node. Pure."""

from collections.abc import Iterator
from typing import Final

from berthmaster.cli.doctor.facts import WorkerFacts
from berthmaster.cli.doctor.findings import AGENT_RELEASE, Finding, install, kubectl

NVIDIA: Final = "nvidia"


def findings(worker: WorkerFacts, namespace: str) -> Iterator[Finding]:
    """Yield findings, none for a cluster without NVIDIA's GPUs, because no agent could read
    others."""
    nodes = len([node for node in worker.gpu_nodes if node.vendor == NVIDIA])
    if not nodes:
        return
    command = kubectl(worker)
    agents = worker.telemetry
    if agents is None:
        change, undo = (
            install(worker, namespace, AGENT_RELEASE, "role=worker", f"worker.telemetry={value}")[0]
            for value in ("nodes", "none")
        )
        yield Finding(
            level="note",
            where=worker.name,
            what=f"nobody reads what the GPUs of {nodes} nodes do",
            means="Scores know no idle share, no health and no interference here, and jobs have no "
            "figures; placement goes by what is free. "
            + (
                f"DaemonSet {worker.exporter} is there: one scraper of it is enough."
                if worker.exporter
                else "A DaemonSet of agents tells that, or one scraper of a dcgm-exporter."
            ),
            change=change,
            undo=undo,
        )
        return
    if agents.wanted < nodes:
        yield Finding(
            level="warning",
            where=worker.name,
            what=f"telemetry agents are wanted on {agents.wanted} of {nodes} nodes with GPUs",
            means="The labels of the others do not say that they have GPUs: what theirs do is not "
            "known. GPU feature discovery sets nvidia.com/gpu.present.",
            change=f"{command} label nodes NODE nvidia.com/gpu.present=true",
            undo=f"{command} label nodes NODE nvidia.com/gpu.present-",
        )
    if agents.ready < agents.wanted:
        yield Finding(
            level="warning",
            where=worker.name,
            what=f"{agents.ready} of {agents.wanted} telemetry agents are ready",
            means="What the GPUs of the other nodes do is not known; their /readyz and their log "
            "say why. Without the driver's library, name the container runtime's class.",
            change=f"{command} -n berth-telemetry patch daemonset berth-telemetry -p "
            '\'{"spec":{"template":{"spec":{"runtimeClassName":"nvidia"}}}}\'',
            undo=f"{command} -n berth-telemetry patch daemonset berth-telemetry -p "
            '\'{"spec":{"template":{"spec":{"runtimeClassName":null}}}}\'',
        )
    if agents.wanted >= nodes and agents.ready >= agents.wanted:
        yield Finding(
            level="ok",
            where=worker.name,
            what=f"an agent reads the GPUs of each of {nodes} nodes",
        )
