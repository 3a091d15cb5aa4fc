"""Which running jobs may be evicted for a waiting job, and what an eviction costs. Pure.

``right_over`` says by which precedence a job may go, ``lost_gpu_s`` what it loses, ``cheapest_on``
which jobs of a node go. ``may_stop`` holds among jobs of equal priority. ``RecentEvictions`` counts
against budgets. The resolver and the hub's reconciler search by these rules.

Example: queue ``research`` is guaranteed 8 GPUs and uses 4. Queue ``product`` has no guarantee and
uses 12. A waiting job of research with 4 GPUs may evict jobs of product by guarantee, whatever
their priority. A victim of 4 GPUs that ran 300 s since its checkpoint and restarts in 30 s costs
4 * 330 = 1,320 GPU seconds.

Rules of precedence, of which the first that frees enough counts:

- Guarantee: a job gets back what its queue is guaranteed from queues above their own guarantee.
- Deserved: a job gets what its queue deserves from queues of no higher priority above what they
  deserve. No queue falls below that.
- Priority: a job of higher priority evicts jobs of lower priority in its own queue. Where its queue
  says ``all``, also in queues of no higher priority, down to what those deserve.
- Parents: among queues with parents this holds between the children of the nearest common parent.
  No queue on the victim's path below that parent falls below what it has by the same precedence.
- So no job is evicted for one that it would evict in turn. A job that began by a guarantee or a
  deserved share is above no floor by that, and a lower priority never evicts a higher one. What
  the victims free is reserved for the job alone (deciding/reservations.py).

Rules of cost: a victim costs the GPU seconds since its last checkpoint and a restart. Each earlier
move counts them once more. A part of a gang costs what all parts lose, because all of them end.

Rules among jobs of equal priority in one queue, where the queue allows it:

- No precedence holds, so the mean time to completion decides. Shortest remaining time first is best
  on one machine (Schrage, 1968), and by width on several (Smith's rule). The weight of a job is its
  remaining time times its GPUs to the power ``WIDTH``. That is a little less than once, because a
  wide job that stops leaves whole nodes.
- A victim weighs ``CLEARLY`` times as much as the waiting job, or ``CLEARLY_LEARNED`` times where
  either time is learned and not stated.
- Of several sets the one goes of which the fewest jobs would end within a given time.
- An eviction pays if the longest remaining time of the victims is ``GAIN`` times the delay of all
  of them: the waiting job's remaining time, the lost work and the restart.
- So with stated times no job is stopped for one that it would stop. A learned time grows while a
  job outlives most of its size (life_tables.py), and each time slice is longer than the last one.

Example: a job of 8 GPUs with 30 h left runs, and one of 1 GPU with 1 h left waits. The first weighs
129 times as much. The second begins 30 h earlier, and the first is delayed by 1 h and its lost
work.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from berthmaster.lib.engine.queueing.queues import Amounts, QueueShare, Tier, used_of
from berthmaster.lib.engine.queueing.tree import Level, Path
from berthmaster.lib.lifecycle.bindings import charged_gpu_milli
from berthmaster.lib.lifecycle.run_times import unsaved_s
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import EvictionOrder, PodBinding
from berthmaster.lib.messages.workload import JobRequest

CPU_MILLI_OF_A_GPU: Final = 16_000  # what work on CPUs alone is worth beside GPUs
MAX_VICTIMS: Final = 64  # for one job; more would rarely cost less than waiting
CLUSTERS_TRIED: Final = 4  # for one job, in each decider's order
SEARCHES_A_COMMIT: Final = 4  # jobs for which victims are searched; one takes milliseconds
BUDGET_S: Final = 3600.0  # budgets of evictions are counted over the last hour
WIDTH: Final = 0.7
CLEARLY: Final = 1.5
CLEARLY_LEARNED: Final = 2.0
GAIN: Final = 1.2

RightName = Literal["guarantee", "deserved", "priority"]
Floors = tuple[tuple[str, Mapping[str, int]], ...]  # queue -> what it must keep of each resource
# The right over jobs of a queue (it and its parents) and priority, and what those queues keep.
RightOver = Callable[[Path, int], tuple[str, Floors] | None]


class Beneficiary(NamedTuple):
    """A waiting job that does not fit, and what its queue may do for it."""

    levels: tuple[Level, ...]  # its queue, then the parents, the nearest first
    priority: int
    preempts: str  # never, queue, all


class Victim(NamedTuple):
    """One attempt that may be evicted. The smallest goes first: it costs least or, at the same
    cost, was submitted last."""

    cost: float  # GPU seconds lost or, at equal priority, endings put off
    before: int  # its submission's sequence, negated
    key: Key
    queue: str
    amounts: Mapping[str, int]
    lost_gpu_s: float


class Loss(NamedTuple):
    """The terms of what an attempt loses if it ends."""

    gpus: float  # that it holds, once more for each time that it was moved before
    since_s: float  # from when on it is lost; 0 = it does not run yet
    every_s: float  # it writes a checkpoint so often; infinite = never


def gpus_of(request: JobRequest, pods: Sequence[PodBinding] = ()) -> float:
    """Return the GPUs that a job is charged with, as far as it is bound; without GPUs, what its
    CPUs are worth."""
    if milli := charged_gpu_milli(request, pods):
        return milli / 1000
    return sum(pods.count * pods.cpu_milli for pods in request.pod_sets) / CPU_MILLI_OF_A_GPU


def ending_with(request: JobRequest) -> float:
    """Return how many pods end for each pod of a job: those of all parts of its gang."""
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
    """Return the work that is done again if the attempt ends now, in GPU seconds.

    For example, 8 GPUs that have run for 1,000 s with a checkpoint every 600 s and take 30 s to
    start lose 8 * (400 + 30) = 3,440; after one earlier move 6,880. As one of three equal parts of
    a gang they lose 10,320.
    """
    return loss_of(workload).gpus * (unsaved_s(workload, now_s) + restart_s)


def lost_by_shrinking_gpu_s(workload: Workload, now_s: float, restart_s: float) -> float:
    """Return the work that is done again if the attempt continues with fewer pods, in GPU seconds.

    All pods restart from the last checkpoint, however few go. A job without checkpoints is taken to
    keep its work.

    For example, 8 GPUs that have run for 1,000 s with a checkpoint every 600 s and take 30 s to
    start lose 8 * (400 + 30) = 3,440. Without checkpoints they lose 8 * 30 = 240.
    """
    request = workload.request
    if request is None:
        return 0.0
    if request.checkpoint_every_s is not None:
        return lost_gpu_s(workload, now_s, restart_s)
    return lost_gpu_s(workload, workload.running_at_s, restart_s)


def right_over(
    job: Beneficiary, victim: Path, victim_priority: int
) -> tuple[RightName, Floors] | None:
    """Return the right by which a job of this queue may be evicted for the waiting one, and what
    its queue and those above it must keep; None without a right.

    Of two queues with a common parent, those two of its children count that are above them. One has
    the right. The other, and all queues between it and the victim, keep what is theirs.
    """
    if victim[0].queue == job.levels[0].queue:
        if job.preempts == "never" or victim_priority >= job.priority:
            return None
        return "priority", ()
    common = in_common(job.levels, victim)
    mine, theirs = job.levels[: len(job.levels) - common], victim[: len(victim) - common]
    if not mine:
        return None  # a job that was in a queue before others came below it
    by = mine[-1]
    above = theirs[-1] if theirs else QueueShare(victim[0].queue)  # such a job has no share
    if by.tier is Tier.GUARANTEED:
        return "guarantee", tuple((share.queue, share.guarantee) for share in theirs)
    if above.priority > by.priority:
        return None
    floors = floors_beside(job, victim)
    if by.tier is Tier.DESERVED:
        return "deserved", floors
    below = (above.priority, victim_priority) < (by.priority, job.priority)
    if job.preempts == "all" and below and victim_priority < job.priority:
        return "priority", floors
    return None


def floors_beside(job: Beneficiary, victim: Path) -> Floors:
    """Return what the victim's queue, and its parents that are not parents of both, keep in any
    case."""
    theirs = victim[: len(victim) - in_common(job.levels, victim)]
    return tuple((share.queue, floor_of(share)) for share in theirs)


def in_common(levels: Sequence[Level | QueueShare], path: Path) -> int:
    """Return the number of parents that both have."""
    pairs = zip(reversed(levels), reversed(path), strict=False)
    return next(
        (at for at, (mine, theirs) in enumerate(pairs) if mine.queue != theirs.queue),
        min(len(levels), len(path)),
    )


def floor_of(share: QueueShare) -> Amounts:
    """Return what a queue keeps in any case: the larger of its guarantee and its deserved share."""
    floor = dict(share.guarantee)
    for resource, amount in share.deserved.items():
        floor[resource] = max(floor.get(resource, 0), amount)
    return floor


class Accounts:
    """The usage of queues, less what is being evicted, to check it against their floors."""

    def __init__(self, used: Mapping[str, Mapping[str, int]]) -> None:
        self._used = {queue: dict(amounts) for queue, amounts in used.items()}

    def copy(self) -> "Accounts":
        return Accounts(self._used)

    def subtract(self, victim: Path, amounts: Mapping[str, int]) -> None:
        """Take an eviction from a queue and its parents."""
        for share in victim:
            used = self._used.setdefault(share.queue, {})
            for resource, amount in amounts.items():
                used[resource] = used.get(resource, 0) - amount

    def may_lose(self, floors: Floors, amounts: Mapping[str, int]) -> bool:
        """Return whether these queues keep their floors without these amounts."""
        return all(self._keeps(queue, amounts, floor) for queue, floor in floors)

    def _keeps(self, queue: str, amounts: Mapping[str, int], floor: Mapping[str, int]) -> bool:
        used = self._used.get(queue, {})
        rest = {name: amount - amounts.get(name, 0) for name, amount in used.items()}
        return all(
            used_of(rest, resource) >= keeps
            for resource, keeps in floor.items()
            if used_of(amounts, resource) > 0
        )


class FreeOnNode(NamedTuple):
    """The free capacity of a node; GPUs by their index, in milli."""

    cpu_milli: int
    memory_mib: int
    gpus: Mapping[int, int]


class HeldOnNode(NamedTuple):
    """The capacity that one victim holds on a node."""

    victim: Victim
    cpu_milli: int
    memory_mib: int
    gpus: tuple[tuple[int, int], ...]  # index, milli


class PodNeed(NamedTuple):
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int

    def fits(self, free: FreeOnNode) -> bool:
        enough = sum(milli >= self.gpu_milli for milli in free.gpus.values()) if self.gpus else 0
        return (
            free.cpu_milli >= self.cpu_milli
            and free.memory_mib >= self.memory_mib
            and enough >= self.gpus
        )


def cheapest_on(free: FreeOnNode, need: PodNeed, held: Iterable[HeldOnNode]) -> list[Victim] | None:
    """Return the victims that a pod costs on a node; None if it does not fit without all of them.

    The cheapest are taken until the pod fits. Then victims that are not needed stay, the dearest
    first. For example, a pod of 2 GPUs on a full node of jobs with 1, 1 and 4 GPUs that cost 10, 30
    and 25: 10 and 25 are taken and free 5 GPUs. 25 is needed and 10 is not, so 25 alone goes.
    """
    taken = cheapest_set(held, free, _changed, need.fits)
    return None if taken is None else [each.victim for each in taken]


class Holds(Protocol):
    """What one victim holds of the requested capacity."""

    @property
    def victim(self) -> Victim: ...


H = TypeVar("H", bound=Holds)
R = TypeVar("R")


def cheapest_set(
    candidates: Iterable[H],
    free: R,
    change: Callable[[R, H, int], R],
    is_enough: Callable[[R], bool],
) -> list[H] | None:
    """Return candidates that free enough at low cost; None if all of them are not enough.
    ``change``: the free capacity with one of them evicted (+1), or kept again (-1)."""
    taken: list[H] = []
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
    """Return the order of victims: the cheapest, and of those the last submitted, goes first."""
    return each.victim[:3]


def _changed(free: FreeOnNode, held: HeldOnNode, sign: int) -> FreeOnNode:
    gpus = dict(free.gpus)
    for index, milli in held.gpus:
        if index in gpus:
            gpus[index] += sign * milli
    return FreeOnNode(
        free.cpu_milli + sign * held.cpu_milli, free.memory_mib + sign * held.memory_mib, gpus
    )


def cost_of(victims: Sequence[Victim]) -> float:
    return sum((victim.cost for victim in victims), 0.0)


def eviction_order(
    victim: Workload, job: Workload, right: RightName, lost_gpu_s: float
) -> EvictionOrder:
    """Return the record of a decision that evicts a victim's attempt for a waiting job."""
    return EvictionOrder(
        tenant=victim.tenant,
        id=victim.id,
        attempt=victim.attempt,
        cluster=victim.cluster,
        lost_gpu_s=round(lost_gpu_s, 3),
        for_tenant=job.tenant,
        for_id=job.id,
        right=right,
    )


class RecentEvictions:
    """The evictions of the last hour, as decisions recorded them: budgets are checked against it.
    Times are of decisions, in seconds since 1970."""

    def __init__(self, recorded: Iterable[tuple[float, str]] = ()) -> None:
        self._recorded = deque(recorded)  # time, queue of the victim

    def add(self, at_s: float, queue: str) -> None:
        self._recorded.append((at_s, queue))
        while self._recorded[0][0] < at_s - BUDGET_S:
            self._recorded.popleft()

    def count(self, since_s: float, queue: str | None = None) -> int:
        """Return the number after a time, of one queue or of all. A clock may have gone back."""
        return sum(at_s > since_s and queue in (None, of) for at_s, of in self._recorded)

    def left(self, budget: int | None, now_s: float, queue: str | None = None) -> float:
        """Return what is left of a budget; infinity without one."""
        return math.inf if budget is None else budget - self.count(now_s - BUDGET_S, queue)

    def state(self) -> list[tuple[float, str]]:
        """Return what a snapshot stores."""
        return list(self._recorded)


# Jobs of equal priority


class Remaining(NamedTuple):
    """What is left to do of a job."""

    left_s: float
    gpus: float
    stated: bool = True  # by its submitter, not learned

    @property
    def weight(self) -> float:
        """The order of waiting jobs: the smallest weight goes first."""
        return float(self.left_s * self.gpus**WIDTH)


class Stopped(NamedTuple):
    """A running job that would be stopped for one of equal priority."""

    remaining: Remaining
    again_s: float  # lost work and the restart


def may_stop(waits: Remaining, runs: Stopped) -> bool:
    """Return whether a waiting job may stop a running one, were that the only victim."""
    clearly = CLEARLY if waits.stated and runs.remaining.stated else CLEARLY_LEARNED
    return runs.remaining.weight > clearly * waits.weight and pays(waits, [runs])


def endings_per_s(remaining: Remaining) -> float:
    """Return how many endings are put off by stopping a job, for each second of its delay. For
    example, a job with 100 s left counts as much as ten with 1,000 s left."""
    return 1.0 / max(remaining.left_s, 1.0)


def pays(waits: Remaining, stopped: Sequence[Stopped]) -> bool:
    """Return whether stopping all of these pays for one waiting job."""
    saved_s = max(each.remaining.left_s for each in stopped)
    return saved_s >= GAIN * sum((waits.left_s + each.again_s for each in stopped), 0.0)
