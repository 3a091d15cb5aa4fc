"""Keeps the tokens of bootstrap Secrets alive, so that people can give us short-lived ones.

A token that a person made for a day is renewed by itself, at two thirds of its life, for as long a
life: the account may give tokens to itself. The new one is tried, then takes the old one's place in
the person's Secret. Other ways in (client certificates, tokens of no ServiceAccount) are left as
they are; when such a one is over, the worker's own failures say so.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import Final

from berthmaster.hub.credentials.bootstrap import Bootstraps, life_of
from berthmaster.hub.credentials.core import manifests
from berthmaster.hub.credentials.core.index import KUBECONFIG
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Life
from berthmaster.hub.credentials.worker import WorkerSteps
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import Conflict, KubernetesError, NotFound
from berthmaster.lib.kube.resources import SECRETS
from berthmaster.lib.runtime.log import LogLike

LIMIT_S: Final = 30.0  # of one renewal, with the trial of the new token


class Renewal:
    """Of all bootstrap Secrets of one hub."""

    def __init__(
        self,
        client: Client,
        workers: WorkerSteps,
        bootstraps: Bootstraps,
        *,
        renew_after_s: float,
        now: Callable[[], float],
        log: LogLike,
    ) -> None:
        """``renew_after_s``: 0 = at two thirds of a token's life. ``now``: seconds since 1970."""
        self._client = client
        self._workers = workers
        self._bootstraps = bootstraps
        self._renew_after_s = renew_after_s
        self._now = now
        self._log = log
        self.failing: dict[str, str] = {}  # cluster: why
        self.renewed = 0

    async def look(self, ways_in: Iterable[tuple[str, Bootstrap]]) -> None:
        """Renew what is due, each within its time limit. What failed is tried at the next look."""
        due = []
        for cluster, source in ways_in:
            access = self._bootstraps.access(source)
            life = life_of(access) if access is not None else None
            if life is not None and life.is_due(self._now(), self._renew_after_s):
                due.append((cluster, source, life))
        whys = await asyncio.gather(*(self._renew(*one) for one in due))
        failing = {cluster: why for (cluster, _, _), why in zip(due, whys, strict=True) if why}
        for cluster, why in failing.items():
            if self.failing.get(cluster) != why:
                self._log.warning("bootstrap token renewal failed", cluster=cluster, why=why)
        self.failing = failing

    async def _renew(self, cluster: str, source: Bootstrap, life: Life) -> str:
        """Why not; "" = it is done."""
        try:
            async with asyncio.timeout(LIMIT_S):
                token = await self._workers.give_token(cluster, source, life)
                await self._write(cluster, source, token)
        except Conflict:
            return ""  # somebody wrote it meanwhile: look again
        except TimeoutError:
            return f"not done within {LIMIT_S:g} s"
        except KubernetesError as error:
            return str(error)
        self.renewed += 1
        self._log.info("bootstrap token renewed", cluster=cluster, lasts_s=round(life.lasts_s))
        return ""

    async def _write(self, cluster: str, source: Bootstrap, token: str) -> None:
        namespace, _, name = source.secret.partition("/")
        text = base64.b64encode(manifests.kubeconfig(cluster, source.endpoint, token)).decode()
        try:
            await self._client.merge_patch(
                SECRETS.path(namespace=namespace, name=name),
                {"data": {KUBECONFIG: text}},
                Secret,
                resource_version=source.version,
            )
        except NotFound:
            pass  # the person took it back
