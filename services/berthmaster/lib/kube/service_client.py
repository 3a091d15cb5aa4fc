"""A service's client of its cluster's API server, and its settings."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access, from_kubeconfig, in_cluster
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings, setting

IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"
ANSWER_LIMIT_S: Final = 10.0  # for one answer of the API server


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(CommonSettings):
    """Settings of every service with a cluster."""

    kubeconfig: Path | None = setting(
        None,
        help=(
            "kubeconfig file; none = the pod's own service account inside a cluster, else "
            "$KUBECONFIG or ~/.kube/config"
        ),
    )
    context: str = setting("", help="context of the kubeconfig; empty = its current one")


@dataclass(frozen=True, kw_only=True)
class ProfileSettings(ClusterSettings):
    """Settings of a service that reads the hub's ClusterProfiles."""

    profile_namespace: str = setting(
        "", help="namespace of ClusterProfiles; empty = all (one of a name is used)"
    )


@dataclass(frozen=True, kw_only=True)
class NamespaceSettings(ClusterSettings):
    """Settings of a service with objects of its own in its cluster."""

    namespace: str = setting(
        "",
        help="namespace of the service's lease and objects; empty = the pod's, or the context's",
    )


@dataclass(frozen=True, kw_only=True)
class KueueSettings(ClusterSettings):
    """Settings of a service that works with the hub's Kueue."""

    kueue_namespace: str = setting(
        "kueue-system", help="namespace of Kueue and of its kubeconfig Secrets multikueue-CLUSTER"
    )


@dataclass(frozen=True, kw_only=True)
class JobSettings(ClusterSettings):
    """The setting that must be equal in executor and inventory of one cluster."""

    jobs: Literal["kubernetes", "volcano"] = setting(
        "kubernetes",
        help=(
            "job objects for requests: kubernetes = Job or JobSet; volcano = Volcano's Job "
            "(batch.volcano.sh) where served and permitted. Jobs in Kueue queues, elastic jobs "
            "and GPU fractions are always Jobs or JobSets"
        ),
    )


S = TypeVar("S", bound=ClusterSettings)


async def access_by(kubeconfig: Path | None, context: str) -> Access:
    """Return the access of a kubeconfig and context, or of this pod. Raise BadConfig."""
    if kubeconfig is None and not context and IN_A_POD in os.environ:
        return await in_cluster()
    return await from_kubeconfig(kubeconfig, context)


async def access_of(settings: ClusterSettings) -> Access:
    """Return the access of the service's cluster. Raise BadConfig."""
    return await access_by(settings.kubeconfig, settings.context)


@asynccontextmanager
async def service_client(ctx: Context[S], service: str) -> AsyncIterator[Client]:
    """Yield a client that has sent nothing yet. Raise CannotStart."""
    try:
        client = await Client.open(
            await access_of(ctx.settings),
            user_agent=f"berthmaster-{service}",
            log=ctx.log,
            timeout_s=ANSWER_LIMIT_S,
        )
    except BadConfig as error:
        raise CannotStart(str(error)) from error
    async with client:
        yield client


def _pairs(parts: tuple[str, ...]) -> str:
    good = all(0 < part.find("=") < len(part) - 1 for part in parts)
    return "" if good else "NAMESPACE=TENANT, several with commas between them"


@dataclass(frozen=True, kw_only=True)
class TenantSettings(ClusterSettings):
    """Settings of a service beside a control plane with namespaces of tenants."""

    tenant_of_namespace: tuple[str, ...] = setting(
        (),
        check=_pairs,
        help="tenants of namespaces, NAMESPACE=TENANT; other namespaces are their own tenant",
    )

    @property
    def tenants(self) -> dict[str, str]:
        """Return namespace -> tenant."""
        pairs = (part.partition("=") for part in self.tenant_of_namespace)
        return {namespace: tenant for namespace, _, tenant in pairs}
