"""What is to be done about one binding next. Pure: a row for each way in which it can stand.

Rules of this file:

- It is held before it is submitted, claimed before it is let go, and let go once an attempt.
- An attempt ends when neither Karmada nor any node's report has anything of it left.
- What Karmada itself takes from its cluster is an eviction: it waits again, in our order.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.hub.karmada.core.objects import OVER, ResourceBinding
from berthmaster.hub.karmada.core.requests import Read
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.fleet import PodUse
from berthmaster.lib.messages.placement import PodBinding

SEEN_S: Final = 1.0  # in which Karmada's caches surely show what was written before the release
SETTLE_S: Final = 2.0  # from when Karmada has nothing left until nodes' reports surely show it
KEPT_AWAY_S: Final = 60.0  # in which its cluster may open again, before it is placed anew
ASKER: Final = "karmada"  # who has it moved
OPEN: Final = "its cluster is open to it again"
TAKEN: Final = "Karmada took it from its cluster"
CANCELLED: Final = "cancelled on request"
DELETED: Final = "its ResourceBinding was deleted"


class Seen(NamedTuple):
    """A pod of an attempt, where a node reports it."""

    node: str
    use: PodUse


class View(NamedTuple):
    """One binding and its workload, as far as there are any."""

    binding: ResourceBinding | None
    read: Read | None  # of a binding that is not over
    work: Workload | None
    ended: State | None  # how its workload ended; then there is none
    pods: Sequence[Seen]  # of its open attempt
    empty_since_s: float | None  # since when nothing of the attempt is left; None = something is
    labelled_s: float | None  # when the labels of its attempt's pods were written; None = not yet
    kept_away: str = ""  # why it may not go where it was placed, as its policy and members are now


class Hold(NamedTuple):
    """Suspend its scheduling and take it from all clusters. ``over``: for good, and why."""

    over: str = ""


class Say(NamedTuple):
    """Tell by Karmada's condition how it stands."""

    scheduled: bool
    reason: str
    message: str


class Label(NamedTuple):
    """Have the pods of its attempt labelled on their way to the member."""


class Release(NamedTuple):
    """Let it go to the cluster of its attempt."""


class Submit(NamedTuple):
    """Make it known on the bus."""


class Claim(NamedTuple):
    """From now on we alone end the attempt."""


class Run(NamedTuple):
    pods: tuple[PodBinding, ...]


class Evict(NamedTuple):
    """The attempt is over, and it waits again."""

    reason: str


class End(NamedTuple):
    state: State
    reason: str


class Ask(NamedTuple):
    """Ask the resolver to move it, as soon as there is room in another cluster."""

    reason: str


class Wait(NamedTuple):
    """Nothing until something changes, or this time has come."""

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
        return Wait()  # it was let go, and is over; or another scheduler had it before
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
    """What is asked for otherwise than when it was submitted; that is never taken over."""
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
    """Karmada would take it from a cluster with such a taint again, as often as it goes there. The
    resolver knows nothing of that, so it is asked to move it; a wish that has come to nothing ends
    with the attempt."""
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
    return Wait() if binding.items else Release()  # what others let go somewhere is on its way out


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
    """What is to be told, unless it stands there."""
    stands, status = binding.scheduled, "True" if scheduled else "False"
    told = (stands.status, stands.reason, stands.message) if stands is not None else None
    if told == (status, reason, message) and binding.is_observed:
        return None
    return Say(scheduled, reason, message)


def as_placed(placed: Sequence[PodBinding], seen: Sequence[Seen]) -> tuple[PodBinding, ...]:
    """Pods as they were placed, where they really are. Which is which nobody says: one on a node
    where one was placed is that one, the others have the names that are left."""
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
