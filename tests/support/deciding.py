"""A resolver and the log that it writes to, in one place and in virtual time.

The log guards appends as the server does. After each step the invariants of design.md are checked
on what the log holds, not on what the resolver believes.
"""

from collections import Counter

from berthmaster.control.resolver.core.answers import explain, gpus
from berthmaster.control.resolver.core.answers.leaving import cordons
from berthmaster.control.resolver.core.answers.whatif import Budget, Steps, whatif
from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import Inputs
from berthmaster.lib.lifecycle.commits import jobs_of
from berthmaster.lib.lifecycle.fold import offer
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.lifecycle.workload import Key, Workload, key, request_digest
from berthmaster.lib.messages.api import (
    CordonsReply,
    DryRunReply,
    GpusRequest,
    Refusal,
    WhatifReply,
    WhatifRequest,
    WhyReply,
)
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.fleet import FleetFact, NodeReport
from berthmaster.lib.messages.placement import Decision, PodBinding
from berthmaster.lib.messages.workload import (
    Cancelled,
    Claimed,
    Evicted,
    HubObject,
    JobRequest,
    Placed,
    Reprioritized,
    Resized,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from tests.support.builders import alive

TENANT = "team-a"


class World:
    """One resolver, its log, its facts, and a clock that only tests move."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.resolver = Resolver("all", "resolver/test", self.policy)
        self.now_s = 1000.0
        self.sequence = 0
        self.fleet_sequence = 0
        self.control_sequence = 0
        self.workloads: dict[Key, Workload] = {}
        self.nodes: dict[tuple[str, str], NodeReport] = {}
        self.events: list[tuple[int, float, WorkloadEvent]] = []
        self.decisions: list[tuple[int, Decision]] = []
        self.facts: list[tuple[int, float, str, FleetFact]] = []
        self.controls: list[tuple[int, ControlFact]] = []

    # What users ask

    def why(self, tenant: str, workload_id: str | None, now_s: float) -> WhyReply | Refusal:
        core = self.resolver
        if workload_id is None:
            return explain.why_all(core.know, core.policy, now_s, tenant)
        known, blind = core.decisions, core.blind
        return explain.why(core.know, core.policy, now_s, tenant, workload_id, known, blind=blind)

    def dry_run(self, tenant: str, request: JobRequest, now_s: float) -> DryRunReply:
        return explain.dry_run(self.resolver.know, self.resolver.policy, now_s, tenant, request)

    def gpus(self, tenant: str, request: GpusRequest, now_s: float) -> gpus.Steps:
        return gpus.stock(self.resolver.know, self.resolver.policy, now_s, tenant, request)

    def cordons(self, cluster: str, now_s: float) -> CordonsReply:
        return cordons(self.resolver.know, self.resolver.policy, now_s, cluster)

    def whatif(
        self, tenant: str | None, request: WhatifRequest, now_s: float, budget: Budget
    ) -> Steps:
        core = self.resolver
        return whatif(core.know, core.policy, now_s, tenant, request, budget)

    # The log

    def append(self, event: WorkloadEvent) -> int:
        """Store an event that passes its guard and tell the resolver."""
        name = key(event.tenant, event.id)
        workload = self.workloads.setdefault(name, Workload(tenant=event.tenant, id=event.id))
        assert event.after == workload.sequence, "a test wrote behind the log's back"
        self.sequence += 1
        offer(workload, event, self.sequence, self.now_s)
        self.events.append((self.sequence, self.now_s, event))
        self.resolver.on_event(event, self.sequence, self.now_s)
        return self.sequence

    def decide(self, *, before_storing: WorkloadEvent | None = None) -> Plan | None:
        """Let it decide once and store the commit. ``before_storing``: what somebody else gets in
        first; a commit that collides with it is refused whole, as the server does."""
        plan = self.resolver.decide(self.now_s)
        if before_storing is not None:
            self.append(before_storing)
        if plan is None:
            return None
        stale = any(self._tail(event) != event.after for event in plan.events)
        if stale:
            self.resolver.on_outcome(Refused(), self.sequence)
            return plan
        self.sequence += 1
        self.decisions.append((self.sequence, plan.decision))
        self.resolver.on_decision(plan.decision, self.sequence)
        for event in plan.events:
            self.append(event)
        self.resolver.on_outcome(Stored(self.sequence), 0)
        assert not self.resolver.behind, "it waits for more events than the commit has"
        jobs = [(event.tenant, event.id) for event in plan.events]
        assert set(jobs_of(plan.decision)) <= set(jobs)
        assert plan.decision.events == len(jobs)
        self.check()
        return plan

    def settle(self) -> list[Plan]:
        """Let it decide until nothing is left to decide."""
        plans = []
        while (plan := self.decide()) is not None:
            plans.append(plan)
            assert len(plans) < 10_000
        return plans

    def _tail(self, event: WorkloadEvent) -> int:
        workload = self.workloads.get(key(event.tenant, event.id))
        return workload.sequence if workload is not None else 0

    # Facts

    def fact(self, *facts: FleetFact) -> None:
        for fact in facts:
            self.fleet_sequence += 1
            if isinstance(fact, NodeReport):
                self.nodes[fact.cluster, fact.node] = fact
            subject = f"{fact.cluster}/{getattr(fact, 'node', type(fact).__name__)}"
            self.facts.append((self.fleet_sequence, self.now_s, subject, fact))
            self.resolver.on_fact(fact, self.fleet_sequence, self.now_s)

    def control(self, fact: ControlFact) -> None:
        self.control_sequence += 1
        self.controls.append((self.control_sequence, fact))
        self.resolver.on_control(fact, self.control_sequence)

    # What people and executors do

    def submit(self, request: JobRequest, origin: HubObject | None = None) -> Key:
        """A person publishes a job request, or an object on a hub stands for one."""
        self.append(
            Submitted(
                tenant=TENANT,
                id=request.id,
                after=0,
                at_s=self.now_s,
                by="gateway",
                request=request,
                digest=request_digest(request),
                origin=origin,
            )
        )
        return key(TENANT, request.id)

    def _head(self, name: Key) -> dict[str, object]:
        workload = self.workloads[name]
        return {
            "tenant": workload.tenant,
            "id": workload.id,
            "after": workload.sequence,
            "at_s": self.now_s,
            "by": "test",
        }

    def _attempt(self, name: Key) -> dict[str, object]:
        workload = self.workloads[name]
        return self._head(name) | {"cluster": workload.cluster, "attempt": workload.attempt}

    def claim(self, name: Key) -> None:
        self.append(Claimed(**self._attempt(name), executor="x"))  # type: ignore[arg-type]

    def start(self, request: JobRequest) -> Key:
        name = self.submit(request)
        self.settle()
        assert self.placed_on(name), request.id
        self.claim(name)
        self.run(name)
        return name

    def start_placed(self) -> list[str]:
        """Decide, run all that is placed, and return the ids in order."""
        started = []
        for plan in self.settle():
            for choice in plan.decision.placements:
                name = key(choice.tenant, choice.id)
                self.claim(name)
                self.run(name)
                started.append(choice.id)
        return started

    def pass_s(self, seconds: float, *clusters: str) -> None:
        """Time goes by, and these are still alive (c1)."""
        self.now_s += seconds
        self.fact(*(alive(each, counter=int(self.now_s)) for each in clusters or ("c1",)))

    def run(self, name: Key) -> None:
        pods = self.workloads[name].pods
        self.append(Running(**self._attempt(name), pods=pods))  # type: ignore[arg-type]

    def resized(self, name: Key, pods: tuple[PodBinding, ...] | None = None) -> None:
        """It has these pods now; unless told, those that were asked for last."""
        told = self.workloads[name].resizing if pods is None else pods
        self.append(Resized(**self._attempt(name), pods=told))  # type: ignore[arg-type]

    def evict(self, name: Key, reason: str = "node died") -> None:
        self.append(Evicted(**self._attempt(name), reason=reason))  # type: ignore[arg-type]

    def succeed(self, name: Key) -> None:
        self.append(Succeeded(**self._attempt(name), **self._last(name)))  # type: ignore[arg-type]

    def cancelled(self, name: Key) -> Cancelled:
        """What the gateway writes for a job that nobody claimed."""
        attempt = self.workloads[name].attempt
        fields = self._head(name) | self._last(name) | {"attempt": attempt}
        return Cancelled(**fields)  # type: ignore[arg-type]

    def reprioritized(self, name: Key, priority: int) -> Reprioritized:
        """What the gateway writes for a new priority."""
        return Reprioritized(**self._head(name), priority=priority)  # type: ignore[arg-type]

    def _last(self, name: Key) -> dict[str, object]:
        workload = self.workloads[name]
        return {"digest": workload.digest, "submitted_at_s": workload.submitted_at_s}

    # What must hold

    def placed_on(self, name: Key) -> str:
        """The cluster of the open attempt, "" if there is none."""
        workload = self.workloads[name]
        return workload.cluster if workload.live else ""

    def check(self) -> None:
        """No GPU is promised twice, no node over-filled, by the log alone; gangs are whole."""
        gpus: Counter[tuple[str, str, int]] = Counter()
        pieces: Counter[tuple[str, str, str]] = Counter()
        cpu: Counter[tuple[str, str]] = Counter()
        for workload in self.workloads.values():
            if not workload.live or workload.request is None:
                continue
            sets = {p.name: p for p in workload.request.pod_sets}
            assert len(workload.pods) == sum(p.count for p in sets.values())
            assert len({b.pod for b in workload.pods}) == len(workload.pods)
            for binding in workload.pods:
                pods = sets[binding.pod.rpartition("-")[0]]
                untold = not binding.gpus and workload.running_at_s  # its cluster does not say
                assert untold or len(set(binding.gpus)) == pods.gpus
                cpu[workload.cluster, binding.node] += pods.cpu_milli
                for name, number in {**pods.resources, "google.com/tpu": pods.tpus}.items():
                    pieces[workload.cluster, binding.node, name] += number
                for gpu in binding.gpus:
                    gpus[workload.cluster, binding.node, gpu] += pods.gpu_milli
        assert all(milli <= 1000 for milli in gpus.values()), gpus.most_common(3)
        for (cluster, name, resource), number in pieces.items():
            has = self.nodes[cluster, name].allocatable
            there = has.tpus if resource == "google.com/tpu" else has.pieces.get(resource, 0)
            assert number <= there, (cluster, name, resource)
        for where, milli in cpu.items():
            assert milli <= self.nodes[where].allocatable.cpu_milli, where

    def inputs(self) -> Inputs:
        """Everything that was stored, as ``replay`` reads it."""
        return Inputs(self.events, self.decisions, self.facts, self.controls, facts_from=1)


def placements(plan: Plan | None) -> dict[str, str]:
    """Job -> cluster of the placements of a commit."""
    if plan is None:
        return {}
    return {e.id: e.cluster for e in plan.events if isinstance(e, Placed)}


def the_end_of(steps: Steps) -> WhatifReply | Refusal:
    """The reply of a what-if that is worked out step by step."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reply: WhatifReply | Refusal = done.value
            return reply
