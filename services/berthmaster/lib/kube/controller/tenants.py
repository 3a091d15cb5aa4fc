"""The setting that says whose the namespaces of a control plane are, for those who tell the bus of
its objects."""

from dataclasses import dataclass

from berthmaster.lib.kube.joining import ClusterSettings
from berthmaster.lib.runtime.settings import setting


def _pairs(parts: tuple[str, ...]) -> str:
    good = all(0 < part.find("=") < len(part) - 1 for part in parts)
    return "" if good else "NAMESPACE=TENANT, several with commas between them"


@dataclass(frozen=True, kw_only=True)
class TenantSettings(ClusterSettings):
    """Of a service beside a control plane whose namespaces are tenants'."""

    tenant_of_namespace: tuple[str, ...] = setting(
        (), check=_pairs, help="whose a namespace is, NAMESPACE=TENANT; others are their own tenant"
    )

    @property
    def tenants(self) -> dict[str, str]:
        """Namespace -> tenant."""
        pairs = (part.partition("=") for part in self.tenant_of_namespace)
        return {namespace: tenant for namespace, _, tenant in pairs}
