"""What the archivist can be told."""

from dataclasses import dataclass

from berthmaster.lib.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class ArchivistSettings(CommonSettings):
    """Each with its unit and the reason of its default."""

    story_after_s: float = setting(
        600.0,
        least=0,
        most=30 * 86_400,
        help="seconds from a workload's ending until its story moves to the archive; long enough "
        "for those who watch it live, short enough to keep the log small at 1,000 endings/s",
    )
    max_ended: int = setting(
        20_000,
        least=0,
        most=100_000_000,
        help="stories of each kind of ending that may wait for that; "
        "beyond it the oldest move 10 s after their ending, since the server keeps every subject "
        "in memory, some 10 MiB for a thousand stories",
    )
    tombstone_days: float = setting(
        30.0,
        least=0,
        most=3650,
        help="days from a workload's ending until its id may be used again; a client that still "
        "repeats a submit after that is not repeating, it is new",
    )
    max_tombstones: int = setting(
        500_000,
        least=0,
        most=100_000_000,
        help="ids of each kind of ending that stay used; beyond it the oldest are free once their "
        "story is archived, since each takes some 300 bytes of the server's memory",
    )
    decision_after_s: float = setting(
        3600.0,
        least=0,
        most=30 * 86_400,
        help="seconds until a decision moves to the archive; well above the age of a resolver's "
        "snapshot, which continues from the chain",
    )
