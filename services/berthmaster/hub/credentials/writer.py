"""Performs steps, each with one time limit, so that a slow worker delays no other cluster.

hub.py has the steps on the hub, and worker.py the steps in a worker.
"""

from collections.abc import Callable, Hashable
from typing import Final, assert_never

from berthmaster.hub.credentials.core.index import ClusterIndex
from berthmaster.hub.credentials.core.instructions import (
    Adopt,
    Check,
    Describe,
    Empty,
    Forget,
    Look,
    Mint,
    Prepare,
    Publish,
    Register,
    Release,
    Request,
    Revoke,
    Step,
    Sweep,
    Unregister,
)
from berthmaster.hub.credentials.core.observed import Minted, Survey
from berthmaster.hub.credentials.hub import HubSteps
from berthmaster.hub.credentials.worker import WorkerSteps
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import from_kubeconfig_bytes
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.writer import Writer

# more than any step makes: a step's time limit is this multiple of a call's
CALLS_A_STEP: Final = 12


class StepWriter(Writer[Step]):
    def __init__(
        self,
        client: Client,
        hub: HubSteps,
        workers: WorkerSteps,
        index: ClusterIndex,
        *,
        timeout_s: float,
        now: Callable[[], float],
    ) -> None:
        """``timeout_s`` is the limit of a call. ``now`` returns seconds since 1970."""
        super().__init__(client, limit_s=CALLS_A_STEP * timeout_s)
        self._hub = hub
        self._workers = workers
        self._index = index
        self._now = now

    def right(self, write: Step) -> Hashable:
        return type(write).__name__, write.cluster

    async def write(self, write: Step) -> Answer:
        return Answer(found=await self._done(write))

    async def _done(self, step: Step) -> Survey | Minted | None:
        """Perform the step, and return its finding if the step has one."""
        hub, workers = self._hub, self._workers
        match step:
            case Prepare():
                await hub.free(step.cluster)
                return await workers.prepare(step.cluster, step.source)
            case Look():
                return await workers.look(step.cluster, step.source)
            case Mint():
                return await workers.mint(step.cluster, step.source, step.serial)
            case Adopt():
                return await self._adopt(step)
            case Revoke():
                return await workers.revoke(step.cluster, step.source)
            case Publish():
                await hub.publish(step)
            case Register():
                await hub.register(step)
            case Sweep():
                await workers.sweep(step.cluster, step.source, step.serials)
            case Check():
                kubeconfig = self._index.kubeconfig(step.cluster)
                access = from_kubeconfig_bytes(kubeconfig, source="the Secret for Kueue")
                await workers.prove_access(access)
            case Request():
                await hub.request(step.cluster)
            case Describe():
                await hub.describe(step)
            case Unregister():
                await hub.unregister(step)
            case Release():
                await hub.release(step.cluster)
            case Empty():
                await hub.empty(step)
            case Forget():
                await hub.forget(step)
                await workers.drop(step.cluster)
            case _:
                assert_never(step)
        return None

    async def _adopt(self, step: Adopt) -> Minted:
        await self._hub.free(step.cluster)
        await self._workers.prove(step.endpoint, step.token.text, step.token.pair)
        return Minted(
            step.endpoint.fingerprint,
            step.token.serial,
            self._now(),
            step.token.expires_at_s,
            step.token.text,
            managed=True,
            pair=step.token.pair,
        )
