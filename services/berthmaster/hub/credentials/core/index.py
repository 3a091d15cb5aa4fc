"""The hub's objects, and the state of each cluster derived from them as ``Observed``. Pure.

A cluster is known while the selector matches a ClusterProfile or ManagedCluster of its name. Of
several ClusterProfiles with one name, the first by namespace is used. A writer of profiles could
redirect an operator's credentials, so a profile's endpoint is never used with a bootstrap Secret.
The endpoint only shows that a cluster was replaced. An object without Berthmaster's labels is
unmanaged.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.described import (
    KUBECONFIG,
    access_provider,
    made_by_us,
    names_secret,
    standing_provider,
)
from berthmaster.hub.credentials.core.objects import (
    ClusterPermission,
    ManagedServiceAccount,
    Secret,
)
from berthmaster.hub.credentials.core.observed import (
    Bootstrap,
    Description,
    Endpoint,
    Held,
    Managed,
    Observed,
    Referenced,
    Refused,
    Registration,
    Source,
    Token,
)
from berthmaster.lib.kube.managed_clusters import ClientConfig, ManagedCluster
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Metadata, Object, older, seconds
from berthmaster.lib.kube.selector import Selector
from berthmaster.lib.kueue.multikueue import MultiKueueCluster, MultiKueueConfig
from berthmaster.lib.kueue.names import ACTIVE

ACCOUNT: Final = "berthmaster-multikueue"  # name of OCM's two objects and the token's Secret
MANAGED_SERIAL: Final = "ocm-"
PROVIDER_SERIAL: Final = "provider-"  # of credentials that plugins printed
# Reasons of Kueue's condition Active: it does not use the ClusterProfile.
REFUSALS: Final = ("BadClusterProfile", "MultiKueueClusterProfileFeatureDisabled")
MAX_PROVIDERS: Final = 32
MAX_URL_CHARS: Final = 2048
_REPORTED: Final = "TokenReported"
Key = tuple[str, str]


class ClusterIndex:
    """The last observed state of the hub."""

    def __init__(
        self,
        selector: Selector,
        permission: Mapping[str, Any],
        validity: str,
        kueue_namespace: str = "kueue-system",
    ) -> None:
        """``permission`` is the wanted spec of ClusterPermissions."""
        self._selector = selector
        self._kueue_namespace = kueue_namespace
        self._permission = dict(permission)
        self._validity = validity
        self._profiles: dict[str, dict[str, ClusterProfile]] = {}  # by cluster, then by namespace
        self._managed: dict[str, ManagedCluster] = {}
        self._bootstraps: dict[str, dict[Key, Source]] = {}
        self._provided: dict[str, Source] = {}  # by access providers of ClusterProfiles
        self._secrets: dict[str, Secret] = {}  # by cluster
        self._registered: dict[str, MultiKueueCluster] = {}
        self._listed: dict[str, set[str]] = {}  # clusters by config
        self._listed_by: dict[str, set[str]] = {}  # configs by cluster
        # by namespace, named like the cluster
        self._accounts: dict[str, ManagedServiceAccount] = {}
        self._permissions: dict[str, ClusterPermission] = {}
        self._tokens: dict[str, Secret] = {}
        self.uses_managed = False  # OCM's kinds are served and wanted

    def __contains__(self, cluster: str) -> bool:
        return self._is_known(cluster)

    def clusters(self) -> set[str]:
        """Return the cluster names of all objects."""
        ours = {name for name, found in self._registered.items() if _is_ours(found.metadata)}
        known = {name for name in {*self._profiles, *self._managed} if self._is_known(name)}
        return {*known, *self._bootstraps, *self._secrets, *ours, *self._accounts}

    # ---- inputs: each returns the affected clusters

    def put(self, found: Object, *, gone: bool = False) -> set[str]:
        """Apply an object's current or last state. Bootstrap Secrets come through ``bootstrap``."""
        meta = found.metadata
        match found:
            case ClusterProfile():
                of_name = self._profiles.setdefault(meta.name, {})
                _keep(of_name, meta.namespace, found, gone)
                if not of_name:
                    del self._profiles[meta.name]
                return {meta.name}
            case ManagedCluster():
                _keep(self._managed, meta.name, found, gone)
                return {meta.name}
            case MultiKueueCluster():
                _keep(self._registered, meta.name, found, gone)
                return {meta.name}
            case MultiKueueConfig():
                return self._list(meta.name, set() if gone else set(found.clusters))
            case ManagedServiceAccount():
                _keep(self._accounts, meta.namespace, found, gone)
                return {meta.namespace}
            case ClusterPermission():
                _keep(self._permissions, meta.namespace, found, gone)
                return {meta.namespace}
            case _:
                raise TypeError(type(found).__name__)

    def _list(self, config: str, clusters: set[str]) -> set[str]:
        before = self._listed.pop(config, set())
        if clusters:
            self._listed[config] = clusters
        for cluster in before - clusters:
            self._listed_by[cluster].discard(config)
            if not self._listed_by[cluster]:
                del self._listed_by[cluster]
        for cluster in clusters - before:
            self._listed_by.setdefault(cluster, set()).add(config)
        return before ^ clusters

    def secret(self, found: Secret, *, gone: bool = False) -> set[str]:
        """Apply a Secret of Berthmaster that Kueue reads."""
        cluster = found.metadata.annotations.get(names.CLUSTER, "")
        if not cluster or found.metadata.name != names.hub_secret(cluster):
            return set()  # a copied Secret, or one that lost its annotation
        _keep(self._secrets, cluster, found, gone)
        return {cluster}

    def token(self, found: Secret, *, gone: bool = False) -> set[str]:
        """Apply a Secret with a token from OCM's addon."""
        _keep(self._tokens, found.metadata.namespace, found, gone)
        return {found.metadata.namespace}

    def bootstrap(self, key: Key, cluster: str, source: Source | None) -> set[str]:
        """Apply the parsed bootstrap Secret; None = deleted."""
        touched = set()
        for name in [name for name, of_name in self._bootstraps.items() if key in of_name]:
            del self._bootstraps[name][key]
            if not self._bootstraps[name]:
                del self._bootstraps[name]
            touched.add(name)
        if source is not None:
            self._bootstraps.setdefault(cluster, {})[key] = source
            touched.add(cluster)
        return touched

    def provide(self, cluster: str, source: Source | None) -> set[str]:
        """Apply the access by a ClusterProfile's provider; None = none."""
        if source is None:
            self._provided.pop(cluster, None)
        else:
            self._provided[cluster] = source
        return {cluster}

    def uses_plugin(self, cluster: str) -> bool:
        """Return whether the cluster's access is by a plugin that this service runs."""
        source = self._provided.get(cluster)
        return (
            isinstance(source, Managed)
            and self._is_known(cluster)
            and self._source(cluster) is source
        )

    def ways_in(self) -> list[tuple[str, Bootstrap]]:
        """Return the clusters with exactly one bootstrap Secret, and that Secret."""
        found = ((name, of_name) for name, of_name in self._bootstraps.items() if len(of_name) == 1)
        return [
            (name, source)
            for name, of_name in found
            for source in of_name.values()
            if isinstance(source, Bootstrap)
        ]

    # ---- derived state

    def subject(self, cluster: str) -> Object | None:
        """Return the object that operators inspect: profile, cluster, or Kueue's object."""
        profiles = self._profiles.get(cluster)
        if cluster in self._managed:
            return self._managed[cluster]
        if profiles:
            return profiles[min(profiles)]
        return self._registered.get(cluster)

    def kubeconfig(self, cluster: str) -> bytes:
        """Return the kubeconfig that Kueue reads; empty = none."""
        secret = self._secrets.get(cluster)
        return _decoded(secret, KUBECONFIG) if secret is not None else b""

    def observe(self, cluster: str) -> Observed:
        secret = self._secrets.get(cluster)
        registered = self._registered.get(cluster)
        asked = (self._accounts.get(cluster), self._permissions.get(cluster))
        known = self._is_known(cluster)
        ours = registered is not None and (
            _is_ours(registered.metadata) or (known and _is_siblings(registered.metadata))
        )
        seen = Observed(
            known=known,
            told=self._told(cluster),
            source=self._source(cluster),
            secret=_held(secret) if secret is not None else None,
            listed_by=tuple(sorted(self._listed_by.get(cluster, ()))),
            requested=self._is_requested(*asked),
            asked=any(one is not None and _is_ours(one.metadata) for one in asked),
            foreign=self._foreign(cluster, registered, *asked),
        )
        if registered is not None and ours:
            seen = seen._replace(registered=_registration(cluster, registered, seen.source))
        return seen._replace(undescribed=self._undescribed(cluster, seen))

    def _undescribed(self, cluster: str, seen: Observed) -> Description | None:
        """Return a profile of Berthmaster's whose access provider is not as wanted."""
        held, source, wanted = seen.secret, seen.source, None
        secret = names.hub_secret(cluster)
        if seen.known or seen.listed_by:
            if held is None or not held.usable or not isinstance(source, Bootstrap | Managed):
                return None
            if source.endpoint is None or source.target != held.target:
                return None
            wanted = access_provider(source.endpoint, self._kueue_namespace, secret)
        for namespace, profile in sorted(self._profiles.get(cluster, {}).items()):
            if not made_by_us(profile):
                continue
            standing = standing_provider(profile)
            if standing != wanted if wanted is not None else names_secret(standing, secret):
                return Description(namespace, wanted)
        return None

    def _is_known(self, cluster: str) -> bool:
        managed, profiles = self._managed.get(cluster), self._profiles.get(cluster, {})
        if managed is not None and (
            managed.metadata.deletion_timestamp is not None or not managed.spec.hub_accepts_client
        ):
            return False
        first = profiles[min(profiles)] if profiles else None
        if first is not None and first.metadata.deletion_timestamp is not None:
            first = None
        if managed is None and first is None:
            return False
        labels = dict(first.metadata.labels) if first is not None else {}
        labels |= managed.metadata.labels if managed is not None else {}
        return self._selector.matches(labels)

    def _told(self, cluster: str) -> str:
        pairs = {(one.url, one.ca_bundle or "") for one in self._configs(cluster)}
        profiles = self._profiles.get(cluster)
        if profiles and not made_by_us(profiles[min(profiles)]):
            status = profiles[min(profiles)].status
            given = (*(status.access_providers or ()), *(status.credential_providers or ()))
            known = (one.cluster for one in given[:MAX_PROVIDERS] if one.cluster is not None)
            pairs |= {(one.server, one.ca) for one in known if one.server}
        return names.digest(*(part for pair in sorted(pairs) for part in pair)) if pairs else ""

    def _configs(self, cluster: str) -> Sequence[ClientConfig]:
        managed = self._managed.get(cluster)
        found = managed.spec.managed_cluster_client_configs if managed is not None else ()
        return [one for one in (found or ())[:MAX_PROVIDERS] if one.url]

    def _source(self, cluster: str) -> Source | None:
        if self.uses_managed and cluster in self._managed:
            return self._managed_source(cluster)
        found = self._bootstraps.get(cluster, {})
        if len(found) > 1:
            first, *rest = sorted(f"{namespace}/{name}" for namespace, name in found)
            return Refused(
                f"Secret {first}",
                "metadata.labels",
                f"{len(rest)} more for the same cluster: {', '.join(rest)[:200]}; keep one",
            )
        return next(iter(found.values()), None) or self._provided.get(cluster)

    def _managed_source(self, cluster: str) -> Managed:
        secret = self._tokens.get(cluster)
        account = self._accounts.get(cluster)
        endpoint, trouble = self._endpoint(cluster, secret)
        text = _decoded(secret, "token").decode("latin-1").strip() if secret is not None else ""
        token = None
        if text.isascii() and text.isprintable() and text:
            expires_s = _when(account.status.expiration_timestamp) if account is not None else 0.0
            token = Token(f"{MANAGED_SERIAL}{names.digest(text)}", text, expires_s)
        elif account is not None:
            reported = [one for one in account.status.conditions if one.type == _REPORTED]
            said = next((one.message or one.reason for one in reported if not one.true), "")
            trouble = trouble or said
        return Managed(endpoint, token, trouble)

    def _endpoint(self, cluster: str, secret: Secret | None) -> tuple[Endpoint | None, str]:
        configs = self._configs(cluster)
        where = "ManagedCluster spec.managedClusterClientConfigs"
        if not configs:
            return None, f"{where}: none; right is the API server's url and caBundle"
        url, bundle = configs[0].url.rstrip("/"), configs[0].ca_bundle or ""
        if not url.startswith("https://") or len(url) > MAX_URL_CHARS or not url.isprintable():
            return None, f"{where}[0].url: must be https://host:port"
        try:
            ca = base64.b64decode(bundle, validate=True)
        except (binascii.Error, ValueError):
            return None, f"{where}[0].caBundle: is not base64"
        if not ca and secret is not None:
            ca = _decoded(secret, "ca.crt")
        return Endpoint(url, ca), ""

    def _is_requested(
        self, account: ManagedServiceAccount | None, permission: ClusterPermission | None
    ) -> bool:
        return (
            account is not None
            and account.spec.rotation.enabled
            and account.spec.rotation.validity == self._validity
            and permission is not None
            and all(permission.spec.get(key) == value for key, value in self._permission.items())
        )

    def _foreign(
        self,
        cluster: str,
        registered: MultiKueueCluster | None,
        account: ManagedServiceAccount | None,
        permission: ClusterPermission | None,
    ) -> str:
        if registered is not None and not (
            _is_ours(registered.metadata) or _is_siblings(registered.metadata)
        ):
            return f"MultiKueueCluster {cluster}"
        if not (self.uses_managed and cluster in self._managed):
            return ""
        if account is not None and not _is_ours(account.metadata):
            return f"ManagedServiceAccount {cluster}/{ACCOUNT}"
        if permission is not None and not _is_ours(permission.metadata):
            return f"ClusterPermission {cluster}/{ACCOUNT}"
        return ""


def is_ours(meta: Metadata) -> bool:
    return _is_ours(meta)


def _is_ours(meta: Metadata) -> bool:
    return names.OURS in meta.labels and meta.labels.get(names.MANAGED_BY) == names.MANAGER


def _is_siblings(meta: Metadata) -> bool:
    """Return whether the admission service created the object for this Secret.

    The credentials service then takes ownership.
    """
    return meta.labels.get(names.MANAGED_BY) == names.SIBLING


def _keep(into: dict[Any, Any], key: Any, found: Any, gone: bool) -> None:
    known = into.get(key)
    if (
        isinstance(known, Object)
        and isinstance(found, Object)
        and older(found.metadata.resource_version, known.metadata.resource_version)
    ):
        return  # a stale state from the mirror, older than the response to a write
    if gone:
        into.pop(key, None)
    else:
        into[key] = found


def _held(secret: Secret) -> Held:
    notes = secret.metadata.annotations
    serial = notes.get(names.SERIAL, "")
    return Held(
        target=notes.get(names.TARGET, ""),
        told=notes.get(names.TOLD, ""),
        serial=serial,
        issued_at_s=_when(notes.get(names.ISSUED)),
        expires_at_s=_when(notes.get(names.EXPIRES)),
        usable=bool((secret.data or {}).get(KUBECONFIG)),
        managed=serial.startswith((MANAGED_SERIAL, PROVIDER_SERIAL)),
        version=secret.metadata.resource_version,
        uid=secret.metadata.uid,
    )


def _registration(cluster: str, found: MultiKueueCluster, source: Source | None) -> Registration:
    config, meta, refusal = found.kube_config, found.metadata, ""
    if isinstance(source, Referenced):
        right = found.profile == source.profile and config is None
        active = found.condition(ACTIVE)
        if right and active is not None and not active.true and active.reason in REFUSALS:
            refusal = f"{active.reason}: {active.message}"
    else:
        right = (
            config is not None
            and config.location == names.hub_secret(cluster)
            and config.location_type in ("Secret", "")
        )
    return Registration(_is_ours(meta) and right, meta.resource_version, meta.uid, refusal)


def _when(text: str | None) -> float:
    """Return a time, or 0 for an invalid text, so that a damaged object is created again."""
    try:
        return seconds(text)
    except ValueError:
        return 0.0


def _decoded(secret: Secret, key: str) -> bytes:
    try:
        return base64.b64decode((secret.data or {}).get(key, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""
