"""Room that is kept for large jobs, so that small ones do not starve them.

The first jobs by order that are due (lib/engine/queueing/order.py), do not fit and could ever fit,
a few at most, each get a reservation: nodes of one cluster, and the time at which they will be free
by the ends that are known. Others may use the room until then. Where that time is not known,
nothing is kept at first; a job that has waited for ``reserve_wait_s`` has room kept all the same,
and then nobody of its rank or below comes in between: it starts when what runs on those nodes has
ended.

- A reservation is told in a decision and stays as it is, or its time would move away for ever. It
  ends when its job is placed (anywhere), may not run, or when its nodes cannot be had. If its time
  passes, a job that has waited long enough keeps the room, now without a time.
- Where jobs go by when they are due, ends that nobody stated are expected from what was learned,
  and room is a plan until its job is due: made anew with each decision, for the first by due time.
  From then on it stands as said above.
- The bound: a job that holds a reservation waits no longer than what ran on those nodes then runs,
  as nothing that would stay longer is let in. One that holds none although it could waits for one
  of the ``reservations`` of its rank or above to start, or for ``reserve_wait_s``.
- Who is of a better rank, by guarantee, queue priority or priority, is not held up.
- Room is owed where others were ended for it (make_room.py): that is for its job alone, whoever
  else waits, until it begins anywhere, may not run, or the nodes cannot be had.
- Room of a job that is moved (move_away.py) is owed as well, while the job still runs elsewhere and
  until it begins or may not run there. It counts against nobody's reservations.
- Where a cluster's Kueue decides what starts, nothing is kept.
- What runs on the nodes now and the job that follows it never use them together: of both, others
  must leave alone the highest use at any time, not the sum (awaited.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.awaited import (
    Awaiting,
    ends_version,
    reseat,
    returned_to,
)
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.turns import Rank, rank_of, right_of
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.fleet import Holding
from berthmaster.lib.engine.fleet.needs import Shape, gpu_milli
from berthmaster.lib.engine.fleet.overlay import Overlay
from berthmaster.lib.engine.fleetview.filters import BUSY
from berthmaster.lib.engine.queueing.lines import Line, duration_class, longest_s
from berthmaster.lib.engine.queueing.queues import models_left, prices_of
from berthmaster.lib.engine.queueing.reservations import (
    MAX_HELD_NODES,
    UNKNOWN_S,
    Release,
    ends_in_time,
    held_nodes,
    holdings_of,
    least_releases,
    soonest,
    stated_end_s,
)
from berthmaster.lib.lifecycle.bindings import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import HeldNode, Reservation
from berthmaster.lib.messages.workload import JobRequest

CLUSTERS_LOOKED_AT: Final = 4  # for one job: those that may have room first


Token = tuple[Key, int]
_RETURNED: Final = "returned"  # in the overlay
_FIRST: Final[Rank] = ((), 0)  # of one that moves: nobody goes before it


class Kept(NamedTuple):
    """A reservation in force."""

    key: Key
    rank: Rank
    reservation: Reservation
    holdings: tuple[Holding, ...]
    token: Token

    def limits(
        self, key: Key | None, rank: Rank, lasts_s: float | None, now_s: float, share: float
    ) -> bool:
        """Whether a job must leave the room alone."""
        if key == self.key:
            return False
        if self.reservation.owed:
            return True
        if rank < self.rank:
            return False
        return not ends_in_time(self.reservation, now_s, lasts_s, share)


def lasts_s(know: Knowledge, policy: Policy, key: Key | None, request: JobRequest) -> float | None:
    """How long a job may take in somebody else's room; None: nobody knows. ``key``: None for one
    that is not submitted."""
    if policy.order == "due" and key is not None:
        return know.derived.due_order.lasts_s(key, request)
    return longest_s(duration_class(request.expected_duration_s))


def kept_of(know: Knowledge, line: Line, key: Key, reservation: Reservation) -> Kept:
    """What a reservation of a line's member means for others."""
    return _kept(know, key, rank_of(know, line, key), reservation)


def _kept(know: Knowledge, key: Key, rank: Rank, reservation: Reservation) -> Kept:
    # What must be left alone follows from what runs on the nodes, too: with that the token changes.
    token = key, hash((reservation, ends_version(know, reservation)))
    return Kept(key, rank, reservation, holdings_of(reservation), token)


def awaiting(kept: Sequence[Kept]) -> list[Awaiting]:
    """Reservations as what runs on their nodes matters to them."""
    return [Awaiting(each.key, each.reservation, each.holdings) for each in kept]


class _Looked(NamedTuple):
    """What was found out for a line's first, and how long that stays true."""

    seen: tuple[int, int, int, frozenset[str]]
    in_force: dict[Key, Reservation]
    key: Key
    until_s: float
    could_fit: bool
    reservation: Reservation | None


class Reserves:
    """The reservations in a draft. Their room is charged through its overlay from ``begin`` on."""

    def __init__(self, cycle: Cycle, overlay: Overlay, *, anew: bool) -> None:
        self._cycle = cycle
        self._overlay = overlay
        self._know = cycle.know
        self._anew = anew
        self.remembered = False  # something that was found out before was taken for true
        self._policy = cycle.policy
        self._now_s = cycle.now_s
        self._looked = 0
        self._tokens: frozenset[Token] = frozenset()
        self._live: dict[str, list[Release]] | None = None
        self.kept: dict[Key, Kept] = {}
        self._returned: dict[tuple[Token, ...], list[Holding]] = {}

    def begin(self) -> None:
        """With those that decisions told, as far as they still can be kept."""
        self._know.derived.look_at_ends(self._now_s)
        for key, reservation in in_force(self._cycle).items():
            self._keep(key, reservation)

    def told(self) -> dict[Key, Reservation]:
        """As a decision tells them."""
        return {key: kept.reservation for key, kept in self.kept.items()}

    @property
    def tokens(self) -> frozenset[Token]:
        """Those in force now, to compare with those that a line had to mind when it did not fit:
        while they are still there it does not fit either."""
        return self._tokens

    def _keep(self, key: Key, reservation: Reservation) -> None:
        line = self._know.derived.lines.line_of(key)
        if line is not None:
            kept = kept_of(self._know, line, key, reservation)
        else:  # it runs elsewhere still, and waits in no line
            kept = _kept(self._know, key, _FIRST, reservation)
        self.kept[key] = kept
        self._tokens |= {kept.token}
        self._overlay.take(("kept", key), kept.holdings)

    def owe(self, key: Key, reservation: Reservation) -> None:
        """Others are ended for it: the room is kept in place of any that it had, and if there are
        as many as may be, in place of the last that nobody is owed."""
        self.drop(key)
        if self._waiting >= self._policy.reservations:
            loose = [k for k in self.kept.values() if not k.reservation.owed]
            if loose:
                self.drop(max(loose, key=lambda k: (k.rank, k.key)).key)
        self._keep(key, reservation)

    def keep_moving(self, key: Key, reservation: Reservation) -> None:
        """It is ended elsewhere so that it goes on here."""
        self.drop(key)
        self._keep(key, reservation)

    @property
    def moving(self) -> int:
        """For how many jobs that move room is kept."""
        return sum(kept.reservation.moving for kept in self.kept.values())

    @property
    def _waiting(self) -> int:
        """For how many others: of those there may be so many."""
        return len(self.kept) - self.moving

    def owed(self, key: Key) -> bool:
        """Whether others were ended for it."""
        kept = self.kept.get(key)
        return kept is not None and kept.reservation.owed

    @property
    def may_owe(self) -> bool:
        """Whether there is place for one more."""
        owed = sum(k.reservation.owed and not k.reservation.moving for k in self.kept.values())
        return owed < self._policy.reservations

    # While a job is being placed

    def others(self, key: Key) -> tuple[Kept, ...]:
        """All but its own."""
        return tuple(kept for kept in self.kept.values() if kept.key != key)

    def charged_for(self, key: Key, rank: Rank, request: JobRequest) -> tuple[Kept, ...]:
        """Those that a job must leave alone."""
        now_s, share = self._now_s, self._policy.backfill
        lasts = lasts_s(self._know, self._policy, key, request)
        return tuple(k for k in self.kept.values() if k.limits(key, rank, lasts, now_s, share))

    def aside(self, but: tuple[Kept, ...]) -> AbstractContextManager[None]:
        """As if there were no reservations but those."""
        if len(but) == len(self.kept):
            return nullcontext()
        keys = {kept.key for kept in but}
        return self._overlay.without([("kept", key) for key in self.kept if key not in keys])

    @contextmanager
    def beside(self, but: tuple[Kept, ...] | None = None) -> Iterator[None]:
        """As ``aside``, and what runs now and what is kept there for later counts as it is used:
        not at the same time. For whoever takes room that is free now; who has others ended must
        leave alone all that is kept. ``but``: None = all."""
        but = tuple(self.kept.values()) if but is None else but
        with self.aside(but):
            room = self._returned_to(but)
            if room:
                self._overlay.free(_RETURNED, room)
            try:
                yield
            finally:
                if room:
                    self._overlay.give_back(_RETURNED)

    def leaves_room(self, but: tuple[Kept, ...]) -> bool:
        """Whether ``beside`` these is more than ``aside``."""
        return bool(self._returned_to(but))

    def _returned_to(self, kept: tuple[Kept, ...]) -> list[Holding]:
        tokens = tuple(each.token for each in kept)
        found = self._returned.get(tokens)
        if found is None:
            found = returned_to(self._know, awaiting(kept), self._now_s)
            self._returned[tokens] = found
        return found

    def has(self, key: Key) -> bool:
        """Whether room is kept for it."""
        return key in self.kept

    def drop(self, key: Key) -> None:
        """It is placed, or another job goes before it."""
        kept = self.kept.pop(key, None)
        if kept is not None:
            self._tokens -= {kept.token}
            self._overlay.give_back(("kept", key))

    def give_way(self, rank: Rank, taken: Sequence[Holding]) -> None:
        """A job of a better rank is placed: what is kept on its nodes is looked for anew."""
        self.look_anew((k for k in self.kept.values() if rank < k.rank), taken)

    def look_anew(self, those: Iterable[Kept], taken: Sequence[Holding]) -> None:
        """Those that nobody is owed lose their room if any of it is on nodes of which others take
        some."""
        nodes = {(held.cluster, held.node) for held in taken}
        for kept in list(those):
            if kept.reservation.owed:
                continue
            if nodes & {(h.cluster, h.node) for h in kept.holdings}:
                self.drop(kept.key)

    # For a job that does not fit

    def look(
        self,
        line: Line,
        key: Key,
        rank: Rank,
        request: JobRequest,
        shape: Shape,
        *,
        untouched: bool,
    ) -> None:
        """Keep room for a job that is passed over, if it is among the first. ``untouched``: nothing
        has been placed in this draft, so that what was found out before may still be true."""
        most = self._policy.reservations
        setting = self._know.queues.get(line.queue)
        if self._looked >= most or (setting is not None and setting.via != "direct"):
            return
        if not self.has(key) and line.members[key][2].keep_at_s > self._now_s:
            return  # what is free is for those who can use it
        if self.has(key):
            self._looked += 1
            return
        full = self._waiting >= most
        if full and not any(rank < kept.rank for kept in self.kept.values()):
            return  # as many as may be, and none of them gives way to it
        by_known_ends = self._policy.order == "arrival"  # what is expected changes as time goes by
        old = untouched and by_known_ends and not self._anew
        found = self._remembered(line, key) if old else None
        if found is None:
            found = self._find(line, key, request, shape)
            line.looked = found if untouched else None
        self._looked += found.could_fit
        reservation = found.reservation
        if reservation is None:
            return
        if full:
            loose = [k for k in self.kept.values() if not k.reservation.owed]
            last = max(loose, key=lambda k: (k.rank, k.key), default=None)
            if last is None or not rank < last.rank:
                return
            self.drop(last.key)
        nodes = sum(len(kept.holdings) for kept in self.kept.values())
        if nodes + len(reservation.held) <= MAX_HELD_NODES:
            self._keep(key, reservation)

    def begins_at_s(self, line: Line, key: Key, request: JobRequest, shape: Shape) -> float | None:
        """When a job that does not fit will, by the ends that are known; None = nobody knows."""
        kept = self.kept.get(key)
        told = kept.reservation if kept else self._find(line, key, request, shape).reservation
        return told.expected_at_s if told is not None else None

    def _remembered(self, line: Line, key: Key) -> _Looked | None:
        looked = line.looked
        if (
            isinstance(looked, _Looked)
            and looked.seen == self._seen()
            and looked.key == key
            and self._now_s <= looked.until_s
            and looked.in_force == self.told()
        ):
            self.remembered = True
            return looked
        return None

    def _seen(self) -> tuple[int, int, int, frozenset[str]]:
        """All that matters here besides who waits and what time it is."""
        derived = self._know.derived
        return derived.growth, derived.changes, derived.ends_told, derived.open_clusters

    def _find(self, line: Line, key: Key, request: JobRequest, shape: Shape) -> _Looked:
        know, now_s = self._know, self._now_s
        shortlist = self._cycle.shortlist(request, shape)
        busy = [c for c, why in shortlist.filtered.items() if why == BUSY]
        busy += [c.cluster for c in shortlist.candidates if c.cluster not in shortlist.filtered]
        could_fit, best = False, None
        for bound_s, cluster, at_least, releases in self._promising(busy, request):
            if best is not None and (bound_s, cluster) >= best[1:3]:
                break

            def fits(cluster: str = cluster) -> Bound | None:
                return self._cycle.bind_in(request, shape, cluster)

            found = soonest(know.fleet, releases, at_least, fits)
            could_fit |= found is not None
            # Of two at the same time always the same one: what ends as expected moves no plan.
            if found is not None and (best is None or (found[1], cluster) < best[1:3]):
                best = (found[0], found[1], cluster, releases[: found[2]])
        workload = know.open[key]
        firm_s = firm_at_s(know, self._policy, line, key)
        reservation = None
        if best is not None and (best[1] < UNKNOWN_S or now_s >= firm_s):
            reservation = Reservation(
                tenant=workload.tenant,
                id=workload.id,
                cluster=best[2],
                held=held_nodes(reseat(know.fleet, best[0].holdings, best[3])),
                expected_at_s=best[1] if best[1] < UNKNOWN_S else None,
            )
        until_s = self._known_until_s(busy)
        if reservation is None and could_fit:
            until_s = min(until_s, firm_s)
        return _Looked(self._seen(), self.told(), key, until_s, could_fit, reservation)

    def _promising(
        self, busy: list[str], request: JobRequest
    ) -> list[tuple[float, str, int, list[Release]]]:
        """Clusters that may have room for it first, each with a bound on when that is."""
        asked = gpu_milli(request)
        live = self._releases()
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
        return found[:CLUSTERS_LOOKED_AT]

    def _releases(self) -> dict[str, list[Release]]:
        """Live placements of each cluster, those that end first before the others."""
        if self._live is None:
            know, now_s = self._know, self._now_s
            self._live = {}
            derived = know.derived
            held = (name for held in derived.held.values() for name in held)
            names = [*derived.unclaimed, *held]
            for name in names:
                workload = know.open[name]
                at_s = stated_end_s(workload, now_s)
                if self._policy.order == "due":
                    at_s = know.derived.due_order.ends_s(workload, now_s)
                release = Release(
                    UNKNOWN_S if at_s is None else at_s,
                    workload.placed_at_s,
                    name,
                    gpu_milli_of(workload),
                    know.fleet.holdings(name),
                )
                self._live.setdefault(workload.cluster, []).append(release)
            for releases in self._live.values():
                releases.sort(key=lambda r: r[:3])
        return self._live

    def _known_until_s(self, clusters: list[str]) -> float:
        """Until when the ends that are known stay the same if nothing happens."""
        live = self._releases()
        return min((live[c][0].at_s for c in clusters if live.get(c)), default=UNKNOWN_S)


def firm_at_s(know: Knowledge, policy: Policy, line: Line, key: Key) -> float:
    """From when on a reservation stands although its time is not known or has passed."""
    waited_s = know.open[key].submitted_at_s + policy.reserve_wait_s
    return max(waited_s, line.members[key][2].firm_at_s)


def in_force(cycle: Cycle) -> dict[Key, Reservation]:
    """Those that decisions told, as far as they still can be kept."""
    know, policy, now_s, snapshot = cycle.know, cycle.policy, cycle.now_s, cycle.snapshot
    closed = {snapshot.clusters[number] for number in snapshot.closed}
    valid: dict[Key, Reservation] = {}
    told = sorted(know.reservations.items(), key=lambda each: not each[1].owed)  # stable
    waiting = 0
    for key, reservation in told:
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
        passed = at_s is not None and now_s > at_s
        plan = passed or policy.order == "due"  # made anew, until it is firm
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
    """Whether the line's queue lets it have that room: else it would stand empty."""
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
    """Whether a job goes on in its new place: it is on its way out, or it waits for that alone."""
    workload = know.open.get(key)
    if workload is None or workload.leads_to != reservation.cluster:
        return False
    waits = know.derived.lines.line_of(key) is not None
    if not waits and not (workload.live and workload.leaving):
        return False
    return all(_usable(know, reservation.cluster, held) for held in reservation.held)


def _usable(know: Knowledge, cluster: str, held: HeldNode) -> bool:
    """Whether the node still could give that, were nothing of ours on it."""
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
        gpu.index: 1000 - gpu.withheld_milli - gpu.foreign_milli
        for gpu in report.gpus
        if gpu.healthy
    }
    return all(free.get(gpu, 0) >= held.gpu_milli for gpu in held.gpus)
