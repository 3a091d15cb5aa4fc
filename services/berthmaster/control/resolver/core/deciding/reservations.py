"""Capacity reserved for large jobs, so that small ones do not starve them.

``Reservations`` holds the reservations of a draft. ``Active`` is one of them, as other jobs see it.
releases.py finds time and nodes of a future start. ``ends_in_time`` decides which jobs may use the
nodes until then.

Example: a job of 8 GPUs is pending at 1,000 s, and by known ends a node is free at 4,000 s. The
reservation names that node and 4,000 s. A pending job that states 2,000 s may still run there. A
job that states 4,000 s, or nothing, may not.

Rules of this file:

- The first few jobs in order get a reservation, if they are due (lib/engine/queueing/lines.py), do
  not fit now and could ever fit. Without a known end, nothing is reserved at first. After
  ``reserve_wait_s`` nodes are reserved all the same, and no job of the same or a lower rank starts
  there.
- A decision records the reservation, which then stays. Otherwise its time would move away forever.
  It ends when its job is placed or must not run, or when its nodes become unusable. After its time,
  a job that waited long enough keeps the nodes without a time.
- With ``expect: similar``, an unstated end is the median of an estimate, and a job that uses
  reserved nodes must end in time by the upper end of its own. From ``ESTIMATED_WAITS`` times
  ``reserve_wait_s`` after its submission, a job's reservation is made by stated ends alone. So
  wrong estimates delay a job no longer than that.
- With due times, unstated ends are estimated from learned durations. Until its job is due, a
  reservation is a plan: each decision makes it again, earliest due time first.
- So a job with a reservation waits no longer than the jobs on those nodes at that time. A job
  without one waits until a job of its rank or above, out of ``reservations``, starts, or for
  ``reserve_wait_s``.
- A job of a better rank, by guarantee, queue priority or priority, is not delayed.
- Capacity freed by preemption (preemptor.py) is ``owed``: reserved for the preemptor alone until it
  starts anywhere, must not run, or the nodes become unusable.
- A moving job (move_away.py) has its new nodes reserved while it still runs. Such reservations are
  owed too, and count against no other reservations.
- Where Kueue decides what starts, nothing is reserved.
- Present jobs and the future job never use a node together. So other jobs leave alone the higher
  use of both at any time, not the sum (releases.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.releases import (
    UNKNOWN_S,
    Awaiting,
    Release,
    ends_version,
    least_releases,
    reseat,
    returned_to,
    soonest,
)
from berthmaster.control.resolver.core.deciding.turns import Rank, rank_of, right_of
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import ESTIMATED_WAITS, Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.fleet import WHOLE, Holding, Overlay
from berthmaster.lib.engine.fleet.needs import Shape, gpu_milli
from berthmaster.lib.engine.fleet.pieces import Pieces
from berthmaster.lib.engine.fleetview.shortlist import BUSY
from berthmaster.lib.engine.queueing.lines import Line, duration_class, longest_s
from berthmaster.lib.engine.queueing.queues import models_left, prices_of
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Key, stated_end_s
from berthmaster.lib.messages.placement import HeldNode, HeldPieces, Reservation
from berthmaster.lib.messages.workload import JobRequest

Token = tuple[Key, int]  # a reservation, and a hash of its nodes' attempts
MAX_HELD_NODES: Final = 3000  # all reservations together, since one message holds them
CLUSTERS_SEARCHED: Final = 4  # clusters searched for one job, the earliest fit first
_RETURNED: Final = "returned"  # in the overlay
_FIRST: Final[Rank] = ((), 0)  # rank of a moving job: nothing goes before


def held_nodes(holdings: Sequence[Holding]) -> tuple[HeldNode, ...]:
    nodes: dict[tuple[str, int, int, str, str], list[Holding]] = {}
    for held in holdings:
        like = (held.node, held.gpu_milli, held.gpu_memory_mib, held.mig_profile, held.isolation)
        nodes.setdefault(like, []).append(held)
    out = []
    for _, group in sorted(nodes.items()):
        gpus = [gpu for held in group for gpu in held.gpus]
        if len(set(gpus)) < len(gpus):  # parts of the same GPU: each has an entry of its own
            out += [_held_node([held]) for held in group]
        else:
            out.append(_held_node(group))
    return tuple(out)


def owed_capacity(
    tenant: str,
    workload_id: str,
    cluster: str,
    holdings: Sequence[Holding],
    *,
    moving: bool = False,
) -> Reservation:
    """Return a reservation for one workload alone, until its start. ``moving``: the workload leaves
    another place for it.
    """
    return Reservation(
        tenant=tenant,
        id=workload_id,
        cluster=cluster,
        held=held_nodes(holdings),
        owed=True,
        moving=moving,
    )


def _held_node(group: list[Holding]) -> HeldNode:
    """Return the sum of holdings that differ only in CPU, memory and GPUs."""
    return HeldNode(
        node=group[0].node,
        cpu_milli=sum(held.cpu_milli for held in group),
        memory_mib=sum(held.memory_mib for held in group),
        gpu_milli=group[0].gpu_milli,
        gpus=tuple(sorted(gpu for held in group for gpu in held.gpus)),
        gpu_memory_mib=group[0].gpu_memory_mib,
        mig_profile=group[0].mig_profile,
        pieces=_together(held.pieces for held in group),
        isolation=group[0].isolation,
    )


def _together(many: Iterable[Pieces]) -> tuple[HeldPieces, ...]:
    total: dict[str, int] = {}
    for pieces in many:
        for name, number in pieces:
            total[name] = total.get(name, 0) + number
    return tuple(HeldPieces(resource=name, number=n) for name, n in sorted(total.items()))


def holdings_of(reservation: Reservation) -> tuple[Holding, ...]:
    """Return the holdings to charge for a reservation."""
    return tuple(
        Holding(
            reservation.cluster,
            held.node,
            held.cpu_milli,
            held.memory_mib,
            held.gpu_milli,
            held.gpus,
            held.gpu_memory_mib,
            held.mig_profile,
            tuple((one.resource, one.number) for one in held.pieces),
            held.isolation,
        )
        for held in reservation.held
    )


def ends_in_time(
    reservation: Reservation, now_s: float, lasts_s: float | None, share: float
) -> bool:
    """Return whether a job that starts now ends before the reservation, or has run the share
    ``share`` of its duration by then.
    """
    at_s = reservation.expected_at_s
    return at_s is not None and lasts_s is not None and now_s + share * lasts_s <= at_s


# The search


class Active(NamedTuple):
    """A reservation charged in a draft."""

    key: Key
    rank: Rank
    reservation: Reservation
    holdings: tuple[Holding, ...]
    token: Token

    def limits(
        self, key: Key | None, rank: Rank, lasts_s: float | None, now_s: float, share: float
    ) -> bool:
        """Return whether a job must not use the reserved nodes."""
        if key == self.key:
            return False
        if self.reservation.owed:
            return True
        if rank < self.rank:
            return False
        return not ends_in_time(self.reservation, now_s, lasts_s, share)


def lasts_s(know: Knowledge, policy: Policy, key: Key | None, request: JobRequest) -> float | None:
    """Return how long a job may run on reserved nodes; None if unknown. ``key``: None for a job
    that is not submitted.
    """
    if policy.order == "due" and key is not None:
        return know.derived.due_order.lasts_s(key, request)
    if policy.expects_similar and key is not None and request.expected_duration_s is None:
        return longest_s(duration_class(know.derived.foresight.lasts_s(know.open[key])))
    return longest_s(duration_class(request.expected_duration_s))


def active_of(know: Knowledge, line: Line, key: Key, reservation: Reservation) -> Active:
    """Return the reservation of a line's member as other jobs see it."""
    return _active(know, key, rank_of(know, line, key), reservation)


def _active(know: Knowledge, key: Key, rank: Rank, reservation: Reservation) -> Active:
    # Limits on others depend on the attempts on the nodes, so the token does too.
    token = key, hash((reservation, ends_version(know, reservation)))
    return Active(key, rank, reservation, holdings_of(reservation), token)


def awaiting(active: Sequence[Active]) -> list[Awaiting]:
    """Return the same for ``returned_to``."""
    return [Awaiting(each.key, each.reservation, each.holdings) for each in active]


class _Result(NamedTuple):
    """The result of a search for a line's first job, and how long it stays true."""

    seen: tuple[int, int, int, frozenset[str]]
    in_force: dict[Key, Reservation]
    key: Key
    until_s: float
    could_fit: bool
    reservation: Reservation | None


class Reservations:
    """The reservations of a draft. Each is charged to the fleet through the draft's overlay."""

    def __init__(
        self, cycle: Cycle, overlay: Overlay, active: dict[Key, Active], *, anew: bool
    ) -> None:
        """``active``: the draft's, and changed here. ``anew``: without remembered results."""
        self._cycle = cycle
        self._overlay = overlay
        self._know = cycle.know
        self._anew = anew
        self.remembered = False  # a result of an earlier search was used
        self._policy = cycle.policy
        self._now_s = cycle.now_s
        self._searches = 0
        self._releases_of: dict[bool, dict[str, list[Release]]] = {}  # with estimates or without
        self._estimated: set[Key] = set()  # live jobs whose end is estimated from similar jobs
        self.active = active
        # A class that did not fit beside these reservations cannot fit while all of them exist.
        self.tokens: frozenset[Token] = frozenset()
        self._returned: dict[tuple[Token, ...], list[Holding]] = {}

    def charge_recorded(self) -> None:
        """Charge the reservations of earlier decisions that still hold."""
        for key, reservation in in_force(self._cycle).items():
            self._add(key, reservation)

    def recorded(self) -> dict[Key, Reservation]:
        """Return the reservations for the record."""
        return {key: each.reservation for key, each in self.active.items()}

    def _add(self, key: Key, reservation: Reservation) -> None:
        line = self._know.derived.lines.line_of(key)
        if line is not None:
            active = active_of(self._know, line, key, reservation)
        else:  # the job still runs elsewhere, and waits in no line
            active = _active(self._know, key, _FIRST, reservation)
        self.active[key] = active
        self.tokens |= {active.token}
        self._overlay.take(("reserved", key), active.holdings)

    def add_owed(self, key: Key, reservation: Reservation) -> None:
        """Reserve freed capacity for a job, in place of its earlier reservation. Beyond the limit,
        the last reservation that is not owed ends.
        """
        self.drop(key)
        if self._waiting >= self._policy.reservations:
            loose = [each for each in self.active.values() if not each.reservation.owed]
            if loose:
                self.drop(max(loose, key=lambda each: (each.rank, each.key)).key)
        self._add(key, reservation)

    def add_moving(self, key: Key, reservation: Reservation) -> None:
        """Reserve the nodes of a moving job."""
        self.drop(key)
        self._add(key, reservation)

    @property
    def moving(self) -> int:
        """Return the number of moving jobs."""
        return sum(each.reservation.moving for each in self.active.values())

    @property
    def _waiting(self) -> int:
        """Return the number of other reservations, limited by ``reservations``."""
        return len(self.active) - self.moving

    def is_owed(self, key: Key) -> bool:
        """Return whether others were evicted for the job."""
        active = self.active.get(key)
        return active is not None and active.reservation.owed

    @property
    def may_add_owed(self) -> bool:
        """Return whether the limit allows another owed reservation."""
        owed = sum(
            each.reservation.owed and not each.reservation.moving for each in self.active.values()
        )
        return owed < self._policy.reservations

    # While a job is being placed

    def others(self, key: Key) -> tuple[Active, ...]:
        """Return all but a job's own."""
        return tuple(each for each in self.active.values() if each.key != key)

    def limiting(self, key: Key, rank: Rank, request: JobRequest) -> tuple[Active, ...]:
        """Return the reservations whose nodes a job must not use."""
        now_s, share = self._now_s, self._policy.backfill
        lasts = lasts_s(self._know, self._policy, key, request)
        return tuple(e for e in self.active.values() if e.limits(key, rank, lasts, now_s, share))

    def only(self, charged: tuple[Active, ...]) -> AbstractContextManager[None]:
        """Charge only these reservations."""
        if len(charged) == len(self.active):
            return nullcontext()
        keys = {each.key for each in charged}
        return self._overlay.without([("reserved", key) for key in self.active if key not in keys])

    @contextmanager
    def beside(self, charged: tuple[Active, ...] | None = None) -> Iterator[None]:
        """Charge these reservations (None = all), less what others may use beside present attempts.

        For jobs on free capacity. A preemptor must leave all reserved capacity alone (``only``).
        """
        charged = tuple(self.active.values()) if charged is None else charged
        with self.only(charged):
            returned = self._returned_to(charged)
            if returned:
                self._overlay.free(_RETURNED, returned)
            try:
                yield
            finally:
                if returned:
                    self._overlay.give_back(_RETURNED)

    def returns(self, charged: tuple[Active, ...]) -> bool:
        """Return whether ``beside`` leaves more free than ``only``."""
        return bool(self._returned_to(charged))

    def _returned_to(self, charged: tuple[Active, ...]) -> list[Holding]:
        tokens = tuple(each.token for each in charged)
        found = self._returned.get(tokens)
        if found is None:
            found = returned_to(self._know, awaiting(charged), self._now_s)
            self._returned[tokens] = found
        return found

    def drop(self, key: Key) -> None:
        active = self.active.pop(key, None)
        if active is not None:
            self.tokens -= {active.token}
            self._overlay.give_back(("reserved", key))

    def drop_lower(self, rank: Rank, taken: Sequence[Holding]) -> None:
        """End reservations of a lower rank on nodes that a placed job uses."""
        self.drop_on((each for each in self.active.values() if rank < each.rank), taken)

    def drop_on(self, candidates: Iterable[Active], taken: Sequence[Holding]) -> None:
        """End reservations that are not owed and share a node with ``taken``."""
        nodes = {(held.cluster, held.node) for held in taken}
        for each in list(candidates):
            if each.reservation.owed:
                continue
            if nodes & {(h.cluster, h.node) for h in each.holdings}:
                self.drop(each.key)

    # Jobs that do not fit

    def search(
        self,
        line: Line,
        key: Key,
        rank: Rank,
        request: JobRequest,
        shape: Shape,
        *,
        untouched: bool,
    ) -> None:
        """Reserve nodes for a skipped job, if it is among the first. ``untouched``: the draft has
        placed nothing, so an earlier result may still hold.
        """
        most = self._policy.reservations
        setting = self._know.queues.get(line.queue)
        if self._searches >= most or (setting is not None and setting.via != "direct"):
            return
        has_one = key in self.active
        if not has_one and line.members[key][2].keep_at_s > self._now_s:
            return  # not due yet
        if has_one:
            self._searches += 1
            return
        if self._policy.expects_similar and self._has_like(line):
            return  # lines that differ by an estimate alone are one, as where none is known
        full = self._waiting >= most
        if full and not any(rank < each.rank for each in self.active.values()):
            return  # no reservation gives way to it
        # Expected ends change with time.
        by_known_ends = self._policy.order == "arrival" and not self._policy.expects_similar
        old = untouched and by_known_ends and not self._anew
        found = self._remembered(line, key) if old else None
        if found is None:
            found = self._find(line, key, request, shape)
            line.looked = found if untouched else None
        self._searches += found.could_fit
        reservation = found.reservation
        if reservation is None:
            return
        if full:
            loose = [each for each in self.active.values() if not each.reservation.owed]
            last = max(loose, key=lambda each: (each.rank, each.key), default=None)
            if last is None or not rank < last.rank:
                return
            self.drop(last.key)
        nodes = sum(len(each.holdings) for each in self.active.values())
        if nodes + len(reservation.held) <= MAX_HELD_NODES:
            self._add(key, reservation)

    def _has_like(self, line: Line) -> bool:
        """Return whether a job of the same queue and shape has a reservation."""
        for key in self.active:
            other = self._know.derived.lines.line_of(key)
            if other is not None and other.id[:2] == line.id[:2]:
                return True
        return False

    def begins_at_s(self, line: Line, key: Key, request: JobRequest, shape: Shape) -> float | None:
        """Return when a job will fit by the known ends; None if unknown."""
        active = self.active.get(key)
        found = active.reservation if active else self._find(line, key, request, shape).reservation
        return found.expected_at_s if found is not None else None

    def _remembered(self, line: Line, key: Key) -> _Result | None:
        looked = line.looked
        if (
            isinstance(looked, _Result)
            and looked.seen == self._seen()
            and looked.key == key
            and self._now_s <= looked.until_s
            and looked.in_force == self.recorded()
        ):
            self.remembered = True
            return looked
        return None

    def _seen(self) -> tuple[int, int, int, frozenset[str]]:
        """Return all that a result depends on, besides the waiting jobs and the time."""
        derived = self._know.derived
        return derived.growth, derived.changes, derived.ends_told, derived.open_clusters

    def _find(self, line: Line, key: Key, request: JobRequest, shape: Shape) -> _Result:
        know, now_s = self._know, self._now_s
        shortlist = self._cycle.shortlist(request, shape)
        busy = [c for c, why in shortlist.filtered.items() if why == BUSY]
        busy += [c.cluster for c in shortlist.candidates if c.cluster not in shortlist.filtered]
        could_fit, best = False, None
        estimates = now_s <= estimated_until_s(know, self._policy, key)
        for bound_s, cluster, at_least, releases in self._promising(busy, request, estimates):
            if best is not None and (bound_s, cluster) >= best[1:3]:
                break

            def fits(cluster: str = cluster) -> Bound | None:
                return self._cycle.bind_in(request, shape, cluster)

            found = soonest(know.fleet, releases, at_least, fits)
            could_fit |= found is not None
            # At equal times always the same choice: an end as expected moves no plan.
            if found is not None and (best is None or (found[1], cluster) < best[1:3]):
                best = (found[0], found[1], cluster, releases[: found[2]])
        workload = know.open[key]
        firm_s = firm_at_s(know, self._policy, line, key)
        reservation = None
        if best is not None and (best[1] < UNKNOWN_S or now_s >= firm_s):
            rests_on = {release.key for release in best[3]} & self._estimated
            reservation = Reservation(
                tenant=workload.tenant,
                id=workload.id,
                cluster=best[2],
                held=held_nodes(reseat(know.fleet, best[0].holdings, best[3])),
                expected_at_s=best[1] if best[1] < UNKNOWN_S else None,
                estimated=estimates and bool(rests_on),
            )
        until_s = self._known_until_s(busy)
        if reservation is None and could_fit:
            until_s = min(until_s, firm_s)
        return _Result(self._seen(), self.recorded(), key, until_s, could_fit, reservation)

    def _promising(
        self, busy: list[str], request: JobRequest, estimates: bool
    ) -> list[tuple[float, str, int, list[Release]]]:
        """Return the clusters where it may fit first, each with a bound on the time."""
        asked = gpu_milli(request)
        live = self._releases(estimates)
        found = []
        for cluster in busy:
            releases = live.get(cluster, [])
            there = self._know.derived.ledger.gpu_milli_of(cluster)
            ours = sum(release.gpu_milli for release in releases)
            at_least = least_releases(releases, asked - (there - ours))
            if at_least is not None:
                bound_s = releases[at_least - 1].at_s if at_least else self._now_s
                found.append((bound_s, cluster, at_least, releases))
        found.sort(key=lambda each: each[:2])
        return found[:CLUSTERS_SEARCHED]

    def _releases(self, estimates: bool) -> dict[str, list[Release]]:
        """Return the live placements of each cluster, earliest end first. ``estimates``: by similar
        jobs too, if the policy says so.
        """
        estimates = estimates and self._policy.expects_similar
        releases_of = self._releases_of.get(estimates)
        if releases_of is None:
            know, now_s = self._know, self._now_s
            releases_of = self._releases_of[estimates] = {}
            derived = know.derived
            held = (name for held in derived.held.values() for name in held)
            names = [*derived.unclaimed, *held]
            for name in names:
                workload = know.open[name]
                at_s = stated_end_s(workload, now_s)
                if self._policy.order == "due":
                    at_s = know.derived.due_order.ends_s(workload, now_s)
                elif at_s is None and estimates:
                    at_s = know.derived.foresight.ends_s(workload, now_s)
                    self._estimated.update((name,) if at_s is not None else ())
                release = Release(
                    UNKNOWN_S if at_s is None else at_s,
                    workload.placed_at_s,
                    name,
                    gpu_milli_of(workload),
                    know.fleet.holdings(name),
                )
                releases_of.setdefault(workload.cluster, []).append(release)
            for releases in releases_of.values():
                releases.sort(key=lambda r: r[:3])
        return releases_of

    def _known_until_s(self, clusters: list[str]) -> float:
        """Return until when the known ends stay the same without an event."""
        live = self._releases(estimates=True)
        return min((live[c][0].at_s for c in clusters if live.get(c)), default=UNKNOWN_S)


def firm_at_s(know: Knowledge, policy: Policy, line: Line, key: Key) -> float:
    """Return when a reservation begins to hold without a time that is to come."""
    waited_s = know.open[key].submitted_at_s + policy.reserve_wait_s
    return max(waited_s, line.members[key][2].firm_at_s)


def estimated_until_s(know: Knowledge, policy: Policy, key: Key) -> float:
    """Return until when a reservation may rest on estimates, however wrong those are."""
    return know.open[key].submitted_at_s + ESTIMATED_WAITS * policy.reserve_wait_s


def in_force(cycle: Cycle) -> dict[Key, Reservation]:
    """Return the recorded reservations that still hold."""
    know, policy, now_s, snapshot = cycle.know, cycle.policy, cycle.now_s, cycle.snapshot
    closed = {snapshot.clusters[number] for number in snapshot.closed}
    valid: dict[Key, Reservation] = {}
    recorded = sorted(know.reservations.items(), key=lambda each: not each[1].owed)  # stable
    waiting = 0
    for key, reservation in recorded:
        line = know.derived.lines.line_of(key)
        if line is not None and not _may_have(know, line, reservation):
            continue
        if reservation.moving:
            if _still_moves(know, key, reservation) and reservation.cluster not in closed:
                valid[key] = reservation
            continue
        if line is None or waiting >= policy.reservations:
            continue
        setting = know.queues.get(line.queue)
        if setting is not None and setting.via != "direct" and not reservation.owed:
            continue
        if reservation.cluster in closed:
            continue
        if not all(_usable(know, reservation.cluster, held) for held in reservation.held):
            continue
        at_s = reservation.expected_at_s
        if reservation.estimated and now_s > estimated_until_s(know, policy, key):
            continue  # reserved anew, by stated ends alone
        passed = at_s is not None and now_s > at_s
        plan = passed or policy.order == "due"  # planned again until firm
        if plan and not reservation.owed and now_s < firm_at_s(know, policy, line, key):
            continue
        if passed:
            reservation = Reservation(
                tenant=reservation.tenant,
                id=reservation.id,
                cluster=reservation.cluster,
                held=reservation.held,
            )
        valid[key] = reservation
        waiting += 1
    return valid


def _may_have(know: Knowledge, line: Line, reservation: Reservation) -> bool:
    """Return whether the class's queue may use those nodes, which would idle otherwise."""
    right = right_of(know, line)
    if right.refusal:
        return False
    left = dict(right.left)
    for held in holdings_of(reservation) if right.barred or left else ():
        report = know.fleet.node(reservation.cluster, held.node)
        for gpu in report.gpus if report is not None else ():
            if gpu.index not in held.gpus:
                continue
            if right.barred and not models_left((), right.barred, (gpu.model,)):
                return False
            milli = held.gpus.count(gpu.index) * know.fleet.charged_milli(held, gpu.index)
            for resource in left:
                if prices_of(((gpu.model, milli),), resource):
                    left[resource] -= milli
    return all(milli >= 0 for milli in left.values())


def _still_moves(know: Knowledge, key: Key, reservation: Reservation) -> bool:
    """Return whether a job still moves: it is being evicted, or is pending for its new
    place only.
    """
    workload = know.open.get(key)
    if workload is None or workload.leads_to != reservation.cluster:
        return False
    waits = know.derived.lines.line_of(key) is not None
    if not waits and not (workload.live and workload.leaving):
        return False
    return all(_usable(know, reservation.cluster, held) for held in reservation.held)


def _usable(know: Knowledge, cluster: str, held: HeldNode) -> bool:
    """Return whether a node could hold a reservation without managed jobs on it."""
    report = know.fleet.node(cluster, held.node)
    if report is None or not (report.ready and report.schedulable):
        return False
    if (cluster, held.node) in know.view.cordons:
        return False
    if report.allocatable.cpu_milli - report.foreign.cpu_milli < held.cpu_milli:
        return False
    if report.allocatable.memory_mib - report.foreign.memory_mib < held.memory_mib:
        return False
    free = {
        gpu.index: WHOLE - gpu.withheld_milli - gpu.foreign_milli
        for gpu in report.gpus
        if gpu.healthy
    }
    return all(free.get(gpu, 0) >= held.gpu_milli for gpu in held.gpus)
