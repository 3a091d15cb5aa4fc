"""A decision and its events: one atomic batch without gaps.

The server stores all messages of a batch or none. Example: a decision under 500 with three events
fills 500 to 503. A reader that sees 501 and 503 only knows that the log has lost a message.
"""

import msgspec

from berthmaster.lib.messages.placement import Decision

Job = tuple[str, str]  # tenant, id


class _Of(msgspec.Struct, frozen=True):
    tenant: str
    id: str


class _Part(msgspec.Struct, frozen=True):
    id: str


class _Divided(_Of, frozen=True):
    parts: tuple[_Part, ...]


class _Committed(_Of, frozen=True):
    parts: tuple[str, ...]


class _Moved(msgspec.Struct, frozen=True):
    moves: tuple[_Of, ...]


class DecisionOutline(msgspec.Struct, frozen=True):
    """The part of a decision that lists its batch, cheaper to decode than the whole decision."""

    cell: str
    number: int
    after: int
    events: int | None = None
    placements: tuple[_Of, ...] = ()
    withdrawals: tuple[_Of, ...] = ()
    evictions: tuple[_Of, ...] = ()
    resizes: tuple[_Of, ...] = ()
    moves: tuple[_Of, ...] = ()
    rebalances: tuple[_Moved, ...] = ()
    divisions: tuple[_Divided, ...] = ()
    commits: tuple[_Committed, ...] = ()
    partings: tuple[_Of, ...] = ()


def jobs_of(decision: Decision | DecisionOutline) -> list[Job]:
    """Return the jobs with an event in the batch. Started parts may have an event too."""
    orders = (
        decision.placements,
        decision.withdrawals,
        decision.evictions,
        decision.resizes,
        decision.moves,
        *(each.moves for each in decision.rebalances),
        decision.divisions,
        decision.partings,
    )
    jobs = [(one.tenant, one.id) for kind in orders for one in kind]
    jobs += [(job.tenant, part.id) for job in decision.divisions for part in job.parts]
    jobs += [(job.tenant, part) for job in decision.commits for part in job.parts]
    return jobs


def batch_size(decision: Decision | DecisionOutline) -> int:
    """Return the number of events in the batch.

    Old decisions without the number give the minimum, because a job that was already running has no
    event.
    """
    return decision.events if decision.events is not None else len(jobs_of(decision))


class NewestBatch:
    """The end of the newest batch, up to which a resolver reads before the next decision. The guard
    of the chain alone would allow a decision before the last batch's capacity is known.
    """

    def __init__(self) -> None:
        self._began_at = 0
        self.end = 0  # sequence of the last message, possibly not stored yet

    def began(self, decision: Decision, sequence: int) -> None:
        if sequence > self._began_at:
            self._began_at, self.end = sequence, sequence + batch_size(decision)


class Chain:
    """The newest decision of a cell's chain, as one reader has followed the chain."""

    def __init__(self) -> None:
        self.number = 0
        self.sequence = 0
