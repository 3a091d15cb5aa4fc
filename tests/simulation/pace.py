"""How long things last in a world, and how often what repeats is repeated.

Two kinds: ``fast``, in which jobs last seconds and minutes, for many stories in little time, and
``slow``, fleets of jobs of minutes, hours and days, for many hours. What stretches in the slow ones
are jobs, deadlines, what befalls clusters and people's wishes (``longer`` times as long), and the
periods of what is said again although nothing is new (heartbeats, telemetry, leases, snapshots).
What does not are delays on the way, limits within which an answer must come, claims and pauses: a
service is as late, and two of them get as much in each other's way, as in the fast ones. There are
as many faults a job: their number is a world's, and in the slow worlds half of them strike at an
event instead of at a time, as most of the time nothing happens that they could hit.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple


class Pace(NamedTuple):
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
    log_check_s: float = 1.0  # between two comparisons of the log with what is remembered of it
    readers_s: float = 3.0  # between two looks of the judge at what readers have folded
    look_s: float = 20.0  # between two looks of the judge whether all has settled
    calm_s: float = 1500.0  # after the last fault, by then everything must have settled
    strikes_at_events: float = 0.0  # share of the misfortunes that do


FAST: Final = Pace()
LONGER: Final = (60.0, 120.0, 240.0, 480.0)  # of slow worlds: jobs of minutes, hours and days


def fast(seed: int) -> Pace:
    del seed
    return FAST


def slow(seed: int) -> Pace:
    """Of a world of hours and days; how much longer than a fast one is drawn from its seed."""
    longer = random.Random(f"{seed}/pace").choice(LONGER)
    return Pace(
        longer=longer,
        alive_s=FAST.alive_s * longer,
        telemetry_s=FAST.telemetry_s * longer,
        stale_after_s=FAST.stale_after_s * longer,
        score_stale_after_s=FAST.score_stale_after_s * longer,
        score_withdraw_after_s=FAST.score_withdraw_after_s * longer,
        lease_s=FAST.lease_s * longer,
        lease_ttl_s=FAST.lease_ttl_s * longer,
        retry_s=FAST.retry_s * longer,
        snapshot_s=FAST.snapshot_s * longer,
        longest_sleep_s=FAST.longest_sleep_s * longer,
        gateway_tick_s=min(60.0, FAST.gateway_tick_s * longer),
        log_check_s=FAST.log_check_s * longer,
        readers_s=FAST.readers_s * longer,
        look_s=FAST.look_s * longer,
        calm_s=FAST.calm_s * longer,
        strikes_at_events=0.5,
    )


def in_turn(seed: int) -> Pace:
    """Every other world is a fast one: most hours are those of the slow ones, most faults an hour
    those of the fast ones."""
    return fast(seed) if seed % 2 else slow(seed)


PACES: Final[dict[str, Callable[[int], Pace]]] = {"fast": fast, "slow": slow}
