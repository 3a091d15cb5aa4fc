"""How long things last in a world, and how often what repeats is repeated.

Two paces: ``FAST``, in which jobs last seconds and minutes, for many stories in little time, and
``SLOW``, a fleet of long jobs, for many hours. What stretches in the slow one are jobs, deadlines,
what befalls clusters and people's wishes (``longer`` times as long), and the periods of what is
said again although nothing is new (heartbeats, telemetry, leases, snapshots). What does not are
delays on the way, limits within which an answer must come, claims and pauses: a service is as late,
and two of them get as much in each other's way, as in the fast one. There are as many faults a job:
their number is a world's, and in the slow pace half of them strike at an event instead of at a
time, as most of the time nothing happens that they could hit.
"""

from typing import Final, NamedTuple


class Pace(NamedTuple):
    """All periods of a world."""

    longer: float = 1.0  # jobs, deadlines, what befalls a cluster, and how long people watch
    alive_s: float = 5.0
    telemetry_s: float = 10.0
    stale_after_s: float = 15.0  # of the resolver's policy
    score_stale_after_s: float = 20.0
    score_withdraw_after_s: float = 60.0
    lease_s: float = 2.0  # between two looks at it
    lease_ttl_s: float = 6.0
    retry_s: float = 1.0  # of facts that could not be stored
    snapshot_s: float = 25.0
    longest_sleep_s: float = 5.0  # of a decider
    gateway_tick_s: float = 1.0
    log_look_s: float = 1.0  # between two looks at what is remembered of the log
    readers_s: float = 3.0  # between two looks of the judge at what readers have folded
    look_s: float = 20.0  # between two looks of the judge whether all has settled
    calm_s: float = 1500.0  # after the last fault, by then everything must have settled
    strikes_at_events: float = 0.0  # share of the misfortunes that do


FAST: Final = Pace()
SLOW: Final = Pace(
    longer=60.0,
    alive_s=300.0,
    telemetry_s=600.0,
    stale_after_s=900.0,
    score_stale_after_s=1200.0,
    score_withdraw_after_s=3600.0,
    lease_s=120.0,
    lease_ttl_s=360.0,
    retry_s=60.0,
    snapshot_s=1500.0,
    longest_sleep_s=300.0,
    gateway_tick_s=30.0,
    log_look_s=60.0,
    readers_s=180.0,
    look_s=1200.0,
    calm_s=90_000.0,
    strikes_at_events=0.5,
)
PACES: Final = {"fast": FAST, "slow": SLOW}
