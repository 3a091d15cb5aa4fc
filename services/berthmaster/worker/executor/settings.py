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
        help=(
            "namespaces for jobs, comma-separated; the executor's Role must be bound in each, "
            "and it uses no other namespace"
        ),
    )
    start_limit_s: float = setting(
        300.0,
        least=1,
        most=86_400,
        help=(
            "seconds until all pods of an attempt must run, image pulls included; counted from "
            "the admission where the cluster has a queue"
        ),
    )
    queue_limit_s: float = setting(
        600.0,
        least=1,
        most=604_800,
        help="seconds that an attempt may wait in the cluster's own queue",
    )
    gang_limit_s: float = setting(
        30.0,
        least=1,
        most=86_400,
        help=(
            "seconds that two gangs may block each other on half of their nodes before the "
            "younger is evicted, without blame; gang scheduling avoids this. Three times the "
            "longest pause of kube-scheduler between two tries of a pod; set it above the time "
            "of an autoscaler"
        ),
    )
    gangs: str = setting(
        "auto",
        check=_gangs,
        help=(
            "gang scheduling: kubernetes (PodGroup, or in 1.35 Workload), coscheduling "
            "(PodGroup of scheduler-plugins), volcano (its PodGroup and scheduler for all "
            "pods), none; auto = the first one that is served and permitted. Pods of KAI's "
            "scheduler are KAI's gangs"
        ),
    )
    volcano_scheduler: str = setting(
        "volcano", check=_scheduler, help="scheduler of all pods if Volcano runs or starts them"
    )
    volcano_queue: str = setting("default", help="Volcano's queue for these pods")
    kai_scheduler: str = setting(
        "kai-scheduler",
        help=(
            "scheduler of pods with a GPU fraction where KAI shares GPUs; if it is also the "
            "scheduler (--scheduler) of all pods, KAI allocates whole GPUs too"
        ),
    )
    kai_queue: str = setting(
        "default-queue",
        help=(
            "KAI's queue for such pods. For non-preemptible jobs KAI uses only the queue's "
            "quota and preempts none of them"
        ),
    )
    run_as_non_root: bool = setting(
        False,
        help=(
            "pods must not run as root, as in namespaces of Pod Security level `restricted`; "
            "the kubelet refuses images with a root user, and the job reports that"
        ),
    )
    scheduler: str = setting(
        "",
        check=_scheduler,
        help=(
            "schedulerName of pods, such as a kube-scheduler profile that scores every node, so"
            " that pods run where placed; none = the cluster's default"
        ),
    )
