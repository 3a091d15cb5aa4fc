"""Workloads whose commits the server refuses without a visible cause. Pure; times in seconds.

Example: decision 40 commits for jobs a, b, c and d and is refused. Once every message up to the
refusal is folded, no event explains the refusal. The next commit takes two jobs, then one. Job c
alone is refused again, so c is backed off for 0.1 s, 0.2 s and so on, while the others go on.

The guards of a commit name the last known event of each workload. A broken index may make the
server count an event that no reader gets, and then every commit with that workload is refused. The
server does not report which one, so batches are halved.

A retry of a backed off workload takes free capacity only. Preemption for a workload with a failing
commit would evict victims in vain, again and again. Any new event of the workload ends the
back-off.

A commit with a message above the server's limit is halved in the same way. A placement that alone
is too large can never be stored, so its workload fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.lifecycle.attempt_owner import ending_event
from berthmaster.lib.lifecycle.states import Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.workload import Placed, WorkloadEvent

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
