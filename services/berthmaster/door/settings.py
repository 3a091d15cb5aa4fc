"""What the door can be told."""

from dataclasses import dataclass

from berthmaster.door.bounds import MIB, Limits
from berthmaster.logcheck.guard import MEMORY_HELP
from berthmaster.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class DoorSettings(CommonSettings):
    """Each with its unit and the reason of its default. All bounds are of one cluster."""

    max_requests: int = setting(
        64, least=1, most=65_536, help="requests of one cluster in hand; beyond it they are refused"
    )
    max_items: int = setting(
        1000, least=1, most=1_000_000, help="events and facts of one cluster in hand"
    )
    max_polls: int = setting(
        2,
        least=1,
        most=64,
        help="open polls of one kind and cluster; one more ends the oldest. An executor has one, "
        "and for a while its killed predecessor's",
    )
    at_once: int = setting(
        2000,
        least=1,
        most=1_000_000,
        help="events and facts of all clusters that are being stored; the rest waits in turn",
    )
    settle_limit_s: float = setting(
        2.5,
        least=0.1,
        most=60,
        help="seconds for which an event is tried before the answer is that nobody knows; below "
        "the 4 s after which an agent asks again",
    )
    behind_limit_s: float = setting(
        1.0, least=0, most=10, help="seconds to wait for the log to be read as far as an agent has"
    )
    memory_dir: str = setting("", help=MEMORY_HELP)
    recover_within_s: float = setting(
        86_400.0,
        least=0,
        most=30 * 86_400,
        help="seconds after a person accepted a damaged log for which executors may bring back "
        "what it has lost; 0 = never",
    )
    max_facts: int = setting(
        50_000, least=1, most=10_000_000, help="facts that one cluster may have"
    )
    max_fact_kib: int = setting(256, least=1, most=512, help="size of one fact")
    max_facts_mib: int = setting(
        256, least=1, most=100_000, help="size of all facts of one cluster, the last of each"
    )
    facts_mib_per_s: float = setting(
        1.0,
        least=0.001,
        most=10_000,
        help="of facts in the long run; all is told anew each hour, so one cluster's cannot push "
        "out another's from a stream of 8 GiB before",
    )
    facts_burst_mib: float = setting(
        128.0, least=0.1, most=100_000, help="of facts at once: all nodes of a new cluster"
    )
    read_mib_per_s: float = setting(
        4.0, least=0.001, most=10_000, help="of what is open and of facts, read in the long run"
    )
    read_burst_mib: float = setting(
        128.0, least=0.1, most=100_000, help="of that at once: an executor and an inventory begin"
    )
    requests_mib_per_s: float = setting(
        16.0,
        least=0.001,
        most=10_000,
        help="MiB/s of requests that the door reads in the long run, more than facts and logs take "
        "together; beyond that the door refuses them unread",
    )
    requests_burst_mib: float = setting(
        192.0,
        least=1,
        most=100_000,
        help="MiB of requests that the door reads at once; more than the facts of a new cluster",
    )
    telemetry_per_s: float = setting(
        5000.0, least=1, most=1e6, help="telemetry messages that are passed on; more are dropped"
    )
    telemetry_mib_per_s: float = setting(
        16.0,
        least=0.001,
        most=10_000,
        help="MiB/s of telemetry that the door passes on, and twice that at once; 2,000 nodes of "
        "8 GPUs send half of that",
    )
    max_telemetry_kib: int = setting(64, least=1, most=512, help="size of one of them")
    figures_mib_per_s: float = setting(
        1.0,
        least=0.001,
        most=10_000,
        help="MiB/s of jobs' figures that the door passes on, and eight times that at once; 20,000 "
        "jobs send half of that",
    )
    max_figures_kib: int = setting(24, least=1, most=512, help="KiB of figures of one job")
    logs_mib_per_s: float = setting(
        8.0,
        least=0.001,
        most=10_000,
        help="of jobs' logs that are passed on and kept; twice what one executor reads, in JSON",
    )
    letters_per_minute: float = setting(
        30.0, least=0, most=1e6, help="dead letters that are kept of one cluster's agent"
    )

    @property
    def limits(self) -> Limits:
        """What the core holds a cluster to."""
        return Limits(
            max_requests=self.max_requests,
            max_items=self.max_items,
            max_facts=self.max_facts,
            max_fact_bytes=self.max_fact_kib * 1024,
            max_facts_bytes=self.max_facts_mib * MIB,
            facts_bytes_per_s=self.facts_mib_per_s * MIB,
            facts_burst_bytes=self.facts_burst_mib * MIB,
            requests_bytes_per_s=self.requests_mib_per_s * MIB,
            requests_burst_bytes=self.requests_burst_mib * MIB,
            telemetry_per_s=self.telemetry_per_s,
            telemetry_bytes_per_s=self.telemetry_mib_per_s * MIB,
            max_telemetry_bytes=self.max_telemetry_kib * 1024,
            figures_bytes_per_s=self.figures_mib_per_s * MIB,
            max_figures_bytes=self.max_figures_kib * 1024,
            logs_bytes_per_s=self.logs_mib_per_s * MIB,
            letters_per_minute=self.letters_per_minute,
            read_bytes_per_s=self.read_mib_per_s * MIB,
            read_burst_bytes=self.read_burst_mib * MIB,
        )
