"""Position of a pending job: how many jobs go before it if each gets a placement in turn.

The order among queues changes with their usage, so the answer runs the same code that selects the
next job of a decision. Beyond some thousand turns, the order by priority and age is used.
"""

from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.turns import Turns
from berthmaster.lib.engine.queueing.queues import CPU, GPU, MEMORY, Amounts, Ask, of_model
from berthmaster.lib.lifecycle.workload import Key

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
