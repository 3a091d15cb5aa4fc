"""Connections from the hub to its workers: one for each MultiKueueCluster, lost and found again.

A kubeconfig that could leak or run something is refused by name of the rule it breaks. A worker is
connected once both watches (Workloads and Jobs of this hub) are up; it is lost when one breaks.
Connecting again is tried at once, then after 5 s, doubling. The condition Active tells how it
stands, and only then do the checks of its config count it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import yaml

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.config import from_kubeconfig_bytes
from berthmaster.kubernetes.errors import BadConfig, KubernetesError
from tests.controlplane.kueue.clusters import Cluster, Quiet
from tests.controlplane.kueue.objects import ORIGIN_LABEL, Key, Obj, prebuilt_of, set_condition
from tests.controlplane.kueue.workqueue import log
from tests.controlplane.kueue.writing import now_text
from tests.support.patience import hang_s

CONNECT_LIMIT_S = 10.0
PROOF_EVERY_S, PROOF_LIMIT_S = 30.0, 15.0
RETRY_FIRST_S = 5.0
RETRY_STEPS = 6  # 5 s ... 320 s


class Refused(Exception):
    """A kubeconfig that is not used: the reason for the condition, and words."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_kubeconfig(data: bytes) -> None:
    """Raises Refused when a kubeconfig is not safe to use."""
    try:
        config: Any = yaml.safe_load(data)
    except yaml.YAMLError:
        raise Refused("InsecureKubeConfig", "the kubeconfig is no YAML") from None
    if not isinstance(config, dict) or not config.get("clusters"):
        raise Refused("InsecureKubeConfig", "the kubeconfig names no cluster")
    for entry in config.get("users") or ():
        user = entry.get("user") or {}
        for field, words in (
            ("tokenFile", "tokenFile is not allowed"),
            ("exec", "exec plugins are not allowed"),
            ("auth-provider", "auth providers are not allowed"),
            ("username", "basic auth is not allowed"),
            ("password", "basic auth is not allowed"),
        ):
            if user.get(field):
                raise Refused("InsecureKubeConfig", words)
    for entry in config["clusters"]:
        cluster, name = entry.get("cluster") or {}, entry.get("name", "")
        if cluster.get("insecure-skip-tls-verify"):
            raise Refused("InsecureKubeConfig", f"cluster {name} skips the verification of TLS")
        if cluster.get("certificate-authority"):
            raise Refused("InsecureKubeConfig", f"cluster {name} names its CA by path, not by data")
        if not cluster.get("server"):
            raise Refused("InsecureKubeConfig", f"cluster {name} has no server URL")


class Remote:
    """One worker, as the hub sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cluster: Cluster | None = None  # None while it is lost
        self.lost_since_s = time.monotonic()
        self.failures = 0
        self.not_before_s = 0.0
        self.data = b""
        self.task: asyncio.Task[None] | None = None


class Remotes:
    """All workers of a hub."""

    def __init__(
        self,
        local: Cluster,
        *,
        origin: str,
        namespace: str,
        on_remote: Callable[[str, Key], None],
        on_connection: Callable[[str], None],
    ) -> None:
        """`on_remote` hears of every change of a remote Workload (its name is the local one's),
        `on_connection` of every worker that was lost or found."""
        self._local = local
        self._origin = origin
        self._namespace = namespace
        self._on_remote = on_remote
        self._on_connection = on_connection
        self._remotes: dict[str, Remote] = {}

    def connected(self, name: str) -> Cluster | None:
        remote = self._remotes.get(name)
        return remote.cluster if remote else None

    def all_connected(self) -> dict[str, Cluster]:
        return {name: one.cluster for name, one in self._remotes.items() if one.cluster is not None}

    def lost_for_s(self, name: str) -> float:
        remote = self._remotes.get(name)
        return time.monotonic() - remote.lost_since_s if remote and remote.cluster is None else 0.0

    async def look(self, key: Key) -> float | None:
        """Make the connection of one MultiKueueCluster what its spec says."""
        name = key[1]
        described = self._local.get(resources.MULTIKUEUE_CLUSTERS, key)
        if described is None or "deletionTimestamp" in described["metadata"]:
            if remote := self._remotes.pop(name, None):
                await self._disconnect(remote)
            return None
        remote = self._remotes.setdefault(name, Remote(name))
        try:
            data = self._kubeconfig(described)
            check_kubeconfig(data)
        except Refused as error:
            await self._disconnect(remote)
            await self._tell(described, active=False, reason=error.reason, message=str(error))
            return None
        if data == remote.data and remote.cluster is not None:
            return None
        if data != remote.data:
            remote.data, remote.failures, remote.not_before_s = data, 0, 0.0
        if (wait_s := remote.not_before_s - time.monotonic()) > 0:
            return wait_s
        await self._disconnect(remote)
        try:
            await self._connect(remote)
        except Refused as error:
            await self._tell(described, active=False, reason=error.reason, message=str(error))
            return None
        except (KubernetesError, TimeoutError) as error:
            remote.failures += 1
            wait_s = RETRY_FIRST_S * 2.0 ** (min(remote.failures, RETRY_STEPS + 1) - 1)
            remote.not_before_s = time.monotonic() + wait_s
            words = str(error) or "no answer"
            await self._tell(
                described, active=False, reason="ClientConnectionFailed", message=words
            )
            return wait_s
        remote.failures = 0
        await self._tell(described, active=True, reason="Active", message="Connected")
        self._on_connection(name)
        return None

    def _kubeconfig(self, described: Obj) -> bytes:
        source = described["spec"]["clusterSource"]
        if "kubeConfig" not in source:
            words = "the feature gate MultiKueueClusterProfile is off"
            raise Refused("MultiKueueClusterProfileFeatureDisabled", words)
        where = source["kubeConfig"]
        if where.get("locationType", "Secret") != "Secret":
            raise Refused("BadKubeConfig", "only kubeconfigs in Secrets are read here")
        secret = self._local.get(resources.SECRETS, (self._namespace, where["location"]))
        if secret is None:
            raise Refused(
                "BadKubeConfig", f"Secret {where['location']} not found in {self._namespace}"
            )
        text = (secret.get("data") or {}).get("kubeconfig")
        if text is None:
            raise Refused("BadKubeConfig", f"Secret {where['location']} has no key kubeconfig")
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise Refused("BadKubeConfig", "the Secret's kubeconfig is not base64") from None

    async def _connect(self, remote: Remote) -> None:
        try:
            access = from_kubeconfig_bytes(remote.data)
        except BadConfig as error:
            raise Refused("InsecureKubeConfig", str(error)) from None
        client = await Client.open(access, user_agent="kueue-standin", log=Quiet(), timeout_s=10.0)
        cluster = Cluster(client)
        up = asyncio.Event()
        task = asyncio.create_task(self._serve(remote, client, cluster, up))
        waiting = asyncio.create_task(up.wait())
        try:
            await asyncio.wait(
                {task, waiting}, timeout=hang_s(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if task.done():
            task.result()  # raises what went wrong
        if not up.is_set():
            task.cancel()
            raise TimeoutError(f"{remote.name}: no answer within {CONNECT_LIMIT_S:g} s")
        remote.task = task
        remote.cluster = cluster
        task.add_done_callback(lambda done: self._lost(remote, done))

    async def _serve(
        self, remote: Remote, client: Client, cluster: Cluster, up: asyncio.Event
    ) -> None:
        """Follow until the connection breaks; ends by raising what broke it."""
        left = 2

        def listed() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                up.set()

        def changed(
            resource: resources.Resource, key: Key, old: Obj | None, new: Obj | None
        ) -> None:
            if resource is resources.WORKLOADS:
                self._on_remote(remote.name, key)
            elif (job := new or old) is not None and (name := prebuilt_of(job)):
                self._on_remote(remote.name, (key[0], name))

        cluster.listen(changed)
        selector = f"{ORIGIN_LABEL}={self._origin}"
        try:
            async with asyncio.TaskGroup() as group:
                for resource in (resources.WORKLOADS, resources.JOBS):
                    group.create_task(
                        cluster.follow(resource, label_selector=selector, listed=listed)
                    )
                group.create_task(cluster.prove(PROOF_EVERY_S, PROOF_LIMIT_S))
        except ExceptionGroup as broken:
            raise broken.exceptions[0] from None
        finally:
            await client.close()

    def _lost(self, remote: Remote, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # taken, so that nobody complains that it was not
        if remote.task is not task:
            return
        log.warning("worker %s lost", remote.name)
        remote.task = remote.cluster = None
        remote.lost_since_s = time.monotonic()
        if remote.name in self._remotes:
            self._on_connection(remote.name)

    async def _disconnect(self, remote: Remote) -> None:
        task, remote.task = remote.task, None
        if remote.cluster is not None:
            remote.cluster = None
            remote.lost_since_s = time.monotonic()
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KubernetesError):
                await task

    async def _tell(self, described: Obj, *, active: bool, reason: str, message: str) -> None:
        new = copy.deepcopy(described)
        now = now_text()
        if set_condition(new, "Active", true=active, reason=reason, message=message, now=now):
            meta = described["metadata"]
            body = {
                "metadata": {"resourceVersion": meta["resourceVersion"]},
                "status": {"conditions": new["status"]["conditions"]},
            }
            key: Key = ("", meta["name"])
            await self._local.merge_patch(
                resources.MULTIKUEUE_CLUSTERS, key, body, subresource="status"
            )
