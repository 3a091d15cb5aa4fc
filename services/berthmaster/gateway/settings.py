"""What the gateway can be told."""

from dataclasses import dataclass

from berthmaster.logcheck.guard import MEMORY_HELP
from berthmaster.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(CommonSettings):
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
    tenant_bytes_in_flight: int = setting(
        16 * 1024 * 1024, least=1024, most=1024**3, help="bytes of those requests"
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
    log_feeds: int = setting(
        128, least=1, most=10_000, help="logs that are followed at once; all of one pod share one"
    )
    log_feed_kib: int = setting(
        1024,
        least=128,
        most=65_536,
        help="of each such log that is kept for those who read slowly; who is further behind is "
        "told that lines are left out",
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
    full_share: float = setting(
        0.9,
        least=0.01,
        most=1,
        help="share of the size limit of the stream WORKLOADS from which new submits are refused; "
        "the rest is for the events of workloads that are in it already",
    )
    cordon_after: int = setting(
        3,
        least=0,
        most=1000,
        help="workloads that ended badly on one node, after which it is cordoned, with the "
        "evidence; 0 = never",
    )
    cordon_within_s: float = setting(
        3600.0, least=1, most=86_400, help="seconds within which they did"
    )
    memory_dir: str = setting("", help=MEMORY_HELP)
    size_interval_s: float = setting(
        2.0,
        least=0.1,
        most=3600,
        help="seconds between two looks at that size; at 1,000 submits/s some MB are written "
        "in between",
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
