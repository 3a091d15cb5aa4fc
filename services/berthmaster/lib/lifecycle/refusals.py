"""Whose commits cannot be stored, although nothing new is known of them: they are suspended, so
that nobody else waits for them.

A commit's guards name the last event of each of its workloads as its writer has folded it. Where
the server counts one that nobody hears (an index that outlived its block, say), it refuses each
commit with that workload, and with it all else in the batch. It does not say which one it was: so
batches are halved until one workload is alone, and that one waits, twice as long each time. When
it is tried again it gets what is free and no more: who was ended for it would be in vain, and come
back, and be ended again. Whatever is heard of it ends that.

A commit of which a message is larger than the server takes is halved in the same way. A placement
that is too large by itself can never be stored, so its workload fails. Pure; times in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.lifecycle.attempt_owner import ending_event
from berthmaster.lib.lifecycle.states import Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.workload import Placed, WorkloadEvent

FIRST_PAUSE_S: Final = 0.1  # most often what came in between is just not heard yet
LONGEST_PAUSE_S: Final = 600.0
MOST_SUSPENDED: Final = 100  # more than that is not about workloads
# Of the decision's message, after which the rest is for the next commit. The server takes 1 MiB; a
# choice more, and what is added at the end, has to fit beside it.
COMMIT_BYTES: Final = 600_000


@dataclass(slots=True)
class _Suspension:
    sequence: int  # of its workload's newest event: the guard that was refused
    pause_s: float
    until_s: float  # 0: it may be tried


class Refusals:
    def __init__(self) -> None:
        self.limit: int | None = None  # events of a commit, while it is found out whose it is
        self._refused: tuple[int, tuple[WorkloadEvent, ...]] | None = None
        self._suspended: dict[Key, _Suspension] = {}

    def stored(self) -> None:
        self.limit = self._refused = None

    def refused(self, chain_sequence: int, events: tuple[WorkloadEvent, ...]) -> None:
        """A commit was, behind this decision of its chain. What it means shows once all is heard
        that was stored before: see ``look``."""
        self._refused = chain_sequence, events

    def look(self, chain_sequence: int, open_: Mapping[Key, Workload], now_s: float) -> None:
        """All is heard that was stored before the refusal: did something come in between?"""
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
        elif len(names) > 1 and self.limit != 1:  # what belongs together is not taken apart
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
        """A message of a commit with these events is larger than the server takes: fewer events are
        committed at once until a commit was stored. Return the end of the workload whose placement
        is too large by itself; None if there is none.

        Events that belong together, such as those of attempts that make room for one job, are not
        taken apart: the first workload is suspended.
        """
        if len(events) > 1 and self.limit != 1:  # what belongs together is not taken apart
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
        """What was to follow on this event of it was refused, and nothing else in that write."""
        known = self._suspended.get(name)
        if known is None and len(self._suspended) >= MOST_SUSPENDED:
            return
        again = known is not None and known.sequence == sequence
        pause_s = min(2 * known.pause_s, LONGEST_PAUSE_S) if known and again else FIRST_PAUSE_S
        self._suspended[name] = _Suspension(sequence, pause_s, now_s + pause_s)

    def suspended(self, now_s: float) -> frozenset[Key]:
        """Those about whom nothing is decided now."""
        return frozenset(name for name, each in self._suspended.items() if each.until_s > now_s)

    def retried(self, now_s: float) -> frozenset[Key]:
        """Those who are tried again, and of whom still nothing was heard."""
        return frozenset(name for name, each in self._suspended.items() if each.until_s <= now_s)

    def next_s(self) -> float:
        """When the first of them is tried again; infinity if there is none."""
        times = (each.until_s for each in self._suspended.values() if each.until_s)
        return min(times, default=float("inf"))


def _is(open_: Mapping[Key, Workload], name: Key, sequence: int) -> bool:
    workload = open_.get(name)
    return (workload.sequence if workload is not None else 0) == sequence
