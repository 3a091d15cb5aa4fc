"""Preemption: victims for a pending job, and the cost of an eviction. Pure.

``right_over`` returns the precedence by which a job may be evicted, ``lost_gpu_s`` its cost, and
``cheapest_on`` the victims on a node. ``may_stop`` decides among jobs of equal priority.
``RecentEvictions`` enforces budgets. The resolver and the hub's reconciler use these rules.

Example: queue ``research`` is guaranteed 8 GPUs and uses 4. Queue ``product`` has no guarantee and
uses 12. A pending job of research with 4 GPUs may evict jobs of product by guarantee, whatever
their priority. A victim of 4 GPUs that ran 300 s since its checkpoint and restarts in 30 s costs 4
* 330 = 1,320 GPU seconds.

Rules of precedence. The first that frees enough is used:

- Guarantee: a job regains its queue's guarantee from queues above their own guarantee.
- Deserved: a job gains its queue's deserved share from queues of no higher priority above their
  deserved share. No queue falls below its own.
- Priority: a job evicts jobs of lower priority in its own queue. With ``all``, also in queues of no
  higher priority, down to their deserved shares.
- Parents: among queues with parents, the rules compare the children of the nearest common parent.
  No queue on the victim's path below the common parent falls below its share by the same
  precedence.
- So no two jobs can evict each other. A job started by a guarantee or deserved share puts its queue
  above no floor, and a lower priority never evicts a higher one. The freed capacity is reserved for
  the beneficiary alone (deciding/reservations.py).

Rules of cost: a victim costs the GPU seconds since its last checkpoint and a restart, and once more
for each earlier move. A part of a gang costs the loss of all parts, because all of them end.

Rules among jobs of equal priority in one queue, if the queue allows preemption there:

- Without precedence, the mean time to completion decides. Shortest remaining time first is best on
  one machine (Schrage, 1968), and by width on several (Smith's rule). The weight of a job is its
  remaining time times its GPUs to the power ``WIDTH``. The exponent is slightly below 1, because a
  wide job leaves whole nodes.
- A victim weighs ``CLEARLY`` times as much as the beneficiary, or ``CLEARLY_LEARNED`` times if
  either time is learned.
- Of several sets, the victims are the set with the fewest endings within a given time.
- An eviction pays if the longest remaining time of the victims is ``GAIN`` times the delay of all
  victims: the beneficiary's remaining time, the lost work and the restart.
- With stated times no two jobs can stop each other. A learned time grows while a job outlives most
  of its size (life_tables.py), so each time slice is longer than the last.

Example: a job of 8 GPUs with 30 h left runs, and a job of 1 GPU with 1 h left is pending. The first
weighs 129 times as much. The second starts 30 h earlier, and the first is delayed by 1 h and its
lost work.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from berthmaster.lib.engine.queueing.queues import Amounts, Level, Path, QueueShare, Tier, used_of
from berthmaster.lib.lifecycle.pods import charged_gpu_milli
from berthmaster.lib.lifecycle.workload import Key, Workload, unsaved_s
from berthmaster.lib.messages.placement import EvictionOrder, PodBinding
from berthmaster.lib.messages.workload import JobRequest

CPU_MILLI_OF_A_GPU: Final = 16_000  # worth of CPU work relative to a GPU
MAX_VICTIMS: Final = 64  # for one job; more would rarely cost less than waiting
CLUSTERS_TRIED: Final = 4  # for one job, in each decider's order
# Jobs in a commit that search for victims; a search takes milliseconds
SEARCHES_A_COMMIT: Final = 4
BUDGET_S: Final = 3600.0  # budgets of evictions are counted over the last hour
WIDTH: Final = 0.7
CLEARLY: Final = 1.5
CLEARLY_LEARNED: Final = 2.0
GAIN: Final = 1.2

RightName = Literal["guarantee", "deserved", "priority", "idle"]
Floors = tuple[tuple[str, Mapping[str, int]], ...]  # queue -> its floor of each resource
# Precedence over jobs of a queue (with parents) and priority, and the floors of those queues.
RightOver = Callable[[Path, int], tuple[str, Floors] | None]


class Beneficiary(NamedTuple):
    """A pending job that does not fit, and the rights of its queue."""

    levels: tuple[Level, ...]  # its queue, then the parents, nearest first
    priority: int
    preempts: str  # never, queue, all


class Victim(NamedTuple):
    """One attempt that may be evicted. The smallest goes first: the cheapest or, at equal cost, the
    newest submission.
    """

    cost: float  # GPU seconds lost or, at equal priority, endings put off
    before: int  # negated sequence of the submission
    key: Key
    queue: str
    amounts: Mapping[str, int]
    lost_gpu_s: float


class Loss(NamedTuple):
    """Terms of the cost of ending an attempt."""

    gpus: float  # allocated GPUs, counted once more for each earlier move
    since_s: float  # start of the unsaved work; 0 = not running
    every_s: float  # checkpoint interval; infinite = no checkpoints


def gpus_of(request: JobRequest, pods: Sequence[PodBinding] = ()) -> float:
    """Return the GPUs charged to a job as far as bound; for a job without GPUs, the worth of its
    CPUs.
    """
    if milli := charged_gpu_milli(request, pods):
        return milli / 1000
    return sum(pods.count * pods.cpu_milli for pods in request.pod_sets) / CPU_MILLI_OF_A_GPU


def ending_with(request: JobRequest) -> float:
    """Return the number of pods that end for each pod of the job, including all parts
    of its gang.
    """
    part = request.part
    return sum(part.pods) / part.pods[part.number] if part is not None and part.gang else 1.0


def loss_of(workload: Workload) -> Loss:
    request = workload.request
    if request is None:
        return Loss(0.0, 0.0, math.inf)
    gpus = gpus_of(request, workload.pods) * ending_with(request) * (1 + workload.moves)
    since_s, every_s = workload.running_at_s, request.checkpoint_every_s
    # A reported checkpoint counts, as in ``unsaved_s``
    if workload.checkpoint_at_s > since_s > 0.0:
        return Loss(gpus, workload.checkpoint_at_s, math.inf)
    return Loss(gpus, since_s, math.inf if every_s is None else every_s)


def lost_gpu_s(workload: Workload, now_s: float, restart_s: float) -> float:
    """Return the repeated work in GPU seconds if the attempt ends now.

    Example: 8 GPUs that ran 1,000 s with a checkpoint every 600 s and restart in 30 s lose 8 * (400
    + 30) = 3,440. After one earlier move the cost is 6,880. As one of three equal parts of a gang
    the cost is 10,320.
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
    """Return the precedence over a job of this queue, and the floors of its queue and parents; None
    without precedence.

    For two queues with a common parent, the rules compare the two children above the queues. One
    child has the precedence. The other, and all queues between the child and the victim, keep their
    shares.
    """
    if victim[0].queue == job.levels[0].queue:
        if job.preempts == "never" or victim_priority >= job.priority:
            return None
        return "priority", ()
    common = in_common(job.levels, victim)
    mine, theirs = job.levels[: len(job.levels) - common], victim[: len(victim) - common]
    if not mine:
        return None  # a job submitted before its queue got children
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
    """Return the floors of the victim's queue and of its parents below the common parent."""
    theirs = victim[: len(victim) - in_common(job.levels, victim)]
    return tuple((share.queue, floor_of(share)) for share in theirs)


def in_common(levels: Sequence[Level | QueueShare], path: Path) -> int:
    """Return the number of common parents."""
    pairs = zip(reversed(levels), reversed(path), strict=False)
    return next(
        (at for at, (mine, theirs) in enumerate(pairs) if mine.queue != theirs.queue),
        min(len(levels), len(path)),
    )


def floor_of(share: QueueShare) -> Amounts:
    """Return the floor of a queue: the larger of guarantee and deserved share."""
    floor = dict(share.guarantee)
    for resource, amount in share.deserved.items():
        floor[resource] = max(floor.get(resource, 0), amount)
    return floor


class Accounts:
    """Usage of queues less ordered evictions, for checks against floors."""

    def __init__(self, used: Mapping[str, Mapping[str, int]]) -> None:
        self._used = {queue: dict(amounts) for queue, amounts in used.items()}

    def copy(self) -> "Accounts":
        return Accounts(self._used)

    def subtract(self, victim: Path, amounts: Mapping[str, int]) -> None:
        """Subtract an eviction from a queue and its parents."""
        for share in victim:
            used = self._used.setdefault(share.queue, {})
            for resource, amount in amounts.items():
                used[resource] = used.get(resource, 0) - amount

    def may_lose(self, floors: Floors, amounts: Mapping[str, int]) -> bool:
        """Return whether the queues stay above their floors without these quantities."""
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
    """Capacity of one victim on a node."""

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
    """Capacity of one victim, for a search."""

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
    """Return candidates that free enough at low cost; None if all together are too few.

    ``change``: the free capacity after evicting (+1) or keeping (-1) a candidate.
    """
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
    """Evictions of the last hour in decisions, to enforce budgets. Times are those of decisions, in
    seconds since 1970.
    """

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
        """Return the rest of a budget; infinity without a budget."""
        return math.inf if budget is None else budget - self.count(now_s - BUDGET_S, queue)

    def state(self) -> list[tuple[float, str]]:
        """Return the data for a snapshot."""
        return list(self._recorded)


# Jobs of equal priority


class Remaining(NamedTuple):
    """Remaining work of a job."""

    left_s: float
    gpus: float
    stated: bool = True  # stated by the submitter, not learned

    @property
    def weight(self) -> float:
        """The order of waiting jobs: the smallest weight goes first."""
        return float(self.left_s * self.gpus**WIDTH)


class Stopped(NamedTuple):
    """A running job that may be stopped for a job of equal priority."""

    remaining: Remaining
    again_s: float  # lost work and the restart


def may_stop(waits: Remaining, runs: Stopped) -> bool:
    """Return whether a pending job may stop a running one as the only victim."""
    clearly = CLEARLY if waits.stated and runs.remaining.stated else CLEARLY_LEARNED
    return runs.remaining.weight > clearly * waits.weight and pays(waits, [runs])


def endings_per_s(remaining: Remaining) -> float:
    """Return how many endings are put off by stopping a job, for each second of its delay. For
    example, a job with 100 s left counts as much as ten with 1,000 s left."""
    return 1.0 / max(remaining.left_s, 1.0)


def pays(waits: Remaining, stopped: Sequence[Stopped]) -> bool:
    """Return whether stopping all of these pays for one pending job."""
    saved_s = max(each.remaining.left_s for each in stopped)
    return saved_s >= GAIN * sum((waits.left_s + each.again_s for each in stopped), 0.0)
