"""A hub's clusters: ClusterProfile, ManagedCluster and MemberCluster of one name, merged. Pure.

All three report labels, properties and health. For a label or property, the MemberCluster overrides
the ManagedCluster, and both override the ClusterProfile, mostly a copy of the ManagedCluster. Only
the MemberCluster reports free capacity (measures.py).

Open Cluster Management's taints become Berthmaster's. NoSelect and NoSelectIfNew keep new workloads
away (no taint moves a running workload), and PreferNoSelect excludes none. Health is False as soon
as one object says so, and None if they say unknown: a cluster's own heartbeat is better than a
guess.

Oversized properties are cut, and a property reports the cut. Properties and claims by Berthmaster
itself, such as scores, are ignored. Reported again, each score would update the fleet twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from berthmaster.hub.members.core.measures import measures
from berthmaster.hub.members.core.objects import MemberCluster
from berthmaster.lib.kube.bounds import MAX_TAINTS, bounded_labels
from berthmaster.lib.kube.controller.problems import Problems, named
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.mirror import Added, Change, Deleted, Listed, Unreadable, Updated
from berthmaster.lib.kube.multicluster import ClusterProfile, Property
from berthmaster.lib.kube.objects import Condition, condition
from berthmaster.lib.messages.fleet import FleetFact, HubRoom, Membership, Stamp, Taint
from berthmaster.lib.nats import subjects
from berthmaster.lib.ocm.core.ownership import CLUSTER_MANAGER
from berthmaster.lib.ocm.core.ownership import OURS as OUR_MANAGER

MAX_PROPERTIES: Final = 200
MAX_VALUE_CHARS: Final = 1024  # limit of the API's own schema
MAX_PROPERTY_CHARS: Final = 64 * 1024  # limit of all properties of a cluster
MAX_REASON_CHARS: Final = 1024
KEEP_GONE_S: Final = 7 * 86_400.0
OURS: Final = "berthmaster.io"  # before a slash in properties, at the end of claims
CUT: Final = f"{OURS}/cut"  # the property that reports the cut
VERSION: Final = "kubernetes-version"
_EFFECTS: Final[Mapping[str, Literal["NoSchedule", "PreferNoSchedule"]]] = {
    "NoSelect": "NoSchedule",
    "NoSelectIfNew": "NoSchedule",
    "PreferNoSelect": "PreferNoSchedule",
}
Key = tuple[str, str]
Told = tuple[FleetFact, float | None]


class HubKind(Enum):
    PROFILES = "clusterprofiles"
    MANAGED = "managedclusters"
    MEMBERS = "memberclusters"


class ClusterRecord(NamedTuple):
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    properties: Mapping[str, str]
    healthy: bool | None
    reason: str
    sources: tuple[str, ...]
    room: HubRoom | None = None


class HubMembership:
    """The clusters of one hub. Implements the bus's ``Source`` of facts."""

    def __init__(self) -> None:
        self._profiles: dict[str, dict[Key, ClusterProfile]] = {}  # by cluster name
        self._managed: dict[str, ManagedCluster] = {}
        self._members: dict[str, MemberCluster] = {}
        self._known: dict[str, ClusterRecord] = {}
        self._listed: set[HubKind] = set()
        self._earlier: set[str] = set()
        self._dirty: dict[str, bool] = {}
        self.problems = Problems()

    def __len__(self) -> int:
        return len(self._known)

    # ---- inputs

    def take(self, kind: HubKind, change: Change[Any]) -> None:
        match change:
            case Added(object=found) | Updated(object=found):
                self._set(kind, found)
                self._work_out(found.metadata.name)
            case Deleted(object=found):
                self._drop(kind, found)
                self._work_out(found.metadata.name)
            case Unreadable(object=bad):
                self.problems.doubt(kind.value, (bad.namespace, bad.name), bad.why)
            case Listed():
                self.listed(kind)

    def unreadable(self, kind: HubKind, keys: Iterable[Key]) -> None:
        """Set the unreadable objects of a kind."""
        self.problems.doubted(kind.value, keys)

    def listed(self, kind: HubKind) -> None:
        """Mark a kind as fully listed, or as missing on the hub."""
        self._listed.add(kind)
        self._compare_with_earlier()

    def _set(self, kind: HubKind, found: Any) -> None:
        key = (found.metadata.namespace, found.metadata.name)
        if kind is HubKind.MANAGED:
            self._managed[key[1]] = found
        elif kind is HubKind.MEMBERS:
            self._members[key[1]] = found
        else:
            self._profiles.setdefault(key[1], {})[key] = found

    def _drop(self, kind: HubKind, found: Any) -> None:
        key = (found.metadata.namespace, found.metadata.name)
        self.problems.set(kind.value, named(key), ())
        if kind is HubKind.MANAGED:
            self._managed.pop(key[1], None)
        elif kind is HubKind.MEMBERS:
            self._members.pop(key[1], None)
        elif key[1] in self._profiles:
            self._profiles[key[1]].pop(key, None)
            if not self._profiles[key[1]]:
                del self._profiles[key[1]]

    def _work_out(self, cluster: str) -> None:
        profiles = self._profiles.get(cluster, {})
        managed = self._managed.get(cluster)
        member = self._members.get(cluster)
        profile: ClusterProfile | None = None
        if profiles:
            first, *others = sorted(profiles)
            profile = profiles[first]
            double = f"{len(others)} more of this name; only that in {first[0]} counts"
            told = (double,) if others else ()
            self.problems.set(HubKind.PROFILES.value, named(first), told)
        now: ClusterRecord | None = None
        if profile is not None or managed is not None or member is not None:
            now, problems = _knowledge(profile, managed, member)
            self.problems.set("cluster", cluster, problems)
        else:
            self.problems.set("cluster", cluster, ())
        if now == self._known.get(cluster):
            return
        if now is None:
            del self._known[cluster]
        else:
            self._known[cluster] = now
        self._dirty[subjects.membership(cluster)] = True

    # ---- outputs

    def changes(self) -> Mapping[str, bool]:
        """Return the subjects that changed since the last call."""
        changed, self._dirty = self._dirty, {}
        return changed

    def everything(self) -> Iterable[str]:
        """Return every subject with a fact."""
        return [subjects.membership(cluster) for cluster in self._known]

    def earlier(self, facts: Sequence[FleetFact]) -> None:
        """Take the facts that earlier process runs left on the bus."""
        self._earlier = {
            fact.cluster for fact in facts if isinstance(fact, Membership) and not fact.gone
        }
        self._compare_with_earlier()

    def _compare_with_earlier(self) -> None:
        if len(self._listed) == len(HubKind):
            for cluster in sorted(self._earlier - self._known.keys()):
                self._dirty[subjects.membership(cluster)] = True
            self._earlier = set()

    def fact(self, subject: str, stamp: Stamp, now_s: float) -> Told | None:
        """Return the fact of a cluster, or its tombstone."""
        cluster, _, _ = subjects.parse_fact(subject)
        known = self._known.get(cluster)
        if known is None:
            gone = Membership(cluster=cluster, stamp=stamp, observed_at_s=now_s, gone=True)
            return gone, KEEP_GONE_S
        return Membership(
            cluster=cluster,
            stamp=stamp,
            observed_at_s=now_s,
            labels=dict(known.labels),
            taints=known.taints,
            properties=dict(known.properties),
            healthy=known.healthy,
            reason=known.reason,
            sources=known.sources,
            room=known.room,
        ), None


def _knowledge(
    profile: ClusterProfile | None,
    managed: ManagedCluster | None,
    member: MemberCluster | None,
) -> tuple[ClusterRecord, tuple[str, ...]]:
    problems: list[str] = []
    labels: dict[str, str] = {}
    properties: list[Property] = []
    taints: tuple[Taint, ...] = ()
    sources: list[str] = []
    verdicts: list[tuple[bool | None, str]] = []
    if profile is not None:
        sources.append("ClusterProfile")
        labels |= profile.metadata.labels
        properties += _version(profile.status.version.kubernetes)
        properties += profile.status.properties
        verdicts += _health_of_profile(profile)
    if managed is not None:
        sources.append("ManagedCluster")
        labels |= managed.metadata.labels
        properties += _version(managed.status.version.kubernetes)
        properties += managed.status.cluster_claims
        taints = _taints(managed, problems)
        verdicts += _health_of_managed(managed)
    room: HubRoom | None = None
    if member is not None:
        sources.append("MemberCluster")
        labels |= member.metadata.labels
        told = measures(member)
        properties += told.properties
        room = told.room
        problems += told.problems
        taints += _taints_of_member(member, problems)
        verdicts += _health_of_member(member)
    kept, left_out = bounded_labels(labels)
    if left_out:
        problems.append(f"{left_out} labels left out")
    shown, cut = _bounded(properties)
    if cut:
        problems.append(cut)
    bad = [reason for verdict, reason in verdicts if verdict is False]
    unknown = [reason for verdict, reason in verdicts if verdict is None]
    healthy = False if bad else True if any(verdict for verdict, _ in verdicts) else None
    if unknown and not bad:
        healthy = None
    reason = "; ".join(bad or unknown)[:MAX_REASON_CHARS]
    record = ClusterRecord(kept, taints, shown, healthy, reason, tuple(sources), room)
    return record, tuple(problems)


def _version(text: str) -> list[Property]:
    return [Property(name=VERSION, value=text)] if text else []


def _bounded(properties: Sequence[Property]) -> tuple[dict[str, str], str]:
    """Return (kept properties, description of the cut). A later duplicate wins."""
    wanted = {one.name: one.value for one in properties if one.name and not _ours(one.name)}
    kept: dict[str, str] = {}
    long = size = 0
    for name in sorted(wanted, key=lambda name: (name != VERSION, name)):
        value = wanted[name][:MAX_VALUE_CHARS]
        size += len(name) + len(value)
        if len(kept) == MAX_PROPERTIES or size > MAX_PROPERTY_CHARS:
            break
        kept[name] = value
        long += len(wanted[name]) > MAX_VALUE_CHARS
    told: list[str] = []
    if len(kept) < len(wanted):
        told.append(f"{len(wanted) - len(kept)} of {len(wanted)} properties left out")
    if long:
        told.append(f"{long} values cut to {MAX_VALUE_CHARS} characters")
    if told:
        kept[CUT] = "; ".join(told)
    return dict(sorted(kept.items())), "; ".join(told)


def _ours(name: str) -> bool:
    return name.startswith(f"{OURS}/") or name.endswith(f".{OURS}")


def _taints(managed: ManagedCluster, problems: list[str]) -> tuple[Taint, ...]:
    known: list[Taint] = []
    for taint in managed.spec.taints:
        effect = _EFFECTS.get(taint.effect)
        if effect is None:
            problems.append(f"taint {taint.key[:80]}: unknown effect {taint.effect[:32]!r}")
        elif len(known) == MAX_TAINTS:
            problems.append(f"more than {MAX_TAINTS} taints")
            break
        else:
            known.append(Taint(key=taint.key, value=taint.value, effect=effect))
    return tuple(known)


def _taints_of_member(member: MemberCluster, problems: list[str]) -> tuple[Taint, ...]:
    known: list[Taint] = []
    for taint in member.spec.taints or ():
        if taint.effect != "NoSchedule":
            problems.append(f"taint {taint.key[:80]}: unknown effect {taint.effect[:32]!r}")
        elif len(known) == MAX_TAINTS:
            problems.append(f"more than {MAX_TAINTS} taints")
            break
        else:
            known.append(Taint(key=taint.key, value=taint.value))
    return tuple(known)


def _health_of_member(member: MemberCluster) -> list[tuple[bool | None, str]]:
    verdicts: list[tuple[bool | None, str]] = []
    if member.metadata.deletion_timestamp is not None:
        verdicts.append((False, "it is leaving its fleet"))
    conditions = member.status.conditions or ()
    return [*verdicts, *_verdict(conditions, "Joined"), *_verdict(conditions, "Healthy")]


def _health_of_profile(profile: ClusterProfile) -> list[tuple[bool | None, str]]:
    if profile.metadata.labels.get(CLUSTER_MANAGER) == OUR_MANAGER:
        return []  # ignore conditions by the ocm service, which come from the fleet's own facts
    conditions = profile.status.conditions
    return [
        *_verdict(conditions, "ControlPlaneHealthy"),
        *_verdict(conditions, "Joined"),
    ]


def _health_of_managed(managed: ManagedCluster) -> list[tuple[bool | None, str]]:
    verdicts: list[tuple[bool | None, str]] = []
    if managed.metadata.deletion_timestamp is not None:
        verdicts.append((False, "it is being removed from the hub"))
    if not managed.spec.hub_accepts_client:
        verdicts.append((False, "the hub has not accepted it"))
    return [*verdicts, *_verdict(managed.status.conditions, "ManagedClusterConditionAvailable")]


def _verdict(conditions: Iterable[Condition], kind: str) -> list[tuple[bool | None, str]]:
    found = condition(conditions, kind)
    if found is None:
        return []
    if found.true:
        return [(True, "")]
    said = found.message or found.reason or found.status
    return [(False if found.status == "False" else None, f"{kind}: {said}")]
