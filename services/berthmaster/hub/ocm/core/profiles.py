"""One cluster's ClusterProfile: Berthmaster's properties, and whether a write is worth it. Pure."""

import re
from math import inf
from typing import Final, TypeGuard

from berthmaster.hub.ocm.core import health, properties
from berthmaster.hub.ocm.core.instructions import (
    CreateProfile,
    DeleteProfile,
    Write,
    WriteProperties,
)
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Object, seconds, timestamp
from berthmaster.lib.kube.resources import CLUSTER_PROFILES
from berthmaster.lib.ocm.core.kept_objects import Key, Look
from berthmaster.lib.ocm.core.ownership import CLUSTER_MANAGER, foreign, warning
from berthmaster.lib.ocm.core.pace import LARGE, Rules
from berthmaster.lib.ocm.core.view import View

MAX_NAME_CHARS: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


def nameable(cluster: str) -> bool:
    """Return whether an object can have a cluster's name."""
    return len(cluster) <= MAX_NAME_CHARS and _NAME.match(cluster) is not None


def names_us(profile: ClusterProfile, manager: str) -> bool:
    """Return whether the profile names this manager, in its spec or its label."""
    return manager in (_spec(profile), _label(profile))


def made_by_us(profile: Object | None, manager: str) -> TypeGuard[ClusterProfile]:
    """Return whether Berthmaster created the profile for an unmanaged cluster."""
    if not isinstance(profile, ClusterProfile):
        return False
    return _spec(profile) == _label(profile) == manager and not foreign(profile)


def leaving(key: Key, thing: ClusterProfile, why: str) -> Look[Write]:
    """Delete a profile that Open Cluster Management wants to create, because OCM would fail for
    ever."""
    meta = thing.metadata
    write = DeleteProfile(key=key, uid=meta.uid, resource_version=meta.resource_version, why=why)
    return Look(LARGE, inf, write)


def left(thing: ClusterProfile, why: str) -> KubeEvent:
    """Return the event of a deleted profile."""
    return KubeEvent(CLUSTER_PROFILES, thing.metadata, False, "Deleted", why)


def look(
    key: Key,
    thing: Object | None,
    view: View,
    manager: str,
    rules: Rules,
    *,
    version: str,
    now_s: float,
) -> Look[Write]:
    """Compare the profile with the wanted one. ``version`` is of Kubernetes; "" = not known."""
    if not isinstance(thing, ClusterProfile):
        return Look(LARGE, inf, CreateProfile(key, manager))
    if not _spec(thing) == _label(thing) == manager:
        why = f"spec.clusterManager: {_spec(thing)!r}, label {CLUSTER_MANAGER}: {_label(thing)!r}"
        return Look(0.0, inf, None, warning(CLUSTER_PROFILES, thing, "ManagerMismatch", why))
    listed = thing.status.properties
    standing = properties.ours(listed)
    wanted = properties.kept(view, standing) if view.silence else properties.wanted(view)
    gap = properties.gap(standing, wanted, view)
    at = timestamp(now_s)
    written, wrong = properties.merged(listed, wanted, at, observed=not view.silence)
    if wrong:
        return Look(0.0, inf, None, warning(CLUSTER_PROFILES, thing, "TooManyProperties", wrong))
    try:
        said_at_s = seconds(properties.observed_at(listed))
    except ValueError:
        said_at_s = 0.0
    conditions, is_other = health.merged(thing.status.conditions, view, at)
    write = WriteProperties(
        key=key,
        resource_version=thing.metadata.resource_version,
        properties=written,
        conditions=conditions,
        version=version or thing.status.version.kubernetes,
    )
    is_other = is_other or write.version != thing.status.version.kubernetes
    renew_at_s = min(said_at_s, now_s) + rules.renew_after_s
    return Look(LARGE if is_other else gap, renew_at_s if not view.silence else inf, write)


def _spec(profile: ClusterProfile) -> str:
    return profile.spec.cluster_manager.name


def _label(profile: ClusterProfile) -> str:
    return profile.metadata.labels.get(CLUSTER_MANAGER, "")
