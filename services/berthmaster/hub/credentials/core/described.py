"""The access provider that Berthmaster writes into its own ClusterProfiles. Pure.

Other consumers of the inventory then reach the cluster with the credential that Kueue has, if they
may read its Secret::

    status:
      accessProviders:
      - name: kubeconfig-secretreader
        cluster:
          server: https://east:6443
          certificate-authority-data: LS0t…
          extensions:
          - name: client.authentication.k8s.io/exec
            extension: {name: multikueue-east, key: kubeconfig, namespace: kueue-system}
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from berthmaster.hub.credentials.core.observed import Endpoint
from berthmaster.lib.kube.multicluster import EXEC_EXTENSION, ClusterProfile
from berthmaster.lib.ocm.core.ownership import CLUSTER_MANAGER, OURS

KUBECONFIG: Final = "kubeconfig"
PROVIDER: Final = "kubeconfig-secretreader"  # a plugin of cluster-inventory-api
Body = dict[str, Any]


def made_by_us(profile: ClusterProfile) -> bool:
    """Return whether the profile names Berthmaster as its manager."""
    label = profile.metadata.labels.get(CLUSTER_MANAGER)
    return label == OURS and profile.spec.cluster_manager.name == OURS


def address(endpoint: Endpoint) -> Body:
    """Return the endpoint as a cluster of a kubeconfig."""
    found: Body = {"server": endpoint.server}
    if endpoint.ca:
        found["certificate-authority-data"] = base64.b64encode(endpoint.ca).decode()
    if endpoint.server_name:
        found["tls-server-name"] = endpoint.server_name
    if endpoint.proxy:
        found["proxy-url"] = endpoint.proxy
    return found


def access_provider(endpoint: Endpoint, namespace: str, secret: str) -> Body:
    """Return the entry for the Secret that Kueue reads."""
    told = {"name": secret, "key": KUBECONFIG, "namespace": namespace}
    extensions = ({"name": EXEC_EXTENSION, "extension": told},)
    return {"name": PROVIDER, "cluster": {**address(endpoint), "extensions": extensions}}


def standing_provider(profile: ClusterProfile) -> Body | None:
    """Return the present entry, or None."""
    for one in profile.status.access_providers or ():
        if one.name == PROVIDER:
            found: Body = msgspec.to_builtins(one)
            return found
    return None


def names_secret(provider: Mapping[str, Any] | None, secret: str) -> bool:
    """Return whether an entry is Berthmaster's for this Secret."""
    extensions = (provider or {}).get("cluster", {}).get("extensions") or ()
    found = (one.get("extension") for one in extensions)
    return any(isinstance(one, dict) and one.get("name") == secret for one in found)


def merged(standing: Iterable[Mapping[str, Any]], wanted: Mapping[str, Any] | None) -> list[Body]:
    """Return all entries, with other providers unchanged."""
    kept = [dict(one) for one in standing if one.get("name") != PROVIDER]
    return [*kept, dict(wanted)] if wanted is not None else kept
