"""Settings of the usage metrics service, as in `berth serve figures --help`."""

from dataclasses import dataclass

from berthmaster.lib.door_client.worker_settings import WorkerSettings
from berthmaster.lib.kube.service_client import ClusterSettings
from berthmaster.lib.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class FiguresSettings(WorkerSettings, ClusterSettings):
    namespaces: tuple[str, ...] = setting(
        (),
        help=(
            "namespaces in which usage is written to Jobs and Events, comma-separated; the Role"
            " berthmaster-figures must be bound in each. Jobs elsewhere are only published on "
            "the bus"
        ),
    )
    idle_limit_s: float = setting(
        1800.0,
        least=0,
        most=30 * 86_400,
        help="seconds after which a job with idle GPUs gets an Event; 0 = never",
    )
