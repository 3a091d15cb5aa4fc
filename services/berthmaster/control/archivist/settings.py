"""The archivist's settings."""

from dataclasses import dataclass

from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class ArchivistSettings(CommonSettings):
    story_after_s: float = setting(
        600.0,
        least=0,
        most=30 * 86_400,
        help=(
            "seconds from a workload's end until its event history moves to the archive; long "
            "enough for live readers, short enough for a small log at 1,000 endings/s"
        ),
    )
    max_ended: int = setting(
        20_000,
        least=0,
        most=100_000_000,
        help=(
            "event histories of each kind of ending that may wait for the archive; above this "
            "number the oldest move 10 s after their end, because the server keeps every "
            "subject in memory, some 10 MiB for a thousand histories"
        ),
    )
    tombstone_days: float = setting(
        30.0,
        least=0,
        most=3650,
        help="days from a workload's end until its id may be used again",
    )
    max_tombstones: int = setting(
        500_000,
        least=0,
        most=100_000_000,
        help=(
            "ids of each kind of ending that stay used; above this number the oldest become "
            "free once archived, because each takes some 300 bytes of the server's memory"
        ),
    )
    decision_after_s: float = setting(
        3600.0,
        least=0,
        most=30 * 86_400,
        help=(
            "seconds until a decision moves to the archive; well above the age of a resolver's "
            "snapshot, which continues from the chain"
        ),
    )
