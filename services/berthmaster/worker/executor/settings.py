"""Settings of the executor of a Kubernetes cluster."""

import re
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.door_client.worker_settings import WorkerSettings
from berthmaster.lib.kube.service_client import JobSettings
from berthmaster.lib.runtime.settings import required, setting

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_SCHEDULER: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?\Z")
GANGS: Final = ("auto", "kubernetes", "coscheduling", "volcano", "none")
_RESOURCE: Final = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+\Z")


def _namespaces(names: tuple[str, ...]) -> str:
    if names and all(_NAMESPACE.match(name) for name in names):
        return ""
    return "names of namespaces with commas between them, such as team-a,team-b"


def _gangs(name: str) -> str:
    return "" if name in GANGS else f"one of {', '.join(GANGS)}"


def _scheduler(name: str) -> str:
    return "" if _SCHEDULER.match(name) else "the schedulerName of a profile, such as berthmaster"


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings(WorkerSettings, JobSettings):
    namespaces: tuple[str, ...] = required(
        check=_namespaces,
        help="where jobs may be made, with commas between them; the executor's Role must be bound "
        "in each, and it touches nothing anywhere else",
    )
    start_limit_s: float = setting(
        300.0,
        least=1,
        most=86_400,
        help="seconds in which all pods of an attempt must run, images and all, before it is "
        "given back; from its admission on where the cluster has a queue",
    )
    queue_limit_s: float = setting(
        600.0,
        least=1,
        most=604_800,
        help="seconds that an attempt may wait in the cluster's own queue before it is given back",
    )
    gang_limit_s: float = setting(
        30.0,
        least=1,
        most=86_400,
        help="seconds that two gangs may hold nodes which each other waits for before the younger "
        "gives way, blamed for nothing; where gang scheduling is served that never happens. Three "
        "times the longest pause of kube-scheduler between two tries of a pod; where an autoscaler "
        "makes nodes, longer than that takes",
    )
    gangs: str = setting(
        "auto",
        check=_gangs,
        help="what starts all pods of a gang or none: kubernetes (its PodGroup, or in 1.35 its "
        "Workload), coscheduling (scheduler-plugins' PodGroup), volcano (its PodGroup, and "
        "its scheduler for all pods), none; auto = the first of these "
        "that the cluster serves and we may make. Pods for KAI's scheduler are gangs of KAI's",
    )
    volcano_scheduler: str = setting(
        "volcano", check=_scheduler, help="scheduler of all pods where Volcano runs or starts them"
    )
    volcano_queue: str = setting("default", help="Volcano's queue for them")
    kai_scheduler: str = setting(
        "kai-scheduler",
        help="scheduler of pods with a part of a GPU where KAI shares them; with it as the "
        "scheduler (--scheduler) of all pods whole GPUs are KAI's too",
    )
    kai_queue: str = setting(
        "default-queue",
        help="KAI's queue for such pods. Of a job that may not be preempted KAI starts what is "
        "within the queue's quota, and ends none of it",
    )
    run_as_non_root: bool = setting(
        False,
        help="pods may not start as root, as namespaces of Pod Security's level `restricted` ask; "
        "an image of a root user is refused by the kubelet then, and the job says so",
    )
    scheduler: str = setting(
        "",
        check=_scheduler,
        help="schedulerName of the pods, such as a profile of kube-scheduler that scores every "
        "node, so that pods run where they were placed; none = the cluster's own choice",
    )
