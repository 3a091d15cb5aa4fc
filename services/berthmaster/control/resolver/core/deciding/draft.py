"""The scheduling transaction of one group commit: operations, events, and charged capacity.

``Draft`` collects operations, the records of a decision, and the matching events. ``Plan`` is the
batch to store.

Example: a draft places job a on node 1 and withdraws job b. ``operations`` holds a ``Choice`` and a
``Retraction``, ``events`` a ``Placed`` and a ``Withdrawn``. Until the draft ends, the fleet is
charged with job a.

Rules of this file:

- A draft is a context manager. On leaving, everything that it charged is given back, and jobs that
  it placed wait until the log has their events.
- The reservations are made when a job first needs them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.reservations import Active, Reservations, Token
from berthmaster.control.resolver.core.deciding.turns import Turns
from berthmaster.control.resolver.policy import ENGINE_VERSION
from berthmaster.lib.engine.fleet.fleet import Holding, Overlay
from berthmaster.lib.engine.queueing.eviction import eviction_requested
from berthmaster.lib.engine.queueing.lines import Line
from berthmaster.lib.engine.scoring.pod_mix import told_as
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import (
    Choice,
    Commit,
    Decision,
    Division,
    EvictionOrder,
    MoveOrder,
    PartOrder,
    Rebalance,
    Reservation,
    ResizeOrder,
    Retraction,
    Saw,
    Weighed,
)
from berthmaster.lib.messages.workload import AfterEviction, Withdrawn, WorkloadEvent

TRIES: Final = 4  # placements a commit in clusters on probation
RECORD_BYTES: Final = 300  # of an operation, besides its lists
NODE_BYTES: Final = 60  # of each node or pod in a list
WEIGHED_BYTES: Final = 200  # of the inputs of one choice, besides its lists

Operation = (
    Choice
    | Retraction
    | EvictionOrder
    | ResizeOrder
    | MoveOrder
    | Rebalance
    | Division
    | Commit
    | PartOrder
)
_FIELDS: Final[Mapping[type[Operation], str]] = {  # of a Decision
    Choice: "placements",
    Retraction: "withdrawals",
    EvictionOrder: "evictions",
    ResizeOrder: "resizes",
    MoveOrder: "moves",
    Rebalance: "rebalances",
    Division: "divisions",
    Commit: "commits",
    PartOrder: "partings",
}
# A job class that does not fit, the overtakes of its first job, and the reservations left alone.
Passed = tuple[Line, int, frozenset[Token]]


class Plan(NamedTuple):
    """A decision and its events, stored in one batch."""

    decision: Decision
    events: tuple[WorkloadEvent, ...]
    passed_over: tuple[Passed, ...]  # classes that do not fit beside the plan's placements
    growth: int  # capacity generation of the plan

    def was_stored(self) -> None:
        """Block the skipped classes. A failed plan must not, because its capacity is released."""
        block(self.passed_over, self.growth)


def block(passed_over: Iterable[Passed], growth: int) -> None:
    """Skip these classes until capacity grows, unless the first job is a new one."""
    for line, overtaken, left_alone in passed_over:
        if line.overtaken != overtaken:
            continue
        line.blocked_at = growth
        line.left_alone = left_alone


class Draft:
    """A transaction under construction. ``anew``: without remembered results, which may only say
    that there is nothing to decide. Otherwise a decision could not be repeated."""

    def __init__(self, cycle: Cycle, decider: str, *, anew: bool = False) -> None:
        self.cycle = cycle
        self.anew = anew
        self.operations: list[Operation] = []
        self.events: list[WorkloadEvent] = []
        self.size = 0  # bytes of the decision, about
        self.reserved: dict[Key, Active] = {}  # changed by ``reservations`` alone
        self.weighed: dict[Key, Weighed] = {}  # learned inputs of choices, by job
        self._decider = decider
        self._number = cycle.know.chain.number + 1
        self._kinds: set[type[Operation]] = set()  # of the operations
        self._tries = 0
        self._overlay = Overlay(cycle.know.fleet)
        self._turns: Turns | None = None

    def __enter__(self) -> "Draft":
        self._overlay.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._turns is not None:
            self._turns.close()
        self._overlay.__exit__(kind, error, traceback)

    def begin(self) -> Turns:
        """Charge the recorded reservations, and return the candidates in order."""
        know = self.cycle.know
        know.derived.look_at_ends(self.cycle.now_s)
        if know.reservations:
            self.reservations.charge_recorded()
        moving = {key for key, each in self.reserved.items() if each.reservation.moving}
        clusters = know.derived.open_clusters
        self._turns = Turns(know, self.cycle.policy, clusters, self.reserved, moving)
        return self._turns

    @cached_property
    def reservations(self) -> Reservations:
        return Reservations(self.cycle, self._overlay, self.reserved, anew=self.anew)

    # Operations

    def add(self, operation: Operation, size: int) -> None:
        """Record an operation of so many bytes."""
        self.operations.append(operation)
        self._kinds.add(type(operation))
        self.size += size

    def place(self, choice: Choice, event: WorkloadEvent, size: int) -> None:
        """Record a placement."""
        cluster = self.cycle.know.clusters.peek(choice.cluster)
        self._tries += cluster.is_doubted(self.cycle.now_s, self.cycle.policy.avoid_s)
        self.add(choice, size)
        self.events.append(event)

    def weigh(self, name: Key, weighed: Weighed) -> None:
        """Record the learned inputs of one job's choice."""
        if name not in self.weighed:
            self.weighed[name] = weighed
            self.size += WEIGHED_BYTES + NODE_BYTES * len(weighed.jobs)

    def charge(self, holdings: Sequence[Holding]) -> None:
        """Charge the fleet with the pods of a job that was placed or grows."""
        self._overlay.take(("placed", len(self.events)), holdings)

    def evict(
        self, workload: Workload, reason: str, to: str = "", then: AfterEviction = ""
    ) -> None:
        """Have the owner of an attempt end it. ``to``: where capacity is reserved. ``then``: what
        the job does after that, besides waiting."""
        know = self.cycle.know
        self.events.append(
            eviction_requested(
                workload,
                reason,
                to,
                then,
                cell=know.cell,
                decision=self._number,
                now_s=self.cycle.now_s,
                decider=self._decider,
            )
        )

    def withdraw(self, workload: Workload, reason: str) -> None:
        """Withdraw an unclaimed placement."""
        place: dict[str, Any] = {
            "cluster": workload.cluster,
            "attempt": workload.attempt,
            "reason": reason,
        }
        retraction = Retraction(tenant=workload.tenant, id=workload.id, **place)
        self.add(retraction, RECORD_BYTES)
        self.events.append(Withdrawn(**self.head(workload), **place))

    def head(self, workload: Workload) -> dict[str, Any]:
        """Return the common fields of this decision's events."""
        cell = self.cycle.know.cell
        return {
            "tenant": workload.tenant,
            "id": workload.id,
            "after": workload.sequence,
            "at_s": self.cycle.now_s,
            "by": self._decider,
            "cause": f"decision/{cell}/{self._number}",
            "decision": self._number,
            "cell": cell,
        }

    def includes(self, *kinds: type[Operation]) -> bool:
        return not self._kinds.isdisjoint(kinds)

    @property
    def full(self) -> bool:
        """Whether the rest is for the next commit."""
        policy = self.cycle.policy
        return (
            len(self.events) >= policy.commit_limit
            or self.size >= policy.commit_bytes
            or self._tries >= TRIES
        )

    # The result

    @property
    def remembered(self) -> bool:
        """Whether an earlier result may have mattered."""
        return "reservations" in vars(self) and self.reservations.remembered

    def recorded_reservations(self) -> dict[Key, Reservation]:
        """Return the reservations for the record."""
        return {key: each.reservation for key, each in self.reserved.items()}

    def plan(self, passed_over: Sequence[Passed]) -> Plan | None:
        """Return the batch to be stored; None without an event."""
        if not self.events:
            return None
        know, policy, now_s = self.cycle.know, self.cycle.policy, self.cycle.now_s
        records: dict[str, list[Operation]] = {}
        for operation in self.operations:
            records.setdefault(_FIELDS[type(operation)], []).append(operation)
        fields: dict[str, Any] = {name: tuple(each) for name, each in records.items()}
        reservations = self.recorded_reservations()
        sampled = know.sampled()
        outlook, expected = know.tells()
        decision = Decision(
            cell=know.cell,
            number=self._number,
            after=know.chain.sequence,
            decider=self._decider,
            engine=ENGINE_VERSION,
            now_s=now_s,
            settings=policy.as_record(),
            saw=Saw(
                workloads=know.workloads_sequence,
                fleet=know.view.fleet_sequence,
                control=know.view.control_sequence,
            ),
            events=len(self.events),
            reservations=(
                None if reservations == know.reservations else tuple(reservations.values())
            ),
            reserved=len(reservations),
            mix=told_as(sampled) if sampled != know.told_mix else None,
            mix_pods=sampled.pods,
            pressure=self.cycle.snapshot.pressure if know.presses else None,
            pressed_by=self._number if know.presses else know.told_pressure.by,
            outlook=outlook,
            expected=expected,
            weighed=tuple(self.weighed.values()),
            lives=know.lives if know.tells_lives else None,
            lives_by=self._number if know.tells_lives else know.told_lives.by,
            unclaimed=know.clusters.doubted(now_s, policy.avoid_s),
            suspended=tuple(sorted(know.suspended)),
            retried=tuple(sorted(know.retried)),
            **fields,
        )
        return Plan(decision, tuple(self.events), tuple(passed_over), know.derived.growth)
