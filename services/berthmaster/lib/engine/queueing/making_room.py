"""Who makes room for whom, and what that costs: the rules, without a look at nodes. Pure.

Rules of this file, the first that gives room counts:

- What its queue is guaranteed a job gets back from queues above their own guarantee, whatever their
  priority; what its queue deserves, from queues of no higher priority above what they deserve.
  Nobody is taken below that.
- A job of higher priority gets room from those of lower priority in its own queue and, where its
  queue says so, from queues of no higher priority, down to what those deserve.
- Where queues have parents, this holds among the children of the nearest parent that both queues
  have; nobody below one of them is taken below what it has by the same right, at any step.
- So nobody is moved for one whom it would move back: whoever began by a guarantee or a deserved
  share is above no floor by that, and among priorities less never moves more. Where several queues
  share what is lent, the room is owed to whom it was made for (deciding/reserves.py).
- A victim costs the work that is lost with it, in GPU seconds: what it has done since its last
  checkpoint, and starting again; each earlier move counts it once more. A part of a divided gang
  costs what all parts lose, which end with it, and takes from its queue what all of them hold.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from berthmaster.lib.engine.queueing.queues import Amounts, QueueShare, Tier, used_of
from berthmaster.lib.engine.queueing.tree import Level, Path
from berthmaster.lib.lifecycle.bindings import charged_gpu_milli
from berthmaster.lib.lifecycle.run_times import unsaved_s
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest

CPU_MILLI_OF_A_GPU: Final = 16_000  # what work on CPUs alone is worth beside GPUs
RightName = Literal["guarantee", "deserved", "priority"]
Floors = tuple[tuple[str, Mapping[str, int]], ...]  # queue -> what it must keep of each resource


# By what right a job of a queue (it and those above it) and priority may go, and what they keep.
Over = Callable[[Path, int], tuple[str, Floors] | None]


class Mover(NamedTuple):
    """A waiting job that does not fit, and what its queue may do for it."""

    levels: tuple[Level, ...]  # its queue, the one above it, and so on
    priority: int
    preempts: str  # never, queue, all


class Victim(NamedTuple):
    """One attempt that may be ended. The least goes first: it costs least or, if that is the same,
    was submitted last."""

    cost: float  # what is weighed: what it loses or, of equals, how soon it would end
    before: int  # its submission's sequence, negated
    key: Key
    queue: str
    amounts: Mapping[str, int]
    lost_gpu_s: float


class Loss(NamedTuple):
    """What an attempt loses if it ends, by what it is and when."""

    gpus: float  # that it holds, once more for each time that it was moved before
    since_s: float  # from when on it is lost; 0 = it does not run yet
    every_s: float  # it writes a checkpoint so often; infinite = never


def gpus_of(request: JobRequest, pods: Sequence[PodBinding] = ()) -> float:
    """GPUs that it is charged with, as far as it has places; without any, what its CPUs are
    worth."""
    if milli := charged_gpu_milli(request, pods):
        return milli / 1000
    return sum(pods.count * pods.cpu_milli for pods in request.pod_sets) / CPU_MILLI_OF_A_GPU


def ending_with(request: JobRequest) -> float:
    """How many pods end for each of its own when it does: those of all parts of its gang."""
    part = request.part
    return sum(part.pods) / part.pods[part.number] if part is not None and part.gang else 1.0


def loss_of(workload: Workload) -> Loss:
    request = workload.request
    if request is None:
        return Loss(0.0, 0.0, math.inf)
    gpus = gpus_of(request, workload.pods) * ending_with(request) * (1 + workload.moves)
    since_s, every_s = workload.running_at_s, request.checkpoint_every_s
    if workload.checkpoint_at_s > since_s > 0.0:  # what it told counts, as ``unsaved_s`` has it
        return Loss(gpus, workload.checkpoint_at_s, math.inf)
    return Loss(gpus, since_s, math.inf if every_s is None else every_s)


def lost_gpu_s(workload: Workload, now_s: float, restart_s: float) -> float:
    """What is done again if its attempt ends now, in GPU seconds.

    For example, 8 GPUs that have run for 1,000 s with a checkpoint every 600 s and take 30 s to
    start lose 8 * (400 + 30) = 3,440; after one earlier move 6,880. As one of three equal parts of
    a gang they lose 10,320.
    """
    return loss_of(workload).gpus * (unsaved_s(workload, now_s) + restart_s)


def lost_by_shrinking_gpu_s(workload: Workload, now_s: float, restart_s: float) -> float:
    """What is done again if the attempt goes on with fewer pods, in GPU seconds: all of them find
    together anew, from the last checkpoint where it makes any. However few go, that is the same.

    For example, 8 GPUs that have run for 1,000 s with a checkpoint every 600 s and take 30 s to
    start lose 8 * (400 + 30) = 3,440; without checkpoints what was done is taken to be kept: 240.
    """
    request = workload.request
    if request is None:
        return 0.0
    if request.checkpoint_every_s is not None:
        return lost_gpu_s(workload, now_s, restart_s)
    return lost_gpu_s(workload, workload.running_at_s, restart_s)


def right_over(mover: Mover, victim: Path, victim_priority: int) -> tuple[RightName, Floors] | None:
    """By what right a job of this queue may be ended for the mover, and what its queue and those
    above it must keep; None if by none.

    Of two queues with a parent in common those two of its children count that they are below: one
    has the right, the other and all below it on the way to the victim keep what is theirs.
    """
    if victim[0].queue == mover.levels[0].queue:
        if mover.preempts == "never" or victim_priority >= mover.priority:
            return None
        return "priority", ()
    common = in_common(mover.levels, victim)
    mine, theirs = mover.levels[: len(mover.levels) - common], victim[: len(victim) - common]
    if not mine:
        return None  # a job that was in a queue before others came below it
    by = mine[-1]
    above = theirs[-1] if theirs else QueueShare(victim[0].queue)  # such a job has no share
    if by.tier is Tier.GUARANTEED:
        return "guarantee", tuple((share.queue, share.guarantee) for share in theirs)
    if above.priority > by.priority:
        return None
    floors = floors_beside(mover, victim)
    if by.tier is Tier.DESERVED:
        return "deserved", floors
    below = (above.priority, victim_priority) < (by.priority, mover.priority)
    if mover.preempts == "all" and below and victim_priority < mover.priority:
        return "priority", floors
    return None


def floors_beside(mover: Mover, victim: Path) -> Floors:
    """What the victim's queue keeps in any case beside the mover's, and those above it that are not
    above both."""
    theirs = victim[: len(victim) - in_common(mover.levels, victim)]
    return tuple((share.queue, floor_of(share)) for share in theirs)


def in_common(levels: Sequence[Level | QueueShare], path: Path) -> int:
    """How many queues above both there are."""
    pairs = zip(reversed(levels), reversed(path), strict=False)
    return next(
        (at for at, (mine, theirs) in enumerate(pairs) if mine.queue != theirs.queue),
        min(len(levels), len(path)),
    )


def floor_of(share: QueueShare) -> Amounts:
    """What a queue keeps in any case: the more of its guarantee and what it deserves."""
    floor = dict(share.guarantee)
    for resource, amount in share.deserved.items():
        floor[resource] = max(floor.get(resource, 0), amount)
    return floor


class Accounts:
    """What queues have, less what is on its way out: who else may go without taking one below its
    floor."""

    def __init__(self, used: Mapping[str, Mapping[str, int]]) -> None:
        self._used = {queue: dict(amounts) for queue, amounts in used.items()}

    def copy(self) -> "Accounts":
        """To try who might go beside them."""
        return Accounts(self._used)

    def leaves(self, victim: Path, amounts: Mapping[str, int]) -> None:
        """So much of a queue, and of those above it, is on its way out."""
        for share in victim:
            used = self._used.setdefault(share.queue, {})
            for resource, amount in amounts.items():
                used[resource] = used.get(resource, 0) - amount

    def may_lose(self, floors: Floors, amounts: Mapping[str, int]) -> bool:
        """Whether these queues keep their floors without these."""
        return all(self._keeps(queue, amounts, floor) for queue, floor in floors)

    def _keeps(self, queue: str, amounts: Mapping[str, int], floor: Mapping[str, int]) -> bool:
        used = self._used.get(queue, {})
        rest = {name: amount - amounts.get(name, 0) for name, amount in used.items()}
        return all(
            used_of(rest, resource) >= keeps
            for resource, keeps in floor.items()
            if used_of(amounts, resource) > 0
        )


class NodeRoom(NamedTuple):
    """What is free on a node; GPUs by their index, in milli."""

    cpu_milli: int
    memory_mib: int
    gpus: Mapping[int, int]


class Part(NamedTuple):
    """What one victim has on a node."""

    victim: Victim
    cpu_milli: int
    memory_mib: int
    gpus: tuple[tuple[int, int], ...]  # index, milli


class PodNeed(NamedTuple):
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int

    def fits(self, room: NodeRoom) -> bool:
        enough = sum(free >= self.gpu_milli for free in room.gpus.values()) if self.gpus else 0
        return (
            room.cpu_milli >= self.cpu_milli
            and room.memory_mib >= self.memory_mib
            and enough >= self.gpus
        )


def cheapest_on(room: NodeRoom, need: PodNeed, parts: Iterable[Part]) -> list[Victim] | None:
    """Whom a pod of this need costs on a node: the cheapest are taken until it fits, then whoever
    is not needed goes back, the dearest first. None: it does not fit whoever goes.

    For example, a pod of 2 GPUs on a node full of jobs with 1, 1 and 4 GPUs that cost 10, 30 and
    25: 10 and 25 are taken, which frees 5; 25 is needed, 10 is not: so the one of 25.
    """
    taken = cheapest_that(parts, room, _with, need.fits)
    return None if taken is None else [part.victim for part in taken]


class Holds(Protocol):
    """What one victim has of what is looked for."""

    @property
    def victim(self) -> Victim: ...


H = TypeVar("H", bound=Holds)
R = TypeVar("R")


def cheapest_that(
    candidates: Iterable[H],
    room: R,
    change: Callable[[R, H, int], R],
    is_enough: Callable[[R], bool],
) -> list[H] | None:
    """Whom it costs to have enough room; None: it is not enough whoever goes. ``change``: the room
    with one of them gone (+1), or back (-1)."""
    taken: list[H] = []
    free = room
    for each in sorted(candidates, key=by_cost):
        if is_enough(free):
            break
        taken.append(each)
        free = change(free, each, +1)
    if not is_enough(free):
        return None
    for each in sorted(taken, key=by_cost, reverse=True):
        without = change(free, each, -1)
        if is_enough(without):
            free = without
            taken.remove(each)
    return taken


def by_cost(each: Holds) -> tuple[float, int, Key]:
    """The least goes first."""
    return each.victim[:3]


def _with(room: NodeRoom, part: Part, sign: int) -> NodeRoom:
    gpus = dict(room.gpus)
    for index, milli in part.gpus:
        if index in gpus:
            gpus[index] += sign * milli
    return NodeRoom(
        room.cpu_milli + sign * part.cpu_milli, room.memory_mib + sign * part.memory_mib, gpus
    )


def cost_of(victims: Sequence[Victim]) -> float:
    return sum((victim.cost for victim in victims), 0.0)
