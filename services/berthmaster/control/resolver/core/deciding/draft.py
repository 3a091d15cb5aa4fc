"""What is decided so far of a group commit, and the plan that it comes to: see decide.py.

A draft is a context manager. It owns what is charged to the fleet while it is made: room that is
kept for those who wait, and room that it has given to jobs. On leaving, all of that is given back,
and those who were placed wait on until the log says that they are placed.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cheapest_set import CheapestSets
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.make_room import RoomMaker
from berthmaster.control.resolver.core.deciding.reserves import Reserves, Token
from berthmaster.control.resolver.core.deciding.resize import Shrinker
from berthmaster.control.resolver.core.deciding.turns import Turn, Turns
from berthmaster.control.resolver.settings import ENGINE_VERSION
from berthmaster.lib.engine.fleet.fleet import Holding
from berthmaster.lib.engine.fleet.needs import Shape
from berthmaster.lib.engine.fleet.overlay import Overlay
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
)
from berthmaster.lib.messages.workload import JobRequest, Withdrawn, WorkloadEvent

TRIES: Final = 4  # placements of one commit in clusters that have left some unclaimed
CHOICE_BYTES: Final = 300  # of a record, besides its ranking and pods
# How often it had been overtaken, and the reservations that it had to leave alone.
Passed = tuple[Line, int, frozenset[Token]]


class Stuck(NamedTuple):
    """A job that was passed over, as what was looked for."""

    turn: Turn
    asked: JobRequest
    shape: Shape


class Plan(NamedTuple):
    """A decision and the events that make it true; one batch."""

    decision: Decision
    events: tuple[WorkloadEvent, ...]
    passed_over: tuple[Passed, ...]  # lines that do not fit beside what this plan places
    growth: int  # of what was known when it was made

    def was_stored(self) -> None:
        """Only then is there no room for those who were passed over."""
        block(self.passed_over, self.growth)


def block(passed_over: Iterable[Passed], growth: int) -> None:
    """They are looked at again when something has grown. Not those whose first came since: it has
    not been looked at yet."""
    for line, overtaken, left_alone in passed_over:
        if line.overtaken != overtaken:
            continue
        line.blocked_at = growth
        line.left_alone = left_alone


class Draft:
    """What is decided so far. ``anew``: without anything that was found out before. That only tells
    that there is nothing to decide: a decision follows from what is known now, or it could not be
    repeated."""

    def __init__(self, cycle: Cycle, decider: str, *, anew: bool = False) -> None:
        know = cycle.know
        self.cycle = cycle
        self.know = know
        self.policy = cycle.policy
        self.now_s = cycle.now_s
        self.decider = decider
        self.anew = anew
        self.number = know.chain.number + 1
        self.cause = f"decision/{know.cell}/{self.number}"
        self.choices: list[Choice] = []
        self.retractions: list[Retraction] = []
        self.evictions: list[EvictionOrder] = []
        self.resizes: list[ResizeOrder] = []
        self.moves: list[MoveOrder] = []
        self.rebalances: list[Rebalance] = []
        self.turns: dict[Key, int] = {}  # who had one, and how many had theirs before
        self.stuck: list[Stuck] = []  # who may have others moved, and got no room
        self.divisions: list[Division] = []
        self.commits: list[Commit] = []
        self.partings: list[PartOrder] = []
        self.events: list[WorkloadEvent] = []
        # Shape, outside these reservations or, if True, beside what they wait for.
        self.no_room: set[tuple[bytes, frozenset[Key], bool]] = set()
        self.passed_over: list[Passed] = []
        self.bytes = 0
        self.tries = 0
        self._overlay = Overlay(know.fleet)
        self.reserves = Reserves(cycle, self._overlay, anew=anew)
        self.sets = CheapestSets(cycle)
        self.room_maker = RoomMaker(cycle, self.sets)
        self.shrinker = Shrinker(cycle, self.sets.accounts)
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
        """Charge the room that is kept; whose turn it is, from now on."""
        self.reserves.begin()
        derived = self.know.derived
        kept = self.reserves.kept
        moving = {key for key, each in kept.items() if each.reservation.moving}
        self._turns = Turns(self.know, self.policy, derived.open_clusters, kept, moving)
        return self._turns

    def take(self, holdings: Sequence[Holding]) -> None:
        """A job has this room."""
        self._overlay.take(("taken", len(self.events)), holdings)

    def withdraw(self, workload: Workload, reason: str) -> None:
        """Take back a placement that nobody has claimed."""
        self.retractions.append(
            Retraction(
                tenant=workload.tenant,
                id=workload.id,
                attempt=workload.attempt,
                cluster=workload.cluster,
                reason=reason,
            )
        )
        self.events.append(
            Withdrawn(
                tenant=workload.tenant,
                id=workload.id,
                after=workload.sequence,
                at_s=self.now_s,
                by=self.decider,
                cause=self.cause,
                cluster=workload.cluster,
                attempt=workload.attempt,
                reason=reason,
                decision=self.number,
                cell=self.know.cell,
            )
        )
        self.bytes += CHOICE_BYTES

    @property
    def full(self) -> bool:
        """The rest is for the next commit."""
        return (
            len(self.events) >= self.policy.commit_limit
            or self.bytes >= self.policy.commit_bytes
            or self.tries >= TRIES
        )

    @property
    def remembered(self) -> bool:
        """Whether what was found out before may have mattered."""
        return self.reserves.remembered

    def _reservations(self) -> tuple[Reservation, ...] | None:
        """As they are told: all, if they are others than those that were told last."""
        kept = self.reserves.told()
        return None if kept == self.know.reservations else tuple(kept.values())

    def plan(self) -> Plan | None:
        """As it is to be stored; None if nothing is decided."""
        if not self.events:
            return None
        know = self.know
        sampled = know.sampled()
        outlook, expected = know.tells()
        decision = Decision(
            cell=know.cell,
            number=self.number,
            after=know.chain.sequence,
            decider=self.decider,
            engine=ENGINE_VERSION,
            now_s=self.now_s,
            settings=self.policy.as_record(),
            saw=Saw(
                workloads=know.workloads_sequence,
                fleet=know.view.fleet_sequence,
                control=know.view.control_sequence,
            ),
            events=len(self.events),
            placements=tuple(self.choices),
            withdrawals=tuple(self.retractions),
            evictions=tuple(self.evictions),
            resizes=tuple(self.resizes),
            moves=tuple(self.moves),
            rebalances=tuple(self.rebalances),
            divisions=tuple(self.divisions),
            commits=tuple(self.commits),
            partings=tuple(self.partings),
            reservations=self._reservations(),
            reserved=len(self.reserves.kept),
            mix=told_as(sampled) if sampled != know.told_mix else None,
            mix_pods=sampled.pods,
            pressure=self.cycle.snapshot.pressure if know.presses else None,
            pressed_by=self.number if know.presses else know.told_pressure.by,
            outlook=outlook,
            expected=expected,
            lives=know.lives if know.tells_lives else None,
            lives_by=self.number if know.tells_lives else know.told_lives.by,
            unclaimed=know.clusters.doubted(self.now_s, self.policy.avoid_s),
            suspended=tuple(sorted(know.suspended)),
            retried=tuple(sorted(know.retried)),
        )
        return Plan(decision, tuple(self.events), tuple(self.passed_over), know.derived.growth)
