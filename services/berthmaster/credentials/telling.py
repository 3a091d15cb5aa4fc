"""Tells people: events on objects of the hub, and the ConfigMap that shows every cluster."""

import asyncio
from collections.abc import Sequence
from typing import Final

from berthmaster.credentials import names, status
from berthmaster.credentials.core import Credentials, Status
from berthmaster.credentials.objects import ClusterProfile, ManagedCluster
from berthmaster.credentials.settings import CredentialsSettings
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import AlreadyExists, KubernetesError, NotFound
from berthmaster.kubernetes.events import Recorder, Subject
from berthmaster.kubernetes.objects import Metadata, Object
from berthmaster.kubernetes.resources import (
    CLUSTER_PROFILES,
    CONFIG_MAPS,
    MANAGED_CLUSTERS,
    MULTIKUEUE_CLUSTERS,
    Resource,
)
from berthmaster.runtime.periodic import stopped_within
from berthmaster.runtime.service import Context

WRITE_EVERY_S: Final = 1.0
PAUSE_S: Final = 10.0  # after a write that failed: it is a courtesy


class Telling:
    """Writes what the core has to say."""

    def __init__(
        self,
        ctx: Context[CredentialsSettings],
        client: Client,
        core: Credentials,
        *,
        namespace: str,
        name: str,
    ) -> None:
        self._ctx = ctx
        self._client = client
        self._core = core
        self._namespace = namespace
        self._recorder = Recorder(
            client,
            controller="berthmaster.io/credentials",
            instance=name,
            log=ctx.log,
            now=ctx.now,
        )
        self._wanted: dict[str, str] | None = None
        self._written: dict[str, str] | None = None

    def tell(self) -> None:
        """Events that the core has found worth telling since."""
        tells, self._core.tells = self._core.tells, []
        for one in tells:
            resource, meta = self._subject(one.cluster)
            kind = "Warning" if one.warning else "Normal"
            self._recorder.tell(
                Subject(resource, meta),
                "Warning" if one.warning else "Normal",
                one.reason,
                one.note,
            )
            self._ctx.log.info(
                "told", kind=kind, cluster=one.cluster, reason=one.reason, note=one.note
            )

    def _subject(self, cluster: str) -> tuple[Resource, Metadata]:
        found = self._core.book.subject(cluster)
        if found is None:
            return MULTIKUEUE_CLUSTERS, Metadata(name=cluster)
        if isinstance(found, ManagedCluster):
            return MANAGED_CLUSTERS, found.metadata
        if isinstance(found, ClusterProfile):
            return CLUSTER_PROFILES, found.metadata
        return MULTIKUEUE_CLUSTERS, found.metadata

    def status(self, statuses: Sequence[Status]) -> None:
        """Have the ConfigMap show this soon."""
        self._wanted = status.table(statuses)

    async def run(self) -> None:
        """Until the service stops."""
        recording = asyncio.ensure_future(self._recorder.run(self._ctx.stopping))
        try:
            pause_s, told = WRITE_EVERY_S, ""
            while not await stopped_within(pause_s, self._ctx.stopping):
                pause_s = WRITE_EVERY_S
                if self._wanted is None or self._wanted == self._written:
                    continue
                try:
                    await self._write(self._wanted)
                    told = ""
                except KubernetesError as error:
                    pause_s = PAUSE_S
                    if str(error) != told:
                        told = str(error)
                        self._ctx.log.warning("cannot write the status", why=told)
            await recording
        finally:
            recording.cancel()

    async def _write(self, wanted: dict[str, str]) -> None:
        """What another replica wrote before us goes, too."""
        path = CONFIG_MAPS.path(namespace=self._namespace, name=status.NAME)
        try:
            found = await self._client.get(path, status.ConfigMap)
        except NotFound:
            body = {
                "metadata": {
                    "name": status.NAME,
                    "labels": {names.MANAGED_BY: names.MANAGER},
                },
                "data": wanted,
            }
            try:
                collection = CONFIG_MAPS.path(namespace=self._namespace)
                await self._client.create(collection, body, Object)
            except AlreadyExists:
                return  # the next round reads it
            self._written = wanted
            return
        gone = dict.fromkeys(set(found.data or {}) - set(wanted))
        await self._client.merge_patch(path, {"data": {**wanted, **gone}}, Object)
        self._written = wanted
