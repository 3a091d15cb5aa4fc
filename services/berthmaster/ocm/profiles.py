"""One cluster's ClusterProfile: our properties of it, and whether they are worth a write. Pure."""

import re
from math import inf
from typing import Final

from berthmaster.kubernetes.objects import Object, seconds, timestamp
from berthmaster.kubernetes.resources import CLUSTER_PROFILES
from berthmaster.ocm import properties
from berthmaster.ocm.instructions import CreateProfile, Key, Look, WriteProperties
from berthmaster.ocm.objects import CLUSTER_MANAGER, ClusterProfile
from berthmaster.ocm.pace import LARGE, Rules
from berthmaster.ocm.placed import warning
from berthmaster.ocm.scores import View

MAX_NAME_CHARS: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


def nameable(cluster: str) -> bool:
    """Whether an object can have a cluster's name."""
    return len(cluster) <= MAX_NAME_CHARS and _NAME.match(cluster) is not None


def names_us(profile: ClusterProfile, manager: str) -> bool:
    """Whether it names us as its manager, in one place at least."""
    return manager in (_spec(profile), _label(profile))


def look(
    key: Key, thing: Object | None, view: View, manager: str, rules: Rules, *, now_s: float
) -> Look:
    """As it should be, beside as it is."""
    if not isinstance(thing, ClusterProfile):
        return Look(LARGE, inf, CreateProfile(key, manager))
    if not _spec(thing) == _label(thing) == manager:
        why = f"spec.clusterManager: {_spec(thing)!r}, label {CLUSTER_MANAGER}: {_label(thing)!r}"
        return Look(0.0, inf, None, warning(CLUSTER_PROFILES, thing, "ManagerMismatch", why))
    listed = thing.status.properties
    wanted = properties.wanted(view)
    gap = properties.gap(properties.ours(listed), wanted, view)
    written, wrong = properties.merged(listed, wanted, timestamp(now_s))
    if wrong:
        return Look(0.0, inf, None, warning(CLUSTER_PROFILES, thing, "TooManyProperties", wrong))
    try:
        said_at_s = seconds(properties.observed_at(listed))
    except ValueError:
        said_at_s = 0.0
    write = WriteProperties(
        key=key, resource_version=thing.metadata.resource_version, properties=written
    )
    return Look(gap, min(said_at_s, now_s) + rules.renew_after_s, write)


def _spec(profile: ClusterProfile) -> str:
    return profile.spec.cluster_manager.name


def _label(profile: ClusterProfile) -> str:
    return profile.metadata.labels.get(CLUSTER_MANAGER, "")
