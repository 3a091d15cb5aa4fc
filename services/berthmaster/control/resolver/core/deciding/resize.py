"""Resizing of elastic jobs: which attempts shrink for a pending job, and which grow.

``Shrinker.search`` finds the attempts to shrink for one job, ``grown`` yields attempts to grow.

Example: a job of 2 GPUs does not fit. An elastic job of the same queue runs 6 pods of 1 GPU with a
minimum of 4 and a lower priority. It shrinks to 4 pods, and the freed GPUs are reserved for the
pending job. Once nothing else is decided and GPUs are idle for ``grow_after_s``, it grows again.

Rules of this file:

- Attempts shrink before any job is evicted: at the least cost, as few as possible, none below its
  minimum, and no queue below its floor (lib/engine/queueing/preemption.py). Pods above the
  requested number are borrowed: any pending job that may run gets their capacity.
- Pods with the highest indices end first, like in an Indexed Job.
- An idle job shrinks for any pending job if its queue allows, and never grows while it is idle.
- Freed capacity is reserved for the beneficiary alone, as after an eviction.
- An attempt grows into idle capacity when nothing else is decided: beside all reservations, within
  its queue's limits, and in a cluster that no pending job could use. Nothing may have started
  there, and its size must be unchanged, for ``grow_after_s``. It grows to the requested number
  first, then to its maximum.
- Pods that did not start are tried again with growing pauses, because capacity is reserved
  meanwhile.
- Jobs with a topology shrink and never grow.
- Under a cluster's Kueue, a size changes only if that Kueue allows it. Shrinking frees quota for
  jobs of that Kueue by precedence, and for any job if borrowed. Growing uses quota that no job
  waits for, and Kueue decides on the admission. Others may take freed quota, so the reservation on
  the nodes ends after a while.
- An attempt has one pending resize at a time, until its executor reports the result.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle, Freed, others_wait
from berthmaster.control.resolver.core.deciding.reservations import MAX_HELD_NODES, owed_capacity
from berthmaster.control.resolver.core.deciding.turns import Turn, right_of, within_right
from berthmaster.control.resolver.core.known.indexes import may_resize
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.fleet import Holding, Overlay
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleetview.shortlist import BUSY
from berthmaster.lib.engine.queueing.idle import idle_action
from berthmaster.lib.engine.queueing.ledger import amounts_of
from berthmaster.lib.engine.queueing.preemption import (
    Accounts,
    Beneficiary,
    RightName,
    floors_beside,
    lost_by_shrinking_gpu_s,
    right_over,
)
from berthmaster.lib.kueue.quota import NO_QUOTA
from berthmaster.lib.lifecycle.pods import (
    at_step,
    counts_of,
    index_of,
    least,
    most,
    set_of,
    sized,
    steps,
    together,
    with_coming,
    without,
)
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import PodBinding, Reservation, ResizeOrder, Via
from berthmaster.lib.messages.workload import TRIAL_PRIORITY, JobRequest, PodSet

MOST_DOUBLINGS: Final = 6  # of the time until it is tried again to have more pods
# For worker queues: quota is not reserved, so the reservation on nodes ends after ``grace_s`` and
# this time
KEPT_S: Final = 60.0
USUAL_GRACE_S: Final = 30.0  # a cluster's own
MOST_SHRUNK: Final = 64  # attempts, for one job
MOST_LOOKS: Final = 8  # in one draft: a look takes milliseconds
MOST_GROWN: Final = 16  # attempts, in one draft
_Right = RightName | Literal[""]
Found = TypeVar("Found")


class Resize(NamedTuple):
    """One order, and all pods of the attempt afterwards."""

    order: ResizeOrder
    pods: tuple[PodBinding, ...]


class Shrinking(NamedTuple):
    """Orders for one job, and the capacity reserved for it."""

    resizes: tuple[Resize, ...]
    reservation: Reservation


class _Loser(NamedTuple):
    """An attempt that may go on with fewer pods. The least goes first."""

    lost_gpu_s: float
    before: int  # negated sequence of the submission
    key: Key
    right: _Right
    # Pods kept in each size, largest first; [0] = all present pods
    sizes: tuple[tuple[PodBinding, ...], ...]


class _Found(NamedTuple):
    cost: float
    kept: tuple[tuple[_Loser, tuple[PodBinding, ...]], ...]
    bound: Bound
    cluster: str


class Shrinker:
    """The search for attempts to shrink in one draft, beside reservations and placements."""

    def __init__(self, cycle: Cycle, accounts: Callable[[], Accounts]) -> None:
        """``accounts``: usage after all ordered evictions."""
        self._cycle = cycle
        self._know = cycle.know
        self._accounts = accounts
        self._looks = 0

    def search(self, turn: Turn, asked: JobRequest, shape: Shape) -> Shrinking | None:
        """Return the attempts to shrink for a job that does not fit; None if none may, or none
        helps.
        """
        know = self._know
        clusters = know.derived.elastic.clusters()
        setting = know.queues.get(turn.line.queue)
        if not clusters or self._looks >= MOST_LOOKS:
            return None
        via: Via = setting.via if setting is not None else "direct"
        if via == "hub":
            return None
        self._looks += 1
        workload = know.open[turn.key]
        job = Beneficiary(
            turn.levels,
            workload.priority,
            setting.preempts if setting is not None else "never",
        )
        filtered = self._cycle.shortlist(asked, shape).filtered
        best: _Found | None = None
        for cluster in clusters:
            if not _is_full(filtered.get(cluster, BUSY), via):
                continue
            found = self._in_cluster(cluster, job, via, asked, shape)
            if found is not None and (
                best is None or (found.cost, cluster) < (best.cost, best.cluster)
            ):
                best = found
        return self._shrinking(workload, best, via) if best is not None else None

    def _in_cluster(
        self, cluster: str, job: Beneficiary, via: Via, asked: JobRequest, shape: Shape
    ) -> _Found | None:
        losers = self._losers(cluster, job, via)[:MOST_SHRUNK]
        if not losers:
            return None
        if via == "worker":  # quota of other queues is not checked
            asked = msgspec.structs.replace(asked, clusters=(cluster,))
            shape = shape_of(asked)
        sizes = [len(loser.sizes) - 1 for loser in losers]  # as few pods as each may have
        with Overlay(self._know.fleet) as overlay:

            def fits(chosen: Sequence[int]) -> Bound | None:
                for at, size in enumerate(chosen):
                    overlay.give_back(at)
                    if size:
                        overlay.free(at, self._freed(losers[at], size))
                left = zip(losers, chosen, strict=True)
                with self._without_quota(cluster, [pair for pair in left if pair[1]]):
                    return self._cycle.bind_in(asked, shape, cluster)

            number = _fewest(len(losers), lambda n: fits(_first(sizes, n)) is not None)
            if number is None:
                return None
            chosen = _first(sizes, number)
            for at in reversed(range(number)):  # the dearest first: each as little as will do

                def fits_with(size: int, at: int = at) -> bool:
                    return fits([*chosen[:at], size, *chosen[at + 1 :]]) is not None

                if fits_with(0):
                    chosen[at] = 0
                else:
                    chosen[at] = _fewest(chosen[at], fits_with) or chosen[at]
            bound = fits(chosen)
        taken = [(loser, size) for loser, size in zip(losers, chosen, strict=True) if size]
        if bound is None or not taken or len(bound.holdings) > MAX_HELD_NODES:
            return None
        cost = sum((loser.lost_gpu_s for loser, _ in taken), 0.0)
        kept = tuple((loser, loser.sizes[size]) for loser, size in taken)
        return _Found(cost, kept, bound, cluster)

    @contextmanager
    def _without_quota(self, cluster: str, left: Iterable[tuple[_Loser, int]]) -> Iterator[None]:
        """During the search, treat the quota of these pods in the cluster's queues as free."""
        gone = []
        for loser, size in left:
            workload = self._know.open[loser.key]
            if workload.target.via == "worker" and workload.request is not None:
                pods = without(loser.sizes[0], loser.sizes[size])
                request = with_coming(workload.request, len(pods))
                gone.append(Freed(workload.target, request, self._labels(cluster, pods)))
        self._cycle.freed[cluster] = gone
        try:
            yield
        finally:
            del self._cycle.freed[cluster]

    def _labels(self, cluster: str, pods: Sequence[PodBinding]) -> list[Mapping[str, str]]:
        reports = (self._know.fleet.node(cluster, each.node) for each in pods)
        return [report.labels for report in reports if report is not None]

    def _losers(self, cluster: str, job: Beneficiary, via: Via) -> list[_Loser]:
        """Return the attempts that may shrink, cheapest first. Together they take no queue below
        its floor.
        """
        know, policy = self._know, self._cycle.policy
        candidates = []
        for name in know.derived.elastic.among(cluster):
            workload = know.open[name]
            if name in know.suspended or not may_resize(workload):
                continue
            cost = lost_by_shrinking_gpu_s(workload, self._cycle.now_s, policy.restart_s)
            candidates.append((cost, -workload.submitted_sequence, name))
        accounts, found = self._accounts(), []
        for cost, before, name in sorted(candidates):
            loser = self._loser(cost, before, know.open[name], job, via, accounts)
            if loser is not None:
                found.append(loser)
        return found

    def _loser(
        self,
        cost: float,
        before: int,
        workload: Workload,
        job: Beneficiary,
        via: Via,
        accounts: Accounts,
    ) -> _Loser | None:
        know, request = self._know, workload.request
        assert request is not None  # elastic jobs have a request
        path = know.derived.path(request.queue)
        # Between managed queues and Kueue's queues, only borrowed capacity is returned.
        alike = workload.target.via == via
        by = right_over(job, path, workload.priority) if alike else None
        name: _Right = ""
        low, floors = _wished(workload), floors_beside(job, path)
        if by is None and alike and self._is_idle(workload):
            by = "idle", ()
        if by is not None and request.preemptible:
            name, floors = by
            low = {pods.name: least(pods) for pods in request.pod_sets}
        has = counts_of(workload.pods)
        low = {pods: min(count, has.get(pods, count)) for pods, count in low.items()}
        sizes = [workload.pods]
        before_amounts = self._amounts(workload, workload.pods)
        lost: dict[str, int] = {}
        for counts in sizes_between(request, low, has):
            kept = _first_of(workload.pods, counts)
            left = self._amounts(workload, kept)
            gone = {what: n - left.get(what, 0) for what, n in before_amounts.items()}
            if not accounts.may_lose(floors, gone):
                break
            sizes.append(kept)
            lost = gone
        if len(sizes) == 1:
            return None
        accounts.subtract(path, lost)
        return _Loser(cost, before, workload.key, name, tuple(sizes))

    def _is_idle(self, workload: Workload) -> bool:
        return idle_action(workload, self._know.queues, self._cycle.now_s) == "shrink"

    def _amounts(self, workload: Workload, pods: tuple[PodBinding, ...]) -> Mapping[str, int]:
        assert workload.request is not None
        request = sized(workload.request, counts_of(pods))
        return amounts_of(self._know.fleet.node, request, workload.cluster, pods)

    def _freed(self, loser: _Loser, size: int) -> list[Holding]:
        names = {each.pod for each in without(loser.sizes[0], loser.sizes[size])}
        held = self._know.fleet.holdings(loser.key)
        pairs = zip(loser.sizes[0], held, strict=False)
        return [holding for each, holding in pairs if each.pod in names]

    def _shrinking(self, job: Workload, found: _Found, via: Via) -> Shrinking:
        know = self._know
        resizes, longest_s = [], 0.0
        for loser, kept in found.kept:
            workload = know.open[loser.key]
            grace_s = workload.request.grace_s if workload.request is not None else None
            longest_s = max(longest_s, USUAL_GRACE_S if grace_s is None else grace_s)
            order = _order(workload, len(kept))
            order = msgspec.structs.replace(
                order,
                lost_gpu_s=round(loser.lost_gpu_s, 3),
                for_tenant=job.tenant,
                for_id=job.id,
                right=loser.right,
            )
            resizes.append(Resize(order, kept))
        room = owed_capacity(job.tenant, job.id, found.cluster, found.bound.holdings)
        if via == "worker":
            until_s = self._cycle.now_s + longest_s + KEPT_S
            room = msgspec.structs.replace(room, expected_at_s=until_s)
        return Shrinking(tuple(resizes), room)


def grown(cycle: Cycle) -> Iterator[tuple[Resize, tuple[Holding, ...]]]:
    """Yield attempts to grow, each with the holdings of its new pods. The caller charges each
    before the next.
    """
    know, now_s = cycle.know, cycle.now_s
    elastic = know.derived.elastic
    due = []
    for cluster in elastic.clusters():
        for name in elastic.among(cluster):
            workload = know.open[name]
            if name not in know.suspended and quiet_at_s(cycle, workload) <= now_s:
                wished, has = _wished(workload), counts_of(workload.pods)
                below = any(has.get(pods, count) < count for pods, count in wished.items())
                share = know.derived.share(_queue(workload))
                order = not below, -share.priority, -workload.priority
                due.append((*order, workload.submitted_sequence, name))
    wanted: dict[tuple[str, Via], bool] = {}
    told = 0
    for *_, name in sorted(due):
        workload = know.open[name]
        cluster, via = workload.cluster, workload.target.via
        if (cluster, via) not in wanted:
            is_free = _is_quiet(cycle, cluster) and not _is_wanted(cycle, cluster, via)
            wanted[cluster, via] = is_free
        if not wanted[cluster, via]:
            continue
        if via == "worker" and others_wait(know.clusters.peek(cluster), workload.target):
            continue
        found = _more(cycle, workload)
        if found is not None:
            yield found
            told += 1
            if told >= MOST_GROWN:
                return


def quiet_at_s(cycle: Cycle, workload: Workload) -> float:
    """Return the time from which the attempt may grow; infinity if it cannot."""
    return grows_at_s(workload, cycle.policy.grow_after_s)


def grows_at_s(workload: Workload, grow_after_s: float) -> float:
    """Return when the size has been constant long enough; infinity at the maximum size."""
    request = workload.request
    if request is None or not may_resize(workload) or not grow_after_s:
        return float("inf")
    if workload.idle is not None:
        return float("inf")
    if any(pods.topology is not None for pods in request.pod_sets):
        return float("inf")
    if all(pods.count >= most(pods) for pods in request.pod_sets):
        return float("inf")
    doubled: int = 2 ** min(workload.kept_sizes, MOST_DOUBLINGS)
    rest_s = grow_after_s * doubled
    return max(workload.running_at_s + grow_after_s, workload.resized_at_s + rest_s)


def _is_quiet(cycle: Cycle, cluster: str) -> bool:
    """Whether nothing has begun there for a while: what is free may be wanted in a moment."""
    know, since_s = cycle.know, cycle.now_s - cycle.policy.grow_after_s
    held = know.derived.held.get(cluster, ())
    return not any(know.open[name].placed_at_s > since_s for name in held)


def _is_full(why: str, via: Via) -> bool:
    """Return whether the cluster lacks only capacity for the request.

    ``via``: of the request, or of the attempt that would grow. Quota of a cluster's Kueue concerns
    only requests that use it.
    """
    return why == BUSY or (via == "worker" and why.startswith(NO_QUOTA))


def _is_wanted(cycle: Cycle, cluster: str, via: Via) -> bool:
    """Return whether a pending job, other than a trial, could use the cluster if it had capacity.
    ``via``: of the growing attempt.
    """
    know = cycle.know
    for line in know.derived.lines.lines():
        first = line.first()
        if first is not None and first[0][1] == -TRIAL_PRIORITY:
            continue
        if right_of(know, line).refusal:
            continue
        filtered = cycle.shortlist(line.request, line.shape).filtered
        if _is_full(filtered.get(cluster, BUSY), via):
            return True
    return False


def _more(cycle: Cycle, workload: Workload) -> tuple[Resize, tuple[Holding, ...]] | None:
    """As many more pods as there is room for and its queue may have."""
    request = workload.request
    assert request is not None  # elastic jobs have a request
    has, wished = counts_of(workload.pods), _wished(workload)
    high = {pods.name: most(pods) for pods in request.pod_sets}
    if any(has.get(pods, count) < count for pods, count in wished.items()):
        high = {pods: max(count, has.get(pods, count)) for pods, count in wished.items()}
    low = {pods.name: has.get(pods.name, pods.count) for pods in request.pod_sets}
    of = steps(request, low, high)
    if workload.target.via == "worker":  # the queues of other clusters are not asked
        request = msgspec.structs.replace(request, clusters=(workload.cluster,))

    def bound(step: int) -> Bound | None:
        more = _new_pods(request, low, at_step(low, high, step, of))
        more = _allowed(cycle, workload, more) if more is not None else None
        if more is None:
            return None
        return cycle.bind_in(more, shape_of(more), workload.cluster)

    best = most_that(1, of, bound)
    if best is None:
        return None
    new = tuple(
        msgspec.structs.replace(
            each, pod=f"{set_of(each.pod)}-{low[set_of(each.pod)] + index_of(each.pod)}"
        )
        for each in best.bindings
    )
    pods = together(workload.pods, new)
    return Resize(_order(workload, len(pods)), pods), best.holdings


def _new_pods(
    request: JobRequest, low: Mapping[str, int], high: Mapping[str, int]
) -> JobRequest | None:
    """Return a request for the additional pods only; None if there are none."""
    sets: list[PodSet] = [
        msgspec.structs.replace(
            pods, count=high[pods.name] - low[pods.name], min_count=None, max_count=None
        )
        for pods in request.pod_sets
        if high[pods.name] > low[pods.name]
    ]
    return msgspec.structs.replace(request, pod_sets=tuple(sets)) if sets else None


def _allowed(cycle: Cycle, workload: Workload, more: JobRequest) -> JobRequest | None:
    """Return the additional pods within the quota of the queue and its parents; None
    without quota.
    """
    know = cycle.know
    held = know.derived.ledger.gpu_milli_of_job(more.queue, workload.key)  # no part is elastic
    ask = know.derived.ask(more)._replace(jobs=0, held_milli=held)  # already running
    allowed = know.derived.right(more.queue, ask)
    if allowed.refusal or allowed.barred:
        return None
    return within_right(know, allowed, more)


def most_that(low: int, high: int, find: Callable[[int], Found | None]) -> Found | None:
    """Return the result for the largest number that has one, by bisection."""
    found = find(high) if low <= high else None
    if found is not None or low >= high:
        return found
    found = find(low)
    if found is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        tried = find(middle)
        if tried is None:
            high = middle
        else:
            found, low = tried, middle
    return found


def sizes_between(
    request: JobRequest, low: Mapping[str, int], high: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield all sizes below ``high`` down to ``low``."""
    of = steps(request, low, high)
    for step in reversed(range(of)):
        yield at_step(low, high, step, of)


def _wished(workload: Workload) -> dict[str, int]:
    asked = workload.wished or workload.request
    assert asked is not None  # elastic jobs have a request
    return {pods.name: pods.count for pods in asked.pod_sets}


def _queue(workload: Workload) -> str:
    return workload.request.queue if workload.request is not None else ""


def _first_of(pods: Sequence[PodBinding], counts: Mapping[str, int]) -> tuple[PodBinding, ...]:
    """Return the pods with the lowest indices, ``counts`` of each pod set."""
    return tuple(each for each in pods if index_of(each.pod) < counts.get(set_of(each.pod), 0))


def _first(sizes: Sequence[int], number: int) -> list[int]:
    return [size if at < number else 0 for at, size in enumerate(sizes)]


def _fewest(most_: int, will_do: Callable[[int], bool]) -> int | None:
    """Return the smallest sufficient number from 1 on, by bisection; None if none suffices."""
    if most_ < 1 or not will_do(most_):
        return None
    low, high = 0, most_
    while high - low > 1:
        middle = (low + high) // 2
        if will_do(middle):
            high = middle
        else:
            low = middle
    return high


def _order(workload: Workload, pods: int) -> ResizeOrder:
    return ResizeOrder(
        tenant=workload.tenant,
        id=workload.id,
        attempt=workload.attempt,
        cluster=workload.cluster,
        pods_before=len(workload.pods),
        pods=pods,
    )
