"""Settings that name the worker cluster of a service."""

from dataclasses import dataclass
from typing import Literal

from berthmaster.lib.nats.subjects import SubjectError, token
from berthmaster.lib.runtime.settings import CommonSettings, required, setting


def cluster_problem(text: str) -> str:
    """Return what a cluster's name must be, or "" if the name is right."""
    try:
        token(text)
    except SubjectError as error:
        return f"a name that can stand in a subject ({error})"
    return ""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(CommonSettings):
    """Settings of a service of one worker cluster."""

    cluster: str = required(check=cluster_problem, help="the worker cluster's name in the fleet")


@dataclass(frozen=True, kw_only=True)
class SideSettings(CommonSettings):
    """Settings of a service that runs beside a hub or in a worker cluster."""

    side: Literal["hub", "worker"] = setting(
        "worker", help="hub: the service is for all clusters of a hub; worker: for one cluster"
    )
    cluster: str = setting(
        "",
        check=lambda text: cluster_problem(text or "-"),
        help="the worker cluster's name in the fleet; needed for side worker",
    )
    profile_namespace: str = setting(
        "",
        help="side hub: namespace whose ClusterProfiles count; empty = all (one of a name counts)",
    )
