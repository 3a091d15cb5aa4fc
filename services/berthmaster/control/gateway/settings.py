"""What the gateway can be told."""

from dataclasses import dataclass

from berthmaster.lib.event_log.reader_settings import LogReaderSettings
from berthmaster.lib.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(LogReaderSettings):
    """Each with its unit and the reason of its default."""

    max_in_flight: int = setting(
        1024,
        least=1,
        most=65_536,
        help="requests in hand at once; beyond it they are refused at once. At 0.5 ms each this "
        "many is half a second's worth: who would wait longer had better come again",
    )
    tenant_in_flight: int = setting(
        512,
        least=1,
        most=65_536,
        help="requests of one tenant in hand at once; tenants are served in turn, so this bounds "
        "how long one waits for himself",
    )
    tenant_requests_per_s: float = setting(
        5_000.0,
        least=1,
        most=1_000_000,
        help="requests of one tenant in a second; a gateway answers some thousands in all",
    )
    tenant_open_workloads: int = setting(
        100_000,
        least=1,
        most=10_000_000,
        help="workloads of one tenant that have not ended; each is kept in the memory of every "
        "service that decides",
    )
    tenant_log_mib_per_s: float = setting(
        16.0,
        least=0.01,
        most=10_000,
        help="of logs that one tenant's readers get together; more has to wait",
    )
    settle_limit_s: float = setting(
        1.2,
        least=0.1,
        most=60,
        help="seconds for which a write is tried and its fate looked up before the answer is that "
        "nobody knows; below the 2 s after which our client asks again",
    )
    request_limit_s: float = setting(
        8.0, least=0.2, most=120, help="seconds that one request may take in all"
    )
    cordon_after: int = setting(
        3,
        least=0,
        most=1000,
        help="workloads that ended badly on one node, after which it is cordoned, with the "
        "evidence; 0 = never",
    )
    tombstone_days: float = setting(
        30.0,
        least=0,
        most=3650,
        help="days for which an ended workload is remembered; as the archivist's setting. The "
        "log decides whether an id is free, this only bounds memory",
    )
    max_ended: int = setting(
        500_000,
        least=0,
        most=100_000_000,
        help="ended workloads that are remembered for lists, some 700 bytes each; beyond it the "
        "oldest are no longer listed, and `get` reads them from the log or the archive",
    )
