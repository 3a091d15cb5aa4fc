"""The commits of one resolver: the pending commit, refusals, and the log to fold first. Pure.

Example: decision 12 is sent with three events. A cancel stored under 930 came first, so the server
refuses the commit. The next decision waits until 930 is folded. If the commit is stored under 931
to 934, the next decision waits until 934 is folded, because only then the capacity of its
placements is known. Times are in seconds since 1970.
"""

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from berthmaster.lib.lifecycle.decisions import NewestBatch
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored
from berthmaster.lib.lifecycle.refusals import Refusals
from berthmaster.lib.lifecycle.states import Ending
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent


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
