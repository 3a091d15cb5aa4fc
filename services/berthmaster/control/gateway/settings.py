"""The gateway's settings."""

from dataclasses import dataclass

from berthmaster.lib.event_log.reader_settings import LogReaderSettings
from berthmaster.lib.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(LogReaderSettings):
    max_in_flight: int = setting(
        1024,
        least=1,
        most=65_536,
        help=(
            "requests in flight, of one tenant half as many; more are refused at once. At 0.5 ms "
            "each this is half a second of work"
        ),
    )
    tenant_requests_per_s: float = setting(
        5_000.0,
        least=1,
        most=1_000_000,
        help="requests of one tenant per second; a gateway serves some thousands in total",
    )
    tenant_open_workloads: int = setting(
        100_000,
        least=1,
        most=10_000_000,
        help="open workloads of one tenant, each kept in memory by every resolver",
    )
    settle_limit_s: float = setting(
        1.2,
        least=0.1,
        most=60,
        help=(
            "seconds for a write and a check of its result before the reply is unknown; below "
            "the client's retry after 2 s"
        ),
    )
    request_limit_s: float = setting(
        8.0, least=0.2, most=120, help="seconds for one request in total"
    )
    cordon_after: int = setting(
        3,
        least=0,
        most=1000,
        help="failed workloads on one node after which the node is cordoned; 0 = never",
    )
    tombstone_days: float = setting(
        30.0,
        least=0,
        most=3650,
        help=(
            "days for which ended workloads are listed, as in the archivist; the log decides "
            "whether an id is free"
        ),
    )
    max_ended: int = setting(
        500_000,
        least=0,
        most=100_000_000,
        help=(
            "ended workloads kept for lists, some 700 bytes each; older ones are read from the "
            "log or the archive by `get`"
        ),
    )
