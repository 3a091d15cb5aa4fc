"""The identity of the hub: the UID of its namespace kube-system, which every cluster keeps.

Names of contexts and addresses of API servers change. A rebuilt cluster is another hub, and has
none of its predecessor's objects. The service reads the UID once, before any other work.
"""

import asyncio
import random
from typing import Final, Protocol

from berthmaster.lib.kube.client import IDENTITY, Client
from berthmaster.lib.kube.errors import Forbidden, KubernetesError
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.health import Health

PART: Final = "identity of the hub"
PAUSES: Final = Backoff(first_s=0.2, most_s=15.0)


class HubIdentity(Protocol):
    """The hub's identity in a service."""

    id: str  # "" = not known yet


async def identify(client: Client, hub: HubIdentity, health: Health, *, rights: str) -> None:
    """Retry until the UID is known. ``rights`` names the file with the required ClusterRole."""
    failures = 0
    chance = random.Random()
    while not hub.id:
        try:
            hub.id = await client.uid()
        except KubernetesError as error:
            failures += 1
            health.ready(PART, False, _words(error, rights))
            await asyncio.sleep(PAUSES.delay_s(failures, chance))
    health.ready(PART, True)


def _words(error: KubernetesError, rights: str) -> str:
    if isinstance(error, Forbidden):
        return (
            f"not allowed to get namespace {IDENTITY}, whose uid tells hubs apart: bind the "
            f"ClusterRole of {rights} ({error.message})"
        )
    return f"cannot read namespace {IDENTITY}: {error}"
