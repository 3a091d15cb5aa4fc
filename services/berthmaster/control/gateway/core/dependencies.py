"""Jobs that wait for others of their tenant: which may, and when they have. Pure.

What a job waits for must have been submitted before it: so no circle can be made. Whether it has
waited is an event of the log (``released``), which deciders wait for; they remember no endings, and
repeat decisions from the log alone. Where what it waits for can no longer come about, it is
cancelled, and the reason names the other.
"""

from collections.abc import Mapping, Sequence

from berthmaster.control.gateway.core.shared_state import SharedState
from berthmaster.lib.lifecycle.states import ENDED, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import invalid, shorten
from berthmaster.lib.messages.workload import Dependency, JobRequest


class Waiting:
    """Who waits for whom, for what an ending sets going."""

    def __init__(self) -> None:
        self._behind: dict[Key, dict[Key, None]] = {}

    def follow(self, work: Workload) -> list[Key]:
        """A workload changed: those that are to be looked at now."""
        found: list[Key] = []
        if work.ended:
            found += self._behind.pop(work.key, {})
        if work.state is State.QUEUED and work.depends and work.request is not None:
            for other in work.request.depends_on:
                self._behind.setdefault(key(work.tenant, other.id), {})[work.key] = None
            found.append(work.key)
        return found


def order_refusal(request: JobRequest, via: str) -> Refusal | None:
    """What is wrong with whom a request waits for, whoever there is."""
    for at, other in enumerate(request.depends_on):
        if other.id == request.id:
            right = "another job: one that waits for itself, in a circle, never begins"
            return invalid(["depends_on", at, "id"], other.id, right)
    if via == "hub" and request.set_at_most is not None:
        right = (
            "nothing: the jobs of this queue are ordered by the hub's Kueue (via hub), whose quota "
            "bounds how many run; a queue that is direct or via worker keeps it"
        )
        return invalid(["set_at_most"], request.set_at_most, right)
    if request.set_at_most is not None and not request.set:
        return invalid(["set_at_most"], request.set_at_most, "a set that it is a bound of (set)")
    return None


def unknown(shared: SharedState, tenant: str, others: Sequence[Dependency]) -> list[int]:
    """Which of those it waits for this gateway does not know, or remembers no more, by their
    places: their stories tell."""
    view = shared.view
    return [
        at
        for at, other in enumerate(others)
        if view.find(tenant, other.id) is None and view.ended_state(tenant, other.id) is None
    ]


def unknown_refusal(at: int, workload_id: str) -> Refusal:
    """Nothing of that name is there, for this tenant."""
    return Refusal(
        code="not_found",
        field=f"depends_on[{at}].id",
        value=shorten(workload_id),
        expected="the id of a workload of this tenant that was submitted before",
    )


def stands(shared: SharedState, work: Workload, read: Mapping[str, State]) -> tuple[bool, str]:
    """(whether all that it waits for has come about, why it no longer can). ``read``: how the
    unknown ones stand; NEW is one of which log and archive have nothing any more, so that it has
    ended, and nobody knows how."""
    all_done = True
    for other in work.request.depends_on if work.request is not None else ():
        state = shared.view.ended_state(work.tenant, other.id) or read.get(other.id)
        if state is None or (state not in ENDED and state is not State.NEW):
            all_done = False
        elif other.until == "succeeded" and state is State.NEW:
            return False, f"it depends on {other.id}, which was to succeed and is no longer known"
        elif other.until == "succeeded" and state is not State.SUCCEEDED:
            verb = "was cancelled" if state is State.CANCELLED else "failed"
            return False, f"it depends on {other.id}, which {verb} and was to succeed"
    return all_done, ""
