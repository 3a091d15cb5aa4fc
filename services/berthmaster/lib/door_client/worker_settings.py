"""Settings that name the worker cluster of a service."""

from dataclasses import dataclass

from berthmaster.lib.nats.subjects import SubjectError, token
from berthmaster.lib.runtime.settings import CommonSettings, required


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

    cluster: str = required(check=cluster_problem, help="name of the worker cluster in the fleet")
