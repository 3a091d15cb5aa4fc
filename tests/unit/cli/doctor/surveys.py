"""A hub and a worker on which everything is in order, and what a test changes about them."""

from dataclasses import replace
from typing import Any

from berthmaster.cli.doctor.core import diagnose
from berthmaster.cli.doctor.facts import (
    AdmissionCheck,
    ClusterQueue,
    FoundPolicy,
    GpuNode,
    HubFacts,
    LocalQueue,
    ManagerConfig,
    Mode,
    MultiKueueCluster,
    State,
    Survey,
    Telemetry,
    Without,
    WorkerFacts,
)
from berthmaster.cli.doctor.findings import Finding, Report
from berthmaster.lib.kueue.names import DISPATCHER, MULTIKUEUE
from berthmaster.lib.kueue.versions import WORKER_CLIENTS

ON = State(active=True)
IMAGE = "registry.k8s.io/kueue/kueue:v0.19.2"
MANAGERS = {
    "observe": ManagerConfig(),
    "dispatch": ManagerConfig(dispatcher=DISPATCHER),
}


def hub(mode: Mode = "observe", **changed: Any) -> HubFacts:
    right = HubFacts(
        name="hub",
        context="kind-hub",
        version="v1.36.3",
        skew_s=-3.0,
        kueue_versions=frozenset({"v1beta1", "v1beta2"}),
        kueue_image=IMAGE,
        rights_of="the hub's account",
        manager=MANAGERS[mode],
        serves_policies=True,
        clearing=(FoundPolicy(name="clears"),),
        checks=(AdmissionCheck(name="mk", controller=MULTIKUEUE, config="all", state=ON),),
        configs={"all": ("berlin",)},
        clusters=(MultiKueueCluster(name="berlin", fleet_name="berlin", state=ON),),
        cluster_queues=(ClusterQueue(name="gpus", checks=("mk",), state=ON),),
        local_queues=(LocalQueue(namespace="ml", name="main", cluster_queue="gpus", state=ON),),
    )
    return replace(right, **changed)


def worker(**changed: Any) -> WorkerFacts:
    right = WorkerFacts(
        name="berlin",
        kubeconfig="/k/b.yaml",
        version="v1.36.3",
        kueue_versions=frozenset({"v1beta2"}),
        kueue_image=IMAGE,
        rights_of="the agent's account",
        namespaces=frozenset({"ml", "default"}),
        cluster_queues=(ClusterQueue(name="gpus", state=ON, gpu_quota={"nvidia.com/gpu": 8}),),
        local_queues=(LocalQueue(namespace="ml", name="main", cluster_queue="gpus", state=ON),),
        telemetry=Telemetry(wanted=9, ready=9),
        gpu_nodes=(GpuNode(name="n1", gpus=8, model="Tesla-T4"),),
        nodes=2,
        together=("kubernetes",),
        job_kinds=frozenset({"JobSet"}),
    )
    return replace(right, **changed)


def of_hub(mode: Mode = "observe", **changed: Any) -> Report:
    """The report when this is otherwise on the hub."""
    return diagnose(
        Survey(mode=mode, namespace="sys", hub=hub(mode, **changed), workers=(worker(),))
    )


def of_worker(
    *, without: tuple[Without, ...] = (), as_self: bool = False, **changed: Any
) -> Report:
    """The report when this is otherwise in the worker."""
    workers = (worker(**changed),)
    return diagnose(
        Survey(
            mode="observe",
            namespace="sys",
            hub=hub(),
            workers=workers,
            without=without,
            as_self=as_self,
        )
    )


def wrong(report: Report) -> list[tuple[str, str, str]]:
    """(level, where, what) of what is not in order, without the note on calls to workers."""
    return [
        (each.level, each.where, each.what)
        for each in report.findings
        if each.level != "ok" and WORKER_CLIENTS.name not in each.what
    ]


def finding(report: Report, what: str) -> Finding:
    [found] = [each for each in report.findings if what in each.what]
    return found
