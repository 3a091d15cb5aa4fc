"""The next step of one binding. Pure: one row per state.

Rules of this file:

- A binding is suspended before submission, claimed before release, and released once per attempt.
- An attempt ends when neither Karmada nor any node report has a trace of it.
- If Karmada removes a binding from its cluster, that is an eviction: the workload is requeued in
  Berthmaster's order.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.hub.karmada.core.objects import OVER, ResourceBinding
from berthmaster.hub.karmada.core.requests import Read
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.fleet import PodUse
from berthmaster.lib.messages.placement import PodBinding

SEEN_S: Final = 1.0  # seconds until Karmada's caches surely show writes before the release
SETTLE_S: Final = 2.0  # seconds until node reports surely show that Karmada has nothing left
KEPT_AWAY_S: Final = 60.0  # seconds for the cluster to open again, before a new placement
ASKER: Final = "karmada"  # requester of the move
OPEN: Final = "its cluster is open to it again"
TAKEN: Final = "Karmada took it from its cluster"
CANCELLED: Final = "cancelled on request"
DELETED: Final = "its ResourceBinding was deleted"


class Seen(NamedTuple):
    """A pod of an attempt, as a node reports it."""

    node: str
    use: PodUse


class View(NamedTuple):
    """One binding and its workload. Either may be missing."""

    binding: ResourceBinding | None
    read: Read | None  # None for a finished binding
    work: Workload | None
    ended: State | None  # end state of the workload; then ``work`` is None
    pods: Sequence[Seen]  # pods of the open attempt
    # time since which no trace of the attempt is left; None = some trace
    empty_since_s: float | None
    # time when the labels of the attempt's pods were written; None = not yet
    labelled_s: float | None
    kept_away: str = ""  # reason why the present policy and members forbid the placement


class Hold(NamedTuple):
    """Suspend the binding and remove it from all clusters. ``over``: reason of a final removal."""

    over: str = ""


class Say(NamedTuple):
    """Report the state in Karmada's condition."""

    scheduled: bool
    reason: str
    message: str


class Label(NamedTuple):
    """Label the attempt's pods on their way to the member."""


class Release(NamedTuple):
    """Send the binding to the cluster of its attempt."""


class Submit(NamedTuple):
    """Submit the workload to the bus."""


class Claim(NamedTuple):
    """Take ownership: from now on only this service ends the attempt."""


class Run(NamedTuple):
    pods: tuple[PodBinding, ...]


class Evict(NamedTuple):
    """End the attempt and requeue the workload."""

    reason: str


class End(NamedTuple):
    state: State
    reason: str


class Ask(NamedTuple):
    """Request a move from the resolver, when another cluster has free capacity."""

    reason: str


class Wait(NamedTuple):
    """Wait for a change, or until this time."""

    until_s: float = float("inf")


Step = Hold | Say | Label | Release | Submit | Claim | Run | Evict | End | Ask | Wait


def next_step(view: View, now_s: float) -> Step:
    work = view.work
    if work is None:
        return _unknown(view)
    if work.state is State.QUEUED:
        return _queued(view, work)
    if work.state is State.PLACED:
        return Claim()
    if work.state in HELD:
        return _held(view, work, now_s)
    return Wait()


def _unknown(view: View) -> Step:
    binding, read = view.binding, view.read
    if binding is None or binding.deleting:
        return Wait()
    if binding.where:
        return Wait()  # released and finished, or previously scheduled by another scheduler
    if (over := binding.metadata.annotations.get(OVER)) is not None:
        return _said(binding, False, "Over", f"not placed again: {over}") or Wait()
    if view.ended is not None:
        return Hold(view.ended.value)
    if not binding.held:
        return Hold()
    if read is None or read.request is None:
        return _said(binding, False, "CannotBePlaced", read.fault if read else "") or Wait()
    return Submit()


def _queued(view: View, work: Workload) -> Step:
    binding = view.binding
    if binding is None or binding.deleting:
        return End(State.CANCELLED, DELETED)
    if binding.where or not binding.held:
        return Hold()
    words = f"waits its turn as workload {work.key}: `berth why {work.id}` says for what"
    return _said(binding, False, "WaitsItsTurn", words) or Wait()


def changed(view: View) -> str:
    """Return the difference from the submitted request, which is never updated."""
    read, request = view.read, view.work.request if view.work is not None else None
    asked = read.request if read is not None else None
    if asked is None or request is None or asked.pod_sets == request.pod_sets:
        return ""
    return "its pods ask for something else now; what was submitted stays: make the Job anew"


def _held(view: View, work: Workload, now_s: float) -> Step:
    binding = view.binding
    released = binding is not None and binding.attempt == str(work.attempt)
    taken = released and binding is not None and work.cluster not in binding.where
    if binding is None or binding.deleting:
        return _once_empty(view, End(State.CANCELLED, DELETED), now_s)
    if work.cancel_requested or work.leaving or taken:
        if binding.where or not binding.held:
            return Hold()
        why = CANCELLED if work.cancel_requested else work.leaving or TAKEN
        if (say := _said(binding, False, "Leaves", f"leaves {work.cluster}: {why}")) is not None:
            return say
        if work.cancel_requested:
            return _once_empty(view, End(State.CANCELLED, CANCELLED), now_s)
        return _once_empty(view, Evict(work.leaving or TAKEN), now_s)
    if not released:
        return _kept_away(view, binding, work, now_s) or _let_go(view, binding, now_s)
    words = f"let go to {work.cluster} as attempt {work.attempt} of workload {work.key}"
    if (say := _said(binding, True, "Success", words)) is not None:
        return say
    return _running(view, binding, work)


def _kept_away(view: View, binding: ResourceBinding, work: Workload, now_s: float) -> Step | None:
    """Handle a cluster with a taint that the binding does not tolerate.

    Karmada would remove the binding from that cluster after every release. The resolver does not
    know the taint, so the service requests a move. A failed request ends with the attempt.
    """
    asked = work.wish is not None and work.wish.who == ASKER
    if not view.kept_away:
        return Evict(OPEN) if asked else None
    due_s = work.claimed_at_s + KEPT_AWAY_S
    if now_s >= due_s:
        return Evict(view.kept_away)
    words = f"{view.kept_away}; it goes to another cluster, or is placed anew"
    if (say := _said(binding, False, "KeptAway", words)) is not None:
        return say
    return Wait(due_s) if asked else Ask(view.kept_away)


def _let_go(view: View, binding: ResourceBinding, now_s: float) -> Step:
    if view.labelled_s is None:
        return Label()
    due_s = view.labelled_s + SEEN_S
    if now_s < due_s:
        return Wait(due_s)
    return Wait() if binding.items else Release()  # remnants of another release are being removed


def _running(view: View, binding: ResourceBinding, work: Workload) -> Step:
    item = binding.item(work.cluster)
    if item is None:
        return Wait()
    how, words = item.finished
    if how and not view.pods:
        return End(State.SUCCEEDED if how == "Complete" else State.FAILED, words or how)
    asked = sum(pods.count for pods in work.request.pod_sets) if work.request is not None else 0
    if work.state is State.CLAIMED and len(view.pods) >= asked <= item.active:
        return Run(as_placed(work.pods, view.pods))
    return Wait()


def _once_empty(view: View, step: Evict | End, now_s: float) -> Step:
    if view.empty_since_s is None:
        return Wait()
    due_s = view.empty_since_s + SETTLE_S
    return step if now_s >= due_s else Wait(due_s)


def _said(binding: ResourceBinding, scheduled: bool, reason: str, message: str) -> Say | None:
    """Return the condition to report, unless it is current."""
    stands, status = binding.scheduled, "True" if scheduled else "False"
    told = (stands.status, stands.reason, stands.message) if stands is not None else None
    if told == (status, reason, message) and binding.is_observed:
        return None
    return Say(scheduled, reason, message)


def as_placed(placed: Sequence[PodBinding], seen: Sequence[Seen]) -> tuple[PodBinding, ...]:
    """Return the placed pods with their real nodes.

    Node reports do not identify the pods. A pod on a node of the placement gets that placement's
    name. The others get the remaining names.
    """
    left, found, homeless = list(placed), list[PodBinding](), list[Seen]()
    for one in seen:
        here = next((each for each in left if each.node == one.node), None)
        if here is None:
            homeless.append(one)
            continue
        left.remove(here)
        found.append(PodBinding(pod=here.pod, node=one.node, gpus=one.use.gpus))
    for each, one in zip(left, homeless, strict=False):
        found.append(PodBinding(pod=each.pod, node=one.node, gpus=one.use.gpus))
    return tuple(sorted(found, key=lambda each: int(each.pod.rpartition("-")[2])))
