"""Renews the tokens of bootstrap Secrets, so that operators can provide short-lived tokens.

Example: an operator creates a token for a day. At two thirds of its life, this module requests a
token of the same duration, because the account may issue its own tokens. The module verifies the
new token and writes it into the operator's Secret. Other credentials (client certificates, tokens
of no ServiceAccount) stay unchanged. After they expire, the worker's failures report that.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import Final

from berthmaster.hub.credentials.bootstrap import Bootstraps, life_of
from berthmaster.hub.credentials.core import manifests
from berthmaster.hub.credentials.core.described import KUBECONFIG
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Life
from berthmaster.hub.credentials.worker import WorkerSteps
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import Conflict, KubernetesError, NotFound
from berthmaster.lib.kube.resources import SECRETS
from berthmaster.lib.runtime.log import LogLike

LIMIT_S: Final = 30.0  # seconds for a renewal, including verification of the new token


class Renewal:
    """Renewal of all bootstrap Secrets of one hub."""

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
        """``renew_after_s``: 0 = at two thirds of a token's life. ``now`` returns seconds since
        1970."""
        self._client = client
        self._workers = workers
        self._bootstraps = bootstraps
        self._renew_after_s = renew_after_s
        self._now = now
        self._log = log
        self.failing: dict[str, str] = {}  # cluster -> reason
        self.renewed = 0

    async def look(self, ways_in: Iterable[tuple[str, Bootstrap]]) -> None:
        """Renew every due token, each within its time limit. Failures are retried at the next
        call."""
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
        """Renew one token, and return the reason of a failure; "" = renewed."""
        try:
            async with asyncio.timeout(LIMIT_S):
                token = await self._workers.give_token(cluster, source, life)
                await self._write(cluster, source, token)
        except Conflict:
            return ""  # another client wrote the Secret meanwhile: check again
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
            pass  # the operator deleted the Secret
