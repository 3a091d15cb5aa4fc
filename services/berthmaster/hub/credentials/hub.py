"""Steps on the hub: the Secret that Kueue reads, the MultiKueueCluster, and OCM's objects.

Another client's object under Berthmaster's name is never written. A write names the resource
version of its decision, so at most one of two replicas succeeds. The API server's response enters
the index at once, because the mirror lags behind.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.described import merged
from berthmaster.hub.credentials.core.errors import NotOurs, StillListed
from berthmaster.hub.credentials.core.index import ACCOUNT, is_ours
from berthmaster.hub.credentials.core.instructions import (
    Describe,
    Empty,
    Forget,
    Publish,
    Register,
    Unregister,
)
from berthmaster.hub.credentials.core.objects import (
    ClusterPermission,
    ManagedServiceAccount,
    Secret,
)
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import AlreadyExists, Conflict, NotFound
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Object, Struct
from berthmaster.lib.kube.resources import (
    CLUSTER_PERMISSIONS,
    CLUSTER_PROFILES,
    MANAGED_SERVICE_ACCOUNTS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    SECRETS,
    Resource,
)
from berthmaster.lib.kueue.multikueue import MultiKueueCluster, MultiKueueConfig

FIELD_MANAGER: Final = names.MANAGER
T = TypeVar("T", bound=Object)


class _DescribedStatus(Struct, frozen=True):
    access_providers: tuple[dict[str, Any], ...] | None = None


class _Described(Object, frozen=True):
    """A ClusterProfile with every field of its access providers."""

    status: _DescribedStatus = _DescribedStatus()


class HubSteps:
    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        permission: Mapping[str, Any],
        validity: str,
        seen: Callable[[Object, bool], None],
    ) -> None:
        """``namespace`` is Kueue's. ``seen`` gets each response, and whether the object is gone."""
        self._client = client
        self._namespace = namespace
        self._permission = dict(permission)
        self._validity = validity
        self._seen = seen

    def _secret_path(self, cluster: str) -> str:
        return SECRETS.path(namespace=self._namespace, name=names.hub_secret(cluster))

    async def free(self, cluster: str) -> None:
        """Raise NotOurs if another client owns the Secret's name."""
        found = await self._find(self._secret_path(cluster), Secret)
        if found is not None and not _is_for(found, cluster):
            raise NotOurs(f"Secret {self._namespace}/{names.hub_secret(cluster)}")

    async def publish(self, step: Publish) -> None:
        """Write a token into the Secret that Kueue reads."""
        body = manifests.hub_secret(step.cluster, step.endpoint, step.minted, step.told)
        path = self._secret_path(step.cluster)
        if step.held is None:
            try:
                made = await self._client.create(
                    SECRETS.path(namespace=self._namespace),
                    body,
                    Secret,
                    field_manager=FIELD_MANAGER,
                )
                self._seen(made, False)
                return
            except AlreadyExists:
                await self.free(step.cluster)
                raise
        version = step.held.version
        try:
            written = await self._client.merge_patch(
                path, body, Secret, resource_version=version, field_manager=FIELD_MANAGER
            )
        except (Conflict, NotFound):
            await self._again(path, Secret, step.cluster)
            raise
        self._seen(written, False)

    async def empty(self, step: Empty) -> None:
        """Remove the kubeconfig from the Secret. The annotations stay."""
        path = self._secret_path(step.cluster)
        try:
            written = await self._client.merge_patch(
                path, {"data": None}, Secret, resource_version=step.held.version
            )
        except Conflict:
            await self._again(path, Secret, step.cluster)
            raise
        self._seen(written, False)

    async def forget(self, step: Forget) -> None:
        path = self._secret_path(step.cluster)
        last = await self._find(path, Secret)
        await self._client.delete(path, uid=step.held.uid)
        if last is not None:
            self._seen(last, True)

    async def register(self, step: Register) -> None:
        """Create the MultiKueueCluster, or point the existing one to Secret or profile."""
        body = manifests.multikueue_cluster(step.cluster, step.profile)
        path = MULTIKUEUE_CLUSTERS.path(name=step.cluster)
        if step.registered is not None:
            meta = {key: body["metadata"][key] for key in ("labels", "annotations")}
            neither = {"kubeConfig": None, "clusterProfileRef": None}
            source = {**neither, **body["spec"]["clusterSource"]}
            written = await self._client.merge_patch(
                path,
                {"metadata": meta, "spec": {"clusterSource": source}},
                MultiKueueCluster,
                resource_version=step.registered.version,
                field_manager=FIELD_MANAGER,
            )
        else:
            try:
                written = await self._client.create(
                    MULTIKUEUE_CLUSTERS.path(), body, MultiKueueCluster, field_manager=FIELD_MANAGER
                )
            except AlreadyExists:
                written = await self._client.get(path, MultiKueueCluster)
        self._seen(written, False)  # the index checks the owner

    async def describe(self, step: Describe) -> None:
        """Write the access provider of a ClusterProfile by Berthmaster."""
        wanted = step.wanted
        path = CLUSTER_PROFILES.path(namespace=wanted.namespace, name=step.cluster)
        # Entries of others are written back with every field that the API has.
        standing = await self._client.get(path, _Described)
        providers = merged(standing.status.access_providers or (), wanted.provider)
        written = await self._client.merge_patch(
            f"{path}/status",
            {"status": {"accessProviders": providers}},
            ClusterProfile,
            resource_version=standing.metadata.resource_version,
            field_manager=FIELD_MANAGER,
        )
        self._seen(written, False)

    async def unregister(self, step: Unregister) -> None:
        """Delete the MultiKueueCluster. Raises StillListed if a configuration was changed to
        list the cluster."""
        listing: list[str] = []
        pages = self._client.list_pages(MULTIKUEUE_CONFIGS, MultiKueueConfig)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for config in page.items:
                    if step.cluster in config.clusters:
                        listing.append(config.metadata.name)
                        self._seen(config, False)
        if listing:
            raise StillListed(f"MultiKueueConfig {', '.join(sorted(listing))} lists it")
        path = MULTIKUEUE_CLUSTERS.path(name=step.cluster)
        last = await self._find(path, MultiKueueCluster)
        await self._client.delete(path, uid=step.registered.uid)
        if last is not None:
            self._seen(last, True)

    # ---- Open Cluster Management

    async def request(self, cluster: str) -> None:
        """Create account and rights, as OCM's objects in the cluster's namespace."""
        account = manifests.managed_account(cluster, self._validity)
        await self._ensure(MANAGED_SERVICE_ACCOUNTS, ManagedServiceAccount, cluster, account)
        permission = manifests.permission(cluster, self._permission)
        await self._ensure(CLUSTER_PERMISSIONS, ClusterPermission, cluster, permission)

    async def release(self, cluster: str) -> None:
        """Delete Berthmaster's objects; OCM then deletes the account in the worker."""
        await self._release(MANAGED_SERVICE_ACCOUNTS, ManagedServiceAccount, cluster)
        await self._release(CLUSTER_PERMISSIONS, ClusterPermission, cluster)

    async def _ensure(
        self, resource: Resource, kind: type[T], cluster: str, body: Mapping[str, Any]
    ) -> None:
        path = resource.path(namespace=cluster, name=ACCOUNT)
        found = await self._find(path, kind)
        if found is None:
            found = await self._client.create(
                resource.path(namespace=cluster), body, kind, field_manager=FIELD_MANAGER
            )
        elif not is_ours(found.metadata):
            raise NotOurs(f"{resource.kind} {cluster}/{ACCOUNT}")
        else:
            found = await self._client.merge_patch(
                path,
                {"spec": body["spec"]},
                kind,
                resource_version=found.metadata.resource_version,
                field_manager=FIELD_MANAGER,
            )
        self._seen(found, False)

    async def _release(self, resource: Resource, kind: type[T], cluster: str) -> None:
        path = resource.path(namespace=cluster, name=ACCOUNT)
        found = await self._find(path, kind)
        if found is None or not is_ours(found.metadata):
            return
        await self._client.delete(path, uid=found.metadata.uid)
        self._seen(found, True)

    # ---- helpers

    async def _find(self, path: str, kind: type[T]) -> T | None:
        try:
            return await self._client.get(path, kind)
        except NotFound:
            return None

    async def _again(self, path: str, kind: type[Secret], cluster: str) -> None:
        """Read the Secret again after another client's write, and update the index."""
        found = await self._find(path, kind)
        if found is not None and not _is_for(found, cluster):
            raise NotOurs(f"Secret {self._namespace}/{names.hub_secret(cluster)}")
        if found is not None:
            self._seen(found, False)


def _is_for(secret: Secret, cluster: str) -> bool:
    return is_ours(secret.metadata) and secret.metadata.annotations.get(names.CLUSTER) == cluster
