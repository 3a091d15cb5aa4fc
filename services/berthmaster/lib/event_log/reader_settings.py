"""Settings of services that read the log, and of deciders among them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.event_log.guard import MEMORY_HELP
from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class LogReaderSettings(CommonSettings):
    """Settings of a service that reads the log of workloads."""

    memory_dir: str = setting("", help=MEMORY_HELP)


MOST_WEIGHT: Final = 10.0


def weights_problem(pairs: tuple[str, ...], components: Collection[str]) -> str:
    """Return the valid form of score weights; "" if these are valid."""
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            good = name in components and abs(float(number)) <= MOST_WEIGHT
        except ValueError:
            good = False
        if not good:
            return f"PART=N, N from -10 to 10 and PART one of {', '.join(components)}"
    return ""


@dataclass(frozen=True, kw_only=True)
class DeciderSettings(CommonSettings):
    """Settings of a service that places jobs."""

    stale_after_s: float = setting(
        10.0, least=1, help="seconds without a heartbeat until a cluster gets no new placements"
    )
    evictions_per_hour: int = setting(120, least=0, help="preemptions per hour; 0 = none")
