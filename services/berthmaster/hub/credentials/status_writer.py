"""Writes the ConfigMap with every cluster's status; see status.py for the format."""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.hub.credentials.core import names, status
from berthmaster.hub.credentials.core.credentials import Status
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import AlreadyExists, KubernetesError, NotFound
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import CONFIG_MAPS
from berthmaster.lib.runtime.periodic import stopped_within
from berthmaster.lib.runtime.service import Context

WRITE_EVERY_S: Final = 1.0
PAUSE_S: Final = 10.0  # seconds after a failed write, because the ConfigMap is not essential


class StatusWriter:
    def __init__(self, ctx: Context[Any], client: Client, namespace: str) -> None:
        self._ctx = ctx
        self._client = client
        self._namespace = namespace
        self._wanted: dict[str, str] | None = None
        self._written: dict[str, str] | None = None

    def show(self, statuses: Sequence[Status]) -> None:
        """Schedule a write of these statuses."""
        self._wanted = status.table(statuses)

    async def run(self) -> None:
        """Write on change until the service stops."""
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
                    self._ctx.log.warning("status write failed", why=told)

    async def _write(self, wanted: dict[str, str]) -> None:
        """Write the ConfigMap, and remove entries of other replicas."""
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
                return  # the next round reads the existing object
            self._written = wanted
            return
        gone = dict.fromkeys(set(found.data or {}) - set(wanted))
        await self._client.merge_patch(path, {"data": {**wanted, **gone}}, Object)
        self._written = wanted
