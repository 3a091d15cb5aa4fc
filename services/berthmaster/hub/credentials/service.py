"""`berth serve credentials`: create, renew and revoke a hub's access to its workers.

::

    berth serve credentials                                    in a pod of the hub
    berth serve credentials --kubeconfig F --context C --namespace berth-credentials

For each ClusterProfile and ManagedCluster that the selector matches, the service creates a Secret
``multikueue-CLUSTER`` in Kueue's namespace and a MultiKueueCluster. The service uses no bus,
because none of its data may travel over one. Replicas stand by on a Lease. Rights:
deploy/chart/templates/pods-rights.yaml.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from berthmaster.hub.credentials.bootstrap import Bootstraps
from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.credentials import Credentials
from berthmaster.hub.credentials.core.index import ClusterIndex
from berthmaster.hub.credentials.core.instructions import Adopt, Check, Step
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Source
from berthmaster.hub.credentials.core.rights import rules
from berthmaster.hub.credentials.hub import HubSteps
from berthmaster.hub.credentials.metrics import CredentialsMetrics
from berthmaster.hub.credentials.plugins import REFRESH_S, Plugins, Providers, read_providers
from berthmaster.hub.credentials.renewal import Renewal
from berthmaster.hub.credentials.settings import CredentialsSettings
from berthmaster.hub.credentials.status_writer import StatusWriter
from berthmaster.hub.credentials.watch import BOOTSTRAPS, PUBLISHED, TOKENS, serves_ocm, watched
from berthmaster.hub.credentials.worker import WorkerSteps
from berthmaster.hub.credentials.writer import StepWriter
from berthmaster.lib.kube.api_lease import ApiLease
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.errors import KubernetesError, Unauthorized
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.selector import parse_selector
from berthmaster.lib.kube.service_client import ANSWER_LIMIT_S, service_client
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats, stopped_within
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "credentials"
HOUSE_S: Final = 1.0  # seconds between two scans of all clusters, for metrics and status
IDENTITY_PAUSE_S: Final = 1.0
LEASE_S: Final = 10.0  # seconds until a replica takes over from a silent leader
ABSENT_S: Final = 5.0  # seconds between two checks for kinds that the hub does not serve
WAYS_IN_S: Final = 5.0  # seconds between two checks of bootstrap tokens
PLUGINS_S: Final = 1.0  # seconds between two checks for due plugins
HUB: Final = "identity of the hub"  # a component of health


class CredentialsController(Controller[Step]):
    """One replica. Each step is a separate task, at most one per cluster."""

    def __init__(
        self, ctx: Context[CredentialsSettings], client: Client, providers: Providers
    ) -> None:
        settings = ctx.settings
        self._namespace = settings.namespace or client.access.namespace or "default"
        granted = rules(settings.frameworks)
        permission = manifests.permission_spec(granted)
        validity = manifests.duration(settings.lifetime_s)
        self._bootstraps = Bootstraps()
        self._index = ClusterIndex(
            parse_selector(settings.selector), permission, validity, settings.kueue_namespace
        )
        self._credentials = Credentials(self._index, settings.times)
        self._hub_id = ""
        hub = HubSteps(
            client,
            namespace=settings.kueue_namespace,
            permission=permission,
            validity=validity,
            seen=self._on_answered,
        )
        self._workers = WorkerSteps(
            hub=lambda: self._hub_id,
            namespace=settings.worker_namespace,
            rules=granted,
            lifetime_s=settings.lifetime_s,
            timeout_s=ANSWER_LIMIT_S,
            now=ctx.now,
            log=ctx.log,
            bootstraps=self._bootstraps,
        )
        writer = StepWriter(
            client,
            hub,
            self._workers,
            self._index,
            timeout_s=ANSWER_LIMIT_S,
            now=ctx.now,
        )
        super().__init__(ctx, client, self._credentials, writer, name=NAME, beat_s=HOUSE_S)
        # A step whose time has come continues while a mirror lists again.
        writer.may_write = lambda: self.lease is not None and self.lease.held
        self.watches(watched(settings, self._namespace), absent_s=ABSENT_S)
        self._renewal = Renewal(
            client,
            self._workers,
            self._bootstraps,
            renew_after_s=settings.renew_after_s,
            now=ctx.now,
            log=ctx.log,
        )
        self._plugins = Plugins(
            providers,
            refresh_s=settings.renew_after_s or REFRESH_S,
            spawn=lambda coro, name: ctx.spawn(coro, name=name),
            on_source=self._on_source,
            now=ctx.now,
            log=ctx.log,
        )
        self._status = StatusWriter(ctx, client, self._namespace)
        self._figures = CredentialsMetrics(ctx.metrics)

    async def run(self) -> None:
        """Run until the service stops, then release the lease."""
        ctx = self.ctx
        ctx.health.ready(HUB, False, "not asked yet")
        self.start()
        ctx.spawn(self._identify(), name=HUB)
        ctx.spawn(self._status.run(), name="status of all clusters")
        ctx.spawn(self._renew_ways_in(), name="bootstrap tokens")
        ctx.spawn(self._run_plugins(), name="credential plugins")
        self.lead_by(
            ApiLease(
                self.client,
                namespace=self._namespace,
                name=names.MANAGER,
                holder=instance_of(NAME),
                now=ctx.now,
                log=ctx.log,
                ttl_s=LEASE_S,
                on_gained=lambda _: self.wake(),
            )
        )
        await self.finish()
        await self._workers.close()

    # The hub

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self._take(one.name, thing, gone)

    def _take(self, name: str, found: Object, gone: bool) -> None:
        index = self._index
        if name == BOOTSTRAPS:
            assert isinstance(found, Secret)
            key = (found.metadata.namespace, found.metadata.name)
            cluster, source = ("", None) if gone else self._bootstraps.read(found)
            touched = index.bootstrap(key, cluster, source)
        elif name == TOKENS:
            assert isinstance(found, Secret)
            touched = index.token(found, gone=gone)
        elif name == PUBLISHED:
            assert isinstance(found, Secret)
            touched = index.secret(found, gone=gone)
        else:
            touched = index.put(found, gone=gone)
            home = self.ctx.settings.kueue_namespace
            if isinstance(found, ClusterProfile) and found.metadata.namespace == home:
                provided = self._plugins.read(found, gone=gone)
                touched |= index.provide(found.metadata.name, provided)
        self._credentials.touched(touched)

    def _on_answered(self, found: Object, gone: bool) -> None:
        """Apply the API server's response to a step, before the watch reports the change."""
        self._take(PUBLISHED if isinstance(found, Secret) else "", found, gone)
        self.wake()

    async def _identify(self) -> None:
        """Read the hub's id, and never guess: objects in workers are found by the id."""
        while not self.ctx.stopping.is_set():
            try:
                self._hub_id = await self.client.uid()
                self.ctx.health.ready(HUB, True)
                self.wake()
                return
            except KubernetesError as error:
                self.ctx.health.ready(HUB, False, str(error))
            await stopped_within(IDENTITY_PAUSE_S, self.ctx.stopping)

    async def _renew_ways_in(self) -> None:
        async for _ in beats(WAYS_IN_S, self.ctx.stopping):
            if self.acting:
                await self._renewal.look(self._index.ways_in())

    def _on_source(self, cluster: str, source: Source) -> None:
        """Apply the result of a plugin."""
        self._credentials.touched(self._index.provide(cluster, source))
        self.wake()

    async def _run_plugins(self) -> None:
        async for _ in beats(PLUGINS_S, self.ctx.stopping):
            if self.acting:
                self._plugins.look(self._index.uses_plugin)

    # Acting

    def may_act(self) -> bool:
        return bool(self._hub_id) and super().may_act()

    def before_act(self) -> None:
        """Check whether the hub serves Open Cluster Management's kinds."""
        uses = serves_ocm(self.watch)
        if uses != self._index.uses_managed:
            self._index.uses_managed = uses
            self._credentials.touched(self._index.clusters())

    def about(self, write: Step) -> str:
        return write.cluster

    def wrote(self, write: Step, answer: Answer) -> None:
        super().wrote(write, answer)
        if isinstance(write, Check | Adopt) and answer.reason == Unauthorized.__name__:
            self._plugins.expire(write.cluster)
        if answer.done and not isinstance(write, Check):
            self.ctx.log.info("step done", step=type(write).__name__, cluster=write.cluster)

    def _ways_in_failing(self) -> Iterable[tuple[str, str]]:
        return self._renewal.failing.items() if self.acting else ()

    def _plugins_failing(self) -> Iterable[tuple[str, str]]:
        return self._plugins.failing.items() if self.acting else ()

    def show(self) -> None:
        now_s = self.now()
        statuses = self._credentials.statuses(now_s) if self.acting else []
        failing = [f"{one.cluster}: {one.message}" for one in statuses if one.failing]
        failing += [f"{name}: its bootstrap: {why}" for name, why in self._ways_in_failing()]
        failing += [f"{name}: its plugin: {why}" for name, why in self._plugins_failing()]
        self.ctx.health.ready("renewals", not failing, "; ".join(failing)[:1000])
        self._figures.show(statuses, self._credentials.counts, now_s)
        self._figures.show_ways_in(self._renewal)
        self._figures.show_plugins(len(self._plugins.failing))
        if self.acting:
            self._status.show(statuses)


async def main(ctx: Context[CredentialsSettings]) -> None:
    """Watch the hub, and act while this replica holds the lease."""
    settings = ctx.settings
    if settings.renew_after_s and settings.renew_after_s <= settings.grace_s:
        raise CannotStart(
            f"--renew-after-s {settings.renew_after_s:g} must be more than --grace-s "
            f"{settings.grace_s:g}: else tokens that were replaced are never revoked"
        )
    providers = await asyncio.to_thread(read_providers, settings.access_providers)
    async with service_client(ctx, NAME) as client:
        await CredentialsController(ctx, client, providers).run()


SERVICE = Service(NAME, CredentialsSettings, main)
