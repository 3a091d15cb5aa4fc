"""The mirrors of the hub: which kinds, where, and whether enough is known to act on it.

Secrets are watched by label in two namespaces, and by one name elsewhere: no right to others is
needed. OCM's kinds may be absent; what was seen of a kind that vanishes stays, so that a lost
definition revokes nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from berthmaster.credentials import names
from berthmaster.credentials.book import ACCOUNT
from berthmaster.credentials.objects import (
    ClusterPermission,
    ClusterProfile,
    ManagedCluster,
    ManagedServiceAccount,
    Secret,
)
from berthmaster.credentials.settings import CredentialsSettings
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.mirror import Added, Change, Deleted, Unreadable, Updated
from berthmaster.kubernetes.multikueue import MultiKueueCluster, MultiKueueConfig
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.reflector import Reflector
from berthmaster.kubernetes.resources import (
    CLUSTER_PERMISSIONS,
    CLUSTER_PROFILES,
    MANAGED_CLUSTERS,
    MANAGED_SERVICE_ACCOUNTS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    SECRETS,
    Resource,
)
from berthmaster.runtime.service import Context

ABSENT_S: Final = 3.0  # one that starts may say so of kinds that it has not loaded yet
PUBLISHED: Final = "published"
BOOTSTRAPS: Final = "bootstraps"
TOKENS: Final = "tokens"
Taker = Callable[[str, Object, bool], None]


class _Watched(NamedTuple):
    name: str
    resource: Resource
    struct: type[Object]
    needed: bool = False
    namespace: str = ""
    labels: str = ""
    fields: str = ""


class Mirrors:
    """All of them, each with a task of its own."""

    def __init__(
        self,
        ctx: Context[CredentialsSettings],
        client: Client,
        *,
        namespace: str,
        on_object: Taker,
    ) -> None:
        """``namespace``: ours."""
        self._ctx = ctx
        settings = ctx.settings
        self._on_object = on_object
        self._absent_since_s: dict[str, float] = {}
        kueue = settings.kueue_namespace
        ours = f"{names.OURS},{names.MANAGED_BY}={names.MANAGER}"
        watched = [
            _Watched("MultiKueueClusters", MULTIKUEUE_CLUSTERS, MultiKueueCluster, True),
            _Watched("MultiKueueConfigs", MULTIKUEUE_CONFIGS, MultiKueueConfig, True),
            _Watched(PUBLISHED, SECRETS, Secret, True, kueue, ours),
            _Watched(BOOTSTRAPS, SECRETS, Secret, True, namespace, names.BOOTSTRAP),
            _Watched("ClusterProfiles", CLUSTER_PROFILES, ClusterProfile),
            _Watched("ManagedClusters", MANAGED_CLUSTERS, ManagedCluster),
        ]
        self.asks_ocm = settings.source != "bootstrap"
        if self.asks_ocm:
            by_name = f"metadata.name={ACCOUNT}"
            watched += [
                _Watched(
                    "ManagedServiceAccounts",
                    MANAGED_SERVICE_ACCOUNTS,
                    ManagedServiceAccount,
                    fields=by_name,
                ),
                _Watched(
                    "ClusterPermissions", CLUSTER_PERMISSIONS, ClusterPermission, fields=by_name
                ),
                _Watched(TOKENS, SECRETS, Secret, fields=by_name),
            ]
        self._reflectors: dict[str, tuple[_Watched, Reflector[Any]]] = {}
        for one in watched:
            reflector: Reflector[Any] = Reflector(
                client,
                one.resource,
                one.struct,
                namespace=one.namespace,
                label_selector=one.labels,
                field_selector=one.fields,
                on_change=lambda change, name=one.name: self._take(name, change),  # type: ignore[misc]
                absent_s=settings.absent_s,
                log=ctx.log,
            )
            self._reflectors[one.name] = (one, reflector)

    def start(self) -> None:
        """Mirror until the service stops."""
        self.show()
        for name, (_, reflector) in self._reflectors.items():
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=f"mirror of {name}")

    def _take(self, name: str, change: Change[Any]) -> None:
        match change:
            case Added(object=found) | Updated(object=found):
                self._on_object(name, found, False)
            case Deleted(object=found):
                self._on_object(name, found, True)
            case Unreadable(object=bad):
                where = f"{bad.namespace}/{bad.name}"
                self._ctx.log.warning(
                    "an object has a wrong form", kind=name, name=where, why=bad.why
                )
            case _:
                pass

    def _absent(self, name: str) -> bool:
        """Whether the hub has said for a while that it serves no such kind."""
        if not self._reflectors[name][1].absent:
            self._absent_since_s.pop(name, None)
            return False
        now_s = asyncio.get_running_loop().time()
        return now_s - self._absent_since_s.setdefault(name, now_s) >= ABSENT_S

    @property
    def complete(self) -> bool:
        """Whether all is known: nothing is taken away for want of having been seen."""
        return all(
            reflector.caught_up or (not one.needed and self._absent(name))
            for name, (one, reflector) in self._reflectors.items()
        )

    @property
    def serves_ocm(self) -> bool:
        """Whether OCM's kinds are there to ask by."""
        kinds = ("ManagedServiceAccounts", "ClusterPermissions")
        return self.asks_ocm and all(self._reflectors[name][1].caught_up for name in kinds)

    def show(self) -> None:
        """Health as of now."""
        for name, (one, reflector) in self._reflectors.items():
            good = self._absent(name) and not one.needed
            good = good or (reflector.caught_up and not reflector.trouble)
            why = reflector.trouble or "not listed yet"
            self._ctx.health.ready(f"mirror of {name}", good, why)
