"""One nomination at a time: a copy that was sent before is gone before the next cluster is named.

Kueue makes a copy in every nominated cluster, starts the job in the one that was admitted first,
and compares those times in whole seconds: of two that admit within one second it starts the job in
both and may name the wrong one. So to move is to clear the nomination, to wait until the copies are
gone, and to nominate anew. What is waited for, and for how long at most::

    a worker still reports a copy       until it reports that it is gone; 60 s
    … and is silent, or out of reach    15 s: Kueue could start no job there either
    no cluster has reported a copy      as long as the hub takes now for a Workload (hub_pace.py):
                                        2 s from the clearing, 60 s at most, or until the hub has
                                        served a nomination that came later

A copy that was admitted while its nomination was taken back is given the nomination again: Kueue's
webhook takes a cluster's name only where that was nominated, and its job may run already.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.settings import HubPolicy
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.fleet import CopyReport

PACE_S: Final = 1.0  # the hub's pace changes: it is asked again after so long
GONE_S: Final = 60.0
LOST_S: Final = 15.0


class Lingering(NamedTuple):
    """What has to go before the next nomination."""

    why: str
    until_s: float


def strayed(view: WorkloadView, policy: HubPolicy, now_s: float) -> CopyReport | None:
    """A copy that was admitted in a cluster that is not nominated (any more), and is heard of."""
    hub = view.hub
    assert hub is not None
    admitted = [copy for _, copy in sorted(view.copies.items()) if copy.running]
    if any(copy.cluster in view.nominated for copy in admitted):
        return None  # the hub is about to take it over
    heard = (copy for copy in admitted if not _out_of_reach(view, copy.cluster, policy, now_s))
    return next(heard, None)


def lingering(
    view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float, target: str = ""
) -> Lingering | None:
    """What to wait for before ``target``, or any cluster, is nominated; None if nothing is."""
    there = [name for name in sorted(view.copies) if name != target]
    if there:
        if memo.lingering_since_s is None:
            memo.lingering_since_s = now_s
        until_s = memo.lingering_since_s + _limit_s(view, there, policy, now_s)
        if now_s >= until_s:
            return None
        silent = [name for name in there if _out_of_reach(view, name, policy, now_s)]
        words = f", though {', '.join(silent)} does not say so" if silent else ""
        return Lingering(f"its copy in {', '.join(there)} has to go first{words}", until_s)
    memo.lingering_since_s = None
    if memo.copy_was_seen:
        return None  # and is gone
    if now_s >= memo.clears_until_s:
        return None
    words = "Kueue is to remove its copies of the last nomination first"
    return Lingering(words, min(memo.clears_until_s, now_s + PACE_S))


def cleared_at_s(view: WorkloadView, memo: Memo) -> float:
    """When the hub's Kueue could see, at the earliest, that the last nomination was taken back;
    infinite while it sees nothing, minus infinity if none was."""
    if memo.cleared_at_s is not None:
        at_s = memo.cleared_at_s
    else:  # it may have been by another life of this process
        bus = view.bus
        ended = bus is not None and bus.attempt and bus.state is State.QUEUED
        at_s = bus.changed_at_s if bus is not None and ended else float("-inf")
    return max(at_s, view.heard_since_s) if at_s > float("-inf") else at_s


def _limit_s(view: WorkloadView, clusters: Iterable[str], policy: HubPolicy, now_s: float) -> float:
    reached = [name for name in clusters if not _out_of_reach(view, name, policy, now_s)]
    return GONE_S if reached else LOST_S


def _out_of_reach(view: WorkloadView, cluster: str, policy: HubPolicy, now_s: float) -> bool:
    """Whether nobody is there to say that a copy is gone, or Kueue cannot remove it."""
    if now_s - view.alive_at_s.get(cluster, float("-inf")) > policy.stale_after_s:
        return True
    rules = view.rules
    return rules is not None and any(r.closed for r in rules.clusters if r.name == cluster)
