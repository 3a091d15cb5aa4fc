"""The commits of one resolver: the pending commit, refusals, and the log to fold first. Pure.

Example: decision 12 is sent with three events. A cancel stored under 930 came first, so the server
refuses the commit. The next decision waits until 930 is folded. If the commit is stored under 931
to 934, the next decision waits until 934 is folded, because only then the capacity of its
placements is known. Times are in seconds since 1970.

**Batch.** The server stores all messages of a batch or none. Example: a decision under 500 with
three events fills 500 to 503. A reader that sees 501 and 503 only knows that the log has lost a
message.

**Refusals.** Example: decision 40 commits for jobs a, b, c and d and is refused. Once every message
up to the refusal is folded, no event explains the refusal. The next commit takes two jobs, then
one. Job c alone is refused again, so c is backed off for 0.1 s, 0.2 s and so on, while the others
go on.

The guards of a commit name the last known event of each workload. A broken index may make the
server count an event that no reader gets, and then every commit with that workload is refused. The
server does not report which one, so batches are halved.

A retry of a backed off workload takes free capacity only. Preemption for a workload with a failing
commit would evict victims in vain, again and again. Any new event of the workload ends the
back-off.

A commit with a message above the server's limit is halved in the same way. A placement that alone
is too large can never be stored, so its workload fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from berthmaster.lib.lifecycle.attempts import ending_event
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored
from berthmaster.lib.lifecycle.states import Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import Placed, WorkloadEvent

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


FIRST_PAUSE_S: Final = 0.1  # usually the event in between is just not received yet
LONGEST_PAUSE_S: Final = 600.0
MOST_SUSPENDED: Final = 100  # a larger number has another cause than workloads
# Size of the decision's message at which the rest moves to the next commit. The server takes 1 MiB,
# and the last choice and the end of the message must still fit.
COMMIT_BYTES: Final = 600_000


@dataclass(slots=True)
class _Suspension:
    sequence: int  # newest event of the workload, the refused guard
    pause_s: float
    until_s: float  # 0: due for a retry


class Refusals:
    def __init__(self) -> None:
        self.limit: int | None = None  # maximum events of a commit, during the search
        self._refused: tuple[int, tuple[WorkloadEvent, ...]] | None = None
        self._suspended: dict[Key, _Suspension] = {}

    def stored(self) -> None:
        self.limit = self._refused = None

    def refused(self, chain_sequence: int, events: tuple[WorkloadEvent, ...]) -> None:
        """Record a refused commit after this decision of the chain. ``look`` finds the
        cause later.
        """
        self._refused = chain_sequence, events

    def look(self, chain_sequence: int, open_: Mapping[Key, Workload], now_s: float) -> None:
        """Search for the cause, once all messages stored before the refusal are folded."""
        for name, each in list(self._suspended.items()):
            if not _is(open_, name, each.sequence):
                del self._suspended[name]
            elif each.until_s <= now_s:
                each.until_s = 0.0
        if self._refused is None:
            return
        (before, events), self._refused = self._refused, None
        names = [(key(event.tenant, event.id), event.after) for event in events]
        if before != chain_sequence or not all(_is(open_, *each) for each in names):
            self.limit = None
        elif len(names) > 1 and self.limit != 1:  # dependent events stay together
            self.limit = max(1, min(len(names), self.limit or len(names)) // 2)
        elif names:
            self.suspend(*names[0], now_s)
            self.limit = None

    def too_large(
        self,
        events: tuple[WorkloadEvent, ...],
        open_: Mapping[Key, Workload],
        by: str,
        now_s: float,
    ) -> Ending | None:
        """Handle a commit with a message above the server's limit: commit fewer events until a
        commit is stored.

        Return the end of a workload whose placement alone is too large, else None. Dependent
        events, such as the evictions for one job, stay together: then the first workload is backed
        off.
        """
        if len(events) > 1 and self.limit != 1:  # dependent events stay together
            self.limit = max(1, min(len(events), self.limit or len(events)) // 2)
            return None
        event = events[0]
        name = key(event.tenant, event.id)
        workload = open_.get(name)
        if len(events) == 1 and isinstance(event, Placed) and workload is not None:
            pods = sum(p.count for p in event.request.pod_sets)
            reason = f"a placement of {pods} pods does not fit into one message"
            return ending_event(workload, State.FAILED, reason, by, now_s)
        self.limit = None
        self.suspend(name, event.after, now_s)
        return None

    def suspend(self, name: Key, sequence: int, now_s: float) -> None:
        """Back off one workload after a refused write of its own."""
        known = self._suspended.get(name)
        if known is None and len(self._suspended) >= MOST_SUSPENDED:
            return
        again = known is not None and known.sequence == sequence
        pause_s = min(2 * known.pause_s, LONGEST_PAUSE_S) if known and again else FIRST_PAUSE_S
        self._suspended[name] = _Suspension(sequence, pause_s, now_s + pause_s)

    def suspended(self, now_s: float) -> frozenset[Key]:
        """Return workloads to leave out of decisions now."""
        return frozenset(name for name, each in self._suspended.items() if each.until_s > now_s)

    def retried(self, now_s: float) -> frozenset[Key]:
        """Return workloads due for a retry, without a new event since."""
        return frozenset(name for name, each in self._suspended.items() if each.until_s <= now_s)

    def next_s(self) -> float:
        """Return the time of the next retry; infinity without one."""
        times = (each.until_s for each in self._suspended.values() if each.until_s)
        return min(times, default=float("inf"))


def _is(open_: Mapping[Key, Workload], name: Key, sequence: int) -> bool:
    workload = open_.get(name)
    return (workload.sequence if workload is not None else 0) == sequence


class Committed(Protocol):
    """A decision and the events of its batch."""

    @property
    def decision(self) -> Decision: ...

    @property
    def events(self) -> Sequence[WorkloadEvent]: ...


P = TypeVar("P", bound=Committed)


class Commits(Generic[P]):
    def __init__(self) -> None:
        self.pending: P | None = None  # sent, result unknown
        self.refusals = Refusals()
        self._wait_for = 0  # sequence to fold before the next decision
        self._newest = NewestBatch()

    def saw(self, decision: Decision, sequence: int) -> None:
        """Note a decision of the chain, from this or another replica."""
        self._newest.began(decision, sequence)

    def is_behind(self, folded: int) -> bool:
        """Return whether stored messages beyond ``folded`` are still missing."""
        return folded < max(self._wait_for, self._newest.end)

    def waited_long_enough(self) -> None:
        """Stop waiting for messages that do not arrive, such as purged ones.

        The server's checks keep the next commit safe. The rest of a batch must still arrive.
        """
        self._wait_for = 0

    def came(self, outcome: Outcome, log_end: int) -> P | None:
        """Record the result of the pending commit and return the commit.

        ``log_end`` is the last known sequence of the log. After any result but success, the next
        decision waits until ``log_end`` is folded.
        """
        plan, self.pending = self.pending, None
        if isinstance(outcome, Stored):
            self.refusals.stored()
            self._wait_for = max(self._wait_for, outcome.sequence)
            return plan
        last = 0
        if isinstance(outcome, Refused):
            last = outcome.last or 0
            if plan is not None:
                self.refusals.refused(plan.decision.after, tuple(plan.events))
        self._wait_for = max(self._wait_for, last, log_end)
        return plan

    def was_too_large(
        self, open_: Mapping[Key, Workload], by: str, now_s: float
    ) -> tuple[P | None, Ending | None]:
        """Handle a pending commit with a message above the server's size limit.

        Return the commit, and the end of a workload whose placement alone is too large (see
        ``Refusals.too_large``).
        """
        plan, self.pending = self.pending, None
        if plan is None:
            return None, None
        return plan, self.refusals.too_large(tuple(plan.events), open_, by, now_s)
