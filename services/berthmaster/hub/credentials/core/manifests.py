"""Manifests of the objects on both sides. Pure."""

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.described import KUBECONFIG, address
from berthmaster.hub.credentials.core.index import ACCOUNT
from berthmaster.hub.credentials.core.observed import Endpoint, Minted
from berthmaster.hub.credentials.core.rights import Rule
from berthmaster.lib.kube.objects import timestamp
from berthmaster.lib.kube.resources import (
    CLUSTER_PERMISSIONS,
    MANAGED_SERVICE_ACCOUNTS,
    MULTIKUEUE_CLUSTERS,
    Resource,
)

Body = dict[str, Any]
_RBAC: Final = "rbac.authorization.k8s.io"


def labels(cluster: str) -> dict[str, str]:
    """Return the labels of every object of Berthmaster."""
    return {names.MANAGED_BY: names.MANAGER, names.OURS: names.label(cluster)}


# ------------------------------------------------------------ in the worker


def worker_labels(hub: str, cluster: str) -> dict[str, str]:
    """Return the labels in a worker, which may have several hubs."""
    return {**labels(cluster), names.HUB: names.label(hub)}


def service_account(name: str, hub: str, cluster: str) -> Body:
    """Return Kueue's service account in the worker. Pods get no token of the account."""
    return {
        "metadata": _meta(name, worker_labels(hub, cluster), cluster),
        "automountServiceAccountToken": False,
    }


def cluster_role(name: str, hub: str, cluster: str, rules: Sequence[Rule]) -> Body:
    return {
        "metadata": _meta(name, worker_labels(hub, cluster), cluster),
        "rules": list(rules),
    }


def binding(name: str, hub: str, cluster: str, namespace: str) -> Body:
    return {
        "metadata": _meta(name, worker_labels(hub, cluster), cluster),
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def bound_secret(account: str, serial: str, hub: str, cluster: str, issued_at_s: float) -> Body:
    """Return the empty Secret to which one token is bound."""
    notes = {names.SERIAL: serial, names.ISSUED: timestamp(issued_at_s)}
    meta = _meta(names.bound(account, serial), worker_labels(hub, cluster), cluster, notes)
    return {"metadata": meta, "type": "Opaque"}


def token_request(secret: str, uid: str, lifetime_s: float) -> Body:
    """Return the request of a token that ends with the Secret."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": int(lifetime_s),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": uid},
        },
    }


def own_token_request(lifetime_s: float) -> Body:
    """Return the request of an account for its own token. The token is unbound, so keep it
    short."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(lifetime_s)},
    }


# ------------------------------------------------------------ on the hub


def kubeconfig(
    cluster: str, endpoint: Endpoint, token: str, pair: tuple[bytes, bytes] = (b"", b"")
) -> bytes:
    """Return the kubeconfig for Kueue, without references to files or programs."""
    user: Body = {"token": token} if token else {}
    if pair[0]:
        user["client-certificate-data"] = base64.b64encode(pair[0]).decode()
        user["client-key-data"] = base64.b64encode(pair[1]).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": address(endpoint)}],
        "users": [{"name": names.MANAGER, "user": user}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": names.MANAGER}}],
        "current-context": cluster,
    }
    return json.dumps(config).encode()


def hub_secret(cluster: str, endpoint: Endpoint, minted: Minted, told: str) -> Body:
    """Return the Secret that Kueue reads, with the data to renew and revoke its token."""
    notes = {
        names.TARGET: minted.target,
        names.TOLD: told,
        names.SERIAL: minted.serial,
        names.ISSUED: timestamp(minted.issued_at_s),
        names.EXPIRES: timestamp(minted.expires_at_s) if minted.expires_at_s else "",
    }
    text = base64.b64encode(kubeconfig(cluster, endpoint, minted.token, minted.pair)).decode()
    return {
        "metadata": _meta(names.hub_secret(cluster), labels(cluster), cluster, notes),
        "type": "Opaque",
        "data": {KUBECONFIG: text},
    }


def multikueue_cluster(cluster: str, profile: str = "") -> Body:
    """Return the worker's MultiKueueCluster. ``profile`` "" = by Berthmaster's Secret."""
    source: Body = {"clusterProfileRef": {"name": profile}}
    if not profile:
        source = {"kubeConfig": {"location": names.hub_secret(cluster), "locationType": "Secret"}}
    return {
        **_kind(MULTIKUEUE_CLUSTERS),
        "metadata": _meta(cluster, labels(cluster), cluster),
        "spec": {"clusterSource": source},
    }


def managed_account(cluster: str, validity: str) -> Body:
    """Return the ManagedServiceAccount: OCM creates the account, and fetches and renews its
    tokens."""
    return {
        **_kind(MANAGED_SERVICE_ACCOUNTS),
        "metadata": _meta(ACCOUNT, labels(cluster), cluster),
        "spec": {"rotation": {"enabled": True, "validity": validity}},
    }


def permission_spec(rules: Sequence[Rule]) -> Body:
    """Return the rights of OCM's account in its cluster."""
    subject = {
        "apiGroup": MANAGED_SERVICE_ACCOUNTS.group,
        "kind": MANAGED_SERVICE_ACCOUNTS.kind,
        "name": ACCOUNT,
    }
    return {"clusterRole": {"rules": list(rules)}, "clusterRoleBinding": {"subject": subject}}


def permission(cluster: str, spec: Body) -> Body:
    return {
        **_kind(CLUSTER_PERMISSIONS),
        "metadata": _meta(ACCOUNT, labels(cluster), cluster),
        "spec": spec,
    }


def duration(seconds: float) -> str:
    """Return a duration in Go's notation, so that the API server stores the same text."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}h{rest // 60}m{rest % 60}s"


def _kind(resource: Resource) -> Body:
    return {"apiVersion": resource.group_version, "kind": resource.kind}


def _meta(
    name: str, labels: dict[str, str], cluster: str, notes: dict[str, str] | None = None
) -> Body:
    annotations = {names.CLUSTER: cluster, **(notes or {})}
    return {"name": name, "labels": labels, "annotations": annotations}
