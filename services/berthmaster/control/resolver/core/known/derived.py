"""Data derived from the knowledge for speed: job classes, indexes and counters.

Everything here can be rebuilt from ``Knowledge`` and the settings, and nothing is published or
stored. Messages update it with the knowledge (``follow``), and each decision or answer updates it
to its time (``refresh``). Then a cluster may be open again, or jobs change order, without new
information.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.control.resolver.core.known.indexes import Elastic, JobSets, Movable
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleet.shares import Charges, wants_fraction
from berthmaster.lib.engine.fleetview.view import FleetDerived
from berthmaster.lib.engine.queueing.affordable import affordable
from berthmaster.lib.engine.queueing.due_order import DueOrder, Saw
from berthmaster.lib.engine.queueing.expectations import Expectations
from berthmaster.lib.engine.queueing.foresight import Foresight
from berthmaster.lib.engine.queueing.lines import CPU_MILLI_A_GPU, Line, Lines, OrderBy
from berthmaster.lib.engine.queueing.queues import (
    CPU,
    MODEL,
    Ask,
    Level,
    Path,
    QueueShare,
    QueueTree,
    Right,
    ask_of,
    right_along,
)
from berthmaster.lib.lifecycle.pods import least_request
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Lives, ToldOutlook
from berthmaster.lib.messages.workload import JobRequest

_ASKS_KEPT: Final = 4096


class Derived(FleetDerived):
    """Derived data of log and operators' settings, beside the fleet's in the base class. ``queues``
    and ``open_`` are read here.
    """

    def __init__(
        self,
        fleet: Fleet,
        queues: Mapping[str, QueueSetting],
        open_: Mapping[Key, Workload],
        expectations: Expectations,
    ) -> None:
        super().__init__(fleet)
        self._fleet = fleet
        self._queues = queues
        self._open = open_
        self.lines = Lines()
        self.sets = JobSets()
        self.due_order = DueOrder(expectations)
        self.foresight = foresight_of(expectations)
        self.expects_similar = False  # estimated durations count where none is stated
        self._tree: QueueTree | None = None  # None: rebuild after changes of queues
        self.unclaimed: dict[Key, float] = {}  # placed -> when, oldest first
        self.held: dict[str, set[Key]] = {}  # cluster -> claimed and not ended
        # Cluster -> workloads not admitted by its own queue, or not with all future pods.
        self.unadmitted: dict[str, dict[Key, None]] = {}
        self.movable = Movable()
        self.elastic = Elastic()
        self.resizing: dict[Key, None] = {}  # told to have another number of pods, and have not yet
        self.placed_at_s: dict[str, float] = {}  # cluster -> of the newest placement heard of
        self.leaving: dict[Key, None] = {}  # told to make room, and not ended
        self.parts: dict[Key, None] = {}  # of divided jobs, and not ended
        self.idle: dict[Key, None] = {}  # live workloads whose GPUs are idle
        self.asked: dict[Key, None] = {}  # live workloads with a hold or an eviction request
        self.resting: dict[Key, float] = {}  # failed, and tried again then
        self._rested: dict[Key, float] = {}  # end of the back-off of pending workloads
        self._as_of_s = 0.0  # time of the last update
        self.to_cancel: set[Key] = set()  # requeued workloads with a cancel request
        self.deadlines: dict[Key, float] = {}  # deadline of claimed workloads with one
        self.ends_told = 0  # rises with each event by which attempts end earlier than was known
        self.ends_until_s = float("inf")  # next time at which the set of future ends changes
        self.open_clusters: frozenset[str] = frozenset()  # clusters open at the last update
        # Charges of jobs with GPU fractions by shape and number of a class, valid for one layout of
        # the fleet.
        self._asks: dict[tuple[bytes, int], tuple[int, Ask]] = {}

    # Queues

    @property
    def tree(self) -> QueueTree:
        """Return the tree of queues."""
        return self._tree or self._grow()

    def _grow(self) -> QueueTree:
        """Build the tree once for all changes of queues. The ledger groups by it."""
        if self._tree is None:
            self._tree = QueueTree(self._queues)
            self.ledger.regroup(self._tree.parents)
        return self._tree

    def share(self, queue: str) -> QueueShare:
        """Return a queue's settings for order and limits."""
        return self.tree.share(queue)

    def path(self, queue: str) -> Path:
        """The same of a queue and of all above it, the nearest first."""
        return self.tree.path(queue)

    def ask(self, request: JobRequest) -> Ask:
        """Return the minimum charge of a request on present nodes."""
        if not any(map(wants_fraction, request.pod_sets)):
            return ask_of(request)
        return ask_of(request, self._charges(request, shape_of(request)).__getitem__)

    def ask_in(self, line: Line) -> Ask:
        """Return the minimum charge of the smallest size of a class's jobs."""
        if not line.has_fractions:
            return line.ask
        fleet = self._fleet
        fleet.arrange()
        # A line lasts as long as its jobs wait, and the next of the same shape asks for the same.
        key = line.shape.key, line.ask.jobs
        known = self._asks.get(key)
        if known is None or known[0] != fleet.layout:
            least = least_request(line.request)
            shape = line.shape if least is line.request else shape_of(least)
            if len(self._asks) >= _ASKS_KEPT:
                self._asks.clear()
            ask = ask_of(least, self._charges(least, shape).__getitem__)
            known = self._asks[key] = fleet.layout, ask
        return known[1]

    def within(self, request: JobRequest, left: Mapping[str, int]) -> JobRequest | None:
        """Return the request without nodes that charge more than ``left``; None if none remain."""
        charges = self._charges(request, shape_of(request))
        ask = ask_of(request, charges.__getitem__)
        return affordable(request, ask, charges, left, self.ledger.models())

    def _charges(self, request: JobRequest, shape: Shape) -> list[Charges]:
        """Return the nodes' charges of GPU fractions by pod set."""
        fleet = self._fleet
        fleet.arrange()
        return [
            self.suitables.of(fleet, shape, number).charges
            for number in range(len(request.pod_sets))
        ]

    def levels(self, queue: str, ask: Ask) -> tuple[Level, ...]:
        """Return the precedence of a queue and its parents for a job."""
        tree = self.tree
        return tree.levels(queue, self.ledger.used_together, ask, self.ledger.models())

    def right(self, queue: str, ask: Ask, *, but_for: Key | None = None) -> Right:
        """Return whether a queue and its parents may run one more such job. ``but_for``: as if this
        placement held nothing.
        """
        path, ledger = self.path(queue), self.ledger
        used, running = ledger.but_for(but_for)
        return right_along(path, used, running, ask, ledger.models())

    # In step with messages

    def queue_set(self, setting: QueueSetting, before: QueueSetting | None) -> None:
        self._tree = None
        before = before or QueueSetting(queue=setting.queue)
        stands = setting.priority, setting.preempts_equals
        if stands != (before.priority, before.preempts_equals):
            for line in self.lines.lines():
                if line.queue == setting.queue:
                    for name in list(line.members):
                        self._wait(self._open[name])

    def frozen(self, name: Key, cluster: str | None) -> None:
        """Exclude a frozen workload from decisions."""
        if (workload := self._open.get(name)) is not None:
            self._stand_in_line(workload, State.QUEUED, waits=False)
        self.lines.remove(name)
        self.resting.pop(name, None)
        self._rested.pop(name, None)
        self.movable.drop(name)
        self.elastic.drop(name)
        self.asked.pop(name, None)
        self.idle.pop(name, None)
        self.to_cancel.discard(name)
        self._attempt_left(name, cluster)

    def left(self, name: Key, cluster: str) -> None:
        self._attempt_left(name, cluster)
        self.growth += 1

    def _attempt_left(self, name: Key, cluster: str | None) -> None:
        self.unclaimed.pop(name, None)
        self.deadlines.pop(name, None)
        if cluster is not None:
            self.held.get(cluster, set()).discard(name)

    def suspend(self, workload: Workload, *, suspended: bool) -> None:
        """Remove a backed off workload from its class, or return it."""
        if workload.cancel_requested or not _takes_turns(workload):
            return
        waits = not suspended and workload.key not in self.resting
        self._stand_in_line(workload, State.QUEUED, waits=waits)
        self.due_order.follow(workload, waits=workload.key in self.lines)
        self.growth += 1

    def follow(
        self, workload: Workload, before: State, attempt_cluster: str, *, frozen: bool
    ) -> None:
        """Update after a change of a workload. ``attempt_cluster``: its cluster before."""
        name, state, request = workload.key, workload.state, workload.request
        self._follow_admission(workload, attempt_cluster)
        if before in HELD or state in HELD:
            self._follow_attempt(workload, frozen=frozen)
        if workload.live and workload.resizing:
            self.resizing[name] = None
        else:
            self.resizing.pop(name, None)
        if workload.placed_at_s > self.placed_at_s.get(workload.cluster, 0.0):
            self.placed_at_s[workload.cluster] = workload.placed_at_s
        if workload.live and workload.leaving:
            self.leaving[name] = None
        else:
            self.leaving.pop(name, None)
        if workload.live and not frozen and (workload.hold or workload.wish):
            self.asked[name] = None
        else:
            self.asked.pop(name, None)
        if request is not None and request.part is not None and not workload.ended:
            self.parts[name] = None
        else:
            self.parts.pop(name, None)
        self.to_cancel.discard(name)
        rested = before is State.QUEUED and name in self.lines
        self.resting.pop(name, None)
        waits = not frozen and not workload.cancel_requested and _takes_turns(workload)
        if state is State.QUEUED and workload.cancel_requested:
            self.to_cancel.add(name)
        if waits and workload.retry_at_s and not rested:  # refresh() ends the back-off
            self.resting[name] = workload.retry_at_s
            waits = False
        if not waits:
            self._rested.pop(name, None)
        self.due_order.changed(workload)
        self._stand_in_line(workload, before, waits=waits)
        self.due_order.follow(workload, waits=name in self.lines)
        if state is State.PLACED and not frozen:
            self.unclaimed.setdefault(name, workload.placed_at_s)
        else:
            self.unclaimed.pop(name, None)
        deadline_s = request.deadline_s if request is not None else None
        if state in HELD and deadline_s is not None and not frozen:
            self.deadlines[name] = workload.claimed_at_s + deadline_s
        else:
            self.deadlines.pop(name, None)
        if before in HELD and state not in HELD:
            self.held.get(attempt_cluster, set()).discard(name)
        elif state in HELD and before not in HELD and not frozen:
            self.held.setdefault(workload.cluster, set()).add(name)

    def _follow_idle(self, workload: Workload, *, frozen: bool) -> None:
        name = workload.key
        if workload.idle is None or not workload.live or frozen:
            self.idle.pop(name, None)
        elif name not in self.idle:
            self.idle[name] = None
            self.growth += 1  # a pending job may have its GPUs now

    def _stand_in_line(self, workload: Workload, before: State, *, waits: bool) -> None:
        """Update the classes for a workload, and for the jobs of its set."""
        moved = self.sets.follow(workload, waits=waits)
        if workload.key not in moved.enter and before in (State.QUEUED, State.NEW):
            self.lines.remove(workload.key)
        for name in moved.leave:
            self.lines.remove(name)
            if name != workload.key and name in self._open:
                self.due_order.follow(self._open[name], waits=False)
        for name in moved.enter:
            other = workload if name == workload.key else self._open[name]
            self._wait(other)
            if other is not workload:
                self.due_order.follow(other, waits=True)
                self.growth += 1

    def _follow_attempt(self, workload: Workload, *, frozen: bool) -> None:
        self._follow_idle(workload, frozen=frozen)
        self.movable.follow(workload, frozen=frozen)
        self.elastic.follow(workload, frozen=frozen)

    def _follow_admission(self, workload: Workload, attempt_cluster: str) -> None:
        waits = workload.state in (State.PLACED, State.CLAIMED) or workload.coming
        if waits and workload.live and workload.target.via == "worker":
            self.unadmitted.setdefault(workload.cluster, {})[workload.key] = None
        elif attempt_cluster in self.unadmitted:
            self.unadmitted[attempt_cluster].pop(workload.key, None)

    def _wait(self, workload: Workload) -> None:
        request, order = workload.request, self.due_order
        setting = self._queues.get(request.queue if request is not None else "")
        priority = setting.priority if setting is not None else 0
        least_first = setting is not None and setting.preempts_equals
        place = order.place(workload, least_first=least_first)
        class_s = order.class_s(workload)
        if self.expects_similar and class_s is None:
            class_s = self.foresight.lasts_s(workload)
        self.lines.add(workload, priority, place, class_s)

    # As of a time

    def look_at_ends(self, now_s: float) -> None:
        """Note that a stated end has passed that a reservation counts on."""
        if now_s >= self.ends_until_s:
            self.ends_told += 1
            self.ends_until_s = float("inf")

    def _end_rests(self, now_s: float) -> None:
        """Return jobs after their back-off to their classes. After a step back of the clock they
        wait, since a repeated decision sees only one time.
        """
        over = [name for name, at_s in self.resting.items() if at_s <= now_s]
        for name in over:
            self._rested[name] = self.resting.pop(name)
            self.growth += 1
        early = []
        if now_s < self._as_of_s:
            early = [name for name, at_s in self._rested.items() if at_s > now_s]
        for name in early:
            self.resting[name] = self._rested.pop(name)
        for name in (*over, *early):
            workload = self._open[name]
            self._stand_in_line(workload, State.QUEUED, waits=name not in self.resting)
            self.due_order.follow(workload, waits=name in self.lines)

    def refresh(
        self,
        open_clusters: frozenset[str],
        by: OrderBy,
        saw: Saw,
        given: ToldOutlook | None,
        now_s: float,
        *,
        renew: bool,
        short_first: float,
        lives: Lives | None,
        similar: bool,
        repeats: bool,
    ) -> None:
        """Bring it up to date for whoever looks: the same again if nothing was heard since.
        ``renew``, ``given``: as in ``DueOrder.look``."""
        self._end_rests(now_s)
        if now_s < self._as_of_s:
            self.growth += 1  # the clock was put back: more may end before kept room is needed
        self._as_of_s = now_s
        self._grow()
        if not open_clusters <= self.open_clusters:
            self.growth += 1  # a reopened cluster may fit what did not before
        self.open_clusters = open_clusters
        order = self.due_order
        gpus = gpus_of(self.ledger.totals(open_clusters))
        if order.look(gpus, by, given, saw, renew=renew, short_first=short_first, lives=lives):
            moved = [name for line in self.lines.lines() for name in line.members]
        else:
            moved = [name for name in order.moved if name in self.lines]
        order.moved.clear()
        if self.expects_similar != similar:
            self.expects_similar = similar
            self.growth += 1
            moved = [name for line in self.lines.lines() for name in line.members]
        if similar:
            if renew and not repeats:
                self.foresight.renew()
            moved += [name for name in self.foresight.moved if name in self.lines]
            self.growth += bool(self.foresight.moved)
            self.foresight.moved.clear()
        for name in moved:
            self._wait(self._open[name])


def foresight_of(expectations: Expectations) -> Foresight:
    """Return the estimates that decisions may use."""
    durations = expectations.durations
    estimates = durations.estimate, lambda: durations.version
    return Foresight(estimates, expectations.recorded)


def _takes_turns(workload: Workload) -> bool:
    """Return whether the workload waits for a placement and for nothing else."""
    return workload.state is State.QUEUED and not workload.depends and workload.hold is None


def gpus_of(totals: Mapping[str, int]) -> float:
    """Return the GPUs of a fleet; without GPUs the worth of its CPUs."""
    milli = sum(amount for name, amount in totals.items() if name.startswith(MODEL))
    return milli / 1000 if milli else totals.get(CPU, 0) / CPU_MILLI_A_GPU
