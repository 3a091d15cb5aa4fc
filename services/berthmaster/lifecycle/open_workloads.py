"""The open workloads that one reader of the log knows, folded event by event. Pure.

A workload is kept from its first event to its ending. It is frozen when an event of it cannot be
decoded, or events before one are missing: then its reader changes nothing of it until its ending,
which thaws it since nothing can follow.
"""

from collections.abc import Callable
from typing import NamedTuple

from berthmaster.lifecycle.fold import LOST, Verdict, offer
from berthmaster.lifecycle.states import Ending
from berthmaster.lifecycle.workload import Key, Workload, key
from berthmaster.messages.workload import Carried, Submitted, WorkloadEvent


class Applied(NamedTuple):
    """What became of one event. ``is_new``: the workload was not open before."""

    verdict: Verdict
    workload: Workload
    is_new: bool


class OpenWorkloads:
    """Keeps the workloads for which ``begins`` says yes to the first event."""

    def __init__(self, begins: Callable[[Submitted | Carried], bool] = lambda _: True) -> None:
        self._begins = begins
        self.open: dict[Key, Workload] = {}
        self.frozen: dict[Key, str] = {}  # with the reason

    def apply(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Applied | None:
        """Fold the next event of the log. None if its workload is frozen, or not kept; the ending
        of a workload that is not kept is a tombstone, and is applied.

        A workload that ends is removed, and is in the answer for the last time."""
        name = key(event.tenant, event.id)
        if name in self.frozen:
            if void or not isinstance(event, Ending):
                return None
            del self.frozen[name]
        known = self.open.get(name)
        if known is None:
            if isinstance(event, Submitted | Carried):
                if not self._begins(event):
                    return None
            elif not isinstance(event, Ending):
                return None
            workload = Workload(tenant=event.tenant, id=event.id)
        else:
            workload = known
        verdict = offer(workload, event, sequence, stored_at_s, void=void)
        if verdict is Verdict.COUNTED:
            if workload.ended:
                self.open.pop(name, None)
            elif known is None:
                self.open[name] = workload
        elif verdict is Verdict.AHEAD and known is not None:
            self.freeze(event.tenant, event.id, LOST)
        return Applied(verdict, workload, known is None)

    def freeze(self, tenant: str, workload_id: str, why: str) -> None:
        """An event of it cannot be decoded, or is missing."""
        self.frozen.setdefault(key(tenant, workload_id), why)


def frozen_summary(why: str, name: str) -> str:
    """For people: why nothing is decided about a workload. ``name``: <tenant>/<id>."""
    if why == LOST:
        return f"frozen: {why}; `berth audit` tells what is missing, `berth recover` what to do"
    return f"frozen: an event of it cannot be read ({why}); `berth job {name} --raw` shows it"
