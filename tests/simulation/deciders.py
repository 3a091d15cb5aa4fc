"""Drives the resolver's core as its shell does: three streams in, one commit under way at most,
snapshots out. Two replicas share a lease, which a fault lets them ignore."""

import random
from collections.abc import Callable
from typing import Final

import msgspec

from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.queueing.similar import Estimate
from berthmaster.lib.lifecycle.instructions import Append, Outcome, Stored
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import JobRequest
from tests.simulation.bus import Bus, Follower, Message
from tests.simulation.clockwork import Process
from tests.simulation.logguard import LogGuard
from tests.simulation.mirror import Mirror

POLICY: Final = Policy(
    claim_timeout_s=10.0,
    avoid_s=20.0,
    stale_after_s=15.0,
    deadline_grace_s=30.0,
    reserve_wait_s=60.0,
    grow_after_s=5.0,
    rebalance_after_s=5.0,
    rebalance_gain=0.05,
)
BALANCED_RESTART_S: Final = 2.0  # else nothing that ends so soon would be worth moving
DUE: Final = msgspec.structs.replace(POLICY, order="due", reservations=2, backfill=0.8)
DUE_SPEED: Final = 600.0  # what is not said lasts minutes, and now and then hours
BEHIND_LIMIT_S: Final = 1.0
_SNAPSHOTS: Final = msgspec.msgpack.Decoder(Snapshot)
STREAMS: Final = 3


def wrong_estimates(seed: str) -> Callable[[str, JobRequest], Estimate | None]:
    """Estimates that are wrong by ten times either way or by any factor, of each job another one.
    Another replica has others."""

    def estimate(_: str, request: JobRequest) -> Estimate | None:
        dice = random.Random(f"{seed}/{request.id}")
        factor = dice.choice((0.0, 0.1, 0.1, 1.0, 10.0, 10.0, 1e12))
        median_s = factor * dice.choice((2.0, 15.0, 50.0, 120.0))
        high_s = median_s * dice.choice((1.0, 2.0, 10.0))
        return dice.choice((None, *3 * (Estimate(0.0, median_s, high_s, 3),)))

    return estimate


class Decider(Process):
    core_type: type[Resolver] = Resolver

    def __init__(self, bus: Bus, name: str, policy: Policy) -> None:
        super().__init__(bus.clock, name)
        self.bus = bus
        self.policy = policy
        self.core = Resolver("all", name, policy)
        self.ignores_lease = False
        self.wrong_seed = ""  # of estimates that are wrong; "" = they are what was learned
        self.commits = 0
        self.refused = 0

    @property
    def behind(self) -> bool:
        """Whether there is something in the log that it has not folded."""
        return self.core.know.workloads_sequence < self.bus.log.end

    def boot(self) -> None:
        self.core = self.core_type("all", f"{self.name}/{self.life}", self.policy)
        self._missing = STREAMS
        self._committing = False
        self._turn_due = False
        self._alarms = 0
        self._behind_since_s: float | None = None
        self.guard = LogGuard(
            self.bus, self, "resolver.all", on_change=lambda _: self._stir(), replaced=self._restart
        )
        self.guard.begin(self._follow)

    def _restart(self) -> None:
        self.kill()
        self.start()

    def _follow(self) -> None:
        if self.bus.snapshot is not None and self.bus.snapshot[0] == self.bus.incarnation:
            restore(self.core.know, _SNAPSHOTS.decode(self.bus.snapshot[1]))
        if self.wrong_seed:
            foresight = self.core.know.derived.foresight
            foresight.estimate = wrong_estimates(f"{self.wrong_seed}/{self.name}")
        start = self.core.know.workloads_sequence + 1
        Follower(self.bus, self.bus.log, self, self._on_log, self._caught_up, start=start)
        self.mirror = Mirror(self._on_fact)
        Follower(
            self.bus, self.bus.fleet, self, self.mirror.take, self._caught_up, last_values=True
        )
        Follower(self.bus, self.bus.control, self, self._on_control, self._caught_up)
        self.later(0.1, self._renew)
        self.later(self.bus.pace.snapshot_s, self._snapshot)

    # Messages

    def _on_log(self, message: Message) -> None:
        self.guard.saw(message)
        body = message.body
        if isinstance(body, Decision):
            self.core.on_decision(body, message.sequence)
            return
        self.core.on_event(body, message.sequence, message.stored_at_s)
        if self.core.stirred:
            self._stir()

    def _on_fact(self, message: Message) -> None:
        self.core.on_fact(message.body, message.sequence, message.stored_at_s)
        if self.core.stirred:
            self._stir()

    def _on_control(self, message: Message) -> None:
        self.core.on_control(message.body, message.sequence)
        self._stir()

    def _caught_up(self) -> None:
        self._missing -= 1
        self._stir()

    # Deciding

    @property
    def may_decide(self) -> bool:
        """Whether it believes that it is the one."""
        return self.guard.sound and (self.ignores_lease or self.bus.holds_lease(self))

    def _stir(self, delay_s: float = 0.0) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.later(delay_s, self._turn)

    def _alarm(self, delay_s: float) -> None:
        self._alarms += 1
        number = self._alarms
        self.later(delay_s, lambda: self._stir() if number == self._alarms else None)

    def _turn(self) -> None:
        self._turn_due = False
        if self._committing:
            return
        longest_s = self.bus.pace.longest_sleep_s
        if self._missing or not self.may_decide:
            self._alarm(longest_s)  # what changes that stirs it
            return
        if self.core.behind:
            self._behind_since_s = self._behind_since_s or self.clock.now_s
            if self.clock.now_s - self._behind_since_s > BEHIND_LIMIT_S:
                self.core.commits.waited_long_enough()
            self._stir(0.05)
            return
        self._behind_since_s = None
        know = self.core.know
        know.view.fleet_sequence = max(know.view.fleet_sequence, self.mirror.sequence)
        for append in self.core.endings(self.now()):
            self.feed(lambda a=append: self._append(a))  # type: ignore[misc]
        plan = self.core.decide(self.now())
        if plan is not None:
            self._committing = True
            self.feed(lambda: self._commit(plan))
            return
        self._alarm(max(0.2, min(longest_s, self.core.wake_at_s() - self.now())))

    def _commit(self, plan: Plan) -> None:
        if self.trapped(lambda: self._commit(plan)):
            return
        self.bus.commit(self, plan.decision, plan.events, self._committed)

    def _committed(self, outcome: Outcome) -> None:
        self.commits += 1
        if isinstance(outcome, Stored):
            self._told(outcome, 0)
            return
        self.refused += 1
        log_end = 0 if self.cut else self.bus.log.end
        self.later(self.bus.delay_s(), lambda: self._told(outcome, log_end))

    def _told(self, outcome: Outcome, log_end: int) -> None:
        self.core.on_outcome(outcome, log_end)
        self._committing = False
        self._stir()

    def _append(self, append: Append) -> None:
        def done(outcome: Outcome) -> None:
            self.core.on_appended(append.ref, outcome)
            self._stir()

        self.bus.append(self, append.event, done)

    # Now and then

    def _renew(self) -> None:
        held = self.bus.holds_lease(self)
        if self.bus.try_lease(self) and not held:
            self._stir()
        if self.ignores_lease:
            self._stir()
        self.later(self.bus.pace.lease_s, self._renew)

    def _snapshot(self) -> None:
        self.later(self.bus.pace.snapshot_s, self._snapshot)
        if self.guard.sound and not self._missing and self.bus.holds_lease(self) and not self.cut:
            raw = msgspec.msgpack.encode(snapshot_of(self.core.know))
            self.bus.snapshot = self.bus.incarnation, raw
