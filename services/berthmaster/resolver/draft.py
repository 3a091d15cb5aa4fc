"""What is decided so far of a group commit, and the plan that it comes to: see decide.py."""

from collections.abc import Iterable
from typing import NamedTuple

from berthmaster.engine.fleet.fleet import Holding
from berthmaster.engine.scoring.mix import told_as
from berthmaster.lifecycle.fold import Key
from berthmaster.messages.placement import Choice, Decision, Reservation, Retraction, Saw
from berthmaster.messages.workload import WorkloadEvent
from berthmaster.resolver.reserving import Token
from berthmaster.resolver.settings import ENGINE_VERSION, Policy
from berthmaster.resolver.state import Knowledge
from berthmaster.resolver.waiting import Line

Passed = tuple[Line, frozenset[Token]]  # and the reservations that it had to mind


class Plan(NamedTuple):
    """A decision and the events that make it true; one batch."""

    decision: Decision
    events: tuple[WorkloadEvent, ...]
    passed_over: tuple[Passed, ...]  # lines that do not fit beside what this plan places
    growth: int  # of the knowledge that it was made on

    def was_stored(self) -> None:
        """Only then is there no room for those who were passed over."""
        _block(self.passed_over, self.growth)


def _block(passed_over: Iterable[Passed], growth: int) -> None:
    """They are looked at again when something has grown."""
    for line, minded in passed_over:
        line.blocked_at = growth
        line.minded = minded


class Draft:
    """What is decided so far."""

    def __init__(
        self, know: Knowledge, policy: Policy, now_s: float, decider: str, *, anew: bool
    ) -> None:
        self.know = know
        self.policy = policy
        self.now_s = now_s
        self.decider = decider
        self.number = know.chain.number + 1
        self.cause = f"decision/{know.cell}/{self.number}"
        self.choices: list[Choice] = []
        self.retractions: list[Retraction] = []
        self.events: list[WorkloadEvent] = []
        self.taken: list[Holding] = []
        self.reservations: dict[Key, Reservation] = {}
        self.no_room: set[tuple[bytes, frozenset[Key]]] = set()  # shape, beside these reservations
        self.passed_over: list[Passed] = []
        self.bytes = 0
        self.steadiness: dict[str, float] = {}  # of clusters, if a choice counts it
        self.anew = anew
        self.remembered = False  # what was found out before may have mattered

    @property
    def full(self) -> bool:
        """The rest is for the next commit."""
        return (
            len(self.events) >= self.policy.commit_limit or self.bytes >= self.policy.commit_bytes
        )

    def _reservations(self) -> tuple[Reservation, ...] | None:
        """As they are told: all, if they are others than those that were told last."""
        if self.reservations == self.know.reservations:
            return None
        return tuple(self.reservations.values())

    def plan(self) -> Plan | None:
        """As it is to be stored; None if nothing is decided."""
        if not self.events:
            _block(self.passed_over, self.know.derived.growth)
            return None
        know = self.know
        sampled = know.sampled()
        outlook, expected = know.expecting.tells()
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
            placements=tuple(self.choices),
            withdrawals=tuple(self.retractions),
            reservations=self._reservations(),
            reserved=len(self.reservations),
            mix=told_as(sampled) if sampled != know.told_mix else None,
            mix_pods=sampled.pods,
            steadiness=self.steadiness,
            outlook=outlook,
            expected=expected,
        )
        return Plan(decision, tuple(self.events), tuple(self.passed_over), know.derived.growth)
