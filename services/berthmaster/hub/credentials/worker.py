"""Steps in a worker: create account and rights, bound Secrets and tokens, and delete them.

Every step is idempotent, so this replica or the next leader may repeat it. An object under
Berthmaster's name without Berthmaster's labels stays untouched.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from berthmaster.hub.credentials.bootstrap import Bootstraps
from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.errors import HasAnotherName, NotOurs, NoWayIn
from berthmaster.hub.credentials.core.index import is_ours
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Endpoint, Life, Minted, Survey
from berthmaster.hub.credentials.core.rights import Rule
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access
from berthmaster.lib.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    KubernetesError,
    NotFound,
    Unauthorized,
)
from berthmaster.lib.kube.kubeconfig import User
from berthmaster.lib.kube.objects import Object, Struct, seconds
from berthmaster.lib.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    KUEUE_WORKLOADS,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from berthmaster.lib.runtime.log import LogLike

SETTLE_S: Final = 5.0  # seconds for an authorizer to learn of a new binding through its watch
SETTLE_PAUSE_S: Final = 0.1
AGENT: Final = "berthmaster-credentials"


class _TokenSpec(Struct, frozen=True):
    expiration_seconds: int | None = None


class _TokenStatus(Struct, frozen=True):
    token: str = ""
    expiration_timestamp: str | None = None

    def __repr__(self) -> str:
        return "_TokenStatus()"


class _TokenRequest(Object, frozen=True):
    spec: _TokenSpec = _TokenSpec()
    status: _TokenStatus = _TokenStatus()


class _Made(Object, frozen=True):
    rules: list[dict[str, Any]] | None = None
    subjects: list[dict[str, Any]] | None = None
    automount_service_account_token: bool | None = None


class WorkerSteps:
    def __init__(
        self,
        *,
        hub: Callable[[], str],
        namespace: str,
        rules: Sequence[Rule],
        lifetime_s: float,
        timeout_s: float,
        now: Callable[[], float],
        log: LogLike,
        bootstraps: Bootstraps,
    ) -> None:
        """``hub`` returns the hub's id. ``namespace`` is Berthmaster's in each worker."""
        self._hub = hub
        self._namespace = namespace
        self._rules = list(rules)
        self._lifetime_s = lifetime_s
        self._timeout_s = timeout_s
        self._now = now
        self._log = log
        self._bootstraps = bootstraps
        self._clients: dict[str, tuple[Bootstrap, Client]] = {}
        # cluster -> UID of Berthmaster's namespace in that worker
        self._servers: dict[str, str] = {}

    async def close(self) -> None:
        while self._clients:
            _, (_, client) = self._clients.popitem()
            await client.close()

    async def drop(self, cluster: str) -> None:
        """Close the client of a cluster without further steps."""
        self._servers.pop(cluster, None)
        if (found := self._clients.pop(cluster, None)) is not None:
            await found[1].close()

    async def _client(self, cluster: str, source: Bootstrap) -> Client:
        known = self._clients.get(cluster)
        if known is not None and known[0] == source:
            return known[1]
        access = self._bootstraps.access(source)
        if access is None:
            raise NoWayIn(f"Secret {source.secret} is not there any more")
        client = await self._open(access)
        await self.drop(cluster)
        self._clients[cluster] = (source, client)
        return client

    async def _open(self, access: Access) -> Client:
        return await Client.open(
            access, user_agent=AGENT, log=self._log, timeout_s=self._timeout_s, max_in_flight=4
        )

    def account(self, cluster: str) -> str:
        """Return the service account that Kueue uses in the worker cluster."""
        return names.account(self._hub(), cluster)

    # ---- steps

    async def prepare(self, cluster: str, source: Bootstrap) -> Survey:
        """Create or correct namespace, account, role and binding, and return the bound Secrets.

        Raises HasAnotherName, NotOurs, KubernetesError.
        """
        client, hub, name = await self._client(cluster, source), self._hub(), self.account(cluster)
        path = NAMESPACES.path(name=self._namespace)
        try:
            there = await client.get(path, Object)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                body = {"metadata": {"name": self._namespace}}
                await client.create(NAMESPACES.path(), body, Object)
            there = await client.get(path, Object)
        has_tokens = bool(await self._bound(client, cluster))
        uid = there.metadata.uid
        if not has_tokens and (other := other_name(self._servers, cluster, uid)):
            raise HasAnotherName(cluster, other)
        self._servers[cluster] = uid
        account = manifests.service_account(name, hub, cluster)
        await _ensure(client, SERVICE_ACCOUNTS, account, self._namespace)
        await _ensure(
            client, CLUSTER_ROLES, manifests.cluster_role(name, hub, cluster, self._rules)
        )
        binding = manifests.binding(name, hub, cluster, self._namespace)
        await _ensure(client, CLUSTER_ROLE_BINDINGS, binding)
        bound = await self._bound(client, cluster)
        return Survey(source.target, source.version, bound, account=True, prepared=True)

    async def look(self, cluster: str, source: Bootstrap) -> Survey:
        client, name = await self._client(cluster, source), self.account(cluster)
        there = False
        for resource in (SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES):
            there = there or await _is_there(client, self._path(resource, name))
        bound = await self._bound(client, cluster)
        return Survey(source.target, source.version, bound, account=there)

    async def mint(self, cluster: str, source: Bootstrap, serial: str) -> Minted:
        """Return a verified token, bound to a Secret of its own."""
        client, name = await self._client(cluster, source), self.account(cluster)
        issued_at_s = self._now()
        body = manifests.bound_secret(name, serial, self._hub(), cluster, issued_at_s)
        secret = await client.create(SECRETS.path(namespace=self._namespace), body, Object)
        try:
            path = SERVICE_ACCOUNTS.path(namespace=self._namespace, name=name, subresource="token")
            wanted = manifests.token_request(
                secret.metadata.name, secret.metadata.uid, self._lifetime_s
            )
            found = await client.create(path, wanted, _TokenRequest)
            await self.prove(source.endpoint, found.status.token)
        except BaseException:
            # Best effort: the next survey finds leftovers, and a sweep deletes them.
            with contextlib.suppress(KubernetesError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._unbind(client, cluster, serial)
            raise
        lives_s = found.spec.expiration_seconds
        expires_s = seconds(found.status.expiration_timestamp)
        if lives_s:  # by the hub's clock rather than the worker's
            expires_s = issued_at_s + lives_s
        return Minted(source.target, serial, issued_at_s, expires_s, found.status.token)

    async def give_token(self, cluster: str, source: Bootstrap, life: Life) -> str:
        """Return a verified new token of the bootstrap account. Raises KubernetesError."""
        client = await self._client(cluster, source)
        path = SERVICE_ACCOUNTS.path(
            namespace=life.namespace, name=life.account, subresource="token"
        )
        wanted = manifests.own_token_request(life.lasts_s)
        found = await client.create(path, wanted, _TokenRequest)
        await self.prove(source.endpoint, found.status.token)
        return found.status.token

    async def sweep(self, cluster: str, source: Bootstrap, serials: Sequence[str]) -> None:
        """Delete bound Secrets, and thereby end their tokens."""
        client = await self._client(cluster, source)
        for serial in serials:
            await self._unbind(client, cluster, serial)

    async def revoke(self, cluster: str, source: Bootstrap) -> Survey:
        """Delete all of Berthmaster's objects in the worker.

        The binding is first: an API server caches a token's identity for 10 s, but learns at once
        that a right is gone.
        """
        client, name = await self._client(cluster, source), self.account(cluster)
        await self._remove(client, CLUSTER_ROLE_BINDINGS, name)
        for serial in await self._bound(client, cluster):
            await self._unbind(client, cluster, serial)
        await self._remove(client, SERVICE_ACCOUNTS, name)
        await self._remove(client, CLUSTER_ROLES, name)
        return Survey(source.target, source.version, {}, account=False)

    # ---- real calls

    async def prove(
        self, endpoint: Endpoint, token: str, pair: tuple[bytes, bytes] = (b"", b"")
    ) -> None:
        """Make a real call with the token. Raises KubernetesError if the token is not sufficient
        for Kueue."""
        access = Access(
            server=endpoint.server,
            ca=endpoint.ca,
            server_name=endpoint.server_name,
            proxy=endpoint.proxy,
            user=User(token=token),
            pair=pair,
        )
        await self.prove_access(access, settle_s=SETTLE_S)

    async def prove_access(self, access: Access, *, settle_s: float = 0.0) -> None:
        """Make a real call with the access, and retry until a new account's rights take effect."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + settle_s
        async with await self._open(access) as client:
            while True:
                try:
                    await _prove(client)
                    return
                except (Forbidden, Unauthorized):
                    if loop.time() >= ends_s:
                        raise
                await asyncio.sleep(SETTLE_PAUSE_S)

    # ---- helpers

    def _path(self, resource: Resource, name: str) -> str:
        return resource.path(namespace=self._namespace if resource.namespaced else "", name=name)

    async def _bound(self, client: Client, cluster: str) -> dict[str, float]:
        labels = manifests.worker_labels(self._hub(), cluster)
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        found: dict[str, float] = {}
        pages = client.list_pages(
            SECRETS, Secret, namespace=self._namespace, label_selector=selector
        )
        async with contextlib.aclosing(pages):
            async for page in pages:
                for secret in page.items:
                    serial = secret.metadata.annotations.get(names.SERIAL, "")
                    mine = secret.metadata.annotations.get(names.CLUSTER) == cluster
                    expected = names.bound(self.account(cluster), serial)
                    if mine and serial and secret.metadata.name == expected:
                        found[serial] = _made_at_s(secret)
        return found

    async def _remove(self, client: Client, resource: Resource, name: str) -> None:
        if await _is_there(client, self._path(resource, name)):
            await client.delete(self._path(resource, name))

    async def _unbind(self, client: Client, cluster: str, serial: str) -> None:
        name = names.bound(self.account(cluster), serial)
        await client.delete(SECRETS.path(namespace=self._namespace, name=name))


def other_name(servers: Mapping[str, str], cluster: str, uid: str) -> str:
    """Return another cluster with the same UID of Berthmaster's namespace, or "" if none.

    Both names then mean one API server.
    """
    return next((name for name, its in servers.items() if its == uid and name != cluster), "")


def _made_at_s(secret: Secret) -> float:
    try:
        return seconds(secret.metadata.annotations.get(names.ISSUED))
    except ValueError:
        return 0.0


async def _prove(client: Client) -> None:
    if not await client.can("create", KUEUE_WORKLOADS):
        raise Forbidden(403, "Forbidden", "it may not make workloads in the worker", "")
    pages = client.list_pages(KUEUE_WORKLOADS, Object, limit=1)
    try:
        async with contextlib.aclosing(pages):
            async for _ in pages:
                break
    except NotFound:
        pass  # Kueue is not installed there yet, and Kueue on the hub reports that better


async def _is_there(client: Client, path: str) -> bool:
    try:
        found = await client.get(path, Object)
    except NotFound:
        return False
    return is_ours(found.metadata)


async def _ensure(
    client: Client, resource: Resource, body: Mapping[str, Any], namespace: str = ""
) -> None:
    """Create the object, or patch the existing one to match. Raises NotOurs."""
    name = body["metadata"]["name"]
    path = resource.path(namespace=namespace, name=name)
    try:
        found = await client.get(path, _Made)
    except NotFound:
        try:
            await client.create(resource.path(namespace=namespace), body, Object)
            return
        except AlreadyExists:
            found = await client.get(path, _Made)
    if not is_ours(found.metadata):
        raise NotOurs(f"{resource.kind} {name} in the worker")
    current = {
        "rules": found.rules,
        "subjects": found.subjects,
        "automountServiceAccountToken": found.automount_service_account_token,
    }
    wrong = {key: body[key] for key in current if key in body and current[key] != body[key]}
    if wrong:
        version = found.metadata.resource_version
        try:
            await client.merge_patch(path, wrong, Object, resource_version=version)
        except Conflict:
            await client.merge_patch(path, wrong, Object)
