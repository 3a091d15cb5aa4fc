"""What the service of jobs' figures can be told; `berth serve figures --help` shows it."""

from dataclasses import dataclass

from berthmaster.bus.subjects import SubjectError, token
from berthmaster.kubernetes.joining import ClusterSettings
from berthmaster.runtime.settings import required, setting


def _cluster(text: str) -> str:
    try:
        token(text)
    except SubjectError as error:
        return f"a name that can stand in a subject ({error})"
    return ""


@dataclass(frozen=True, kw_only=True)
class FiguresSettings(ClusterSettings):
    """One worker cluster."""

    cluster: str = required(check=_cluster, help="the cluster's name on the bus")
    namespaces: tuple[str, ...] = setting(
        (),
        help="where figures are written on Jobs and told as Events, with commas between them; the "
        "Role berthmaster-figures must be bound in each. Others are read and told on the bus",
    )
    idle_percent: float = setting(
        5.0, least=0, most=100, help="a GPU that is busy for less of the time counts as idle"
    )
    idle_limit_s: float = setting(
        1800.0,
        least=0,
        most=30 * 86_400,
        help="seconds after which a job is told that leaves all its GPUs idle; 0 = never",
    )
    annotate_s: float = setting(
        300.0,
        least=10,
        most=86_400,
        help="seconds between two writes of a Job's annotations, at least; figures that have "
        "hardly changed are not written again",
    )
    shown_jobs: int = setting(
        100,
        least=0,
        most=10_000,
        help="jobs with a time series of their own in the metrics, those with the most GPUs; all "
        "others are summed up as one",
    )
