"""A decision and the events that were stored with it: one atomic batch, without gaps.

All of them or none were stored. So a reader of a decision knows how many messages behind it are of
the same commit, and that the log has lost one that is missing.
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
    """What a decision says of its batch: read by itself it costs a fraction of the whole."""

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
    """Who has an event in its batch. A job whose parts start may have one, too: see batch_size."""
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
    """How many events were stored with it. Those that do not say so are counted by their orders: as
    many as there are for certain, since a job that had started before gets no word that it has."""
    return decision.events if decision.events is not None else len(jobs_of(decision))


class NewestBatch:
    """How far a decider must have read, so that it knows all of the newest commit: the chain's
    guard would let it decide between a decision and the room that this takes."""

    def __init__(self) -> None:
        self._began_at = 0
        self.end = 0  # its last message that is there, or will be

    def began(self, decision: Decision, sequence: int) -> None:
        if sequence > self._began_at:
            self._began_at, self.end = sequence, sequence + batch_size(decision)


class Chain:
    """Its newest link."""

    def __init__(self) -> None:
        self.number = 0
        self.sequence = 0
