"""Cores that are broken on purpose: a simulation that cannot find these finds nothing."""

from collections.abc import Callable

import pytest

from berthmaster.control.gateway.core import events as gateway_events
from berthmaster.control.gateway.core import instructions as gateway_asks
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.lib.lifecycle import fold
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.instructions import Answered, Outcome, Refused, Stored, Unknown
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import Placed, WorkloadEvent
from berthmaster.worker.executor.core.cluster_protocol import CreatePods, DeletePods, StopPods
from berthmaster.worker.executor.core.events import Event, HintSeen, Instruction
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.core.job import Job
from tests.simulation.faults import DAMAGE
from tests.simulation.ground import Parts
from tests.simulation.world import run

FIRST = 1000  # other seeds than those of test_seeds.py


def found(parts: Parts, within: int, without: tuple[str, ...] = ()) -> str:
    """The rule that the first of so many seeds finds broken; "" if none does."""
    for seed in range(FIRST, FIRST + within):
        finding = run(seed, (*without, *DAMAGE), parts=parts).finding
        if finding is not None:
            return finding.rule
    return ""


class CreatesFirst(Executor):
    """Makes the pods when it hears of the placement, and claims it afterwards."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        steps = super().handle(event, now_s)
        if isinstance(event, HintSeen) and isinstance(event.event, Placed):
            for job in self._jobs.values():
                if job.hints == [event.hint] and job.request is not None:
                    order = CreatePods(job.attempt, self.name, job.placed, job.request, None)
                    return [order, *steps]
        return steps


def test_an_executor_that_creates_before_it_claims_is_found() -> None:
    assert found(Parts(executor=CreatesFirst), 3) == "nothing is created before it is claimed"


class BelievesUnknown(Executor):
    """Takes a claim of which nobody knows anything for stored."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        if isinstance(event, Answered) and isinstance(event.outcome, Refused | Unknown):
            event = Answered(ref=event.ref, outcome=Stored(1_000_000))
        return super().handle(event, now_s)


def test_an_executor_that_takes_doubt_for_success_is_found() -> None:
    assert found(Parts(executor=BelievesUnknown), 20) != ""


class EndsAtOnce(Executor):
    """Says how an attempt ends before its pods are gone."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        steps = super().handle(event, now_s)
        return [step for step in steps if not isinstance(step, StopPods)]


def test_an_executor_that_does_not_stop_pods_is_found() -> None:
    assert found(Parts(executor=EndsAtOnce), 40) != ""


class LeavesPods(Executor):
    """Forgets the pods of attempts that are over."""

    def _leave(self, job: Job, why: str) -> list[Instruction]:
        return [s for s in super()._leave(job, why) if not isinstance(s, DeletePods)]


def test_an_executor_that_leaves_pods_behind_is_found() -> None:
    assert found(Parts(executor=LeavesPods), 5) == "everything settles"


class TakesRefusedForStored(Resolver):
    """Folds its own plan, whatever became of it."""

    def on_outcome(self, outcome: Outcome, log_end: int) -> None:
        plan = self.commits.pending
        super().on_outcome(outcome, log_end)
        if plan is not None and not isinstance(outcome, Stored):
            for number, event in enumerate(plan.events, 1):
                at = self.know.workloads_sequence + number
                self.know.take_event(event, at, plan.decision.now_s)


def test_a_resolver_that_ignores_refusals_is_found() -> None:
    assert found(Parts(resolver=TakesRefusedForStored), 60) != ""


class GivesUpTheSilent(Resolver):
    """Ends what runs in clusters that it does not hear of."""

    def _overdue(self, now_s: float) -> list[tuple[Workload, str]]:
        ended = super()._overdue(now_s)
        for cluster in self.know.clusters.known():
            if now_s - cluster.alive_at_s > 30:
                names = sorted(self.know.derived.held.get(cluster.name, ()))
                ended += [(self.know.open[name], "its cluster is silent") for name in names]
        return ended


def test_a_resolver_that_takes_silence_for_an_ending_is_found() -> None:
    assert found(Parts(resolver=GivesUpTheSilent), 40) == "no job ends because of silence"


class PassesOverForEver(Resolver):
    """A line that did not fit once is never looked at again."""

    def decide(self, now_s: float) -> Plan | None:
        for line in self.know.derived.lines.lines():
            if line.blocked_at >= 0:
                line.blocked_at = self.know.derived.growth
        return super().decide(now_s)


def test_a_resolver_that_overlooks_who_waits_is_found() -> None:
    without = ("due", "balance")  # else what it moves others for shows it sooner
    found_ = found(Parts(resolver=PassesOverForEver), 40, without)
    assert found_ == "nobody waits who could run"


class Guesses(Resolver):
    def on_fact(self, *args: object) -> None:
        super().on_fact(*args)  # type: ignore[arg-type]
        self.know.clusters.get("c1").alive_at_s += 0.5


def test_a_resolver_that_knows_what_no_message_says_is_found() -> None:
    assert found(Parts(resolver=Guesses), 5) == "a decision repeats bit for bit"


class SaysYes(Gateway):
    """Tells people that a request is accepted although nobody knows whether it was stored."""

    def handle(self, event: gateway_events.Event, now_s: float) -> list[gateway_asks.Instruction]:
        if isinstance(event, Answered) and isinstance(event.outcome, Unknown):
            event = Answered(ref=event.ref, outcome=Stored(1))
        return super().handle(event, now_s)


def test_a_gateway_that_accepts_what_may_not_be_stored_is_found() -> None:
    assert found(Parts(gateway=SaysYes), 60) == "none is lost"


Offer = Callable[..., Verdict]


def careless(
    workload: Workload,
    event: WorkloadEvent,
    sequence: int,
    stored_at_s: float,
    *,
    void: bool = False,
) -> Verdict:
    if sequence > workload.sequence:
        workload.sequence = event.after
    return offer(workload, event, sequence, stored_at_s, void=void)


def forgetful(
    workload: Workload,
    event: WorkloadEvent,
    sequence: int,
    stored_at_s: float,
    *,
    void: bool = False,
) -> Verdict:
    """Takes no notice of what is void, not even of its sequence."""
    before = workload.sequence
    verdict = offer(workload, event, sequence, stored_at_s, void=void)
    if verdict is Verdict.VOID:
        workload.sequence = before
    return verdict


@pytest.mark.parametrize("broken", [careless, forgetful])
def test_a_reader_that_does_not_look_at_after_is_found(
    broken: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "offer", broken)
    assert found(Parts(), 150) != ""


def test_the_cores_as_they_are_are_clean() -> None:
    assert found(Parts(), 10) == ""
