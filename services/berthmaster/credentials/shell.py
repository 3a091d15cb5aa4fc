"""The shell of credentials: feeds the core from the hub's mirrors, carries out its steps.

One replica holds the Lease and acts; the others mirror the same hub. Each step is a task of its
own, one a cluster at most and ``STEPS`` together, with one time limit for all of it, so that a
worker that answers slowly keeps nobody else waiting. What comes of it is one more event for the
core, never an exception.
"""

import asyncio
import os
import socket
from typing import Final, assert_never

from berthmaster.controller.aside import SetAside
from berthmaster.controller.watch import Watch, Watched
from berthmaster.credentials import manifests, names
from berthmaster.credentials.book import Book
from berthmaster.credentials.bootstrap import Bootstraps
from berthmaster.credentials.core import Credentials
from berthmaster.credentials.figures import Figures
from berthmaster.credentials.hub import HubHands, StillListed
from berthmaster.credentials.mirrors import BOOTSTRAPS, PUBLISHED, TOKENS, serves_ocm, watched
from berthmaster.credentials.objects import Secret
from berthmaster.credentials.rights import rules
from berthmaster.credentials.settings import CredentialsSettings
from berthmaster.credentials.telling import Telling
from berthmaster.credentials.words import (
    Adopt,
    Check,
    Empty,
    Failed,
    Forget,
    Instruction,
    Look,
    Mint,
    Minted,
    Outcome,
    Prepare,
    Publish,
    Register,
    Release,
    Request,
    Revoke,
    Sweep,
    Trouble,
    Unregister,
)
from berthmaster.credentials.worker import NotOurs, Workers
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.config import from_kubeconfig_bytes
from berthmaster.kubernetes.errors import Forbidden, KubernetesError, Unauthorized
from berthmaster.kubernetes.lease import Lease
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import NAMESPACES
from berthmaster.kubernetes.selector import parse_selector
from berthmaster.runtime.periodic import stopped_within
from berthmaster.runtime.service import Context

STEPS: Final = 16  # at once, over all workers
CALLS_A_STEP: Final = 12  # more than any step makes: its limit is so many times one call's
LONGEST_SLEEP_S: Final = 1.0
FINISH_S: Final = 2.0  # for what is under way when the service stops; it drains within 4
HOUSE_S: Final = 1.0
IDENTITY_PAUSE_S: Final = 1.0
IDENTITY: Final = "kube-system"  # its uid is the hub's id, as other services have it


class Shell:
    """One replica."""

    def __init__(self, ctx: Context[CredentialsSettings], client: Client) -> None:
        self._ctx = ctx
        self._client = client
        settings = ctx.settings
        self._namespace = settings.namespace or client.access.namespace or "default"
        granted = rules(settings.frameworks)
        permission = manifests.permission_spec(granted)
        validity = manifests.duration(settings.lifetime_s)
        self._bootstraps = Bootstraps()
        self._book = Book(parse_selector(settings.selector), permission, validity)
        self.core = Credentials(self._book, settings.times)
        self._stir = asyncio.Event()
        self._turns = asyncio.Semaphore(STEPS)
        self._hub_id = ""
        self._acting = False
        self._under_way: set[asyncio.Task[None]] = set()
        kinds = watched(settings, self._namespace)
        absent_s = settings.absent_s
        self._mirrors = Watch(
            ctx, client, kinds, SetAside(), on_object=self._on_object, absent_s=absent_s
        )
        self._hub = HubHands(
            client,
            namespace=settings.kueue_namespace,
            permission=permission,
            validity=validity,
            seen=self._on_answer,
        )
        self._workers = Workers(
            hub=lambda: self._hub_id,
            namespace=settings.worker_namespace,
            rules=granted,
            lifetime_s=settings.lifetime_s,
            timeout_s=settings.api_timeout_s,
            now=ctx.now,
            log=ctx.log,
            bootstraps=self._bootstraps,
        )
        instance = f"{socket.gethostname()}-{os.getpid()}"
        self._leader = Lease(
            client,
            namespace=self._namespace,
            name=names.MANAGER,
            holder=instance,
            now=ctx.now,
            log=ctx.log,
            ttl_s=settings.lease_s,
            on_gained=lambda _: self._stir.set(),
        )
        self._telling = Telling(ctx, client, self.core, namespace=self._namespace, name=instance)
        self._figures = Figures(ctx.metrics)

    async def run(self) -> None:
        """Until the service is asked to stop; the lease is given back at the end."""
        ctx = self._ctx
        ctx.health.ready("identity of the hub", False, "not asked yet")
        self._mirrors.start()
        ctx.spawn(self._identify(), name="identity of the hub")
        ctx.spawn(self._telling.run(), name="words for people")
        ctx.spawn(self._keep_house(), name="keep house")
        leading = ctx.spawn(self._leader.run(), name="lease")
        acting = ctx.spawn(self._act_for_ever(), name="act")
        await ctx.stopping.wait()
        await asyncio.wait({acting, *self._under_way}, timeout=FINISH_S)
        for step in self._under_way:
            step.cancel()
        leading.cancel()
        await asyncio.wait({leading, *self._under_way}, timeout=1.0)
        await self._workers.close()

    # ---- the hub

    def _on_object(self, one: Watched, found: Object, gone: bool) -> None:
        self._take(one.name, found, gone)

    def _take(self, name: str, found: Object, gone: bool) -> None:
        book = self._book
        if name == BOOTSTRAPS:
            assert isinstance(found, Secret)
            key = (found.metadata.namespace, found.metadata.name)
            cluster, source = ("", None) if gone else self._bootstraps.read(found)
            touched = book.bootstrap(key, cluster, source)
        elif name == TOKENS:
            assert isinstance(found, Secret)
            touched = book.token(found, gone=gone)
        elif name == PUBLISHED:
            assert isinstance(found, Secret)
            touched = book.secret(found, gone=gone)
        else:
            touched = book.put(found, gone=gone)
        self.core.touched(touched)
        self._stir.set()

    def _on_answer(self, found: Object, gone: bool) -> None:
        self._take(PUBLISHED if isinstance(found, Secret) else "", found, gone)

    async def _identify(self) -> None:
        """A hub's id is never guessed: what is in workers is found by it."""
        while not self._ctx.stopping.is_set():
            try:
                found = await self._client.get(NAMESPACES.path(name=IDENTITY), Object)
                self._hub_id = found.metadata.uid
                self._ctx.health.ready("identity of the hub", True)
                self._stir.set()
                return
            except KubernetesError as error:
                self._ctx.health.ready("identity of the hub", False, str(error))
            await stopped_within(IDENTITY_PAUSE_S, self._ctx.stopping)

    # ---- acting

    @property
    def _may_act(self) -> bool:
        return self._leader.held and bool(self._hub_id) and self._mirrors.complete

    async def _act_for_ever(self) -> None:
        ctx = self._ctx
        while not ctx.stopping.is_set():
            await self._sleep()
            may = self._may_act and not ctx.stopping.is_set()
            uses = serves_ocm(self._mirrors)
            if uses != self._book.uses_managed:
                self._book.uses_managed = uses
                self.core.touched(self._book.clusters())
            if may and not self._acting:
                self.core.begin()
            self._acting = may
            if not may:
                continue
            for step in self.core.act(ctx.now()):
                name = f"{type(step).__name__} {step.cluster}"
                task = ctx.spawn(self._carry_out(step), name=name)
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            for cluster, error in self.core.faults:
                self._ctx.log.error("a cluster cannot be handled", error=error, cluster=cluster)
            self.core.faults.clear()
            self._telling.tell()

    async def _sleep(self) -> None:
        """Until something stirs, or the time that the core named has come."""
        pause_s = LONGEST_SLEEP_S
        if self._acting:
            pause_s = min(pause_s, max(0.01, self.core.wake_at_s() - self._ctx.now()))
        stop = asyncio.ensure_future(self._ctx.stopping.wait())
        stir = asyncio.ensure_future(self._stir.wait())
        try:
            await asyncio.wait({stop, stir}, timeout=pause_s, return_when="FIRST_COMPLETED")
        finally:
            stop.cancel()
            stir.cancel()
        self._stir.clear()

    async def _carry_out(self, step: Instruction) -> None:
        outcome = await self._outcome(step)
        if isinstance(outcome, Failed):
            self._ctx.log.warning(
                "a step failed",
                step=type(step).__name__,
                cluster=step.cluster,
                trouble=outcome.trouble.value,
                why=outcome.why,
            )
        elif not isinstance(step, Check):
            self._ctx.log.info("step done", step=type(step).__name__, cluster=step.cluster)
        self.core.on_outcome(step, outcome, self._ctx.now())
        self._telling.tell()
        self._stir.set()

    async def _outcome(self, step: Instruction) -> Outcome:
        limit_s = CALLS_A_STEP * self._ctx.settings.api_timeout_s
        try:
            async with self._turns, asyncio.timeout(limit_s):
                if not self._leader.held:  # it may have waited for its turn
                    return Failed(Trouble.FAILED, "another replica leads")
                return await self._do(step)
        except NotOurs as error:
            return Failed(Trouble.FOREIGN, f"{error} is there already and is not ours")
        except StillListed as error:
            return Failed(Trouble.LISTED, str(error))
        except Unauthorized as error:
            return Failed(Trouble.REJECTED, str(error))
        except Forbidden as error:
            return Failed(Trouble.FORBIDDEN, str(error))
        except KubernetesError as error:
            return Failed(Trouble.FAILED, str(error))
        except TimeoutError:
            return Failed(Trouble.FAILED, f"not done within {limit_s:g} s")
        except Exception as error:  # noqa: BLE001 # one odd object must not stop all others
            # Its text may hold what came out of a Secret.
            return Failed(Trouble.FAILED, f"a fault of ours: {type(error).__name__}")

    async def _do(self, step: Instruction) -> Outcome:
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
                kubeconfig = self._book.kubeconfig(step.cluster)
                access = from_kubeconfig_bytes(kubeconfig, source="the Secret for Kueue")
                await workers.prove_access(access)
            case Request():
                await hub.request(step.cluster)
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
        await self._workers.prove(step.endpoint, step.token.text)
        return Minted(
            step.endpoint.fingerprint,
            step.token.serial,
            self._ctx.now(),
            step.token.expires_at_s,
            step.token.text,
            managed=True,
        )

    # ---- house

    async def _keep_house(self) -> None:
        while not await stopped_within(HOUSE_S, self._ctx.stopping):
            self._mirrors.show()
            health, leader = self._ctx.health, self._leader
            note = "" if leader.held else f"standing by for {leader.seen_holder or 'nobody'}"
            health.ready("lease", not leader.trouble, leader.trouble, note=note)
            statuses = self.core.statuses(self._ctx.now()) if self._acting else []
            failing = [f"{one.cluster}: {one.message}" for one in statuses if one.failing]
            health.ready("renewals", not failing, "; ".join(failing)[:1000])
            self._figures.show(
                statuses, self.core.counts, acting=self._acting, now_s=self._ctx.now()
            )
            if self._acting:
                self._telling.status(statuses)
