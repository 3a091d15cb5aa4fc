"""`berth serve placement`: decide the Placements that Open Cluster Management's scheduler ignores.

::

    berth serve placement                      in a pod of the hub
    berth serve placement --kubeconfig F --context C --namespace berth-system

The service decides Placements with the annotation
``cluster.open-cluster-management.io/experimental-scheduling-disable: "true"``, and no others. The
service needs no bus. Replicas stand by on a Lease. While the API server is unreachable, all
decisions stay. Rights: deploy/chart/templates/pods-rights.yaml.
"""

import asyncio
import time
from typing import Any, Final

from berthmaster.hub.placement.cel.client import CelWorker, Unanswered
from berthmaster.hub.placement.core.evaluator import Evaluator
from berthmaster.hub.placement.core.instructions import WriteDecisions
from berthmaster.hub.placement.core.scheduling.plugin import Pending
from berthmaster.hub.placement.metrics import PlacementMetrics
from berthmaster.hub.placement.settings import PlacementSettings
from berthmaster.hub.placement.watch import SLICES, WATCHED, PlacementWatch
from berthmaster.hub.placement.writer import PlacementWriter
from berthmaster.lib.kube.api_lease import ApiLease
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "placement"
LEASE: Final = "berthmaster-placement"
CONTROLLER: Final = "placement-evaluator"
LEASE_S: Final = 5.0  # seconds until a standby replaces a silent evaluator
PAUSE_S: Final = 0.02  # minimum seconds between two evaluations of a Placement
ABSENT_S: Final = 5.0  # seconds between two checks for a kind that the hub does not serve
DEAR: Final = 10.0  # pause after an evaluation, as a multiple of its duration
# the same per Placement: during a storm of scores, all Placements take a third of a core
ALL_DEAR: Final = 3.0


class PlacementController(Controller[WriteDecisions]):
    """One replica of the evaluator.

    After each evaluation, its Placement pauses for a multiple of the duration. So no Placement
    starves the others, and together the Placements leave most of a core free.
    """

    def __init__(self, ctx: Context[PlacementSettings], client: Client) -> None:
        self._evaluator = core = Evaluator()
        super().__init__(ctx, client, core, PlacementWriter(client, core), name=CONTROLLER)
        self.watches(WATCHED, absent_s=ABSENT_S, kind=PlacementWatch)
        self._figures = PlacementMetrics(ctx.metrics)
        self._expressions = CelWorker()
        self._spent_s: dict[Key, float] = {}  # CPU seconds of expressions since the last decision
        self._loop_s = asyncio.get_running_loop().time
        self._changed_at_s = 0.0  # loop time of the first change not yet evaluated; 0 = none
        # loop time of the change that a write in flight answers
        self._since_s: dict[Key, float] = {}
        # loop time of the change that waits for its expressions
        self._asked_since_s: dict[Key, float] = {}

    async def run(self) -> None:
        """Run until the service stops, then release the lease."""
        self.start()
        settings = self.ctx.settings
        self.lead_by(
            ApiLease(
                self.client,
                namespace=settings.namespace or self.client.access.namespace or "default",
                name=LEASE,
                holder=instance_of(NAME),
                now=self.ctx.now,
                log=self.ctx.log,
                ttl_s=LEASE_S,
                on_gained=lambda _: self.wake(),
            )
        )
        try:
            await self.finish()
        finally:
            await self._expressions.close()

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self._evaluator.on_object(thing, gone=gone)
        self._changed_at_s = self._changed_at_s or self._loop_s()

    def before_act(self) -> None:
        self._evaluator.complete = self.may_act()
        self._evaluator.behind = bool(self.watch.trouble)
        self._evaluator.serve_slices(self.watch.has(SLICES))

    async def act(self) -> None:
        changed_at_s, self._changed_at_s = self._changed_at_s, 0.0
        for key in self._evaluator.due(self.now()):
            if self.may_act() and self._evaluator.has(key):
                self._look(key, changed_at_s)
            await asyncio.sleep(0)  # let the other tasks of this loop run
        if self.may_act():
            for instruction in self._evaluator.tidy(self.now()):
                self.carry_out(instruction)

    def _look(self, key: Key, changed_at_s: float) -> None:
        now_s, began_s = self.now(), time.thread_time()
        changed_at_s = self._asked_since_s.pop(key, 0.0) or changed_at_s
        for instruction in self._evaluator.evaluate(key, now_s):
            if isinstance(instruction, WriteDecisions):
                self._since_s[key] = changed_at_s
            self.carry_out(instruction)
        took_s = time.thread_time() - began_s
        self._figures.look_s.observe(took_s)
        if (pending := self._evaluator.pending(key)) is not None:
            self._asked_since_s[key] = changed_at_s
            self._spawn(self._ask(key, pending), "ask expressions")
            return
        took_s += self._spent_s.pop(key, 0.0)
        rest_s = took_s * max(DEAR, ALL_DEAR * len(self._evaluator))
        self._evaluator.rest(key, now_s + max(PAUSE_S, rest_s))

    async def _ask(self, key: Key, pending: Pending) -> None:
        answer = None
        try:
            answer = await self._expressions.ask(pending.question)
        except Unanswered as error:
            self.ctx.log.warning(
                "expressions not evaluated", placement="/".join(key), why=str(error)
            )
        else:
            self._spent_s[key] = self._spent_s.get(key, 0.0) + answer.spent_s
        self._evaluator.settle(key, pending, answer, self.now())
        self.wake()

    def about(self, write: WriteDecisions) -> str:
        return "/".join(write.placement)

    def wrote(self, write: WriteDecisions, answer: Answer) -> None:
        super().wrote(write, answer)
        since_s = self._since_s.pop(write.placement, 0.0)
        if answer.done and since_s:
            self._figures.reaction_s.observe(self._loop_s() - since_s)

    def show(self) -> None:
        self._figures.show(len(self._evaluator), self._evaluator.misconfigured)


async def main(ctx: Context[PlacementSettings]) -> None:
    """Watch the hub, and act while this replica holds the lease."""
    async with service_client(ctx, NAME) as client:
        await PlacementController(ctx, client).run()


SERVICE = Service(NAME, PlacementSettings, main)
