"""The setting that names the worker cluster of a service."""

from dataclasses import dataclass

from berthmaster.lib.nats.subjects import SubjectError, token
from berthmaster.lib.runtime.settings import CommonSettings, required


def cluster_problem(text: str) -> str:
    """Return the valid form of a cluster's name; "" if the name is valid."""
    try:
        token(text)
    except SubjectError as error:
        return f"a name that can stand in a subject ({error})"
    return ""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(CommonSettings):
    """Settings of a service of one worker cluster."""

    cluster: str = required(check=cluster_problem, help="name of the worker cluster in the fleet")
