"""The commits of one decider: what is under way, what was refused, and what must be folded before
the next decision. Pure; times in seconds since 1970.

For example, decision 12 was sent with three events. It is refused, as somebody cancelled one of the
jobs under 930: nothing is decided before 930 is folded. It is stored under 931 with its events up
to 934: nothing is decided before 934 is folded, for the capacity that they take is not known yet.
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
    """A decision, and the events that are stored with it."""

    @property
    def decision(self) -> Decision: ...

    @property
    def events(self) -> Sequence[WorkloadEvent]: ...


P = TypeVar("P", bound=Committed)


class Commits(Generic[P]):
    def __init__(self) -> None:
        self.pending: P | None = None  # sent, outcome not known
        self.refusals = Refusals()
        self._wait_for = 0  # sequence of the log that must be folded before the next
        self._newest = NewestBatch()

    def saw(self, decision: Decision, sequence: int) -> None:
        """A decision of the chain, ours or another replica's."""
        self._newest.began(decision, sequence)

    def is_behind(self, folded: int) -> bool:
        """Whether something that was written is not folded yet. ``folded``: the last sequence that
        is."""
        return folded < max(self._wait_for, self._newest.end)

    def waited_long_enough(self) -> None:
        """What was to be folded does not come (purged, say). The server's checks keep us safe: go
        on. Not so for the rest of a batch, for which there is no giving up."""
        self._wait_for = 0

    def came(self, outcome: Outcome, log_end: int) -> P | None:
        """What became of the pending commit, which is returned. ``log_end``: the last sequence of
        the log as far as is known; after anything but success that much must be folded."""
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
        """A message of the pending commit is larger than the server takes. The commit, and the end
        of the workload whose placement is too large by itself (see ``Refusals.too_large``)."""
        plan, self.pending = self.pending, None
        if plan is None:
            return None, None
        return plan, self.refusals.too_large(tuple(plan.events), open_, by, now_s)
