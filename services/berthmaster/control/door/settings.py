"""The door's settings."""

from dataclasses import dataclass

from berthmaster.control.door.core.bounds import MIB, Limits
from berthmaster.lib.event_log.reader_settings import LogReaderSettings
from berthmaster.lib.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class DoorSettings(LogReaderSettings):
    """Settings of the door. All bounds are of one cluster."""

    telemetry_mib_per_s: float = setting(
        16.0,
        least=0.001,
        most=10_000,
        help=(
            "MiB/s of telemetry that the door forwards, with bursts of twice that; 2,000 nodes "
            "of 8 GPUs send half of that"
        ),
    )

    @property
    def limits(self) -> Limits:
        """Return the core's limits of one cluster."""
        return Limits(telemetry_bytes_per_s=self.telemetry_mib_per_s * MIB)
