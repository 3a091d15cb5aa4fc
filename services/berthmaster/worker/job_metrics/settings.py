"""Settings of the usage metrics service, as in `berth serve figures --help`."""

from dataclasses import dataclass

from berthmaster.lib.door_client.worker_settings import WorkerSettings
from berthmaster.lib.kube.service_client import ClusterSettings
from berthmaster.lib.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class FiguresSettings(WorkerSettings, ClusterSettings):
    namespaces: tuple[str, ...] = setting(
        (),
        help="where figures are written on Jobs and told as Events, with commas between them; the "
        "Role berthmaster-figures must be bound in each. Others are read and told on the bus",
    )
    idle_limit_s: float = setting(
        1800.0,
        least=0,
        most=30 * 86_400,
        help="seconds after which a job is told that leaves all its GPUs idle; 0 = never",
    )
