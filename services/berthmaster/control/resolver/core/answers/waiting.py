"""What a pending job waits behind: its position in the order, and reserved capacity. Read-only.

``places``: how many jobs go before it if each gets a placement in turn. The order among queues
changes with their usage, so the answer runs the same code that selects the next job of a decision.
Beyond some thousand turns, the order by priority and age is used.

``left_alone_by``, ``without_room``, ``shorter``: explanations charge the capacity that a job must
leave alone, exactly as decisions do. So no capacity is called free that the job would not get.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.releases import returned_to
from berthmaster.control.resolver.core.deciding.reservations import (
    Active,
    active_of,
    awaiting,
    ends_in_time,
    lasts_s,
)
from berthmaster.control.resolver.core.deciding.turns import Turns, rank_as
from berthmaster.lib.engine.fleet.fleet import Overlay
from berthmaster.lib.engine.queueing.lines import duration_class, longest_s
from berthmaster.lib.engine.queueing.queues import CPU, GPU, MEMORY, Amounts, Ask, of_model
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import Reservation
from berthmaster.lib.messages.workload import JobRequest

TURNS: Final = 2000  # walked for one question, some tens of milliseconds


class Places(NamedTuple):
    """Positions; 1 = next, None = not pending."""

    overall: int | None
    in_queue: int | None
    queued: int  # number of pending jobs of the queue
    before: tuple[Key, ...] | None = None  # jobs that go first, in order; None = too many to walk


def places(cycle: Cycle, key: Key) -> Places:
    know = cycle.know
    mine = know.derived.lines.line_of(key)
    if mine is None:
        return Places(None, None, 0, ())
    order = mine.members[key]
    beside = know.derived.lines.by_queue()[mine.queue].values()
    before = sum(each < order for line in beside for each in line.members.values())
    queued = sum(len(line.members) for line in beside)
    ahead = _before(cycle, key)
    overall = know.derived.lines.position(key) if ahead is None else 1 + len(ahead)
    return Places(overall, 1 + before, queued, ahead)


def _before(cycle: Cycle, key: Key) -> tuple[Key, ...] | None:
    turns = Turns(cycle.know, cycle.policy, cycle.snapshot.open)
    passed: list[Key] = []
    try:
        for _ in range(TURNS):
            turn = turns.next()
            if turn is None:
                return None
            if turn.key == key:
                return tuple(passed)
            passed.append(turn.key)
            turns.placed(_likely(cycle.know.derived.ask_in(turn.line)))
    finally:
        turns.close()
    return None


def _likely(ask: Ask) -> Amounts:
    """Return the likely usage of a job: of several GPU models, the first."""
    amounts = {CPU: ask.cpu_milli, MEMORY: ask.memory_mib, GPU: ask.gpu_milli}
    for models, milli, _ in ask.sets:
        if models:
            name = of_model(models[0])
            amounts[name] = amounts.get(name, 0) + milli
    return {name: amount for name, amount in amounts.items() if amount}


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
