"""The setting of every service that guards the log."""

from dataclasses import dataclass

from berthmaster.lib.event_log.guard import MEMORY_HELP
from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class LogReaderSettings(CommonSettings):
    """Settings of a service that reads the log of workloads."""

    memory_dir: str = setting("", help=MEMORY_HELP)
