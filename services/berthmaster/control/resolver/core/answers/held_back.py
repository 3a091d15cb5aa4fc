"""Reserved capacity, from the viewpoint of later jobs. Read-only.

Explanations charge the capacity that a job must leave alone, exactly as decisions do. So no
capacity is called free that the job would not get.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.releases import returned_to
from berthmaster.control.resolver.core.deciding.reservations import (
    Active,
    active_of,
    awaiting,
    ends_in_time,
    lasts_s,
)
from berthmaster.control.resolver.core.deciding.turns import rank_as
from berthmaster.lib.engine.fleet.overlay import Overlay
from berthmaster.lib.engine.queueing.lines import duration_class, longest_s
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import Reservation
from berthmaster.lib.messages.workload import JobRequest

_RETURNED: Final = "returned"  # in the overlay


def left_alone_by(
    cycle: Cycle,
    kept: Mapping[Key, Reservation],
    key: Key | None,
    request: JobRequest,
    priority: int,
) -> list[Active]:
    """Return the reservations that a job must leave alone: of its rank or better, and beginning
    before its end. ``key``: None for a job that is not submitted.
    """
    know, policy = cycle.know, cycle.policy
    rank = rank_as(know, request.queue, know.derived.ask(request), -priority)
    lasts = lasts_s(know, policy, key, request)
    found = []
    for name, reservation in kept.items():
        line = know.derived.lines.line_of(name)
        if line is None or name == key:
            continue
        each = active_of(know, line, name, reservation)
        if each.limits(key, rank, lasts, cycle.now_s, policy.backfill):
            found.append(each)
    return found


@contextmanager
def without_room(
    cycle: Cycle, kept: Sequence[Active]
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Charge that capacity, except for what present jobs use until then.

    Yields a context with all of it charged, to ask what fits after later ends.
    """
    with Overlay(cycle.know.fleet) as overlay:
        for each in kept:
            overlay.take(each.key, each.holdings)
        overlay.free(_RETURNED, returned_to(cycle.know, awaiting(kept), cycle.now_s))
        yield partial(overlay.without, [_RETURNED])


def shorter(cycle: Cycle, request: JobRequest, left_alone: Sequence[Active]) -> tuple[str, ...]:
    """Return whether the job would start now with a duration short enough for others'
    reservations.
    """
    now_s = cycle.now_s
    times = {each.reservation.expected_at_s for each in left_alone}
    for at_s in sorted((at_s for at_s in times if at_s is not None), reverse=True):
        told_s = int((at_s - now_s) * 0.8)  # a line's bound is at most a quarter above
        if told_s < 1:
            break
        lasts = longest_s(duration_class(told_s))
        share = cycle.policy.backfill
        left = [m for m in left_alone if not ends_in_time(m.reservation, now_s, lasts, share)]
        with without_room(cycle, left):
            found = cycle.bind(request, cycle.shortlist(request))
        if found is not None:
            return (f"a duration of at most {told_s:g} s: until then the room may be used",)
    return ()
