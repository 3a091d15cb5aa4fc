"""From when on a nominated Workload waits for its worker, and no longer for the hub's own Kueue.

The hub's manager serves one Workload after another, with about five calls a second to a worker:
under 80 Jobs a quarter of a minute goes by before a copy is made, and no worker is to blame for
that. So patience counts

- from when the copy is there, as the worker tells it;
- where no copy is heard of, from when the hub made one for a Workload that was nominated later,
  since it has passed this one over; and at the latest a second after the nomination for each
  Workload that waits for a copy, which is more than the hub needs.

For example, of 40 nominated at once the last one's patience counts from when its copy comes, say
after 20 s. One whose copy never comes begins to count when the next one's has come, or after 40 s.
"""

from typing import Final

from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Key
from berthmaster.multikueue.known.workload_view import WorkloadView

A_WORKLOAD_S: Final = 1.0  # that the hub takes for one, at most
_Nominated = tuple[str, int]  # cluster, attempt


class _Waiting:
    """One that is nominated."""

    __slots__ = ("nominated", "served_at_s", "since_s", "until_s")

    def __init__(self, nominated: _Nominated, since_s: float, until_s: float) -> None:
        self.nominated = nominated
        self.since_s = since_s  # when it was seen nominated
        self.until_s = until_s  # when the hub has surely had time for it
        self.served_at_s: float | None = None  # when its copy was first heard of


class HubPace:
    """Of one hub, as this life of the process has seen it. Losing it costs time, never truth."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._unserved: dict[Key, None] = {}
        self._passed: dict[float, float] = {}  # nominated then -> one that was had its copy when

    def since_s(self, view: WorkloadView, now_s: float) -> float:
        """From when on patience counts for it; ``now_s`` or later: not yet."""
        bus, name = view.bus, view.name
        if bus is None or bus.state is not State.CLAIMED or bus.cluster not in view.nominated:
            self.over(name)
            return now_s
        nominated = (bus.cluster, bus.attempt)
        one = self._waiting.get(name)
        if one is None or one.nominated != nominated:
            self._unserved[name] = None
            until_s = now_s + A_WORKLOAD_S * len(self._unserved)
            one = self._waiting[name] = _Waiting(nominated, now_s, until_s)
        if one.served_at_s is None and view.copy is not None:
            one.served_at_s = now_s
            self._served(name, one, now_s)
        if one.served_at_s is not None:
            return one.served_at_s
        return min(one.until_s, self._passed_at_s(one))

    def over(self, name: Key) -> None:
        """It is not nominated, or no more."""
        self._waiting.pop(name, None)
        self._unserved.pop(name, None)

    def _served(self, name: Key, one: _Waiting, now_s: float) -> None:
        self._unserved.pop(name, None)
        oldest_s = min((self._waiting[each].since_s for each in self._unserved), default=now_s)
        self._passed = {at: when for at, when in self._passed.items() if at > oldest_s}
        if one.since_s > oldest_s:
            self._passed.setdefault(one.since_s, now_s)

    def _passed_at_s(self, one: _Waiting) -> float:
        """When one that was nominated later had its copy; infinite if none had."""
        later = (when for at, when in self._passed.items() if at > one.since_s)
        return min(later, default=float("inf"))
