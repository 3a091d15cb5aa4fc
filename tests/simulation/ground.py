"""What a seed has: clusters with their nodes, services, a bus, dice."""

import random
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.worker.executor.core.executor import Executor
from tests.simulation.bus import Bus
from tests.simulation.clockwork import START_S, Clockwork, Process
from tests.simulation.deciders import BALANCED_RESTART_S, DUE, DUE_SPEED, POLICY, Decider
from tests.simulation.doorway import Doorway
from tests.simulation.faults import Faults
from tests.simulation.front import Front, Person
from tests.simulation.judge import Judge
from tests.simulation.pace import FAST, Pace
from tests.simulation.scoring import Scoring
from tests.simulation.sites import Site

MODELS: Final = ("T4", "A10")


class Parts(NamedTuple):
    """The cores to be tested; tests put broken ones in."""

    executor: type[Executor] = Executor
    resolver: type[Resolver] = Resolver
    gateway: type[Gateway] = Gateway


class Ground:
    def __init__(
        self,
        seed: int,
        without: Iterable[str] = (),
        parts: Parts = Parts(),  # noqa: B008
        pace: Pace = FAST,
    ) -> None:
        self.seed = seed
        self.pace = pace
        self.chance = random.Random(f"{seed}/world")
        self.faults = Faults(seed, without)
        self.clock = Clockwork()
        self.judge = Judge(self.clock)
        self.bus = Bus(self.clock, seed, self.faults, pace)
        self.bus.on_stored = self.judge.on_stored
        self.plan: list[str] = []
        self.calm_at_s = START_S + pace.longer * self.chance.choice((60.0, 150.0, 300.0))
        self.door = Doorway(self.bus)
        self.sites = [self._site(number, parts) for number in range(self.chance.choice((2, 3, 4)))]
        policy = DUE if self.faults.has("due") else POLICY
        if self.faults.has("similar"):
            policy = msgspec.structs.replace(policy, expect="similar", reserve_wait_s=0.2)
        if self.faults.has("balance"):
            policy = msgspec.structs.replace(policy, restart_s=BALANCED_RESTART_S)
        self.policy = msgspec.structs.replace(policy, stale_after_s=pace.stale_after_s)
        self.deciders = [Decider(self.bus, f"resolver-{n}", self.policy) for n in (1, 2)]
        for decider in self.deciders:
            decider.core_type = parts.resolver
            decider.wrong_seed = str(seed) if self.faults.has("similar") else ""
        self.front = Front(self.bus, self.judge)
        self.front.core_type = parts.gateway
        self.scoring = Scoring(self.bus)
        self.processes: list[Process] = [*self.sites, *self.deciders, self.front, self.scoring]
        # Those whose misfortunes matter most are hit most often.
        self.targets = [*self.processes, *self.sites, *self.deciders]
        self.processes.append(self.door)
        self.person = Person(self.bus, self.front, self.judge, seed)
        self.submitted: dict[Key, str] = {}

    # What there is

    def _site(self, number: int, parts: Parts) -> Site:
        chance = self.chance
        name = f"c{number + 1}"
        model = MODELS[number % 2]
        nodes = tuple(
            NodeSpec(f"n{n + 1}", 32_000, 131_072, chance.choice((1, 2, 4)), model)
            for n in range(chance.choice((1, 2, 3)))
        )
        has = self.faults.has
        longer = self.pace.longer
        nature = Nature(
            seed=self.seed * 10 + number,
            speed=DUE_SPEED / longer if self.faults.leaves_durations_open else 1.0,
            failure_share=0.15 if has("pods_fail") else 0.0,
            start_delay_s=chance.choice((0.0, 0.0, 3.0)),
            foreign_share=0.25 if has("foreign") else 0.0,
            foreign_duration_s=60.0 * longer,
            gpu_deaths_per_hour=8.0 / longer if has("gpus_die") else 0.0,
            gpu_repair_s=60.0 * longer,
            node_flaps_per_hour=20.0 / longer if has("nodes_flap") else 0.0,
            flap_s=20.0 * longer,
        )
        site = Site(self.bus, self.judge, ClusterSpec(name, "eu", nodes), nature, self.door)
        site.core_type = parts.executor
        self.judge.watch(name, site.cluster)
        return site

    def note_misfortune(self, at_s: float, kind: str, process: Process, lasts_s: float) -> None:
        self.plan.append(f"{at_s - START_S:8.2f} {kind} {process.name} for {lasts_s:.2f} s")
