"""The workloads known to one reader of the log: open ones, and the endings of others. Pure.

A workload is open from its first event to its ending. A workload is frozen after an undecodable
event or a gap. Its reader then ignores all events up to the ending, which thaws the workload.
Example: 30 is applied, 40 cannot be decoded, and 50 names 40. A ``cancelled`` under 60 with
``after=30`` has lost its race. With ``after=50`` the event is the ending.

The id of an ended workload stays used, and readers may still show its object. ``Endings`` is
bounded, and readers ask the log for older endings.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.fold import LOST, Verdict, offer
from berthmaster.lib.lifecycle.states import STATE_OF, Ending, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.workload import Carried, Submitted, WorkloadEvent


class Applied(NamedTuple):
    """Result of one event. ``is_new``: the workload was not open before."""

    verdict: Verdict
    workload: Workload
    is_new: bool


class OpenWorkloads:
    """Open workloads whose first event passes ``begins``."""

    def __init__(self, begins: Callable[[Submitted | Carried], bool] = lambda _: True) -> None:
        self._begins = begins
        self.open: dict[Key, Workload] = {}
        self.frozen: dict[Key, str] = {}  # with the reason
        self._last: dict[Key, int] = {}  # sequence of the last event of each frozen workload

    def apply(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Applied | None:
        """Fold the next event of the log. Return None for a frozen or unknown workload.

        The ending of an unknown workload is a tombstone and is applied. An ended workload is
        removed after this result.
        """
        name = key(event.tenant, event.id)
        if name in self.frozen:
            before, self._last[name] = self._last.get(name, 0), sequence
            if void or not isinstance(event, Ending) or event.after < before:
                return None
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
                for names in (self.open, self.frozen, self._last):
                    names.pop(name, None)
            elif known is None:
                self.open[name] = workload
        elif verdict is Verdict.AHEAD:
            self.freeze(event.tenant, event.id, sequence, LOST)
        return Applied(verdict, workload, known is None)

    def freeze(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze a workload whose event under ``sequence`` is undecodable, or follows a gap."""
        name = key(tenant, workload_id)
        self.frozen.setdefault(name, why)
        self._last[name] = sequence


def frozen_summary(why: str, name: str) -> str:
    """Return an explanation of a frozen workload for operators. ``name``: <tenant>/<id>."""
    if why == LOST:
        return f"frozen: {why}; `berth audit` tells what is missing, `berth recover` what to do"
    return f"frozen: an event of it cannot be read ({why}); `berth job {name} --raw` shows it"


MAX_ENDINGS: Final = 100_000


class Endings(OrderedDict[Key, State]):
    """Final states of ended workloads, newest last."""

    def remember(self, event: Ending) -> None:
        """Store the ending of a workload, or its tombstone."""
        self[key(event.tenant, event.id)] = STATE_OF[type(event)]
        if len(self) > MAX_ENDINGS:
            self.popitem(last=False)
