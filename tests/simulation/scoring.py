"""Drives the scorer's core as its shell does: facts and telemetry in, scores out."""

from berthmaster.control.scorer.core.events import (
    Event,
    FactSeen,
    Led,
    ScoreNotStored,
    TelemetryHeard,
    Tick,
)
from berthmaster.control.scorer.core.instructions import PutScore
from berthmaster.control.scorer.core.rules import ScoringRules
from berthmaster.control.scorer.core.scorer import Scorer
from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.messages.telemetry import NodeTelemetry
from tests.simulation.bus import Bus, Follower, Message
from tests.simulation.clockwork import Process
from tests.simulation.mirror import Mirror
from tests.simulation.pace import Pace


def rules(pace: Pace) -> ScoringRules:
    """Of the scorer in a world of this pace."""
    return ScoringRules(
        stale_after_s=pace.score_stale_after_s,
        withdraw_after_s=pace.score_withdraw_after_s,
        refresh_s=pace.score_stale_after_s,
        window_s=0.1,
        dead_band=5,
        retry_s=2 * pace.retry_s,
    )


class Scoring(Process):
    """The only scorer: it publishes."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.clock, "scorer")
        self.bus = bus
        self.core = Scorer(rules(bus.pace))
        bus.listeners.append((self, self._on_telemetry))

    def boot(self) -> None:
        self.core = Scorer(rules(self.bus.pace))
        self._wake_s = float("inf")
        self._alarms = 0
        mirror = Mirror(self._on_fact)
        Follower(self.bus, self.bus.fleet, self, mirror.take, self._lead, last_values=True)

    def _lead(self) -> None:
        if self.cut:
            self.later(self.bus.pace.retry_s, self._lead)
            return
        scores = [m for s, m in self.bus.fleet.last.items() if s.endswith("/score")]
        last = max((m.body.stamp.epoch for m in scores), default=0)
        self._tell(Led(max(last, int(self.now() * 1000)) + 1))

    def _on_fact(self, message: Message) -> None:
        if not isinstance(message.body, ClusterScore):
            self._tell(FactSeen(message.body, message.stored_at_s))

    def _on_telemetry(self, told: NodeTelemetry) -> None:
        self._tell(TelemetryHeard(told))

    def _tell(self, event: Event) -> None:
        for put in self.core.handle(event, self.now()):
            self.feed(lambda p=put: self._put(p))  # type: ignore[misc]
        wake_s = self.core.wake_at_s
        if wake_s is not None and wake_s < self._wake_s:
            self._wake_s = wake_s
            self._alarms += 1
            number = self._alarms
            self.later(max(0.01, wake_s - self.now()), lambda: self._tick(number))

    def _tick(self, number: int) -> None:
        if number != self._alarms:
            return
        self._wake_s = float("inf")
        self._tell(Tick())

    def _put(self, put: PutScore) -> None:
        cluster = put.fact.cluster

        def done(ok: bool) -> None:
            if not ok:
                self._tell(ScoreNotStored(cluster))

        self.bus.put_fact(self, f"{cluster}/score", put.fact, done)
